"""Cases from JSON that users write, and sweeps of cases."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from warpcall_kernels import Op, ops
from warpcall_kernels.op.cases import MAX_SIZE, Sample, checked_shape
from warpcall_kernels.op.declaration import Meta, ParamValue, Size, dtype_name
from warpcall_kernels.op.errors import InvalidInput, brief, listed

# The codes of the wire format (safetensors), and C128, which it does not have.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "C128": torch.complex128,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
_BY_NAME = {
    **{code.lower(): dtype for code, dtype in DTYPES.items()},
    **{dtype_name(dtype): dtype for dtype in CODES},
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
}
SHORT_BYTES = 1 << 28  # cases that move more bytes are not short on any GPU
SETS_BYTES = 2 << 30  # of sets of inputs for calls that are not short
ROOM_BYTES = (
    1 << 29
)  # rotated inputs of short calls, the buffer that flushes the cache, CUDA itself


@dataclass(frozen=True)
class JobCase:
    """A call to be timed: an op, descriptions of its inputs, its checked parameters.

    `process` is the one of the problem that is the op, a `RemoteProcess`; None for other ops.
    """

    op: Op
    inputs: Mapping[str, Sample]
    params: Mapping[str, ParamValue]
    process: Any = None

    @property
    def metas(self) -> dict[str, Meta]:
        """Shapes and dtypes of the inputs."""
        return {name: Meta(s.shape, s.dtype) for name, s in self.inputs.items()}

    @functools.cached_property  # a problem's reference says them, which takes time
    def outputs(self) -> dict[str, Meta]:
        """Shapes and dtypes of the outputs."""
        return self.op.infer(**self.metas, **self.params)

    @functools.cached_property
    def bytes_moved(self) -> int:
        """The compulsory traffic in bytes."""
        return self.op.bytes_moved(**self.metas, **self.params)

    @property
    def spec(self) -> dict[str, Any]:
        """This case as JSON. `make_case` makes the same case of it, also if defaults of the op
        change.
        """
        inputs = {name: _described(sample) for name, sample in self.inputs.items()}
        return {"inputs": inputs, "params": {k: _plain(v) for k, v in self.params.items()}}

    @property
    def key(self) -> str:
        """A text that identifies the case, such as "permute x=BF16[8,4] dims=1,0".

        It leaves out defaults of parameters, except those of problems: another version of a problem
        may have others.
        """
        inputs = (f"{name}={_short(sample)}" for name, sample in self.inputs.items())
        known = {p.name: None if self.op.dtypes else p.default for p in self.op.params}
        params = (
            f"{name}={_param_text(value)}"
            for name, value in self.params.items()
            if value is not None and (value != known.get(name) or known.get(name) is None)
        )
        return " ".join((self.op.name, *inputs, *params))

    @property
    def device_bytes(self) -> int:
        """An upper bound of the device memory for measuring, without extra memory of
        implementations.
        """
        given, made = self.metas.values(), self.outputs.values()
        inputs, outputs = sum(m.nbytes for m in given), sum(m.nbytes for m in made)
        # Inputs as drawn (8 bytes each, or widened for the reference), and a set of them; outputs of
        # the call, expected outputs, and temporaries of the comparison.
        wide_inputs = sum(math.prod(m.shape) * max(8, m.dtype.itemsize) for m in given)
        wide_outputs = outputs
        if self.op.tolerance is not None:
            wide_outputs = sum(math.prod(m.shape) * max(8, m.dtype.itemsize) for m in made)
        checked = inputs + wide_inputs + outputs + 4 * wide_outputs
        # The pool of values and the sets of inputs (`clock.SETS_BYTES`); outputs that are kept until
        # they are compared, which happens between timed calls; source and result of the limit's copy.
        sets = max(2 * inputs, min(16 * inputs, SETS_BYTES))
        timed = inputs + sets + 3 * outputs + 2 * max(inputs + outputs, self.bytes_moved)
        if inputs + outputs <= SHORT_BYTES:  # short calls are rotated over several sets
            timed += 8 * (inputs + outputs) + 8 * (inputs + 5 * outputs)
        return checked + timed + ROOM_BYTES


def make_case(op: Op | str, spec: Mapping[str, Any], *, timed: bool = True) -> JobCase:
    """The case that a spec describes. Raises InvalidInput for an invalid spec.

    Args:
        op: an op, such as that of a problem, or a name as in `ops()`.
        spec: either {"inputs": {name: {"shape": [...], "dtype": "BF16"}}, "params": {...}}, each
            input also with "values", "low", "high" and "layout" as in `Sample`; or
            {"shape": [...], "dtype": "BF16", "params": {...}, "sizes": {...}}, from which the op
            derives its inputs. The latter has no shape for a problem, and its first dtype if none
            is given.
        timed: whether the case shall be timed. One without outputs cannot be, but can be checked.
    """
    op = op_of(op)
    given = _mapping("case", spec)
    params = op.check_params(_mapping("params", given.get("params")))
    if "inputs" in given:
        _known("case", given, ("inputs", "params"))
        declared = {i.name: i for i in op.inputs}
        inputs = {}
        for name, described in _mapping("inputs", given["inputs"]).items():
            defaults: dict[str, Any] = {}
            if (known := declared.get(name)) is not None:
                defaults = {"values": known.values, "low": known.low, "high": known.high}
            inputs[name] = _sample(f"inputs.{name}", described, defaults)
    else:
        sizes = _sizes(op, given)
        inputs = _derived(op, given, params, sizes)
        passed = {size.name: sizes[size.name] for size in op.sizes if size.passed}
        for name in passed:
            if name in _mapping("params", given.get("params")):
                raise InvalidInput(name, f"{name} is a size of {op.name}: choose it with `sizes`")
        params.update(passed)  # type: ignore[arg-type]  # they are numbers
    case = JobCase(op, inputs, params)
    outputs = op.check(case.metas, params)
    if timed and not any(math.prod(meta.shape) for meta in outputs.values()):
        field = "sizes" if op.dtypes else "shape"
        raise InvalidInput(field, f"{case.key} gives nothing: there is no time to measure")
    _ = case.bytes_moved  # a problem's may raise, which is better known now
    return case


def samples_of(spec: Mapping[str, Any]) -> tuple[dict[str, Sample], dict[str, ParamValue]]:
    """The inputs and parameters of a complete spec, such as `JobCase.spec`, without its op.

    Raises:
        InvalidInput: it is not complete, or not valid.
    """
    inputs = {
        name: _sample(f"inputs.{name}", described, {})
        for name, described in _mapping("inputs", spec.get("inputs")).items()
    }
    params: dict[str, ParamValue] = {}
    for name, value in _mapping("params", spec.get("params")).items():
        plain = tuple(value) if isinstance(value, list) else value
        if not isinstance(plain, tuple | bool | int | float | None):
            raise InvalidInput(
                name, f"params.{name} must be a number or a list, got {brief(value)}"
            )
        params[name] = plain
    return inputs, params


def expand(op: Op | str, sweep: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The specs of a sweep in short form; the last axis varies fastest.

    Args:
        op: as in `make_case`.
        sweep: {"shapes": [[...], ...], "dtypes": ["BF16", ...], "params": {name: [value, ...]},
            "sizes": {name: [value, ...]}}; each list holds alternatives, a single value is one.
            That of a problem has no shapes and need not have dtypes.
    """
    axes = _axes(op_of(op), sweep)

    def specs() -> Iterator[dict[str, Any]]:
        for values in itertools.product(*(values for _, values in axes)):
            spec: dict[str, Any] = {"params": {}, "sizes": {}}
            for (path, _), value in zip(axes, values, strict=True):
                group, _, name = path.partition(".")
                if name:
                    spec[group][name] = value
                else:
                    spec[group] = value
            yield spec

    return specs()


def count(op: Op | str, sweep: Mapping[str, Any]) -> int:
    """The number of cases of a sweep, without making them."""
    return math.prod(len(values) for _, values in _axes(op_of(op), sweep))


def op_of(op: Op | str) -> Op:
    """An op as it is, or the one in `ops()` of that name. Raises InvalidInput if there is none."""
    if isinstance(op, Op):
        return op
    found = ops().get(op) if isinstance(op, str) else None
    if found is None:
        raise InvalidInput("op", f"op must be one of {listed(ops())}, got {brief(op)}")
    return found


def parse_dtype(field: str, value: object) -> torch.dtype:
    """The dtype that a user names: "BF16", "bf16", "bfloat16", "fp32" ..."""
    if isinstance(value, str) and value.lower() in _BY_NAME:
        return _BY_NAME[value.lower()]
    raise InvalidInput(
        field, f"{field} must be one of {listed(map(dtype_name, CODES))}, got {brief(value)}"
    )


def _axes(op: Op, sweep: Mapping[str, Any]) -> list[tuple[str, Sequence[Any]]]:
    given = _mapping("sweep", sweep)
    fields = ("shapes", "dtypes", "params", "sizes")
    _known("sweep", given, fields[1:] if op.dtypes else fields)
    kinds = {p.name: p.kind for p in op.params}
    axes = [] if op.dtypes else [("shape", _lists("shapes", given))]
    if "dtypes" in given or not op.dtypes:
        axes.append(("dtype", _lists("dtypes", given)))
    for name, values in _mapping("params", given.get("params")).items():
        if name not in kinds:
            raise InvalidInput(
                f"params.{name}",
                f"{op.name} has no parameter {brief(name)}, it takes {listed(kinds)}",
            )
        axes.append((f"params.{name}", _alternatives(f"params.{name}", values)))
    for name, values in _mapping("sizes", given.get("sizes")).items():
        _size(op, name)
        axes.append((f"sizes.{name}", _alternatives(f"sizes.{name}", values)))
    return axes


def _lists(field: str, given: Mapping[str, Any]) -> Sequence[Any]:
    values = given.get(field)
    if not isinstance(values, list | tuple) or not values:
        raise InvalidInput(field, f"{field} must be a list that is not empty, got {brief(values)}")
    return values


def _alternatives(field: str, values: Any) -> Sequence[Any]:
    if isinstance(values, list | tuple):
        if not values:
            raise InvalidInput(field, f"{field} must name at least one value, got []")
        return values
    return (values,)


def _derived(
    op: Op,
    given: Mapping[str, Any],
    params: Mapping[str, ParamValue],
    sizes: Mapping[str, int | str],
) -> dict[str, Sample]:
    """The inputs that follow from the short form of a spec."""
    fields = ("shape", "dtype", "params", "sizes")
    _known("case", given, fields[1:] if op.dtypes else fields)
    shape = () if op.dtypes else checked_shape("shape", given.get("shape"))
    if op.dtypes and "dtype" not in given:
        dtype = op.dtypes[0]
    else:
        dtype = parse_dtype("dtype", given.get("dtype"))
    if op.dtypes:
        assert op.derive is not None
        if dtype not in op.dtypes:
            allowed, given_name = listed(map(dtype_name, op.dtypes)), dtype_name(dtype)
            raise InvalidInput("dtype", f"dtype must be one of {allowed}, got {given_name}")
        return dict(op.derive(dtype, **sizes))
    if op.derive is not None:
        return dict(op.derive(shape, dtype, params, **sizes))
    return {
        i.name: Sample(shape, dtype, i.values, i.low, i.high) for i in op.inputs if not i.optional
    }


def _sizes(op: Op, given: Mapping[str, Any]) -> dict[str, int | str]:
    """All sizes of a case, those that are not given with their defaults."""
    sizes = {size.name: size.default for size in op.sizes}
    for name, value in _mapping("sizes", given.get("sizes")).items():
        sizes[name] = _checked_size(_size(op, name), value)
    return sizes


def _size(op: Op, name: str) -> Size:
    known = {size.name: size for size in op.sizes}
    if name not in known:
        raise InvalidInput(
            f"sizes.{name}", f"{op.name} has no size {brief(name)}, it has {listed(known)}"
        )
    return known[name]


def _checked_size(size: Size, value: object) -> int | str:
    field = f"sizes.{size.name}"
    if size.choices:
        if isinstance(value, str) and value in size.choices:
            return value
        allowed = f"one of {listed(size.choices)}"
    else:
        if type(value) is int and size.minimum <= value <= MAX_SIZE:
            return value
        allowed = f"an integer between {size.minimum} and {MAX_SIZE}"
    raise InvalidInput(field, f"{field} must be {allowed}, got {brief(value)}")


def _sample(field: str, described: object, defaults: Mapping[str, Any]) -> Sample:
    given = {**defaults, **_mapping(field, described)}
    _known(field, given, ("shape", "dtype", "values", "low", "high", "layout", "scale", "shift"))
    sample = Sample(
        checked_shape(f"{field}.shape", given.get("shape")),
        parse_dtype(f"{field}.dtype", given.get("dtype")),
        given.get("values", "normal"),
        given.get("low", 0),
        given.get("high", 100),
        given.get("layout", "contiguous"),
        given.get("scale", 1.0),
        given.get("shift", 0.0),
    )
    sample.check(field)
    return sample


def _mapping(field: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return value
    raise InvalidInput(field, f"{field} must be an object, got {brief(value)}")


def _known(field: str, given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in given:
        if name not in allowed:
            raise InvalidInput(name, f"{field} has no {brief(name)}, it takes {listed(allowed)}")


def _described(sample: Sample) -> dict[str, Any]:
    """The whole description of an input, so that later changes of an op's defaults do not matter."""
    spec: dict[str, Any] = {"shape": list(sample.shape), "dtype": CODES[sample.dtype]}
    spec["values"] = sample.values
    if sample.values == "integers":
        spec |= {"low": sample.low, "high": sample.high}
    if sample.layout != "contiguous":
        spec["layout"] = sample.layout
    if (sample.scale, sample.shift) != (1, 0):
        spec |= {"scale": sample.scale, "shift": sample.shift}
    return spec


def _short(sample: Sample) -> str:
    text = f"{CODES[sample.dtype]}[{','.join(map(str, sample.shape))}]"
    if sample.values == "integers":
        text += f":{sample.low}..{sample.high - 1}"
    elif sample.values != "normal":
        text += f":{sample.values}"
    if (sample.scale, sample.shift) != (1, 0):
        text += f"*{sample.scale:g}{sample.shift:+g}"
    return text if sample.layout == "contiguous" else f"{text}:{sample.layout}"


def _plain(value: ParamValue) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _param_text(value: ParamValue) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else json.dumps(value)
