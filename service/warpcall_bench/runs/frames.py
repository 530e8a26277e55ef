"""What a job's process may send: each frame is checked before anything else sees it.

The process runs modules of the operator, and results have texts that uploads wrote. A frame that does
not fit is refused, and the run with it. The texts of all frames are made printable. Frames of all kinds
are paced together, so that the event loop serves others whatever a process sends.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from warpcall.jobs import ExitClass
from warpcall_bench.runs.events import Printed, ProfileMade
from warpcall_bench.runs.messages import (
    MOST_PRINTED_BYTES,
    MOST_PRINTED_OF_JOB,
    PIECE_BYTES,
    PROFILE_FILES,
    Task,
    profiles_of,
)
from warpcall_bench.runs.results import (
    MAX_IMPLEMENTATIONS,
    CaseModel,
    Name,
    Number,
    OddCasesModel,
    Printable,
    Strict,
    Us,
)
from warpcall_bench.runs.stored_results import MAX_COUNT, MOST
from warpcall_service.admission import TokenBucket
from warpcall_service.lanes.messages import LENGTH
from warpcall_service.text import printable

MAX_BYTES = 2 << 20  # of a frame; the largest honest one, 9 x 7,000 samples, has 1.3 MB
SMALL_BYTES = 16 << 10  # such a frame is parsed in the event loop
LARGE = ("result", "profile", "printed")  # kinds of frames that may have more
NOTE_BYTES = 200  # of a text in the place of one that was too much for the job
# Parsing takes 10 ms with so many of each character, and would take 700 ms with 2 MB of brackets.
# The interpreter's lock is held meanwhile, in whatever thread.
MOST_SIGNS = {b"[": 4000, b"{": 4000, b":": 10_000, b'"': 30_000, b",": 80_000}
# What a process may take of the event loop's time: so much on average, and so many seconds at once
# beyond that. It waits in its own send if it sends more. An honest run uses some 4 %: 400 frames a
# second while calls wait between its blocks.
LOOP_SHARE = 0.1
LOOP_BURST_S = 0.1
# A frame counts as so much of it, or as the time that it took, whichever is more.
FRAME_S = 1e-4
BYTE_S = 1e-8  # for each byte

MAX_PLACE = 200  # characters of the place of a fault
LIMIT = "copy"  # the implementation that is measured beside all others

_Finite = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
Phase = Literal["preparing", "correctness", "warmup", "rounds", "left", "extras"]


class FrameRefused(Exception):
    """A frame that an honest process does not send. The message says what it was."""


class _Hello(Strict):
    fingerprint: Annotated[
        dict[
            Annotated[str, StringConstraints(max_length=64), Printable],
            Annotated[str, StringConstraints(max_length=256), Printable]
            | bool
            | Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
            | _Finite
            | None,
        ],
        Field(max_length=64),
    ]
    environment: Annotated[str, StringConstraints(max_length=255), Printable]
    sources: dict[Name, Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]]


class _Odd(Strict):
    implementation: Name
    found: OddCasesModel


class _Progress(Strict):
    position: int
    phase: Phase
    implementation: Name | None = None
    rounds: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    half_width: Number | None = None
    medians_us: Annotated[dict[Name, Us], Field(max_length=MAX_IMPLEMENTATIONS)] | None = None
    leader: Name | None = None
    ratio: Number | None = None
    racing: Annotated[int, Field(ge=0, le=MAX_IMPLEMENTATIONS)] | None = None
    waiting: Annotated[int, Field(ge=0, le=MAX_IMPLEMENTATIONS)] | None = None


class _Result(Strict):
    position: int
    case: CaseModel


class _Printed(Strict):
    position: int
    implementation: Name
    data: Annotated[str, StringConstraints(max_length=-(-MOST_PRINTED_BYTES // 3) * 4)]


class _Profile(Strict):
    position: int
    implementation: Name
    file: Annotated[str, StringConstraints(max_length=32)]
    data: Annotated[str, StringConstraints(max_length=-(-PIECE_BYTES // 3) * 4)]
    last: bool
    error: Annotated[str, StringConstraints(max_length=1000), Printable]


class _Ended(Strict):
    exit_class: Annotated[ExitClass, Field(alias="class")]
    detail: Annotated[str, StringConstraints(max_length=4000), Printable]


class _Frame(Strict):
    """Exactly one member is set."""

    hello: _Hello | None = None
    want: bool | None = None
    release: bool | None = None
    odd: _Odd | None = None
    progress: _Progress | None = None
    printed: _Printed | None = None
    result: _Result | None = None
    profile: _Profile | None = None
    ended: _Ended | None = None


class Frame(NamedTuple):
    """A frame that was checked: its kind, and the value as plain data.

    The value of a `profile` is a `ProfileMade`, or None while more pieces follow. That of a `printed`
    is a `Printed`.
    """

    kind: str
    value: Any


class FrameReader:
    """Reads the frames of one run, and refuses what does not follow from its task.

    Args:
        task: of the run; each of its cases may be reported once.
    """

    def __init__(self, task: Task, reader: asyncio.StreamReader) -> None:
        self._task = task
        self._reader = reader
        self._specs = dict(task["cases"])  # by position, of cases without a result
        self._names = task["implementations"]
        self._verified = {one["name"] for one in task["uploads"] if one.get("verified")}
        self._odd = {*task.get("odd", [])}  # uploads whose odd cases may be reported
        self._profiles = _ProfilePieces(task)
        self._printed = set[tuple[int, str]]()  # positions and names whose text has come
        self._printed_bytes = 0
        self._ready = self._leased = self._ended = False
        # Its tokens are seconds of the event loop's time.
        self._loop_time = TokenBucket(LOOP_BURST_S, 1 / LOOP_SHARE, time.monotonic())

    async def read(self) -> Frame:
        """Read and check the next frame, after a pause if the process sends too much.

        Other tasks run between any two frames, also if all of them have arrived.

        Raises:
            FrameRefused: it is not what an honest process sends.
            IncompleteReadError: the other side closed its socket.
        """
        (nbytes,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        if nbytes > MAX_BYTES:
            raise FrameRefused(f"a frame of {nbytes} bytes, more than {MAX_BYTES}")
        text = await self._reader.readexactly(nbytes)
        began_s = time.thread_time()
        if nbytes <= SMALL_BYTES:
            frame = _parse(text)
        else:
            if any(text.count(sign) > most for sign, most in MOST_SIGNS.items()):
                raise FrameRefused("a frame of too many parts")
            frame = await asyncio.to_thread(_parse, text)
            began_s = time.thread_time()
        self._check(frame)
        if nbytes > SMALL_BYTES and frame.kind not in LARGE:
            raise FrameRefused(f"a {frame.kind} of {nbytes} bytes")
        if frame.kind == "printed":
            frame = Frame("printed", self._take_printed(frame.value))
        if frame.kind == "profile":
            frame = Frame("profile", self._profiles.take(frame.value))
        await self._pace(max(FRAME_S, BYTE_S * nbytes, time.thread_time() - began_s))
        return frame

    def _check(self, frame: Frame) -> None:
        """Raise if the frame may not come now, or speaks of something that was not asked."""
        kind, value = frame
        if self._ended or (self._ready is (kind == "hello") and kind != "ended"):
            raise FrameRefused(f"a {kind} at the wrong time")
        match kind:
            case "hello":
                if not isinstance(value["fingerprint"].get("kernels_sha256"), str):
                    raise FrameRefused("a fingerprint without kernels_sha256")
                if not value["sources"].keys() <= {*self._names}:
                    raise FrameRefused("the source of an implementation that was not asked")
                self._ready = True
            case "want" | "release":
                if self._leased is (kind == "want"):
                    raise FrameRefused(f"a {kind} at the wrong time")
                self._leased = kind == "want"
            case "odd":
                if value["implementation"] not in self._odd:
                    raise FrameRefused("odd cases that were not asked, or were reported before")
                self._odd.remove(value["implementation"])
            case "progress":
                self._check_position(value)
                named = {value.get("implementation"), value.get("leader")}
                named |= {*(value.get("medians_us") or {})}
                if not named <= {None, LIMIT, *self._names}:
                    raise FrameRefused("progress of an implementation that was not asked")
            case "printed":
                self._check_position(value)
                of = value["position"], value["implementation"]
                if of[1] not in self._names or of in self._printed:
                    raise FrameRefused("a printed text that was not asked, or was sent before")
                self._printed.add(of)
            case "result":
                self._check_position(value)
                self._check_case(value["position"], value["case"])
                self._odd.clear()  # they come before the first result
            case "ended":
                self._ended = True

    def _take_printed(self, value: Mapping[str, Any]) -> Printed:
        data = _decoded(value["data"], "a printed text")
        self._printed_bytes += len(data)
        if self._printed_bytes > MOST_PRINTED_OF_JOB and len(data) > NOTE_BYTES:
            raise FrameRefused(f"printed texts of {self._printed_bytes} bytes")
        lines = data.decode(errors="replace").split("\t")
        return Printed(value["position"], value["implementation"], "\t".join(map(printable, lines)))

    def _check_position(self, value: dict[str, Any]) -> None:
        if value["position"] not in self._specs:
            raise FrameRefused("a case that was not asked, or was reported before")

    def _check_case(self, position: int, case: dict[str, Any]) -> None:
        """Check a result, and write into it what is known from the task."""
        if [one["name"] for one in case["implementations"]] != self._names:
            raise FrameRefused("a result of other implementations than those asked")
        if case["limit"] is not None and case["limit"]["name"] != LIMIT:
            raise FrameRefused("a limit that is not the copy")
        _check_race(case, {*self._names})
        for one in case["implementations"]:
            if one.get("verified"):
                one["verified"] = one["name"] in self._verified
        case["op"], case["precision"] = self._task["op"], self._task["precision"]
        case["spec"], case["seed"] = self._specs.pop(position), self._task["seed"] + position

    async def _pace(self, took_s: float) -> None:
        """Let other tasks run, and wait if the process has taken too much of the loop's time."""
        await asyncio.sleep(self._loop_time.spend(time.monotonic(), took_s))


def _check_race(case: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise if the result of a race names an implementation that was not asked."""
    race = case.get("race") or {"leader": None, "fastest": ()}
    rows = [one.get("race") or {} for one in case["implementations"]]
    named = {race["leader"], *race["fastest"], *(row.get("left_leader") for row in rows)}
    named |= (race.get("history") or {"ratios": {}})["ratios"].keys()
    if not named <= {None, *names}:
        raise FrameRefused("a race of an implementation that was not asked")


class _ProfilePieces:
    """The files of the profiles of one run. Each that the task asks for may come once."""

    def __init__(self, task: Task) -> None:
        all_wanted = profiles_of(task)
        self._left = {
            (position, name, file)
            for wanted in all_wanted
            for position, _, names in wanted["cases"]
            for name in names
            for file in PROFILE_FILES[wanted["profiler"]]
        }
        self._most = max((wanted["most_bytes"] for wanted in all_wanted), default=0)
        self._of: tuple[int, str, str] | None = None  # the file whose next piece must come
        self._content = bytearray()

    def take(self, piece: Mapping[str, Any]) -> ProfileMade | None:
        """Take the next piece; returns the file with its last one.

        Raises:
            FrameRefused: the file was not asked for, is too large, or its pieces have other sizes.
        """
        of = piece["position"], piece["implementation"], piece["file"]
        if of not in self._left or self._of not in (None, of):
            raise FrameRefused("a profile that was not asked, or was sent before")
        data = _decoded(piece["data"], "a profile")
        if len(data) > PIECE_BYTES or (len(data) < PIECE_BYTES and not piece["last"]):
            raise FrameRefused(f"a piece of a profile of {len(data)} bytes")
        if len(self._content) + len(data) > self._most:
            raise FrameRefused(f"a profile of more than {self._most} bytes")
        self._of = of
        self._content += data
        if not piece["last"]:
            return None
        self._left.remove(of)
        made = ProfileMade(*of, b"" if piece["error"] else bytes(self._content), piece["error"])
        self._of = None
        self._content.clear()
        return made


_FRAME = TypeAdapter(_Frame)


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise FrameRefused(f"{what} that is not in base64") from None


def _parse(text: bytes) -> Frame:
    try:
        found = _FRAME.validate_json(text).model_dump(by_alias=True, exclude_unset=True)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = printable(".".join(map(str, fault["loc"]))[:MAX_PLACE])
        raise FrameRefused(
            f"a frame with a fault at {place or 'its begin'}: {printable(fault['msg'])[:MAX_PLACE]}"
        ) from None
    if len(found) != 1:
        raise FrameRefused(f"a frame with {len(found)} members")
    return Frame(*found.popitem())
