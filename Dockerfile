# Two images from one file: `--target cuda` for machines with NVIDIA GPUs, `--target cpu` for laptops and CI.
# The CUDA runtime comes with torch's wheels, the driver from the host's NVIDIA container toolkit.
# docs/deploy.md tells how to run them.
ARG BASE_IMAGE=python:3.12-slim-bookworm

# What builds: pip, a C compiler, tini. Of these only tini is shipped.
FROM ${BASE_IMAGE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008 # they are of whichever Debian the base is
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev tini \
    && rm -rf /var/lib/apt/lists/*
# For those who have their packages elsewhere than on the public index.
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off
WORKDIR /src
RUN python3 -m venv /tools && /tools/bin/pip install 'pip==26.3' 'hatchling==1.33.0' \
    && python3 -m venv --without-pip /usr/lib/warpcall
COPY constraints.txt pyproject.toml ./
COPY client/pyproject.toml client/
COPY docker/needs.py docker/
RUN python3 docker/needs.py telemetry,grpc pyproject.toml client/pyproject.toml >needs.txt \
    && python3 docker/needs.py cuda-kernels pyproject.toml >needs-cuda.txt

# What others made. It weighs most and changes least: a layer of its own in the images.
FROM build AS libraries-cuda
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT
RUN sed -i '/^torch==/s/==/===/' constraints.txt \
    && /tools/bin/pip --python /usr/lib/warpcall/bin/python install -c constraints.txt -r needs.txt -r needs-cuda.txt \
    && find /usr/lib/warpcall/lib -type d \( -path '*/torch/include' -o -path '*/torch/test' \) \
        -prune -exec rm -r {} + \
    && find /usr/lib/warpcall/lib -path '*/torch/bin/*' ! -name torch_shm_manager -delete

FROM build AS libraries-cpu
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN sed -i '/^torch==/s/$/+cpu/' constraints.txt \
    && /tools/bin/pip --python /usr/lib/warpcall/bin/python install -c constraints.txt -r needs.txt \
        ${TORCH_CPU_INDEX:+--extra-index-url "${TORCH_CPU_INDEX}"} \
    && find /usr/lib/warpcall/lib -type d \( -path '*/torch/include' -o -path '*/torch/test' \
            -o -path '*/triton/backends/*/bin' -o -path '*/triton/backends/*/include' \
            -o -path '*/triton/backends/*/lib' \) -prune -exec rm -r {} + \
    && find /usr/lib/warpcall/lib -path '*/torch/bin/*' ! -name torch_shm_manager -delete

# What is ours: two wheels, installed beside.
FROM build AS ours
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT
COPY README.md ./
COPY client client
COPY kernels kernels
COPY docs docs
COPY examples examples
COPY service service
RUN /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./client . \
    && /tools/bin/pip --python /usr/lib/warpcall/bin/python install --no-deps --prefix /ours /wheels/*.whl

# Kernels compiled ahead, and Triton's launcher, which is C: no compiler is needed where they run.
# The launcher is linked against the driver, which only the machine that runs it has: a name will do.
FROM libraries-cuda AS kernels
COPY --from=ours /ours /usr/lib/warpcall
ARG GPUS="sm_90"
ENV TRITON_CACHE_DIR=/usr/lib/warpcall/share/warpcall/triton TRITON_STORE_BINARY_ONLY=1
RUN mkdir /driver && gcc -shared -x c /dev/null -Wl,-soname,libcuda.so.1 -o /driver/libcuda.so.1 \
    && { TRITON_LIBCUDA_PATH=/driver /usr/lib/warpcall/bin/python -c \
        'from triton.backends.nvidia.driver import CudaUtils; CudaUtils()' 2>/dev/null || true; } \
    && ls "${TRITON_CACHE_DIR}"/*/cuda_utils.*.so \
    && for gpu in ${GPUS}; do /usr/lib/warpcall/bin/warpcall-server warm --gpu "${gpu}"; done \
    && find "${TRITON_CACHE_DIR}" -name '*.source' -delete

FROM ${BASE_IMAGE} AS runtime
ARG VERSION=unknown REVISION=unknown
LABEL org.opencontainers.image.title="Warpcall" \
    org.opencontainers.image.description="GPU kernels as a service: tensors up, kernel, tensors back" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
# Uploaded code runs in bubblewrap, with a filter that libseccomp makes and an account that newuidmap gives it. As a
# program of root newuidmap needs more capabilities in a container than these two.
# hadolint ignore=DL3008 # they are of whichever Debian the base is
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap libcap2-bin libseccomp2 uidmap \
    && rm -rf /var/lib/apt/lists/* \
    && chmod u-s /usr/bin/newuidmap /usr/bin/newgidmap \
    && setcap cap_setuid=ep /usr/bin/newuidmap \
    && setcap cap_setgid=ep /usr/bin/newgidmap
RUN groupadd --gid 10001 warpcall \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/warpcall \
        --shell /usr/sbin/nologin warpcall \
    && echo warpcall:20000:40000 > /etc/subuid && cp /etc/subuid /etc/subgid \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/warpcall \
    && install -d -o 10001 -g 10001 -m 0755 /var/cache/warpcall /run/warpcall
COPY --from=build /usr/bin/tini-static /usr/bin/tini
ENV PATH=/usr/lib/warpcall/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    WARPCALL_HOST=0.0.0.0 \
    WARPCALL_DIAGNOSE=true \
    WARPCALL_DATA_DIR=/var/lib/warpcall
WORKDIR /var/lib/warpcall
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# A server that compiles its kernels first is not ready for minutes. Another port, or TLS: set WARPCALL_URL.
HEALTHCHECK --interval=30s --timeout=10s --start-period=900s --retries=3 CMD ["warpcall", "health"]
ENTRYPOINT ["tini", "--", "warpcall-server"]

FROM runtime AS cpu
COPY --from=libraries-cpu /usr/lib/warpcall /usr/lib/warpcall
COPY --from=ours /ours /usr/lib/warpcall

FROM runtime AS cuda
COPY --from=libraries-cuda /usr/lib/warpcall /usr/lib/warpcall
COPY --from=kernels /usr/lib/warpcall/share/warpcall /usr/lib/warpcall/share/warpcall
COPY --from=ours /ours /usr/lib/warpcall
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_DIR=/var/cache/warpcall/triton \
    TRITON_CACHE_MANAGER=warpcall_kernels.compile.cache:ShippedCache \
    TRITON_STORE_BINARY_ONLY=1 \
    WARPCALL_START_TIMEOUT_S=900 \
    WARPCALL_WARM=true
