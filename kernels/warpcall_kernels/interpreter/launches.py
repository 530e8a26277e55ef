"""Launches of kernels: their arguments, their errors, and the configuration of an autotuner."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import triton
import triton.language as tl
import triton.testing
from triton.runtime import driver
from triton.runtime import interpreter as stock
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import JITFunction, _normalize_ty

from warpcall_kernels.interpreter.driver import (
    PRETENDED_MS,
    CpuDriver,
    do_bench,
    do_bench_cudagraph,
)
from warpcall_kernels.interpreter.dtypes import np_dtype
from warpcall_kernels.interpreter.errors import CannotInterpret
from warpcall_kernels.interpreter.memory import memory, named_tensors

# Types of numbers that a kernel may annotate.
NUMBERS: dict[str, Any] = {
    "i1": tl.int1,
    "i8": tl.int8,
    "i16": tl.int16,
    "i32": tl.int32,
    "i64": tl.int64,
    "u8": tl.uint8,
    "u16": tl.uint16,
    "u32": tl.uint32,
    "u64": tl.uint64,
    "fp16": tl.float16,
    "bf16": tl.bfloat16,
    "fp32": tl.float32,
    "fp64": tl.float64,
}
_FOLDERS = (f"{Path(triton.__file__).parent}/", f"{Path(__file__).parent}/")
_stock_convert = stock._implicit_cvt
_stock_interpret = stock.InterpretedFunction.run
_stock_compile = JITFunction.run


def install() -> None:
    """Replace the launches of Triton's interpreter, and give Triton a driver."""
    stock.GridExecutor = CheckedExecutor
    stock._implicit_cvt = _convert
    stock.InterpretedFunction.run = _interpret
    JITFunction.run = _compile
    Autotuner._bench = _bench
    triton.testing.do_bench = do_bench
    triton.testing.do_bench_cudagraph = do_bench_cudagraph
    driver.set_active(CpuDriver())


class CheckedExecutor(stock.GridExecutor):  # type: ignore[misc]  # triton has no types
    """Runs a grid; knows the tensors that it was given, and raises the kernel's own errors."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        grid: Any = self.grid  # type: ignore[has-type]  # triton has no types
        if callable(grid):  # it gets numbers, as on a GPU, and not the interpreter's tensors
            known = {name: value for name, value in kwargs.items() if name in self.arg_names}
            grid = grid(inspect.getcallargs(self.fn, *args, **known))
        self.grid = tuple(map(int, grid))
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0")
                super().__call__(*args, **kwargs)
        except InterpreterError as error:
            cause: BaseException = error
            while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            raise cause.with_traceback(_without_interpreter(cause.__traceback__)) from None

    def _init_args_hst(self, args: Any, kwargs: Any) -> Any:
        host_args, host_kwargs = super()._init_args_hst(args, kwargs)
        named = [*zip(self.arg_names, host_args, strict=False), *host_kwargs.items()]
        memory.allow([pair for name, value in named for pair in named_tensors(name, value)])
        types = self.fn.__annotations__
        host_args = [
            _annotated(value, types.get(name))
            for name, value in zip(self.arg_names, host_args, strict=False)
        ]
        return host_args, {n: _annotated(value, types.get(n)) for n, value in host_kwargs.items()}


def _without_interpreter(shown: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of Triton and of this package, if others are left.

    Its last line is then the line of the kernel that is at fault.
    """
    frames = []
    part = shown
    while part is not None:
        if not part.tb_frame.f_code.co_filename.startswith(_FOLDERS):
            frames.append(part)
        part = part.tb_next
    found = None
    for part in reversed(frames):
        found = TracebackType(found, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return found or shown


class NotCompiled:
    """What `kernel.warmup(...)` returns: registers and the like are known of compiled kernels only."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python looks for these, and can do without
            raise AttributeError(name)
        raise CannotInterpret(f"{name} of a compiled kernel")


def _annotated(argument: Any, annotation: Any) -> Any:
    """A number in the type that the kernel annotates, as a compiled kernel gets it."""
    kind = NUMBERS.get(_normalize_ty(annotation)) if annotation is not None else None
    if kind is None or type(argument) not in (bool, int, float):
        return argument
    return tl.tensor(TensorHandle(np.array([argument]).astype(np_dtype(kind)), kind), kind)


def _convert(argument: Any) -> Any:
    """As the stock one, which fails for a bool, and leaves a float as Python's with 64 bits."""
    if isinstance(argument, bool):
        return tl.tensor(TensorHandle(np.array([argument]), tl.int1), tl.int1)
    if isinstance(argument, float):
        return tl.tensor(TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
    return _stock_convert(argument)


def _interpret(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    if warmup:
        return NotCompiled()
    return _stock_interpret(self, *args, grid=grid, warmup=warmup, **kwargs)


def _compile(self: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(driver.active, CpuDriver):
        raise CannotInterpret(f"{self.__name__}, which is not a kernel of triton.jit")
    return _stock_compile(self, *args, **kwargs)


def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """Time no configuration: all times are equal, so that the first one is taken."""
    conflicts = meta.keys() & config.kwargs.keys()
    if conflicts:
        raise ValueError(f"Conflicting meta-parameters: {', '.join(conflicts)}.")
    return [PRETENDED_MS] * 3
