"""Random requests such as reach a public port: valid, invalid, mutated, or not HTTP at all."""

from __future__ import annotations

import json
import random

import numpy as np
import safetensors.numpy

from tests.service.requests import SAFETENSORS, npy

EOL = b"\r\n"
JSON = "application/json"
OPS = (
    "permute",
    "masked-softmax",
    "masked-softmax-backward",
    "masked-softmax-bias-backward",
    "conv",
    "conv-backward",
    "transpose-add",
    "isin",
    "none",
)
PATHS = (
    *("/", "/v1/kernels", "/v1/me", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"),
    *(f"/v1/kernels/{op}" for op in OPS),
    *("/v2", "/v2/health/live", "/v2/models/permute", "/v2/models/isin/versions/1/config"),
    *("/v2/models/stats", "/v2/models/none/ready", "/v2/repository/index"),
    *("/v2/models/permute/infer", "/v2/systemsharedmemory/status"),
    *(f"/v2/systemsharedmemory/region/a/{verb}" for verb in ("status", "register", "unregister")),
    *("/v1/programs", "/v1/tensors", "/v1/tensors/a", "/v1/tensors/b", "/v1/tensors/%2e%2e"),
)
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW", "get", "")
ODD = (b"\r\n", b"\n", b"\r", b"\0", b"\xff", b" ", b"\t", b":", b"%", b"9" * 20, b"-1", b"chunked")
LENGTHS = ("+5", "-1", "0x5", "5e0", "5, 5", "5 5", "", "9" * 30, "5_0", "05", "５", "0")
CODINGS = (
    "chunked, chunked",
    "xchunked",
    "identity",
    "gzip, chunked",
    "chunked, gzip",
    "",
    "CHUNKED",
)
CHUNK_SIZES = (
    *("G", "-1", "0x5", "+5", "", " 5", "5 ", "5;a=b", "5;" + "x" * 5000, "F" * 16, "F" * 17),
    *("5\t", "5\n", "5\0", "00000000000000005", "5,5", "1_0", "7fffffffffffffff"),
)
HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Accept", ("*/*", JSON, "application/x-npy", "image/png", "q=;;,", "a/b;q=9")),
    ("Content-Type", (SAFETENSORS, JSON, "multipart/form-data", "text/plain", "multipart/form-data; boundary=b", ";", "a" * 500)),
    ("Content-Encoding", ("gzip", "identity", "")),
    ("Content-Length", LENGTHS),
    ("Transfer-Encoding", CODINGS),
    ("Expect", ("100-continue", "200-ok", "")),
    ("Connection", ("close", "keep-alive", "upgrade", "close, keep-alive", "")),
    ("Upgrade", ("websocket", "h2c", "TLS/1.3")),
    ("Inference-Header-Content-Length", LENGTHS),
    ("X-Warpcall-Timeout", ("nan", "-1", "1e400", "x", "60", "")),
    ("X-Request-Id", ("a", "a" * 65, "é", "../../etc", "a b", "")),
    ("Authorization", ("Bearer", "Bearer x", "Basic !!!", "")),
    ("Host", ("localhost", "x", "a b", "", "[::1", "x" * 3000)),
    ("X-Warpcall-Tensors", ("x=a", "x=a, weight=b", "elements=a,test_elements=b", "x=", "=a", "x=a,x=a", ",", "x=../a")),
    ("X-Warpcall-Store", ("*", "*=a", "out=a", "out=b", "*=a,out=b", "none=a", "y=a", "out=é")),
    ("X-Warpcall-Ttl", ("60", "0", "-1", "1e9", "nan", "")),
    ("X-Warpcall-Device", ("cpu", "cuda:0", "none", "")),
    ("Range", ("bytes=0-", "bytes=-9")),
    ("Cookie", ("a=b; c", "=" * 100)),
)  # fmt: skip


SOME_KEY = b"wc_00000000_" + b"0" * 43  # a well-formed key that the server does not have


def attempt(seed: str) -> tuple[int, bytes]:
    """The number of requests that one connection sends, and their bytes, which may be mutated."""
    draw = random.Random(seed)
    count = draw.choice((1, 1, 1, 1, 2, 3, 6))
    data = b"".join(_request(draw) for _ in range(count))
    return count, _mutated(draw, data) if draw.random() < 0.4 else data


def _request(draw: random.Random) -> bytes:
    return draw.choices(
        (_plain, _call, _infer, _chunked, _wrong_head, _huge, _smuggling, _noise),
        (4, 8, 4, 5, 5, 1, 3, 1),
    )[0](draw)


def _head(draw: random.Random, line: str, headers: list[tuple[str, str]], odd: float) -> bytes:
    """A request's head. Each further header is added with the given probability."""
    headers = [("Host", "localhost"), *headers]
    if draw.random() < 0.9:
        headers.append(("Authorization", f"Bearer {SOME_KEY.decode()}"))
    while draw.random() < odd:
        name, values = draw.choice(HEADERS)
        headers.insert(draw.randint(0, len(headers)), (name, draw.choice(values)))
    text = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{line}\r\n{text}\r\n".encode()


def _path(draw: random.Random) -> str:
    path = draw.choice(PATHS)
    return path + draw.choice(("", "", "", "?dims=0", "?dims=0&dims=1", "?%", "?a[]=%00&&=", "#f"))


def _plain(draw: random.Random) -> bytes:
    method = draw.choice(("GET", "GET", draw.choice(METHODS)))
    return _head(draw, f"{method} {_path(draw)} HTTP/1.1", [], 0.3)


def _body(draw: random.Random) -> tuple[str, bytes]:
    """A body that an op might accept, and its media type; sometimes with wrong bytes."""
    shape = draw.choices((1, 2, 3, 5, 31), k=draw.randint(0, 3))
    dtype = draw.choice((np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex64))
    names = draw.sample(("x", "weight", "a", "b", "elements", "test_elements", "mask"), 2)
    arrays = {name: np.ones(shape, dtype) for name in names[: draw.randint(1, 2)]}
    if draw.random() < 0.02:  # a body of 128 KiB or more is received without the parser
        arrays["x"] = np.ones(draw.choice((1 << 15, 1 << 18)), np.float32)
    kind = draw.choice((SAFETENSORS, SAFETENSORS, JSON, "multipart/form-data; boundary=b"))
    params: dict[str, object] = {"dims": draw.choice(([0], [1, 0], [0, 0], [9], "0", None, []))}
    if draw.random() < 0.2:
        params = {"program": _program(draw, [*arrays, "a"])}
    if kind == SAFETENSORS:
        body = safetensors.numpy.save(arrays, metadata={"params": json.dumps(params)})
    elif kind == JSON:
        x = {"dtype": draw.choice(("F32", "U8", "X")), "shape": shape, "data": [1] * len(shape)}
        body = json.dumps({"inputs": dict.fromkeys(arrays, x), "params": params}).encode()
    else:
        body = b"".join(
            b'--b\r\nContent-Disposition: form-data; name="%s"; filename="x.npy"\r\n\r\n%s\r\n'
            % (name.encode(), npy(array))
            for name, array in arrays.items()
        )
        body += b"--b--\r\n"
    return kind, _mutated(draw, body) if draw.random() < 0.3 else body


def _program(draw: random.Random, names: list[str]) -> object:
    """A program on tensors of these names, which may be invalid."""
    steps: list[object] = []
    for i in range(draw.randint(0, 4)):
        inputs = dict.fromkeys(draw.choice((["x"], ["a", "b"])), draw.choice(names))
        op = draw.choice(("permute", "permute", "transpose-add", "none", 1))
        params = draw.choice(({"dims": [0]}, {"dims": [1, 0]}, {}, None))
        steps.append({"name": f"s{i}", "op": op, "inputs": inputs, "params": params})
        names = [*names, f"s{i}", f"s{i}.out", f"s{i + 1}", "s0.none"]
    if draw.random() < 0.2:
        steps.append(draw.choice((None, {}, [], {"name": "s0", "op": "permute", "inputs": []})))
    outputs: object = (
        {"y": draw.choice(names)} if draw.random() < 0.9 else draw.choice([{}, None, ["y"]])
    )
    return draw.choice(({"steps": steps, "outputs": outputs},) * 5 + ([], {"steps": steps}))


def _call(draw: random.Random) -> bytes:
    kind, body = _body(draw)
    length = len(body) + draw.choice((0,) * 12 + (-1, 1, 100))
    headers = [("Content-Type", kind), ("Content-Length", str(length))]
    route = draw.choice(
        (f"POST /v1/kernels/{draw.choice(OPS)}",) * 4
        + ("POST /v1/programs", f"PUT /v1/tensors/{draw.choice('ab')}", "PUT /v1/tensors")
    )
    return _head(draw, f"{route}{draw.choice(('', '?dims=0'))} HTTP/1.1", headers, 0.25) + body


def _infer(draw: random.Random) -> bytes:
    """An inference request; sometimes before it a request that registers shared memory."""
    x = np.ones(draw.choices((1, 2, 3, 31), k=draw.randint(0, 3)), np.float32)
    tensor: dict[str, object] = {"name": draw.choice(("x", "x", "x", "a")), "shape": list(x.shape)}
    tensor["datatype"] = draw.choice(("FP32", "FP32", "FP32", "INT8", "BYTES", "BF16", 1))
    data = b""
    kind = draw.choice(("json", "binary", "binary", "shared"))
    if kind == "json":
        tensor["data"] = x.tolist()
    elif kind == "binary":
        data = x.tobytes()
        tensor["parameters"] = {"binary_data_size": len(data)}
    else:
        tensor["parameters"] = {"shared_memory_region": "a", "shared_memory_byte_size": x.nbytes}
    dims = draw.choice((",".join(map(str, range(x.ndim))), "", "9", 1, True, None))
    parameters = {"dims": dims, "binary_data_output": draw.choice((True, False, 1))}
    request = {"inputs": [tensor], "parameters": parameters, "id": draw.choice(("a", 1, None))}
    if draw.random() < 0.2:
        request["outputs"] = [{"name": draw.choice(("out", "y")), "parameters": {}}]
    text = json.dumps(request).encode()
    body = text + data
    if draw.random() < 0.2:
        body = _mutated(draw, body)
    path = draw.choice(("models/permute/infer", "models/permute/versions/1/infer", "models//infer"))
    headers = [("Content-Length", str(len(body) + draw.choice((0,) * 9 + (-1, 1))))]
    if draw.random() < 0.9:
        wrong = draw.choice((0,) * 9 + (-1, 1, 1 << 40))
        headers.append(("Inference-Header-Content-Length", str(len(text) + wrong)))
    if draw.random() < 0.1:
        path = f"systemsharedmemory/region/a/{draw.choice(('register', 'unregister'))}"
        body = json.dumps({"key": draw.choice(("/a", "..", 1)), "byte_size": 8}).encode()
        headers = [("Content-Length", str(len(body)))]
    return _head(draw, f"POST /v2/{path} HTTP/1.1", headers, 0.1) + body


def _chunked(draw: random.Random) -> bytes:
    kind, body = _body(draw)
    headers = [("Content-Type", kind), ("Transfer-Encoding", "chunked")]
    data = _head(draw, f"POST /v1/kernels/{draw.choice(OPS)} HTTP/1.1", headers, 0.1)
    wrong = draw.random() < 0.6
    begin = 0
    while begin < len(body):
        part = body[begin : begin + draw.randint(1, max(1, len(body) // 3))]
        begin += len(part)
        size = f"{len(part):x}" if not wrong or draw.random() < 0.5 else draw.choice(CHUNK_SIZES)
        data += size.encode() + EOL + part + (b"" if wrong and draw.random() < 0.1 else EOL)
    trailer = draw.choice(
        (b"", b"", b"A: b\r\n", b"Content-Length: 5\r\n", b"A: b\r\n" * 500, b"\0")
    )
    return data + draw.choice((b"0", b"0", b"00", b"0;x", b"-0", b"")) + EOL + trailer + EOL


def _wrong_head(draw: random.Random) -> bytes:
    """An invalid head."""
    method, path = draw.choice(METHODS), _path(draw)
    line = draw.choice(
        (
            f"{method} {path} HTTP/{draw.choice(('0.9', '1.0', '2.0', '1.2', '9', '1.1 ', 'x'))}",
            f"{method}  {path} HTTP/1.1",
            f"{method} {path}",
            f"{method} http://x{path} HTTP/1.1",
            f"{method} {path}/{draw.choice(('..', '%2e%2e', '%00', '%ff', '%', '☃', '//'))} HTTP/1.1",
            "CONNECT x:80 HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            f"{method} /{'a' * draw.choice((300, 9000, 66000))} HTTP/1.1",
            f"{method}\t{path}\tHTTP/1.1",
            f"\r\n\r\n{method} {path} HTTP/1.1",
        )
    )  # fmt: skip
    odd = draw.choice(("A : b", " A: b", "A", ": b", "A: b\r\n c", "A: \0", "Ä: b", "A: b\rC: d", "A\0: b", "A: b\nC: d"))  # fmt: skip
    return _head(draw, line, [], 0.4)[:-2] + odd.encode() + EOL * draw.choice((1, 2, 2, 2))


def _huge(draw: random.Random) -> bytes:
    """A head that is too large: in one header, in many headers, or without an end."""
    nbytes = draw.choice((60_000, 70_000, 200_000))
    kind = draw.choice(("value", "name", "many", "endless", "query"))
    many = "".join(f"X-{i}: {'a' * 20}\r\n" for i in range(nbytes // 30))
    return {
        "value": f"GET / HTTP/1.1\r\nHost: localhost\r\nA: {'a' * nbytes}\r\n\r\n",
        "name": f"GET / HTTP/1.1\r\nHost: localhost\r\n{'a' * nbytes}: a\r\n\r\n",
        "many": f"GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n",
        "endless": f"GET / HTTP/1.1\r\n{many}",
        "query": f"GET /?{'a' * nbytes} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }[kind].encode()


HIDDEN = b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: hidden\r\n\r\n"
# Framings on which a proxy and a server may differ, so that one takes for a body what the other
# takes for a request. {h} is the length of the hidden one.
FRAMINGS = (
    "Content-Length: {h}\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: {h}",
    "Content-Length: 0\r\nContent-Length: {h}",
    "Content-Length: {h}\r\nContent-Length: 0",
    "Content-Length: 0, {h}",
    "Content-Length: {h}\r\nTransfer-Encoding : chunked",
    "Content-Length: {h}\r\nTransfer-Encoding: xchunked",
    "Content-Length: {h}\r\nTransfer-Encoding:\tchunked",
    "Content-Length: {h}\r\nTransfer-Encoding: chunked, identity",
    "Content-Length: {h}\r\nX: y\r\n Transfer-Encoding: chunked",
    "Content-Length: {h}\r\nX: y\rTransfer-Encoding: chunked",
    "Content-Length: {h}\r\nTransfer-Encoding\0: chunked",
    "Content-Length : {h}",
    "Content-Length: +{h}",
    "Content-Length: 0x{h:x}",
    "Content-Length: -{h}",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: gzip",
    "Transfer-Encoding: \x0bchunked",
)


def smuggling(framing: str, body: bytes) -> bytes:
    """A call with this framing, with `body`, and with a hidden request behind it."""
    head = f"POST /v1/kernels/permute HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
    return (head + framing.format(h=len(HIDDEN)) + "\r\n\r\n").encode() + body + HIDDEN


def _smuggling(draw: random.Random) -> bytes:
    return smuggling(draw.choice(FRAMINGS), draw.choice((b"", b"0\r\n\r\n", b"5\r\nhello\r\n")))


def _noise(draw: random.Random) -> bytes:
    """Bytes of another protocol, or random bytes."""
    return draw.choice(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"SSH-2.0-x\r\n",
            b"\0" * 100,
            draw.randbytes(draw.randint(0, 2000)),
        )
    )


def _mutated(draw: random.Random, data: bytes) -> bytes:
    """The data with some bytes replaced, removed, inserted or repeated, or with its end cut off."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(changed))
        to = min(len(changed), at + draw.choice((1, 1, 2, 8, 100)))
        pieces = (b"", draw.choice(ODD), draw.randbytes(4), bytes(changed[at:to]) * 2)
        changed[at:to] = draw.choice(pieces)
    if draw.random() < 0.2:
        del changed[draw.randint(0, len(changed)) :]
    return bytes(changed)
