"""NVIDIA's library of functions for devices, computed by numpy and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from warpcall_kernels.interpreter.dtypes import Array
from warpcall_kernels.interpreter.errors import CannotInterpret

Function = Callable[..., Array]

# Functions that numpy has under the same name, and under another one.
SAME = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "pow", "rint"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "isnan", "isinf"),
    *("fmin", "fmax", "fmod", "hypot", "copysign", "nextafter", "ldexp", "signbit", "fabs", "abs"),
)
RENAMED: Mapping[str, str] = {
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    "powi": "pow",
    "nearbyint": "rint",
    "llrint": "rint",
    "scalbn": "ldexp",
    "llabs": "abs",
    "finite": "isfinite",
    "isfinited": "isfinite",
    "isnand": "isnan",
    "isinfd": "isinf",
    "signbitd": "signbit",
    "fast_fdivide": "divide",
    **{
        f"{kind}{short}_rn": name
        for kind in "fd"
        for short, name in {
            "add": "add",
            "sub": "subtract",
            "mul": "multiply",
            "div": "divide",
            "rcp": "reciprocal",
            "sqrt": "sqrt",
        }.items()
    },
    **{
        f"{wide}2{whole}_{mode}": name
        for wide in ("float", "double")
        for whole in ("int", "uint", "ll", "ull")
        for mode, name in {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}.items()
    },
}
SPECIAL: Mapping[str, str] = {  # by torch's names
    "erf": "erf",
    "erfc": "erfc",
    "erfinv": "erfinv",
    "erfcx": "erfcx",
    "lgamma": "gammaln",
    "normcdf": "ndtr",
    "normcdfinv": "ndtri",
    "cyl_bessel_i0": "i0",
    "cyl_bessel_i1": "i1",
    **{f"{kind}{n}": f"bessel_{kind}{n}" for kind in "jy" for n in (0, 1)},
}
CONVERSIONS = {  # of whole numbers, and to fp32: the result is rounded to nearest
    "double2float_rn",
    *(
        f"{whole}2{wide}_rn"
        for whole in ("int", "uint", "ll", "ull")
        for wide in ("float", "double")
    ),
}


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once unless the numbers have 64 bits."""
    return a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)


def _special(name: str) -> Function:
    function = getattr(torch.special, name)

    def compute(x: Array) -> Array:
        wide = torch.from_numpy(np.ascontiguousarray(x, np.float64))
        found: Array = function(wide).numpy()
        return found

    return compute


def _round(x: Array) -> Array:
    """To the nearest whole number, ties away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(x.dtype.type(1), x), whole)


def _unsigned(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def _clz(x: Array) -> Array:
    spread = _unsigned(x)
    shift = 1
    while shift < 8 * x.itemsize:
        spread = spread | (spread >> spread.dtype.type(shift))
        shift *= 2
    return 8 * x.itemsize - np.bitwise_count(spread).astype(np.int32)


def _ffs(x: Array) -> Array:
    """The place of the lowest bit that is set, from 1 on; 0 if none is."""
    value = _unsigned(x)
    below = np.bitwise_count((value & (~value + value.dtype.type(1))) - value.dtype.type(1))
    return np.where(value == 0, 0, below.astype(np.int32) + 1)


def _mulhi(a: Array, b: Array) -> Array:
    wide = np.uint64 if a.dtype.kind == "u" else np.int64
    product: Array = (a.astype(wide) * b.astype(wide)) >> wide(32)
    return product


FUNCTIONS: Mapping[str, Function] = {
    **{name: getattr(np, name) for name in SAME},
    **{name: getattr(np, other) for name, other in RENAMED.items()},
    **{name: _special(other) for name, other in SPECIAL.items()},
    **{name: lambda x: x for name in CONVERSIONS},
    **dict.fromkeys(("fma", "fma_rn", "fmaf_rn"), fma),
    **dict.fromkeys(("rsqrt", "frsqrt_rn"), lambda x: 1 / np.sqrt(x)),
    **dict.fromkeys(("round", "llround"), _round),
    **dict.fromkeys(("clz", "clzll"), _clz),
    **dict.fromkeys(("ffs", "ffsll"), _ffs),
    **dict.fromkeys(("popc", "popcll"), lambda x: np.bitwise_count(_unsigned(x))),
    **dict.fromkeys(("mulhi", "umulhi"), _mulhi),
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "fdim": lambda x, y: np.where(x <= y, 0, x - y),
    "sinpi": lambda x: np.sin(np.pi * x.astype(np.float64)),
    "cospi": lambda x: np.cos(np.pi * x.astype(np.float64)),
    "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
    "norm3d": lambda *x: np.sqrt(sum(np.square(part) for part in x)),
    "norm4d": lambda *x: np.sqrt(sum(np.square(part) for part in x)),
}


def function_of(symbol: str) -> Function:
    """The function behind a symbol such as `__nv_expf`, `__nv_fast_expf` or `__nv_dadd_rn`.

    Raises:
        CannotInterpret: it is not among those that we compute.
    """
    name = symbol.removeprefix("__nv_")
    for known in (name, name.removesuffix("f"), name.removeprefix("fast_").removesuffix("f")):
        if known in FUNCTIONS:
            return FUNCTIONS[known]
    raise CannotInterpret(f"the function {symbol} of NVIDIA's libdevice")


def apply(symbol: str, arguments: list[Array], returns: np.dtype[Any]) -> Array:
    """The result of a function of the library."""
    if "_as_" in symbol:
        return np.ascontiguousarray(arguments[0]).view(returns)
    return function_of(symbol)(*arguments).astype(returns)
