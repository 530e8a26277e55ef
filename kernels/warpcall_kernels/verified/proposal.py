"""Proposes a declaration of launches from what was recorded: numbers become expressions over sizes.

An expression is taken if it has the value of the launch in all cases and configurations that were
recorded. What has none stays a number, with a remark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.declaration import CODES
from warpcall_kernels.verified.plan import MOST_CHOICES, Copy, Fill, Launch, Place
from warpcall_kernels.verified.record import Recording
from warpcall_kernels.verified.traced import NotedLaunch

DEFAULTS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}  # of Triton's options
MOST_ATOMS = 60  # sizes that expressions are made of


class _NotDeclarable(Exception):
    """A declaration cannot say this. The text is a remark."""


@dataclass(frozen=True)
class _Sample:
    """One launch in one case with one configuration."""

    recording: Recording
    note: NotedLaunch
    actions: tuple[Any, ...]


def propose(recordings: Sequence[Recording]) -> dict[str, Any]:
    """A declaration of the launches that were recorded of one function in some cases.

    Returns:
        `declaration`, for `Declaration.from_json`, or None if what the function does cannot be
        declared; and `remarks`, sentences about what has no expression, or why there is none.
    """
    remarks: list[str] = []
    try:
        declaration = _declaration(recordings, remarks)
    except _NotDeclarable as error:
        return {"declaration": None, "remarks": [str(error)]}
    if len(recordings) == 1:
        remarks.append(
            "It follows from one case: verify cases of several shapes, and expressions that have the "
            "same value by chance can be distinguished."
        )
    return {"declaration": declaration, "remarks": remarks}


def _declaration(recordings: Sequence[Recording], remarks: list[str]) -> dict[str, Any]:
    launched = [_launches_of(one) for one in recordings]
    kernels = [[notes[0].kernel for _, notes in one] for one in launched]
    if not kernels or not kernels[0] or any(not notes for one in launched for _, notes in one):
        raise _NotDeclarable("It launches nothing in a case, or the launches were declared.")
    if any(names != kernels[0] for names in kernels):
        raise _NotDeclarable(
            "The cases launch different kernels: each needs a declaration of its own."
        )
    tuned = [i for i, (_, notes) in enumerate(launched[0]) if notes[0].configuration]
    configurations: list[dict[str, Any]] = []
    if tuned:
        for note in (note for one in launched for note in one[tuned[0]][1]):
            given = (note.configuration or {}).items()
            chosen = {name: value for name, value in given if value is not None}
            if chosen not in configurations:  # one may compile in some cases only
                configurations.append(chosen)
        if len(tuned) > 1:
            remarks.append(
                f"{len(tuned)} launches have configurations of their own, and a declaration has one "
                f"list: it is that of {kernels[0][tuned[0]]}, and the others have their first one."
            )
    scratch = _Scratch(recordings)
    launches = []
    for number, kernel in enumerate(kernels[0]):
        choices = MOST_CHOICES if tuned[:1] == [number] else 1
        samples = [
            _Sample(recording, note, step)
            for recording, one in zip(recordings, launched, strict=True)
            for note, step in _pairs(one[number], choices)
        ]
        own = configurations if tuned[:1] == [number] else []
        launches.append(_launch(f"launches[{number}]", kernel, samples, own, scratch, remarks))
    declared: dict[str, Any] = {}
    if scratch.found:
        declared["scratch"] = scratch.to_json(remarks)
    if configurations:
        declared["configurations"] = configurations
    return {**declared, "launches": launches}


def _pairs(
    step: tuple[Any, tuple[NotedLaunch, ...]], most: int
) -> Iterator[tuple[NotedLaunch, tuple[Any, ...]]]:
    choices, notes = step
    for note, choice in list(zip(notes, choices, strict=False))[:most]:
        yield note, choice.actions


def _launches_of(recording: Recording) -> list[tuple[Any, tuple[NotedLaunch, ...]]]:
    """The steps with a launch, and the launches as the source has them."""
    found = []
    for step, notes in zip(recording.plan.steps, recording.notes, strict=True):
        if any(isinstance(action, Copy) for choice in step for action in choice.actions):
            raise _NotDeclarable(
                "It copies a tensor, such as by contiguous() or to(), which a declaration cannot: let "
                "the kernel read the strides, or convert."
            )
        if not any(isinstance(action, Launch) for choice in step for action in choice.actions):
            raise _NotDeclarable(
                "It fills memory after its last launch, which a declaration cannot."
            )
        if len(notes) == len(step):
            found.append((step, notes))
        else:
            found.append((step, ()))
    return found


def _launch(
    member: str,
    kernel: str,
    samples: Sequence[_Sample],
    configurations: Sequence[dict[str, Any]],
    scratch: _Scratch,
    remarks: list[str],
) -> dict[str, Any]:
    first = samples[0].note
    if not first.own:
        raise _NotDeclarable(f"The kernel {kernel} is not in the source: declare it there.")
    names = set(configurations[0]) if configurations else set()
    finder = _Finder(samples, names)
    arguments: dict[str, Any] = {}
    for name in first.arguments:
        if name in first.computed:  # by heuristics
            continue
        values = [sample.note.arguments[name] for sample in samples]
        where = f"{member}.arguments.{name}"
        if name in names:
            arguments[name] = name
        elif (
            found := _argument(where, name, values, samples, finder, scratch, remarks)
        ) is not ...:
            arguments[name] = found
    launch: dict[str, Any] = {"kernel": first.name, "grid": [], "arguments": arguments}
    axes = max(max((i for i in range(3) if s.note.grid[i] > 1), default=0) for s in samples) + 1
    for axis in range(axes):
        numbers = [sample.note.grid[axis] for sample in samples]
        where = f"{member}.grid[{axis}]"
        launch["grid"].append(_number(where, numbers, finder, remarks, constant=False))
    for name, usual in DEFAULTS.items():
        given = [sample.note.options.get(name) for sample in samples]
        if name not in names and any(value != usual for value in given) and given[0] is not None:
            launch[name] = _number(f"{member}.{name}", given, finder, remarks, constant=True)
    launched = [a for s in samples for a in s.actions if isinstance(a, Launch)]
    for name in ("early", "cooperative"):
        if any(getattr(one, name) for one in launched):
            launch[name] = True
    for sample in samples:
        scratch.note_fills(sample)
    return launch


def _argument(
    where: str,
    name: str,
    values: Sequence[Any],
    samples: Sequence[_Sample],
    finder: _Finder,
    scratch: _Scratch,
    remarks: list[str],
) -> Any:
    """The expression of an argument; Ellipsis if the kernel's default says it."""
    if any(isinstance(value, Place) for value in values):
        return _tensor(where, name, values, samples, scratch)
    first = values[0]
    note = samples[0].note
    if name in note.defaults and all(value == note.defaults[name] for value in values):
        return ...
    if all(value is None for value in values):
        return None
    if all(type(value) in (int, float, bool) for value in values):
        return _number(where, values, finder, remarks, constant=name in note.constants)
    codes = [_code(value) for value in values]
    if all(codes):
        return _dtype(where, codes, samples)
    given = [sample.recording.params for sample in samples]
    plain = isinstance(first, tuple) and all(type(entry) is int for entry in first)
    for param in given[0] if plain else ():
        if all(params.get(param) == value for params, value in zip(given, values, strict=True)):
            return param
    raise _NotDeclarable(
        f"{where} is {first!r:.60}: a declaration has numbers, tensors and dtypes only"
        + ("." if name in note.constants else ", so pass its entries one by one.")
    )


def _number(
    where: str, values: Sequence[Any], finder: _Finder, remarks: list[str], *, constant: bool
) -> Any:
    """An expression of these values, or the first of them with a remark.

    Args:
        constant: whether it may be a number that the author has written, which is then preferred.
    """
    same = all(value == values[0] and type(value) is type(values[0]) for value in values)
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise _NotDeclarable(f"{where} is {values[0]}: a declaration has finite numbers only.")
    found = finder.find(values, strides="stride" in where)
    small = values[0] in (0, 1) and found not in finder.params
    if same and (small or (constant and found not in finder.params)):
        return values[0]
    if found is not None:
        return found
    if not same:
        shown = ", ".join(dict.fromkeys(map(str, values)))
        remarks.append(f"{where} is {shown:.100} and has no simple expression: write one.")
    elif not constant and type(values[0]) is int and finder.cases == 1:
        remarks.append(f"{where} is {values[0]} in this case and has no simple expression.")
    return values[0]


def _tensor(
    where: str,
    name: str,
    values: Sequence[Any],
    samples: Sequence[_Sample],
    scratch: _Scratch,
) -> str:
    found = {
        scratch.name(where, name, value, sample.recording)
        for value, sample in zip(values, samples, strict=True)
        if value is not None
    }
    if len(found) > 1:
        raise _NotDeclarable(f"{where} is another tensor by case: {', '.join(sorted(found))}.")
    (tensor,) = found
    if any(
        v is None and tensor in s.recording.inputs for v, s in zip(values, samples, strict=True)
    ):
        raise _NotDeclarable(f"{where} is {tensor} in some cases and null in others.")
    return tensor


def _code(value: Any) -> str:
    """The code of a dtype of Triton; empty for something else."""
    name = {"int1": "bool", "fp64": "float64", "fp32": "float32", "fp16": "float16"}
    name |= {"bf16": "bfloat16"}
    text = str(getattr(value, "name", ""))
    wanted = f"torch.{name.get(text, text)}"
    return next((code for dtype, code in CODES.items() if str(dtype) == wanted), "")


def _dtype(where: str, codes: Sequence[str], samples: Sequence[_Sample]) -> str:
    for name in (*samples[0].recording.inputs, *samples[0].recording.outputs):
        if [_dtype_of(sample.recording, name) for sample in samples] == [*codes]:
            return f"{name}.dtype"
    if len({*codes}) > 1:
        raise _NotDeclarable(f"{where} is another dtype by case, which is that of no tensor.")
    return codes[0]


def _dtype_of(recording: Recording, name: str) -> str:
    tensors: Mapping[str, Tensor | Meta] = (
        recording.inputs if name in recording.inputs else recording.outputs
    )
    return CODES.get(tensors[name].dtype, "") if name in tensors else ""


class _Scratch:
    """The names of tensors, and which memory is scratch memory."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings
        self.found: dict[
            str, dict[int, int]
        ] = {}  # buffers by name, by the number of the recording
        self._fills: dict[str, list[Fill]] = {}

    def name(self, where: str, argument: str, place: Place, recording: Recording) -> str:
        """The name of a tensor; memory that is no input and no output becomes scratch memory."""
        buffer = recording.plan.buffers[place.buffer]
        outputs = dict(zip(recording.plan.outputs, recording.outputs, strict=True))
        if place in outputs:
            return outputs[place]
        if place.offset or any(place.buffer == one.buffer for one in outputs):
            raise _NotDeclarable(
                f"{where} begins within a tensor: pass the whole tensor, and the offset as a number."
            )
        if buffer.input:
            return buffer.input
        number = self._recordings.index(recording)
        for name, buffers in self.found.items():
            if buffers.get(number, -1) == place.buffer:
                return name
        name = self._free(argument, number)
        self.found.setdefault(name, {})[number] = place.buffer
        return name

    def note_fills(self, sample: _Sample) -> None:
        """Take the fills before a launch for those of scratch memory."""
        number = self._recordings.index(sample.recording)
        for action in sample.actions:
            if not isinstance(action, Fill):
                continue
            names = [n for n, b in self.found.items() if b.get(number, -1) == action.place.buffer]
            nbytes = sample.recording.plan.buffers[action.place.buffer].nbytes
            if not names or action.place.offset or action.count * action.nbytes != nbytes:
                raise _NotDeclarable(
                    "It fills an output, or a part of a tensor: a declaration fills scratch memory as "
                    "a whole only, so let a kernel do it."
                )
            self._fills.setdefault(names[0], []).append(action)

    def to_json(self, remarks: list[str]) -> dict[str, Any]:
        """The member `scratch`."""
        result = {}
        for name, buffers in self.found.items():
            recordings = [self._recordings[number] for number in buffers]
            tensors = [r.allocated[b] for r, b in zip(recordings, buffers.values(), strict=True)]
            finder = _Finder([_Sample(r, r.notes[0][0], ()) for r in recordings], set())
            shapes = [tuple(t.shape) if t.is_contiguous() else (t.numel(),) for t in tensors]
            if len({len(shape) for shape in shapes}) > 1:
                shapes = [(math.prod(shape),) for shape in shapes]
            where = f"scratch.{name}.shape"
            one: dict[str, Any] = {
                "dtype": CODES[tensors[0].dtype],
                "shape": [
                    _number(
                        f"{where}[{axis}]",
                        [s[axis] for s in shapes],
                        finder,
                        remarks,
                        constant=False,
                    )
                    for axis in range(len(shapes[0]))
                ],
            }
            if name in self._fills:
                one["fill"] = _filled(self._fills[name][0], tensors[0])
            result[name] = one
        return result

    def _free(self, wanted: str, number: int) -> str:
        """A name that no other tensor and no parameter has."""
        taken = {name for r in self._recordings for name in (*r.inputs, *r.outputs, *r.params)}
        taken |= {name for name, buffers in self.found.items() if number in buffers}
        names = (wanted, *(f"{wanted}_{i}" for i in range(2, 100)))
        return next(name for name in names if name not in taken)


def _filled(fill: Fill, tensor: Tensor) -> Any:
    """The value of a fill."""
    data = fill.value.to_bytes(fill.nbytes, "little") * (tensor.element_size() // fill.nbytes or 1)
    return torch.frombuffer(bytearray(data), dtype=tensor.dtype)[0].item()


class _Finder:
    """Finds expressions over the sizes of cases that have given values in all samples.

    Attributes:
        params: names of parameters of the op, and of constants of configurations.
        cases: how many cases there are.
    """

    def __init__(self, samples: Sequence[_Sample], configured: set[str]) -> None:
        self.cases = len({id(sample.recording) for sample in samples})
        self._count = len(samples)
        self._atoms: dict[str, tuple[int, ...]] = {}
        self._literals: dict[str, tuple[int, ...]] = {}
        self._exact: dict[str, tuple[Any, ...]] = {}
        tables = [dict(_sizes(sample.recording)) for sample in samples]
        for name in tables[0]:
            if all(name in table for table in tables) and len(self._atoms) < MOST_ATOMS:
                self._atoms[name] = tuple(table[name] for table in tables)
        for name in sorted(configured):
            chosen: list[Any] = [(one.note.configuration or {}).get(name) for one in samples]
            if all(type(value) is int for value in chosen):
                self._literals[name] = tuple(chosen)
        for name, first in samples[0].note.arguments.items():
            values = [sample.note.arguments[name] for sample in samples]
            same = all(value == first for value in values)
            if name in samples[0].note.constants and type(first) is int and first > 1 and same:
                self._literals.setdefault(str(first), tuple(values))
        for name in samples[0].recording.params:
            self._exact[name] = tuple(sample.recording.params.get(name) for sample in samples)
        self.params = frozenset((*self._exact, *self._literals))
        self._known: dict[tuple[Any, ...], str] | None = None

    def find(self, values: Sequence[Any], *, strides: bool = False) -> str | None:
        """The simplest expression with these values; None if there is none.

        Args:
            strides: whether a stride comes before a size.
        """
        wanted = tuple(values)
        for name, given in self._exact.items():
            same = all(type(a) is type(b) and a == b for a, b in zip(given, wanted, strict=True))
            if same:
                return name
        if not all(type(value) is int for value in wanted):
            return None
        for name, found in self._atoms.items() if strides else ():
            if ".stride[" in name and found == wanted:
                return name
        if self._known is None:
            self._known = {}
            for text, result in self._expressions():
                self._known.setdefault(result, text)
        return self._known.get(wanted)

    def _expressions(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Expressions and their values, the simplest ones first."""
        atoms = {**{n: v for n, v in self._literals.items() if not n.isdigit()}, **self._atoms}
        yield from atoms.items()
        divided = {
            f"cdiv({a}, {c})": self._each(lambda x, y: -(-x // y), va, vc)
            for a, va in self._atoms.items()
            for c, vc in self._literals.items()
            if min(vc) > 0
        }
        yield from divided.items()
        for a, va in self._atoms.items():
            if max(va) < 1 << 62:
                yield (
                    f"next_power_of_2({a})",
                    self._each(lambda x, _: 1 << max(0, x - 1).bit_length(), va, va),
                )
        sizes = [*self._atoms.items()]
        for i, (a, va) in enumerate(sizes):
            for b, vb in sizes[i:]:
                yield f"{a} * {b}", self._each(lambda x, y: x * y, va, vb)
        for a, va in sizes:
            for b, vb in (*sizes, *self._literals.items()):
                if a != b and min(vb) > 0 and not any(self._each(lambda x, y: x % y, va, vb)):
                    yield f"{a} // {b}", self._each(lambda x, y: x // y, va, vb)
        parts = [*divided.items()]
        for i, (a, va) in enumerate(parts):
            for b, vb in (*sizes, *parts[i:]):
                yield f"{a} * {b}", self._each(lambda x, y: x * y, va, vb)
        for (a, va), (c, vc) in (
            ((f"{a} * {b}", self._each(lambda x, y: x * y, va, vb)), c)
            for i, (a, va) in enumerate(sizes)
            for b, vb in sizes[i:]
            for c in self._literals.items()
            if min(c[1]) > 0
        ):
            yield f"cdiv({a}, {c})", self._each(lambda x, y: -(-x // y), va, vc)

    @staticmethod
    def _each(
        function: Callable[[int, int], int], a: Sequence[int], b: Sequence[int]
    ) -> tuple[int, ...]:
        return tuple(map(function, a, b))


def _sizes(recording: Recording) -> Iterator[tuple[str, int]]:
    """Sizes of tensors, and integers of parameters, by their expressions."""
    for name, value in recording.params.items():
        if isinstance(value, tuple):
            yield from ((f"{name}[{i}]", entry) for i, entry in enumerate(value))
    tensors: dict[str, Tensor | Meta] = {**recording.inputs, **recording.outputs}
    for name, tensor in tensors.items():
        yield from ((f"{name}.shape[{i}]", int(n)) for i, n in enumerate(tensor.shape))
    for name, tensor in tensors.items():
        yield f"{name}.numel", math.prod(tensor.shape)
    for name, tensor in recording.inputs.items():
        yield from ((f"{name}.stride[{i}]", int(n)) for i, n in enumerate(tensor.stride()))
    for name, meta in recording.outputs.items():
        for i in range(len(meta.shape)):
            yield f"{name}.stride[{i}]", math.prod(max(1, n) for n in meta.shape[i + 1 :])
