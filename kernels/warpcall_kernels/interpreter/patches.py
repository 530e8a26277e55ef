"""Repairs Triton's interpreter in place: `install()`.

The stock interpreter (Triton 3.7) holds bf16 as uint16 and so computes nonsense with it, truncates
where a GPU rounds, ignores `device_assert`, treats NaN in comparisons, minima and maxima as numpy
does, and lets a kernel read and write wherever it likes. Here:

- bf16 and fp8 are ml_dtypes arrays, which round to nearest, ties to even;
- every access is checked: a lane that is not masked off and leaves the tensors given to the kernel
  raises IndexError (a GPU would hide most of these);
- `tl.dot` of fp32 rounds its operands to tf32 unless asked otherwise, as a GPU does;
- `device_assert` asserts, and libdevice functions are those of numpy and torch;
- there is an active driver, and `triton.autotune` takes its first configuration;
- an error in a kernel reaches the caller as it was raised;
- the front end runs once for each kind of operation: see replay.py;
- a reduction by a function of the kernel combines neighbouring slices, not one number after another;
- Triton 3.6 bounds loops by tensors with numpy from 2.4 on too;
- what only a GPU can run raises CannotInterpret.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import triton.language as tl
from triton.language.extra import cuda
from triton.language.extra import libdevice as generic_libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter as stock

from warpcall_kernels.interpreter import launches, reductions, replay
from warpcall_kernels.interpreter.builder import CheckedBuilder, Options
from warpcall_kernels.interpreter.dtypes import np_dtype, set_handle
from warpcall_kernels.interpreter.errors import CannotInterpret

_stock_patch_lang = stock._patch_lang
_stock_rewrite = stock.FunctionRewriter.rewrite_ast
# Parts of the language that the interpreter replaces during a launch, and that are no builtins.
_REPLACED = {
    getattr(tl, name): name
    for name in (
        *("range", "static_range", "static_assert", "static_print"),
        *("multiple_of", "max_contiguous", "max_constancy", "reduce", "associative_scan"),
    )
}
_UNKNOWN = ("dot_scaled", "map_elementwise")  # their front end works for a compiler only
_installed = False


def install() -> None:
    """Replace the parts of `triton.runtime.interpreter` that are wrong; for this whole process.

    Raises:
        RuntimeError: Triton was imported without TRITON_INTERPRET=1.
    """
    global _installed
    if _installed:
        return
    is_interpreting = isinstance(tl.sum, stock.InterpretedFunction)
    if not is_interpreting:
        raise RuntimeError("Triton was imported without TRITON_INTERPRET=1: it interprets nothing")
    stock._get_np_dtype = np_dtype
    stock._patch_lang = _patch_lang
    stock._patch_attr = _patch_attr
    stock.TensorHandle.__init__ = set_handle
    stock.FunctionRewriter.rewrite_ast = _rewrite
    stock.interpreter_builder.__class__ = CheckedBuilder
    stock.interpreter_builder.options = Options()
    reductions.install()
    launches.install()
    _installed = True


class _Everything:
    """Stands for a kernel that sees all of the language, so that one patch serves its callees."""

    __globals__: ClassVar[dict[str, Any]] = {"tl": tl, "core": tl.core}


class _Nested:
    """The scope of a device function: the kernel that calls it has patched the language already."""

    def restore(self) -> None: ...


class _Changes:
    """What the interpreter changes in Triton's language during a launch.

    To find the names takes a millisecond, to change them a tenth of it.
    """

    PACKAGES: ClassVar[tuple[Any, ...]] = (
        *(tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base),
        *(cuda, cuda_libdevice, generic_libdevice),
    )

    def __init__(self) -> None:
        scope = _stock_patch_lang(_Everything)
        scope.set_attr(tl.tensor, "__index__", lambda self: self.handle.data.item())
        for name in ("__bool__", "__index__"):
            scope.set_attr(tl.tensor, name, _noted(getattr(tl.tensor, name)))
        for module in (cuda, cuda_libdevice):
            stock._patch_builtin(module, stock.interpreter_builder, scope)
        for name in dir(generic_libdevice):
            if hasattr(cuda_libdevice, name) and not name.startswith("_"):
                scope.set_attr(generic_libdevice, name, getattr(cuda_libdevice, name))
        first: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        for owner, name, original in scope._changes:
            first.setdefault((id(owner), name), (owner, name, original))
        self._changes = [
            (owner, name, original, getattr(owner, name))
            for owner, name, original in first.values()
        ]
        scope.restore()
        self._names = self._count()

    def _count(self) -> int:
        return sum(len(vars(package)) for package in self.PACKAGES)

    def are_complete(self) -> bool:
        """Whether Triton's language is as it was when they were found: a program may add to it."""
        return self._names == self._count() and all(
            getattr(owner, name, stock._MISSING) is original
            for owner, name, original, _ in self._changes
        )

    def apply(self) -> None:
        for owner, name, _, changed in self._changes:
            setattr(owner, name, changed)

    def restore(self) -> None:
        for owner, name, original, _ in self._changes:
            if original is stock._MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


_changes: _Changes | None = None
_patched = False


class _Outermost:
    def __init__(self) -> None:
        global _changes, _patched
        if _changes is None or not _changes.are_complete():
            _changes = _Changes()
        self.changes = _changes
        self.changes.apply()
        _patched = True

    def restore(self) -> None:
        global _patched
        self.changes.restore()
        _patched = False


def _patch_lang(fn: Any) -> _Nested | _Outermost:
    """Once a launch; the stock interpreter patches (and leaks) again for each device function."""
    return _Nested() if _patched else _Outermost()


def _patch_attr(package: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    scope.set_attr(package, name, _refused(name) if name in _UNKNOWN else replay.replayed(member))


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise CannotInterpret(f"Triton's interpreter has no {name}")

    return refuse


def _noted(read: Any) -> Any:
    def reading(tensor: Any) -> Any:
        replay.note_read(tensor)
        return read(tensor)

    return reading


def _rewrite(self: Any) -> Any:
    """Rewrite a function for the interpreter, and what its module imports of the language by name.

    The interpreter replaces `exp` in `tl.math`. A module that has imported it from there, as in
    `from triton.language.math import exp`, would call the compiler's function.
    """
    scope = self.fn.__globals__
    for name, value in list(scope.items()):
        if getattr(value, "__module__", None) == generic_libdevice.__name__:
            value = getattr(cuda_libdevice, getattr(value, "__name__", name), value)
        if _is_known(value):
            scope[name] = _late(_REPLACED[value])
        elif tl.core.is_builtin(value) and getattr(value, "__module__", "").startswith("triton."):
            scope[name] = replay.replayed(value)
    # Up to Python 3.12, `ast.parse` raises SystemError if it is called again by what the garbage
    # collector runs meanwhile. A finalizer that reports an exception does: tracebacks are parsed.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _stock_rewrite(self)
    finally:
        if collects:
            gc.enable()


def _is_known(value: Any) -> bool:
    try:
        return value in _REPLACED
    except TypeError:  # it has no hash
        return False


def _late(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)
