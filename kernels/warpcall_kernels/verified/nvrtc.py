"""Compiles CUDA C++ with NVRTC, in this process and without a GPU. Options are ours: a source has none."""

from __future__ import annotations

import functools
import os
import re
import subprocess  # nosec B404
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

from warpcall_kernels.compile.architectures import Architecture
from warpcall_kernels.verified.plan import MOST_CUBIN_BYTES

FILE = "kernel.cu"  # the name of the source in messages
MOST_LOG_BYTES = 4096
# Headers of CUDA that are looked for by these names, and where a toolkit has them by default.
HEADERS = ("cudart", "cccl")
TOOLKIT = Path("/usr/local/cuda/include")
OPTIONS = ("-std=c++17", "--disable-warnings")
# Headers of C that kernels include out of habit. NVRTC has none, and knows most of their contents without.
INTEGERS = "#include <cuda/std/cstdint>\n"
FLOATS_H = """#pragma once
#define FLT_MIN 1.17549435e-38f
#define FLT_MAX 3.40282347e+38f
#define FLT_EPSILON 1.19209290e-7f
#define DBL_MIN 2.2250738585072014e-308
#define DBL_MAX 1.7976931348623157e+308
#define DBL_EPSILON 2.2204460492503131e-16
"""
LIMITS_H = """#pragma once
#define CHAR_BIT 8
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define LLONG_MIN (-9223372036854775807ll - 1)
#define LLONG_MAX 9223372036854775807ll
#define ULLONG_MAX 18446744073709551615ull
"""
STANDARD_HEADERS = {
    "stdint.h": INTEGERS,
    "cstdint": INTEGERS,
    "float.h": FLOATS_H,
    "cfloat": FLOATS_H,
    "limits.h": LIMITS_H,
    "climits": LIMITS_H,
    **{f"{name}.h": "" for name in ("assert", "math", "stddef", "stdio", "stdlib", "string")},
    **{f"c{name}": "" for name in ("assert", "math", "stddef", "stdio", "stdlib", "string")},
}
IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
# A variable in PTX, which has one on a line.
VARIABLE = re.compile(
    r"^(?:\.\w+ )*\.global (?:\.attribute\(.*?\) )?\.align \d+ \.\w+ ([\w$]+)[^;\n]*;\n",
    re.MULTILINE,
)
VERSION = re.compile(r"^\.version \S+", re.MULTILINE)
NEWEST_VERSION = re.compile(r"Unsupported \.version \S+ current version is '(\d+\.\d+)'")
NEWEST = 100  # compute capability for which Triton takes its newest ptxas
PTXAS_S = 120.0
MISSING = (
    "kernels in CUDA C++ need NVRTC, which this server has not: "
    'pip install --constraint constraints.txt ".[cuda-kernels]" installs it'
)
MOST_KEPT = 64  # cubins


class CudaCompileError(Exception):
    """A source that cannot be compiled. The text has the lines of the source."""


def compile_source(
    source: str,
    constants: Mapping[str, bool | int | float],
    target: Architecture,
    folders: tuple[str, ...] = (),
) -> bytes:
    """The cubin of a source, whose macros are the integers of `constants`; the last ones are kept.

    Kernels are compiled for exactly this GPU, "sm_90a" and not "sm_90", so that they may use all
    instructions that it has. Triton does so, too.

    Args:
        folders: where files of the author lie that the source includes. What NVRTC prints has the paths
            of files from there.

    Raises:
        CudaCompileError: the text has what NVRTC printed.
    """
    macros = [(name, int(value)) for name, value in constants.items() if isinstance(value, int)]
    cubin = _compiled(source, tuple(macros), target, folders)
    if len(cubin) > MOST_CUBIN_BYTES:
        raise CudaCompileError(
            f"its kernels have {len(cubin)} bytes of code, at most {MOST_CUBIN_BYTES} in one source"
        )
    return cubin


@functools.lru_cache(MOST_KEPT)  # the cases of a job have the same source and few macros
def _compiled(
    source: str,
    macros: tuple[tuple[str, int], ...],
    target: Architecture,
    folders: tuple[str, ...],
) -> bytes:
    nvrtc = _nvrtc()
    options = [
        f"--gpu-architecture={_architecture(target)}",
        *OPTIONS,
        *(f"--include-path={folder}" for folder in (*folders, *include_folders())),
        *(f"--define-macro={name}={value}" for name, value in macros),
    ]
    try:
        code = source.encode("ascii", "surrogatepass") if source.isascii() else source.encode()
    except UnicodeEncodeError:
        raise CudaCompileError("the source is no text in UTF-8") from None
    if b"\0" in code:
        raise CudaCompileError("the source has a byte that is 0")
    headers = [text.encode() for text in STANDARD_HEADERS.values()]
    header_names = [name.encode() for name in STANDARD_HEADERS]
    program = _checked(
        nvrtc.nvrtcCreateProgram(code, FILE.encode(), len(headers), headers, header_names)
    )
    try:
        (failed,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        if int(failed):
            log = _log(nvrtc, program)
            for folder in folders:
                log = log.replace(f"{folder}/", "")
            raise CudaCompileError(log or f"NVRTC says {failed.name}")
        cubin = _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if b".nv.global" in cubin:
        cubin = _without_unused(ptx.rstrip(b"\0").decode(), target) or cubin
    return cubin


def compiler() -> str:
    """The compiler and its version.

    Raises:
        CudaCompileError: it is not installed.
    """
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"NVRTC {major}.{minor}"


@functools.cache
def include_folders() -> tuple[str, ...]:
    """The folders with CUDA's headers: of the wheels beside NVRTC, otherwise those of a toolkit."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = [folder for name in HEADERS if (folder := find_nvidia_header_directory(name))]
    toolkit = [folder for folder in (TOOLKIT, TOOLKIT / "cccl") if folder.is_dir()]
    return tuple(found or map(str, toolkit))


@functools.cache
def _nvrtc() -> Any:
    """The module of NVRTC's functions.

    Raises:
        CudaCompileError: it is not installed.
    """
    try:
        from cuda.bindings import nvrtc

        _checked(nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError) as error:  # the module, or the library that it loads
        raise CudaCompileError(f"{MISSING} ({type(error).__name__})") from None
    return nvrtc


def _checked(answer: tuple[Any, ...]) -> Any:
    failed, *values = answer
    if int(failed):
        raise CudaCompileError(f"NVRTC failed: {failed.name}")
    return values[0] if values else None


def _text(program: Any, size: Any, get: Any) -> bytes:
    """One of the results of a compilation, by two functions of NVRTC."""
    made = bytearray(_checked(size(program)))
    _checked(get(program, made))
    return bytes(made)


def _without_unused(ptx: str, target: Architecture) -> bytes | None:
    """The cubin of a kernel without the variables in global memory that it does not use; None if it has none.

    CUDA's headers for cooperative groups define hundreds, and NVRTC keeps all. Triton's newest ptxas
    makes a cubin of the rest. If it is older than NVRTC it does not know the version of its PTX, but most
    likely all that is in it. Also None if it fails; the inspection then refuses the variables.
    """
    before, left = "", ptx
    while left != before:  # an initial value may name another variable
        before = left
        counts = Counter(IDENTIFIER.findall(before))
        unused = {name for name in VARIABLE.findall(before) if counts[name] == 1}
        left = "".join(
            line
            for line in before.splitlines(keepends=True)
            if not ((found := VARIABLE.match(line)) and found[1] in unused)
        )
    if left == ptx:
        return None
    cubin, printed = _assembled(left, target)
    if cubin is None and (newest := NEWEST_VERSION.search(printed)):
        left = VERSION.sub(f".version {newest[1]}", left, count=1)
        cubin, _ = _assembled(left, target)
    return cubin


def _assembled(ptx: str, target: Architecture) -> tuple[bytes | None, str]:
    """The cubin that Triton's newest ptxas makes, if it does, and what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        options = (f"--gpu-name={_architecture(target)}", source, "-o", made)
        done = subprocess.run(  # nosec B603
            [get_ptxas(NEWEST).path, *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=PTXAS_S,
        )
        return made.read_bytes() if done.returncode == 0 else None, done.stdout + done.stderr


def _architecture(target: Architecture) -> str:
    """The name for compilers, such as "sm_90a": code for exactly this GPU."""
    name: str = sm_arch_from_capability(target.capability)
    return name


def _log(nvrtc: Any, program: Any) -> str:
    """The first MOST_LOG_BYTES of what the compiler printed, in whole lines."""
    log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    text = log.rstrip(b"\0").strip()
    if len(text) > MOST_LOG_BYTES:
        end = text.rfind(b"\n", 0, MOST_LOG_BYTES)
        text = text[: MOST_LOG_BYTES if end < 0 else end]
    shown = text.decode(errors="replace")
    for folder in include_folders()[::-1]:  # the longer one first
        shown = shown.replace(f"{folder}{os.sep}", "")
    return shown
