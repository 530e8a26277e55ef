# What people here run. Every target sets up first what it needs, except gpu-test: it uses the machine's own Python.
PYTHON ?= python3
BIN := .venv/bin
WHEELS := dist
# On a terminal pip shows what it downloads. A process substitution keeps pip's exit status, a pipe would not.
SHELL := /bin/bash
QUIET := $(if $(shell test -t 2 && echo terminal),,-qq)
NEW := $(if $(QUIET),,> >(grep --line-buffered -v "already satisfied"))
.PHONY: setup fmt check wheels test test-all chaos cluster-test screenshots demo serve bench image image-test gpu-bench gpu-test gpu-sanitize

setup: .venv/ready
.venv/ready: pyproject.toml client/pyproject.toml constraints.txt
	@echo "Installing the versions of constraints.txt into .venv, which takes minutes: most of it is PyTorch."
	@echo "Afterwards .venv has 3 GB, and more with CUDA. Nothing outside of it is changed; rm -r .venv undoes it."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq 'pip>=25.1'
	@$(BIN)/pip install $(QUIET) --constraint constraints.txt --editable client --editable . --group dev $(NEW)
	@touch $@
fmt: setup
	$(BIN)/ruff format && $(BIN)/ruff check --fix && $(BIN)/python -m tools.generate_sdk && $(BIN)/python -m tools.generate_grpc
check: setup
	$(BIN)/ruff format --check && $(BIN)/ruff check && $(BIN)/mypy && $(BIN)/python -m tools.generate_sdk --check && $(BIN)/python -m tools.generate_grpc --check
	$(BIN)/python -m tools.check_words
	@git ls-files '*.py' | xargs wc -l | awk '$$1 > 500 && $$2 != "total" { print "long, is it one idea? " $$2 ": " $$1 " lines" }'
	$(BIN)/bandit -qr -c pyproject.toml client/warpcall kernels/warpcall_kernels service/warpcall_service service/warpcall_bench launchers
	$(BIN)/pip-licenses >/dev/null
	$(BIN)/hadolint Dockerfile && $(BIN)/check-jsonschema -q --builtin-schema vendor.compose-spec docker/compose*.yaml
	$(BIN)/kubernetes-validate --quiet --strict $(filter-out %/kustomization.yaml,$(wildcard docker/kubernetes/*/*.yaml))
wheels: setup
	@$(BIN)/pip wheel -qq --no-deps --wheel-dir $(WHEELS) ./client
	@ls $(WHEELS)/*.whl
PYTEST = $(BIN)/pytest -n auto --dist loadfile --max-worker-restart 1
test: setup
	$(PYTEST) -m "not slow" $(ARGS)
test-all: setup
	$(PYTEST) $(ARGS)
chaos: setup
	WARPCALL_TEST_KILLS=100 WARPCALL_TEST_PARTITIONS=20 REQUIRE_NETWORKS=yes WARPCALL_TEST_BEFORE=migration \
		$(BIN)/pytest -n0 -s tests/chaos $(ARGS)
cluster-test: setup
	$(BIN)/python -m tests.chaos.end_to_end $(ARGS)
screenshots: setup
	$(BIN)/python -m tests.pages.screenshots screenshots $(ARGS)
demo: setup
	@$(BIN)/python -m demo.demo $(ARGS)
# A server for oneself runs uploads in the sandbox. One that others reach, or that shares a database, does what its
# operator says. The server itself checks the sandbox more closely, and again every minute.
OTHERS = $(findstring --insecure,$(ARGS))$(findstring --calls-only,$(ARGS))$(WARPCALL_INSECURE)$(WARPCALL_DATABASE_URL)
ifeq ($(WARPCALL_UPLOADS)$(strip $(OTHERS)),)
SANDBOX = bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc true
endif
serve: setup
	@$(or $(SANDBOX),true) 2>/dev/null || printf '%s\n' \
		"Uploads cannot run yet, because bubblewrap does not work here. One of these commands changes that:" \
		"    sudo apt-get install bubblewrap libseccomp2 uidmap" \
		"    WARPCALL_UPLOADS=trusted make serve    # uploaded code then has the server's rights"
	@$(if $(SANDBOX),WARPCALL_UPLOADS=sandboxed) $(BIN)/warpcall-server $(ARGS)
bench: setup
	$(BIN)/python -m bench.service_speed $(ARGS)
image: setup
	$(BIN)/python docker/image.py $(or $(TARGET),cuda)
image-test: setup
	$(BIN)/python docker/image.py cpu
	$(BIN)/pytest tests/image --image localhost/warpcall:cpu $(ARGS)
# What runs on a GPU takes the machine's own Python and its packages. The sandbox needs absolute paths.
ON_GPU = PYTHONPATH="$(CURDIR)/client:$(CURDIR)/kernels:$(CURDIR)/service$${PYTHONPATH:+:$$PYTHONPATH}"
gpu-sanitize:
	for tool in memcheck racecheck; do for part in 1 2 3 4 5 6 7 8; do echo $$tool $$part; done; done | \
		PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(ON_GPU) xargs -P 16 -L 1 sh -c \
		'compute-sanitizer --tool $$0 --error-exitcode 1 $(PYTHON) -m tests.gpu.every_kernel --part $$1/8'
gpu-bench:
	for name in transfers "service_speed --quick" programs crowd; do \
		$(ON_GPU) $(PYTHON) -m bench.$$name || failed=1; done; exit $$failed
# These tests come last and alone, because other processes on the GPU change the times and the free memory that they read.
# pytest ends with 5 if ARGS choose none of them.
ALONE := tests/gpu/test_measuring.py tests/gpu/test_uploads.py tests/gpu/test_cheats.py tests/gpu/test_verified_cheats.py
gpu-test:
	$(ON_GPU) $(PYTHON) -m pytest tests/kernels tests/gpu $(addprefix --ignore=,$(ALONE)) \
		--device cuda $(if $(WORKERS),-n $(WORKERS)) $(ARGS)
	$(ON_GPU) $(PYTHON) -m pytest $(ALONE) --device cuda $(ARGS) || [ $$? = 5 ]
