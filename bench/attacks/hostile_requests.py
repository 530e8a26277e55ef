"""Requests that cost a server more time than their size suggests, each within the documented limits
of an earlier or a later server."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20

CALL = "POST /v1/kernels/permute?dims=0"
INFER = "POST /v2/models/permute/infer"
SAFETENSORS = "Content-Type: application/vnd.safetensors"
JSON = "Content-Type: application/json"
FORM = "Content-Type: multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="x"; filename="x.npy"\r\n\r\n'
TEXT_PART = b'--b\r\nContent-Disposition: form-data; name="dims"\r\n\r\n'


@dataclass(frozen=True)
class Hostile:
    """One request, sent on `copies` connections at once.

    Attributes:
        start: method and target of the request line.
        headers: header lines, without Host and Content-Length.
    """

    name: str
    start: str
    headers: tuple[str, ...] = ()
    body: bytes = b""
    copies: int = 1

    def encode(self, *more: str) -> bytes:
        """The bytes of the request, with `more` header lines."""
        lines = [f"{self.start} HTTP/1.1", "Host: localhost", *self.headers, *more]
        lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.body


def requests(json_bytes: int, header_bytes: int) -> Iterator[Hostile]:
    """All of them.

    Args:
        json_bytes: size of JSON bodies, the server's `max_json_bytes`.
        header_bytes: size of safetensors headers.
    """
    yield Hostile("nothing", "GET /healthz")
    yield from _json(json_bytes)
    yield from _infer(json_bytes)
    yield from _headers_of_safetensors(header_bytes)
    yield from _forms()
    yield from _heads()
    yield from _jobs(MIB)
    yield from _just_allowed()
    yield from _jobs(64 * KIB)


def _just_allowed() -> Iterator[Hostile]:
    """What is as slow as the limits allow, on many connections at once."""
    for name, item in {"{},{}": b"{}", '"":0': b'{"":0}', "1": b"1"}.items():
        count = (16 * KIB - 30) // (len(item) + 1)
        text = b'{"params":{"a":{"b":[' + b",".join([item] * count) + b"]}}}"
        yield Hostile(f"JSON 16 KiB {name} x 16", CALL, (JSON,), text, copies=16)
    count = 16 * KIB // 4 - 40
    x = f'{{"inputs":{{"x":{{"dtype":"F32","shape":[{count},1],"data":['.encode()
    values = x + b",".join([b"[0]"] * count) + b"]}}}"
    yield Hostile("JSON 16 KiB [0] x 16", CALL, (JSON,), values, copies=16)
    answer = {"x": {"dtype": "F8_E5M2", "shape": [2048], "data_offsets": [0, 2048]}}
    body = _safetensors(json.dumps(answer).encode()) + b"\1" * 2048
    headers = (SAFETENSORS, "Accept: application/json")
    yield Hostile("JSON answer of 2048 x 16", CALL, headers, body, copies=16)
    shape = "0," * 63 + "0"
    tensors = ",".join(
        f'"{i}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}' for i in range(256)
    )
    yield Hostile("header of 256 tensors x 16", CALL, (SAFETENSORS,), _safetensors(
        f"{{{tensors}}}".encode()), copies=16)  # fmt: skip
    brackets = b'{"x":[' + b"{}," * 4090 + b"0]}"
    yield Hostile("header {},{} in limits x 16", CALL, (SAFETENSORS,), _safetensors(brackets), 16)
    commas = b'{"x":[' + b"0," * 32_000 + b"0]}"
    yield Hostile("header 0,0 in limits x 16", CALL, (SAFETENSORS,), _safetensors(commas), 16)
    head = b"\x93NUMPY\1\0"
    zeros = b"{'descr':'|u1','fortran_order':False,'shape':(" + b"0," * 64 + b")}"
    npy = head + len(zeros).to_bytes(2, "little") + zeros
    parts = b"\r\n".join(PART.replace(b'"x"', b'"x%d"' % i, 1) + npy for i in range(128))
    yield Hostile("form of 128 files x 8", CALL, (FORM,), parts + b"\r\n--b--\r\n", copies=8)
    boundaries = TEXT_PART + b"\r\n--bX" * 1020 + b"\r\n--b--\r\n"
    yield Hostile("form of 1020 boundaries x 16", CALL, (FORM,), boundaries, copies=16)
    call = CALL.partition("?")[0]
    names = "&".join(f"{i:x}=" + "%41" * 150 for i in range(127))
    yield Hostile("query of 127 names x 16", f"{call}?{names}", (JSON,), b"{}", copies=16)
    yield Hostile("query of 127 names, jobs x 16", f"GET /v1/jobs?{names}", copies=16)
    many = tuple(f"x-{i}: {'y' * 400}" for i in range(124))
    yield Hostile("124 headers x 16", "GET /v1/kernels", many, copies=16)


def _json(nbytes: int) -> Iterator[Hostile]:
    def params(item: bytes) -> bytes:
        count = (nbytes - 40) // (len(item) + 1)
        return b'{"params":{"dims":[' + b",".join([item] * count) + b"]}}"

    def data(item: bytes, dtype: str) -> bytes:
        count = (nbytes - 100) // (len(item) + 1)
        shape = f"{count},1" if item.startswith(b"[") else str(count)
        return (
            f'{{"inputs":{{"x":{{"dtype":"{dtype}","shape":[{shape}],"data":['.encode()
            + b",".join([item] * count)
            + b"]}}}"
        )

    answer = "Accept: application/json"
    yield Hostile("JSON [],[]", CALL, (JSON,), params(b"[]"))
    yield Hostile("JSON [],[] x 8", CALL, (JSON,), params(b"[]"), copies=8)
    yield Hostile("JSON {},{}", CALL, (JSON,), params(b"{}"))
    yield Hostile('JSON {"":0}', CALL, (JSON,), params(b'{"":0}'))
    yield Hostile("JSON 4,000 digits", CALL, (JSON,), params(b"1" * 4000))
    yield Hostile("JSON nested", CALL, (JSON,), b"[" * nbytes)
    yield Hostile("JSON values F64", CALL, (JSON, answer), data(b"0", "F64"))
    yield Hostile("JSON values F32", CALL, (JSON, answer), data(b"0.123456", "F32"))
    yield Hostile("JSON values [0]", CALL, (JSON,), data(b"[0]", "F32"))
    yield Hostile("JSON values 1e1", CALL, (JSON,), data(b"1e1", "F32"))
    yield Hostile("JSON values 1e1 x 8", CALL, (JSON,), data(b"1e1", "F32"), copies=8)
    members = b",".join([b'{"a":1,"b":1,"c":1,"d":1}'] * 16_000)
    yield Hostile("JSON objects in limits", CALL, (JSON,), b'{"params":{"dims":[%b]}}' % members)
    nested = b'{"params":{"a":{"b":[%b]}}}' % b",".join([b"1e1"] * 16_000)
    yield Hostile("JSON params in limits", CALL, (JSON,), nested)
    yield Hostile("JSON 60 KiB {},{}  x 32", CALL, (JSON,), params(b"{}")[: 60 * KIB], copies=32)
    for name, shape in {"": [nbytes], " of lists": [nbytes, 1]}.items():
        tensor = {"x": {"dtype": "F8_E5M2", "shape": shape, "data_offsets": [0, nbytes]}}
        body = _safetensors(json.dumps(tensor).encode()) + b"\1" * nbytes
        call = CALL + ",1" * (len(shape) - 1)
        yield Hostile(f"JSON answer{name}", call, (SAFETENSORS, answer), body)
        yield Hostile(f"JSON answer{name} x 8", call, (SAFETENSORS, answer), body, copies=8)


def _infer(nbytes: int) -> Iterator[Hostile]:
    def bomb(item: bytes, count: int) -> bytes:
        text = b'{"inputs":[' + b",".join([item] * count) + b"]}"
        return gzip.compress(text, 9)

    coded = (JSON, "Content-Encoding: gzip")
    full = (nbytes - 20) // 3
    data = b",".join([b"0.5"] * (nbytes // 4 - 40))
    tensor = f'"name":"x","datatype":"FP32","shape":[{nbytes // 4 - 40}]'.encode()
    infer = b'{"parameters":{"dims":"0"},"inputs":[{' + tensor + b',"data":[' + data + b"]}]}"
    yield Hostile("OIP values", INFER, (JSON,), infer)
    yield Hostile("OIP [],[]", INFER, (JSON,), b'{"inputs":[' + b"[]," * full + b"0]}")
    yield Hostile("OIP gzip {},{} x 8", INFER, coded, bomb(b"{}", full), copies=8)
    zeros = gzip.compress(b" " * (256 * MIB), 9)
    yield Hostile("OIP gzip of spaces x 8", INFER, coded, zeros, copies=8)
    blocks = zlib.compressobj(9, zlib.DEFLATED, 31)
    empty = blocks.compress(b" ") + b"".join(
        blocks.flush(zlib.Z_FULL_FLUSH) for _ in range(200_000)
    )
    yield Hostile("OIP gzip, empty blocks", INFER, coded, empty)
    yield Hostile("OIP gzip, small blocks", INFER, coded, _small_blocks(1 * MIB))


def _small_blocks(nbytes: int) -> bytes:
    """Blocks that each bring a Huffman table for a few bytes."""
    coder = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(range(32, 96))
    out = bytearray()
    while len(out) < nbytes:
        out += coder.compress(piece * 2) + coder.flush(zlib.Z_FULL_FLUSH)
    return bytes(out)


def _headers_of_safetensors(nbytes: int) -> Iterator[Hostile]:
    count = nbytes // 3 - 10
    huge = ",".join(["9" * 4000] * 24)
    text = '{"x":{"dtype":"U8","shape":[' + huge + '],"data_offsets":[0,0]}}'
    for name, body in {
        "{},{}": b'{"x":[' + b"{}," * count + b"0]}",
        "[],[]": b'{"x":[' + b"[]," * count + b"0]}",
        "dims of 4,000 digits": text.encode(),
        "long name": b'{"' + b"\\u0001" * (nbytes // 6 - 40) + b'":{"dtype":1,"shape":1}}',
        "params": json.dumps({"__metadata__": {"params": "{}," * (count - 20)}}).encode(),
    }.items():
        sent = _safetensors(body)
        yield Hostile(f"header {name}", CALL, (SAFETENSORS,), sent)
        yield Hostile(f"header {name} x 16", CALL, (SAFETENSORS,), sent, copies=16)


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def _forms() -> Iterator[Hostile]:
    shape = b"{'descr':'|u1','fortran_order':False,'shape':(" + b"1," * 7900 + b")}"
    npy = b"\x93NUMPY\1\0" + len(shape).to_bytes(2, "little") + shape
    head = b"\x93NUMPY\1\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (9000000,), }"
    plain = head.ljust(128, b" ")
    for name, body in {
        "spaces": PART + b"\r\n--b" + b" " * (4 * MIB),
        "boundaries": PART + plain + b"\r\n--bX" * (MIB // 2),
        "half boundaries": PART + plain + b"\r\n--" * (MIB // 2),
        "text of boundaries": TEXT_PART + b"\r\n--bX" * 10_000,
        "npy header": PART + npy + b"\r\n--b--\r\n",
        "list": TEXT_PART + b"0," * (32 * KIB - 20) + b"\r\n--b--\r\n",
        "parts": b"\r\n".join([TEXT_PART.replace(b"dims", b"%d" % i) for i in range(128)]),
    }.items():
        yield Hostile(f"form of {name}", CALL.partition("?")[0], (FORM,), body)


def _heads() -> Iterator[Hostile]:
    room = 60 * KIB
    call = CALL.partition("?")[0]
    accept = "Accept: " + "a," * (room // 2)
    yield Hostile("Accept a,a", CALL, (JSON, accept), b"{}")
    yield Hostile("Accept a,a x 16", CALL, (JSON, accept), b"{}", copies=16)
    yield Hostile("Content-Type ;b=c", CALL, (f"{FORM}" + ";b=c" * (room // 4),), b"{}")
    names = "&".join(f"{i:x}=" for i in range(room // 6))
    yield Hostile("query, many names", f"{call}?{names}", (JSON,), b"{}")
    yield Hostile("query, many names, jobs", f"GET /v1/jobs?{names}")
    yield Hostile("query, long list", f"{call}?dims=" + "0," * (room // 2), (JSON,), b"{}")
    yield Hostile("path of %41", "GET /v1/kernels/" + "%41" * (room // 3))
    yield Hostile("path of slashes", "GET /" + "v1/" * (room // 3))
    timeout = "X-Warpcall-Timeout: " + "1" * room
    yield Hostile("X-Warpcall-Timeout", CALL, (JSON, timeout), b"{}")
    tensors = "X-Warpcall-Tensors: " + ",".join(f"x{i}=a" for i in range(255))
    yield Hostile("X-Warpcall-Tensors", CALL, (JSON, tensors), b"{}")
    for path in ("/openapi.json", "/metrics", "/docs", "/v1/kernels"):
        yield Hostile(f"GET {path}", f"GET {path}")
    many = tuple(f"{i:x}:" for i in range(room // 7))
    yield Hostile("many headers", "GET /v1/kernels", many)
    yield Hostile("many headers x 16", "GET /v1/kernels", many, copies=16)


def _jobs(nbytes: int) -> Iterator[Hostile]:
    job = "POST /v1/jobs/preview"
    size = f"{nbytes // KIB} KiB"
    room = nbytes - 200

    def body(member: bytes, item: bytes, end: bytes = b"") -> bytes:
        count = room // (len(item) + 1)
        return b'{"op":"permute",' + member + b",".join([item] * count) + b"]" + end + b"}"

    sweep = b'"sweep":{"dtypes":["F32"],"shapes":['
    case = b'{"shape":[1],"dtype":"F32","params":{"dims":[0]}}'
    yield Hostile(f"job {size}, cases {{}}", job, (JSON,), body(b'"cases":[', b"{}"))
    yield Hostile(f"job {size}, shapes []", job, (JSON,), body(sweep, b"[]", b"}"))
    yield Hostile(f"job {size}, cases", job, (JSON,), body(b'"cases":[', case))
    params = b'"sweep":{"dtypes":["F32"],"shapes":[[1]],"params":{"dims":['
    yield Hostile(f"job {size}, params []", job, (JSON,), body(params, b"[]", b"}}"))
