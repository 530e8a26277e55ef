"""The inspection of compiled kernels: each rule refuses what it is for, and honest kernels pass."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.verified.ptx import cubin, plan_of
from warpcall_kernels.compile.architectures import ARCHITECTURES
from warpcall_kernels.verified.cubin import HEADER, SECTION, SYMBOL, Cubin
from warpcall_kernels.verified.inspection import Refused, inspect

GLOBAL = ".global .align 4 .u32 counter;"
COUNT = "atom.global.add.u32 %r1, [counter], 1; st.global.u32 [%d1], %r1;"
TABLE = (  # of 2/pi, as sin needs it
    "65, 144, 67, 60, 153, 149, 98, 219, 192, 221, 52, 245, 209, 87, 39, 252, 41, 21, 68, 78, 110, 131, 249, 162"
)
READ = (
    "ld.global.u32 %r1, [%d1]; and.b32 %r1, %r1, 4; cvt.u64.u32 %d2, %r1; mov.u64 %d3, {0}; "
    "add.u64 %d2, %d2, %d3; ld.{1}.u32 %r2, [%d2]; st.global.u32 [%d1], %r2;"
)
CALL = "{{ .param .b64 r; .param .b64 a; st.param.b64 [a], %d1; call (r), {0}, (a); ld.param.b64 %d2, [r]; }} st.global.u64 [%d1], %d2;"


def refused(cubin: bytes, **others: Any) -> str:
    with pytest.raises(Refused) as caught:
        inspect(plan_of(cubin, **others))
    text = str(caught.value)
    assert text.startswith(f"{others.get('name', 'k')}: ")
    return text


def test_a_kernel_that_writes_to_its_arguments_passes() -> None:
    inspect(plan_of(cubin()))


@pytest.mark.parametrize(
    "target", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a"]
)
def test_the_architecture_is_that_of_the_code(target: str) -> None:
    made = cubin(target=target)
    gpu = target.rstrip("a")

    inspect(plan_of(made, gpu=gpu))
    for other in set(ARCHITECTURES) - {gpu}:
        assert f"compiled for {gpu}, and the GPU is {other}" in refused(made, gpu=other)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(Refused, match="gpu must be one of"):
        inspect(plan_of(cubin(), gpu="sm_1"))


@pytest.mark.parametrize(
    ("declarations", "body"),
    [
        (GLOBAL, COUNT),
        (".global .align 4 .u32 counter = 7;", COUNT),
        (".common .global .align 4 .u32 counter;", COUNT),
        (".visible .global .attribute(.managed) .align 4 .u32 counter;", COUNT),
        (f".global .align 4 .b8 table[24] = {{{TABLE[:-3]}161}};", READ.format("table", "global")),
    ],
)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_variables_in_global_memory_are_refused(declarations: str, body: str, target: str) -> None:
    made = cubin(body, declarations=declarations, target=target)

    text = refused(made, gpu=target.rstrip("a"))

    assert "variable in global memory" in text
    assert "counter" in text or "table" in text


def test_a_variable_beside_a_known_table_is_refused() -> None:
    declarations = f".global .align 4 .b8 table[24] = {{{TABLE}}}; {GLOBAL[:-1]} = 7;"
    made = cubin(COUNT + READ.format("table", "global"), declarations=declarations)

    assert "(counter)" in refused(made)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_tables_of_math_functions_and_constants_pass(target: str) -> None:
    table = f".global .align 4 .b8 table[24] = {{{TABLE}}};"
    constant = ".const .align 4 .b8 mine[8] = {1, 2, 3, 4, 5, 6, 7, 8};"

    for declarations, body in (
        (table, READ.format("table", "global")),
        (constant, READ.format("mine", "const")),
    ):
        inspect(
            plan_of(cubin(body, declarations=declarations, target=target), gpu=target.rstrip("a"))
        )


@pytest.mark.parametrize(
    ("name", "does"),
    [("malloc", "allocates memory"), ("free", "frees memory")],
)
def test_calls_of_the_driver_are_refused(name: str, does: str) -> None:
    result = "(.param .b64 r)" if name == "malloc" else ""
    declarations = f".extern .func {result} {name} (.param .b64 a);"
    body = CALL.format(name)
    if name == "free":
        body = "{ .param .b64 a; st.param.b64 [a], %d1; call free, (a); } st.global.u64 [%d1], %d1;"

    assert f"it {does}" in refused(cubin(body, declarations=declarations))


def test_prints_and_assertions_are_refused() -> None:
    printing = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);"
    body = "{ .param .b32 r; .param .b64 a; .param .b64 b; st.param.b64 [a], %d1; st.param.b64 [b], %d1; call (r), vprintf, (a, b); ld.param.b32 %r1, [r]; } st.global.u32 [%d1], %r1;"
    asserting = (
        ".extern .func __assertfail "
        "(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e) .noreturn;"
    )
    fail = "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; st.param.b64 [a], %d1; st.param.b64 [b], %d1; st.param.b32 [c], 1; st.param.b64 [d], %d1; st.param.b64 [e], %d1; call __assertfail, (a, b, c, d, e); }"

    assert "it prints (vprintf)" in refused(cubin(body, declarations=printing))
    assert "it has an assertion (__assertfail)" in refused(cubin(fail, declarations=asserting))


def test_launches_from_the_device_are_refused() -> None:
    declarations = ".extern .func (.param .b64 r) cudaLaunchDeviceV2 (.param .b64 a);"
    made = cubin(CALL.format("cudaLaunchDeviceV2"), declarations=declarations, relocatable=True)

    assert "it is not linked" in refused(made)


def test_textures_and_surfaces_are_refused() -> None:
    texture = "mov.u32 %r1, 0; tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [t, {%r1}]; st.global.f32 [%d1], %f1;"
    surface = "mov.u32 %r1, 0; suld.b.1d.b32.trap %r2, [t, {%r1}]; st.global.u32 [%d1], %r2;"

    assert "texture or surface" in refused(cubin(texture, declarations=".global .texref t;"))
    assert "texture or surface" in refused(cubin(surface, declarations=".global .surfref t;"))


def test_the_kernel_must_be_there() -> None:
    assert "no kernel of this name" in refused(cubin(), name="other")


@pytest.mark.parametrize(
    ("taken", "passed"),
    [
        (("u64",), ()),
        (("u64",), ("*", "i32")),
        (("u64", "u32"), ("*", "i64")),
        (("u64", "u32"), ("i32", "*")),
        (("u64", "f64"), ("*", "fp32")),
        (("u64", "u8"), ("*", "i32")),
    ],
)
def test_parameters_must_be_those_of_the_launch(
    taken: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    assert "it takes parameters of 8" in refused(cubin(parameters=taken), parameters=passed)


def test_parameters_of_all_sizes_pass() -> None:
    made = cubin(parameters=("u64", "u8", "u16", "u32", "f32", "u64", "f64"))

    inspect(plan_of(made, parameters=("*", "i1", "fp16", "i32", "fp32", "i64", "fp64")))


def test_a_structure_as_a_parameter_is_refused() -> None:
    made = cubin(parameters=("u64", "align 8 .b8 {}[4096]"))

    assert "8, 4096 bytes" in refused(made, parameters=("*", "*"))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_shared_memory_must_fit(target: str) -> None:
    body = (
        "st.shared.u32 [s], %r1; bar.sync 0; ld.shared.u32 %r2, [s + 64]; st.global.u32 [%d1], %r2;"
    )
    made = cubin(body, declarations=".shared .align 16 .b8 s[4096];", target=target)
    gpu = target.rstrip("a")
    room = ARCHITECTURES[gpu].block_shared_bytes - 4096

    inspect(plan_of(made, shared_bytes=room, gpu=gpu))
    assert "of shared memory" in refused(made, shared_bytes=room + 1, gpu=gpu)
    assert "of shared memory" in refused(cubin(target=target), shared_bytes=room + 4097, gpu=gpu)


def test_threads_must_be_those_that_it_is_compiled_for() -> None:
    exact, most = cubin(directives=".reqntid 64, 2, 1"), cubin(directives=".maxntid 256, 1, 1")

    inspect(plan_of(exact, threads=(64, 2, 1)))
    assert "64 x 2 x 1 threads, not 128 x 1 x 1" in refused(exact, threads=(128, 1, 1))
    inspect(plan_of(most, threads=(16, 16, 1)))
    assert "at most 256 threads in a block, not 512" in refused(most, threads=(512, 1, 1))


def test_clusters_must_be_those_that_it_is_compiled_for() -> None:
    made = cubin(directives=".maxntid 256, 1, 1 .reqnctapercluster 2, 1, 1 .explicitcluster")

    inspect(plan_of(made, cluster=(2, 1, 1)))
    assert "clusters of 2 x 1 x 1 blocks" in refused(made)


def test_threads_with_many_registers_must_fit() -> None:
    values = 120
    lines = [f".reg .b32 %v<{values}>;"]
    lines += [f"ld.volatile.global.u32 %v{n}, [%d1 + {4 * n}];" for n in range(values)]
    lines += [f"st.volatile.global.u32 [%d1 + {4 * n}], %v{values - 1 - n};" for n in range(values)]
    made = cubin("\n".join(lines))

    inspect(plan_of(made, threads=(256, 1, 1)))
    assert "does not fit on a multiprocessor of sm_90" in refused(made, threads=(1024, 1, 1))


@dataclasses.dataclass
class Editable:
    """A cubin whose headers of sections a test changes."""

    data: bytearray

    def section(self, name: str, /, **changes: int) -> Editable:
        begin = HEADER.unpack_from(self.data)[6]
        at = begin + SECTION.size * Cubin.parse(bytes(self.data)).sections[name].number
        members = [
            "name",
            "kind",
            "flags",
            "address",
            "offset",
            "size",
            "link",
            "info",
            "align",
            "each",
        ]
        header = SECTION.unpack_from(self.data, at)
        SECTION.pack_into(self.data, at, *self._changed(header, members, changes))
        return self

    def symbol(self, wanted: str, **changes: int) -> Editable:
        cubin = Cubin.parse(bytes(self.data))
        number = 1 + [one.name for one in cubin.symbols()].index(wanted)
        at = bytes(self.data).index(cubin.sections[".symtab"].data) + SYMBOL.size * number
        members = ["name", "info", "other", "section", "value", "size"]
        SYMBOL.pack_into(
            self.data, at, *self._changed(SYMBOL.unpack_from(self.data, at), members, changes)
        )
        return self

    def attribute(self, section: str, wanted: int, **changes: int) -> Editable:
        """Change the first attribute of this number; `ordinal` and `offset` are of a parameter."""
        data = Cubin.parse(bytes(self.data)).sections[section].data
        at = bytes(self.data).index(data)
        while self.data[at + 1] != wanted:
            at += 4 + (struct.unpack_from("<H", self.data, at + 2)[0] if self.data[at] == 4 else 0)
        record = struct.Struct("<BBHIHH")
        members = ["form", "number", "length", "index", "ordinal", "offset"]
        record.pack_into(
            self.data, at, *self._changed(record.unpack_from(self.data, at), members, changes)
        )
        return self

    @staticmethod
    def _changed(values: Sequence[int], members: list[str], changes: dict[str, int]) -> list[int]:
        assert set(changes) <= set(members)
        return [changes.get(member, value) for member, value in zip(members, values, strict=True)]

    def renamed(self, old: str, new: str) -> Editable:
        assert len(old) == len(new)
        assert self.data.count(old.encode() + b"\0") >= 1
        self.data = bytearray(self.data.replace(old.encode() + b"\0", new.encode() + b"\0"))
        return self

    def __bytes__(self) -> bytes:
        return bytes(self.data)


def editable(*args: Any, **kwargs: Any) -> Editable:
    return Editable(bytearray(cubin(*args, **kwargs)))


def test_a_section_is_known_by_its_name_its_kind_and_its_flags() -> None:
    counting = {"declarations": GLOBAL, "body": COUNT}
    writable = 1

    assert "it has a section .nv.globas" in refused(
        bytes(editable(**counting).renamed(".nv.global", ".nv.globas"))
    )
    assert "another kind" in refused(
        bytes(editable(**counting).renamed(".nv.global", ".nv.info.x"))
    )
    assert "another kind" in refused(bytes(editable().section(".nv.callgraph", kind=0x70000007)))
    assert "another kind" in refused(bytes(editable().section(".text.k", flags=6 | writable)))
    assert "another kind" in refused(
        bytes(editable().section(".nv.constant0.k", flags=2 | writable))
    )


def test_parts_of_a_kernel_belong_to_it_by_name_and_by_number() -> None:
    body = (
        "st.shared.u32 [s], %r1; bar.sync 0; ld.shared.u32 %r2, [s + 64]; st.global.u32 [%d1], %r2;"
    )
    shared = {"body": body, "declarations": ".shared .align 16 .b8 s[4096];"}

    assert "nv.info belongs to another" in refused(bytes(editable().section(".nv.info.k", info=1)))
    assert "nv.shared belongs to another" in refused(
        bytes(editable(**shared).section(".nv.shared.k", info=1))
    )
    assert "nv.shared belongs to another" in refused(
        bytes(editable(**shared).renamed(".nv.shared.k", ".nv.shared.q"))
    )


def test_a_symbol_outside_of_all_sections_is_refused() -> None:
    constant = ".const .align 4 .b8 mine[8] = {1, 2, 3, 4, 5, 6, 7, 8};"
    made = editable(declarations=constant, body=READ.format("mine", "const"))

    assert "the driver allocates (mine)" in refused(bytes(made.symbol("mine", section=0xFFF2)))


def test_calls_of_the_driver_are_refused_without_their_name() -> None:
    declarations = ".extern .func (.param .b64 r) malloc (.param .b64 a);"
    made = editable(declarations=declarations, body=CALL.format("malloc"))

    assert "it calls the driver" in refused(bytes(made.symbol("malloc", name=0)))


def test_tables_for_other_compilers_must_be_the_same() -> None:
    declarations = f".global .align 4 .b8 table[24] = {{{TABLE}}};"
    made = editable(
        declarations=declarations, body=READ.format("table", "global"), target="sm_100a"
    )
    made.section(".nv.merc.nv.global.init", offset=0)

    assert "differs" in refused(bytes(made), gpu="sm_100")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (0x1B, {"number": 0x1F}, "launches kernels from the device"),
        (0x1B, {"number": 0x20}, "launches kernels from the device"),
        (0x3D, {"number": 0x10}, "says twice"),
        (0x05, {"length": 8}, "has another size"),
        (0x17, {"length": 8}, "in an unknown way"),
        (0x17, {"ordinal": 7}, "not numbered, or overlap"),
        (0x17, {"offset": 0}, "not numbered, or overlap"),
    ],
)
def test_attributes_of_a_kernel_are_checked(old: int, new: dict[str, int], text: str) -> None:
    directives = ".maxntid 64, 2, 1 .reqnctapercluster 2, 1, 1 .explicitcluster"
    made = editable(directives=directives, parameters=("u64", "u32"))
    if new.get("number") == 0x10:
        made.attribute(".nv.info.k", 0x05, number=0x10)

    assert text in refused(
        bytes(made.attribute(".nv.info.k", old, **new)),
        parameters=("*", "i32"),
        threads=(64, 2, 1),
        cluster=(2, 1, 1),
    )


def test_attributes_of_a_kernel_stand_in_its_own_section() -> None:
    assert "belong to one kernel" in refused(
        bytes(editable().attribute(".nv.info", 0x11, number=0x10))
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF\x02\x01" + bytes(100),
        b"\x50\xed\x55\xba" + bytes(100),
        b"!<arch>\n" + bytes(100),
        b".version 8.0\n",
    ],
)
def test_what_is_no_elf_file_for_gpus_is_refused(data: bytes) -> None:
    assert "no ELF file" in refused(data)


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        (".symtab", {"offset": 1 << 40}, "ends behind the file"),
        (".symtab", {"size": (1 << 64) - 8}, "ends behind the file"),
        (".symtab", {"size": 25}, "table of symbols is wrong"),
        (".strtab", {"size": 1}, "a name does not end"),
        (".nv.info.k", {"size": 5}, "ends within an attribute"),
        (".nv.info.k", {"size": 10}, "ends within an attribute"),
        (".nv.info.k", {"name": 1}, "two sections"),
        (".symtab", {"link": 1}, "their names in another section"),
    ],
)
def test_broken_files_are_refused(name: str, changes: dict[str, int], text: str) -> None:
    assert text in refused(bytes(editable().section(name, **changes)))


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (40, b"\xff\xff\xff", "ends behind the file"),
        (58, b"\x28", "table of sections is wrong"),
        (60, b"\0\0", "table of sections is wrong"),
    ],
)
def test_broken_headers_are_refused(at: int, value: bytes, text: str) -> None:
    made = bytearray(cubin())
    made[at : at + len(value)] = value

    assert text in refused(bytes(made))


def test_names_are_ascii_and_symbols_are_there() -> None:
    strange = bytearray(cubin().replace(b"\0.nv.callgraph\0", b"\0.nv.callgrap\xff\0"))

    assert "not ASCII" in refused(bytes(strange))
    assert "no symbols" in refused(bytes(editable().renamed(".symtab", ".symtaz")))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_file_is_inspected_or_refused(data: st.DataObject) -> None:
    kwargs: dict[str, str] = data.draw(
        st.sampled_from([{}, {"declarations": GLOBAL, "body": COUNT}, {"target": "sm_100a"}])
    )
    made = bytearray(cubin(**kwargs))
    places = st.one_of(
        st.integers(0, 63),
        st.integers(0, len(made) - 1),
        st.integers(len(made) - 3000, len(made) - 1),
    )
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        made[place] = value
    cut = data.draw(st.integers(0, len(made)) | st.just(len(made)))

    with contextlib.suppress(Refused):
        inspect(plan_of(bytes(made[:cut]), gpu="sm_100" if "target" in kwargs else "sm_90"))
