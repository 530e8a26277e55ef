"""The form of a new job: from its texts to a request, and from the request of a job back to texts."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from warpcall.errors import InvalidInput
from warpcall.jobs.request import OPTIONS as JOB_OPTIONS
from warpcall_bench.forms.ops import Declared, is_problem
from warpcall_bench.jobs.models import CHECK, JobRequest
from warpcall_service.formats.form import CHOICE, Form
from warpcall_service.formats.params import from_text
from warpcall_service.text import brief

COMMON_DTYPES = ("BF16", "F16", "F32")  # shown first, if the op takes them
BOTH = {"true": [True], "false": [False], "both": [False, True]}
DEFAULTS = ("warpcall", "torch")  # the implementations of an empty form
PROBLEM_DEFAULTS = ("torch",)  # the same, of a problem: its reference
SHAPE = re.compile(r"\d{1,18}([x×]\d{1,18})*", re.ASCII)
EXAMPLE_SHAPES = "4096x4096"
SCALAR = "scalar"  # the shape without dims
# The options of a job that the form has, and those whose texts are not their values.
OPTIONS = {name: option for name, option in JOB_OPTIONS.items() if option.label}
LONGEST = {  # texts, in characters
    name: schema["maxLength"]
    for name, schema in JobRequest.model_json_schema()["properties"].items()
    if "maxLength" in schema
}
FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "tags": lambda text: re.split(r"[\s,]+", text.strip(", ")),
    "private": CHOICE.get,
    "fresh": bool,
    "sanitize": bool,
}
TO_TEXT: dict[str, Callable[[Any], str]] = {
    "tags": " ".join,
    "private": lambda private: "yes" if private else "no",
}
NOT_COPIED = ("priority", "fresh")  # a job like another one chooses them again


@dataclass
class Read:
    """What came of a form.

    Attributes:
        request: None if the form has errors.
        errors: what is wrong, by the name of the field; under "" what concerns no field.
    """

    request: JobRequest | None = None
    errors: dict[str, str] = field(default_factory=dict)


def read_job(form: Form, op: Declared) -> Read:
    """The request that a form describes, or its errors, all of them at once."""
    read = Read()
    given: dict[str, Any] = {"op": op["name"], "implementations": implementations(form)}
    if cases := form.text("cases"):
        _with_error(read, "cases", lambda: given.update(cases=_cases(cases)))
    elif not _has_odd_cases(form, op):
        given["sweep"] = read_sweep(read, form, op)
    for name in OPTIONS:
        value = FROM_TEXT.get(name, str)(form.text(name)) if form.has(name) else None
        if value is not None:
            given[name] = value
    if form.has("race"):
        given["race"] = True
    if read.errors:  # those of the other fields are found, too
        given = {name: given[name] for name in given if name not in ("cases", "sweep")}
        given["cases"] = [{"shape": [1], "dtype": "F32"}]
    try:
        request = JobRequest.model_validate(given)
        read.request = None if read.errors else request
    except ValidationError as error:
        for fault in error.errors():
            message = fault["msg"].removeprefix("Value error, ")
            at_fault = ".".join(map(str, fault["loc"]))
            name = field_of(at_fault or message, op)
            got = "" if isinstance(fault["input"], dict) else f", got {brief(fault['input'])}"
            if name == "cases":  # one field has all of them
                message = f"{at_fault}: {message}"
            read.errors.setdefault(name, f"{message}{got}")
    return read


def _has_odd_cases(form: Form, op: Declared) -> bool:
    """Whether a form leaves the cases of a check to the op: nothing but dtypes is given for them."""
    names = ["shape"]
    names += [f"{kind}.{one['name']}" for kind in ("params", "sizes") for one in op[kind]]
    return form.text("precision") == CHECK and not any(form.has(name) for name in names)


def implementations(form: Form) -> list[str]:
    """The names that a form chose, the one that the others are compared with first."""
    first = form.text("baseline")
    others = form.text("others").replace(",", " ").split()
    chosen = [first, *(name for name in form.all("implementation") if name != first)]
    return [name for name in (*chosen, *others) if name]


def field_of(at_fault: str, op: Declared) -> str:
    """The field of the form for the name of a field in an error of the service, such as
    "sweep.dims" or "implementations.1"; "" if there is none."""
    parts = re.split(r"[.\s]", at_fault)
    first, last = parts[0], parts[-1]
    if first in ("implementations", "cases", "race", *OPTIONS):
        return first
    if first != "sweep":
        return ""
    for kind in ("params", "sizes"):
        names = {one["name"] for one in op[kind]}
        if kind in parts and (found := [part for part in parts if part in names]):
            return f"{kind}.{found[0]}"
    if any(last == one["name"] for one in op["params"]):
        return f"params.{last}"
    if last.startswith("dtype") or "dtypes" in parts:
        return "dtype"
    return "" if is_problem(op) else "shape"


def texts_of(request: Mapping[str, Any], op: Declared) -> Form:
    """The form that asks for the same as the request of a job."""
    pairs: list[tuple[str, str]] = []
    names = request.get("implementations") or [*_defaults(op)]
    pairs += [("baseline", names[0]), *(("implementation", name) for name in names)]
    sweep = request.get("sweep")
    if sweep is None and request.get("cases") is not None:
        pairs.append(("cases", json.dumps(request["cases"], indent=1)))
    elif sweep is not None:
        shapes = ["x".join(map(str, shape)) or SCALAR for shape in sweep.get("shapes") or ()]
        pairs.append(("shape", " ".join(shapes)))
        known = {one.lower(): one for one in _dtypes(op)}
        dtypes = sweep.get("dtypes") or _dtypes(op)[:1]  # of a problem, which has a default
        pairs += [("dtype", known.get(_code(dtype), dtype)) for dtype in dtypes]
        for name, values in sweep.get("params", {}).items():
            pairs.append((f"params.{name}", _alternatives(values)))
        for name, values in sweep.get("sizes", {}).items():
            pairs += [(f"sizes.{name}", str(value)) for value in values if isinstance(value, str)]
            numbers = [str(value) for value in values if not isinstance(value, str)]
            pairs += [(f"sizes.{name}", " ".join(numbers))] if numbers else []
    if request.get("race"):
        pairs.append(("race", "yes"))
    for name in OPTIONS:
        if name not in NOT_COPIED and (value := request.get(name)) not in (None, "", []):
            pairs.append((name, TO_TEXT.get(name, str)(value)))
    return Form.of(pairs)


def empty(op: Declared, uploaded: str = "") -> Form:
    """The form of an op before anybody has typed into it.

    Args:
        uploaded: name of an implementation to time beside the shipped ones.
    """
    dtypes = _dtypes(op)
    first = next((one for one in COMMON_DTYPES if one in dtypes), dtypes[0])
    if is_problem(op):
        first = dtypes[0]
    names = [*_defaults(op), *([uploaded] if uploaded else [])]
    return Form.of(
        [
            ("baseline", names[0]),
            *(("implementation", name) for name in names),
            ("dtype", first),
            ("precision", "standard"),
        ]
    )


def read_sweep(read: Read, form: Form, op: Declared) -> dict[str, Any]:
    """The sweep that a form describes. Errors are added to `read`."""
    sweep: dict[str, Any] = {}

    if not is_problem(op):
        _with_error(read, "shape", lambda: sweep.update(shapes=_shapes(form.text("shape"))))
    if not form.has("dtype"):
        read.errors["dtype"] = "choose at least one dtype"
    sweep["dtypes"] = form.all("dtype")
    for param in op["params"]:
        name = f"params.{param['name']}"
        if param["required"] and not form.has(name):
            read.errors[name] = f"{op['name']} needs {param['name']}"
        _add_axis(read, sweep, name, functools.partial(_values, form, op, param))
    for size in op["sizes"]:
        name = f"sizes.{size['name']}"
        _add_axis(read, sweep, name, functools.partial(_sizes, form, size))
    return sweep


def _add_axis(
    read: Read, sweep: dict[str, Any], field_name: str, values: Callable[[], list[Any]]
) -> None:
    """Add a parameter or a size to a sweep, unless its field is empty."""
    kind, _, name = field_name.partition(".")

    def add() -> None:
        if found := values():
            sweep.setdefault(kind, {})[name] = found

    _with_error(read, field_name, add)


def _with_error(read: Read, name: str, action: Callable[[], object]) -> None:
    """Run an action; if it refuses the input, remember why under the name of the field."""
    try:
        action()
    except InvalidInput as error:
        read.errors[name] = error.detail


def _shapes(text: str) -> list[list[int]]:
    if not text:
        raise InvalidInput(f"give at least one shape, such as {EXAMPLE_SHAPES}")
    shapes: list[list[int]] = []
    for one in re.split(r"[\s,;]+", text.strip(",; \n")):
        if one == SCALAR:
            shapes.append([])
            continue
        if not SHAPE.fullmatch(one):
            raise InvalidInput(
                f"shapes must be such as {EXAMPLE_SHAPES}, separated by spaces, got {brief(one)}"
            )
        shapes.append([int(size) for size in re.split("[x×]", one)])
    return shapes


def _values(form: Form, op: Declared, param: Declared) -> list[Any]:
    """The values of a parameter; one that is left empty has its default."""
    text = form.text(f"params.{param['name']}")
    if not text:
        return []
    if param["kind"] == "bool":
        if text not in BOTH:
            raise InvalidInput(f"must be true, false or both, got {brief(text)}")
        return BOTH[text]
    separators = r"[\s;]+" if param["kind"] == "ints" else r"[\s;,]+"
    words = [word for word in re.split(separators, text) if word]
    return [from_text([(param["name"], word)], op)[param["name"]] for word in words]


def _sizes(form: Form, size: Declared) -> list[int | str]:
    name = f"sizes.{size['name']}"
    if size["choices"]:
        return [*form.all(name)]
    words = [word for word in re.split(r"[\s;,]+", form.text(name)) if word]
    for word in words:
        if not re.fullmatch(r"\d{1,18}", word, re.ASCII):
            raise InvalidInput(
                f"{size['name']} must be whole numbers separated by spaces, got {brief(word)}"
            )
    return [int(word) for word in words]


def _cases(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the cases must be a JSON list: {error}"[:300]) from None
    if not isinstance(found, list):
        raise InvalidInput(f"the cases must be a JSON list, got {brief(found)}")
    return found


def _alternatives(values: Sequence[Any]) -> str:
    """The values of a parameter as a text that `_values` reads."""
    if all(isinstance(value, bool) for value in values):
        return "both" if len({*values}) > 1 else str(values[0]).lower()
    return " ".join(_word(value) for value in values)


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _code(dtype: str) -> str:
    """A dtype as the catalog writes it, for the short names that people type."""
    short = re.fullmatch(r"fp(\d+)|(bfloat|float|int|uint)(\d+)", dtype.lower())
    if short is None:
        return dtype.lower()
    kind = {"bfloat": "bf", "float": "f", "int": "i", "uint": "u", None: "f"}[short[2]]
    return f"{kind}{short[1] or short[3]}"


def dtypes_of(op: Declared) -> tuple[list[str], list[str]]:
    """The dtypes that a job can choose: those that the form shows first, and the others."""
    known = _dtypes(op)
    if is_problem(op):
        return known, []
    common = [one for one in COMMON_DTYPES if one in known]
    others = [one for one in known if one not in COMMON_DTYPES]
    return (common, others) if common else (others, [])


def _dtypes(op: Declared) -> list[str]:
    """The dtypes of an op's first input, or those that a problem declares."""
    return [*(op["dtypes"] if is_problem(op) else op["inputs"][0]["dtypes"])]


def _defaults(op: Declared) -> Sequence[str]:
    return PROBLEM_DEFAULTS if is_problem(op) else DEFAULTS
