"""The page that runs one op on a file or on typed values, and shows where the time went."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from warpcall import wire
from warpcall.errors import InvalidInput, Problem, UnsupportedMedia
from warpcall.wire import TensorInfo
from warpcall_bench.forms.ops import Ops
from warpcall_bench.forms.uploads import signature
from warpcall_bench.jobs.models import Name
from warpcall_bench.pages.view import View, page, render
from warpcall_bench.settings import BenchSettings
from warpcall_service.admission import Admission
from warpcall_service.extension import Calls
from warpcall_service.formats import npy
from warpcall_service.formats.form import Form, read_form
from warpcall_service.formats.params import Params, from_text
from warpcall_service.http.caller import CurrentCaller
from warpcall_service.http.exchange import Exchange
from warpcall_service.text import brief

# A page holds its answer as text. Larger tensors are for clients.
MAX_FORM_BYTES = 8 << 20
MAX_OUTPUT_BYTES = 4 << 20
MAX_VALUES_BYTES = 64 << 10  # of typed values
CALLS = 4  # at once; each may have some 30 MB on the heap
MAX_WAITING = 4  # of one user
SHOWN = 8  # values of an output
STAGES = {
    "upload": "upload",
    "queue": "waiting for the device",
    "h2d": "copy to the device",
    "kernel": "kernel",
    "d2h": "copy back",
}

# A form sends an empty text for a field that was left empty.
Empty = Annotated[str, Query(max_length=0)]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a call: its part of the bar, in percent."""

    name: str
    label: str
    ms: float
    begin: float
    share: float


@dataclass(frozen=True, slots=True)
class Output:
    """An output: what is shown of it, and a link to the whole, if .npy has its dtype."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: str
    link: str | None


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What came of a call. `link` has all outputs as safetensors."""

    device: str
    stages: list[Stage]
    total_ms: float
    outputs: list[Output]
    link: str


def inputs_of(form: Form, op: Mapping[str, Any]) -> list[tuple[TensorInfo, memoryview]]:
    """The inputs of a form: files, or values that were typed.

    Raises:
        InvalidInput: an input is missing or cannot be read; the error names it.
    """
    found = []
    for declared in op["inputs"]:
        name = declared["name"]
        file, text = form.files.get(name, b""), form.text(f"values.{name}")
        if file and text:
            raise InvalidInput("give either a file or values, both came", field=name)
        if not file and not text:
            if declared["optional"]:
                continue
            raise InvalidInput(f"{op['name']} needs {name}: a file, or values", field=name)
        header, data = _from_file(name, file) if file else _from_values(name, text, declared)
        info = TensorInfo(name, header.dtype, header.shape, strides=header.strides)
        found.append((info, data))
    return found


def params_of(form: Form, op: Mapping[str, Any]) -> Params:
    """The parameters of a form; those that are left empty have their defaults.

    Raises:
        InvalidInput: a text is not of its parameter's kind.
    """
    names = [one["name"] for one in op["params"]]
    given = [(name, form.text(f"params.{name}")) for name in names]
    return from_text([(name, text) for name, text in given if text], op)


class PageCalls:
    """Runs calls that come from a page."""

    def __init__(self, settings: BenchSettings, calls: Calls) -> None:
        self._calls = calls
        self.admission = Admission("calls from pages", CALLS, MAX_WAITING, settings.queue_timeout_s)

    async def run(self, exchange: Exchange, op: Mapping[str, Any], form: Form) -> CallAnswer:
        """Run a call.

        Raises:
            Problem: it is invalid, too large for a page, or it failed.
        """
        infos, data, device = await self._calls.run_values(
            exchange, op["name"], inputs_of(form, op), params_of(form, op), MAX_OUTPUT_BYTES
        )
        return CallAnswer(
            device,
            _stages(exchange.stages_ms),
            sum(exchange.stages_ms.values()),
            [_output(info, data) for info in infos],
            _link(wire.MEDIA_TYPE, wire.encode_header(infos) + data),
        )


def routes(settings: BenchSettings, calls: Calls, known: Ops) -> APIRouter:
    """The page, and what its form posts to."""
    router = APIRouter(include_in_schema=False)
    page_calls = PageCalls(settings, calls)

    def show(
        request: Request,
        op: Mapping[str, Any],
        form: Form,
        errors: Mapping[str, str],
        answer: CallAnswer | None = None,
        status: int = 200,
    ) -> Response:
        text = render(
            "call.html",
            View.of(request),
            op=op,
            ops=[one["name"] for one in known.shipped],
            signature=signature(op),
            form=form,
            errors=errors,
            answer=answer,
            most_bytes=MAX_FORM_BYTES,
        )
        return page(request, text, status)

    @router.get("/call")
    async def call(request: Request, caller: CurrentCaller, op: Name | Empty = "") -> Response:
        return show(request, known.find_shipped(op or known.shipped[0]["name"]), Form(), {})

    @router.post("/call")
    async def run(request: Request, caller: CurrentCaller, op: Name) -> Response:
        declared = known.find_shipped(op)
        exchange: Exchange = request.scope["state"]["exchange"]
        async with page_calls.admission.admitted(caller.name):
            form = await read_form(request, MAX_FORM_BYTES, text_files=False)
            try:
                answer = await page_calls.run(exchange, declared, form)
            except Problem as problem:
                names = {one["name"] for one in (*declared["inputs"], *declared["params"])}
                name = problem.field if problem.field and problem.field in names else ""
                return show(request, declared, form, {name: problem.detail}, None, problem.status)
            return show(request, declared, form, {}, answer)

    return router


def _from_file(name: str, file: bytes) -> tuple[npy.NpyHeader, memoryview]:
    nbytes = npy.header_nbytes(file[: npy.MAX_HEADER_BYTES], name)
    if nbytes is None or len(file) < nbytes:
        raise InvalidInput(f"{name} must be a whole .npy file, it ends in its header", field=name)
    header = npy.decode_header(file[:nbytes], name)
    if len(file) - nbytes != header.nbytes:
        raise InvalidInput(
            f"{name} must have {header.nbytes} bytes after its header, got {len(file) - nbytes}",
            field=name,
        )
    return header, memoryview(file)[nbytes:]


def _from_values(
    name: str, text: str, declared: Mapping[str, Any]
) -> tuple[npy.NpyHeader, memoryview]:
    """Typed values as F32, or as the first dtype of the input that can hold them."""
    if len(text) > MAX_VALUES_BYTES:
        raise InvalidInput(
            f"{name} must have at most {MAX_VALUES_BYTES} characters, got {len(text)}", field=name
        )
    dtypes = [one for one in ("F32", *declared["dtypes"]) if one in declared["dtypes"]]
    dtype = next((one for one in dtypes if one in npy.NUMPY_DTYPES), dtypes[0])
    try:
        values = np.array(json.loads(text), npy.NUMPY_DTYPES[dtype])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise InvalidInput(
            f"{name} must be lists of numbers of equal lengths, such as [[1, 2], [3, 4]], "
            f"got {brief(text)}",
            field=name,
        ) from None
    return npy.NpyHeader(dtype, values.shape, False), memoryview(values.tobytes())


def _output(info: TensorInfo, data: bytes) -> Output:
    part = data[info.begin : info.end]
    shown = ""
    if info.dtype in npy.NUMPY_DTYPES:
        values = np.frombuffer(part, npy.NUMPY_DTYPES[info.dtype])
        shown = ", ".join(str(one) for one in values[:SHOWN])
        shown += ", …" if len(values) > SHOWN else ""
    try:
        link = _link(npy.MEDIA_TYPE, npy.encode_header(info.dtype, info.shape) + part)
    except UnsupportedMedia:
        link = None
    return Output(info.name, info.dtype, info.shape, shown, link)


def _link(media: str, content: bytes) -> str:
    """A link that holds its target."""
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def _stages(stages_ms: Mapping[str, float]) -> list[Stage]:
    total = sum(stages_ms.values()) or 1.0
    found, begin = [], 0.0
    for name, label in STAGES.items():
        share = 100 * stages_ms[name] / total
        found.append(Stage(name, label, stages_ms[name], round(begin, 2), round(share, 2)))
        begin += share
    return found
