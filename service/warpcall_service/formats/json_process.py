"""Entry point of the JSON process: python -m warpcall_service.formats.json_process.

The server starts it for JSON that would block its event loop for too long. A thread would not help:
Python holds its interpreter lock while it parses a document. The process has no torch and no access
to the arenas, and it ends with the server.
"""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from warpcall import wire
from warpcall.errors import InvalidInput, Problem
from warpcall_service.formats import json_call, json_values, oip_request
from warpcall_service.formats.json_messages import (
    LENGTHS,
    MAX_HEAD_BYTES,
    Hole,
    decode_tensor,
    encode_head,
    encode_tensor,
    fill,
)
from warpcall_service.formats.params import from_json
from warpcall_service.processes import child
from warpcall_service.text import MAX_DETAIL_CHARS, MAX_FIELD_CHARS

PIECE_BYTES = 1 << 20  # received at once

Reply = tuple[Mapping[str, Any], Sequence[memoryview | bytes]]


def main() -> None:
    """Answer requests until the server closes the socket or ends."""
    args = child.start(memory_bytes=int, server_fd=int)
    child.outlast_sigterm()
    resource.setrlimit(resource.RLIMIT_AS, (args.memory_bytes, args.memory_bytes))
    gc.disable()  # documents are trees: passes over millions of lists would free nothing
    libc = ctypes.CDLL(None)
    with socket.socket(fileno=args.server_fd) as sock:
        while _serve(sock):
            libc.malloc_trim(
                0
            )  # a document may have taken 300 MB, which nobody needs until the next


def _serve(sock: socket.socket) -> bool:
    """Answer one request; False if there will be no more."""
    request = _receive(sock)
    if request is not None:
        _send(sock, _handle(*request))
    return request is not None


def _handle(head: Mapping[str, Any], data: bytearray) -> Reply:
    """The reply to a request. Any error but a Problem ends the process, which is replaced."""
    try:
        if head["kind"] == "call":
            return _bounded(_read_call(data))
        if head["kind"] == "infer":
            return _bounded(_read_infer(data))
        return _write(head, data)
    except Problem as problem:
        record = problem.to_json() | {"detail": problem.detail[:MAX_DETAIL_CHARS]}
        if problem.field is not None:
            record["field"] = problem.field[:MAX_FIELD_CHARS]
        return {"problem": record}, ()


def _read_call(text: bytearray) -> Reply:
    call = json_call.decode(bytes(text))
    arrays = [call.arrays[info.name].view("u1").data for info in call.tensors]
    return {
        "tensors": [encode_tensor(info) for info in call.tensors],
        "params": call.params,
    }, arrays


def _read_infer(text: bytearray) -> Reply:
    body = from_json(bytes(text), oip_request.WHAT, constants=True)
    request = oip_request.check_request(body)
    given = [tensor for tensor in request.inputs if tensor.data is not None]
    arrays = [json_values.to_array(tensor.data, tensor.info).view("u1").data for tensor in given]
    for entry in body["inputs"]:
        if entry.get("data") is not None:
            entry["data"] = True  # that there are values; the server takes them from the data
    placed = []
    begin = 0
    for tensor, array in zip(given, arrays, strict=True):
        info, end = tensor.info, begin + len(array)
        placed.append(encode_tensor(wire.TensorInfo(info.name, info.dtype, info.shape, begin, end)))
        begin = end
    return {"request": body, "tensors": placed}, arrays


def _write(head: Mapping[str, Any], data: bytearray) -> Reply:
    holes = [Hole(tuple(path), decode_tensor(tensor)) for path, tensor in head["holes"]]
    text = fill(head["document"], holes, memoryview(data), head["compact"])
    return {}, [text.encode()]


def _bounded(reply: Reply) -> Reply:
    """Refuse what the server would be slow to parse."""
    nbytes = len(encode_head(reply[0]))
    if nbytes > MAX_HEAD_BYTES:
        raise InvalidInput(
            f"a JSON body without the values of its tensors must have at most {MAX_HEAD_BYTES} "
            f"bytes, got {nbytes}",
            field="body",
        )
    return reply


def _receive(sock: socket.socket) -> tuple[Mapping[str, Any], bytearray] | None:
    lengths = _exactly(sock, LENGTHS.size)
    if lengths is None:
        return None
    head_nbytes, data_nbytes = LENGTHS.unpack(lengths)
    head, data = _exactly(sock, head_nbytes), _exactly(sock, data_nbytes)
    if head is None or data is None:
        return None
    return json.loads(head), data


def _exactly(sock: socket.socket, nbytes: int) -> bytearray | None:
    received = bytearray(nbytes)
    view = memoryview(received)
    while view:
        try:
            count = sock.recv_into(view[:PIECE_BYTES])
        except ConnectionResetError:
            count = 0
        if not count:
            return None
        view = view[count:]
    return received


def _send(sock: socket.socket, reply: Reply) -> None:
    head = encode_head(reply[0])
    sock.sendall(LENGTHS.pack(len(head), sum(len(part) for part in reply[1])) + head)
    for part in reply[1]:
        sock.sendall(part)


if __name__ == "__main__":
    main()
