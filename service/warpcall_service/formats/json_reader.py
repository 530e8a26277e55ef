"""Parses the JSON of calls: small documents at once, large ones one at a time.

Nothing else runs while Python parses a document. The slowest one that is allowed takes 13 ms, and as
much again until its values are arrays (2 cores of an Intel Xeon). Other requests run in between.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math

from warpcall.errors import InvalidInput
from warpcall_service.admission import Admission
from warpcall_service.formats import json_call, json_values, oip_request
from warpcall_service.formats.json_call import JsonCall
from warpcall_service.formats.oip_request import InferRequest
from warpcall_service.formats.params import Params, from_json

INLINE_BYTES = 16 << 10  # a document of at most this size is parsed at once, within 1 ms
# Of a list or an object each. They take 200 ns, and 100 to 300 bytes of memory, where a number with
# as many characters takes 25 ns and 32 bytes.
MAX_BRACKETS = 16_384
# In the parameters of a call, which are written as JSON again for the worker.
MAX_PARAM_VALUES = 16_384


class JsonReader:
    """Parses the JSON of calls. Large documents wait in an order fair to users."""

    def __init__(self) -> None:
        # Without it, several bodies could be parsed without a pause.
        self._admission = Admission("JSON bodies", 1, math.inf, None)

    async def read_call(self, text: memoryview, user: str) -> JsonCall:
        """Parse the JSON body of a call.

        Raises:
            InvalidInput: the body does not describe a call.
        """
        if len(text) <= INLINE_BYTES:
            return json_call.decode(bytes(text))
        async with self._admission.admitted(user, len(text)):
            body = from_json(_checked(text), json_call.WHAT)
            await asyncio.sleep(0)
            call = json_call.check_call(body)
            _check_params(call.params)
            return call

    async def read_infer(self, text: memoryview, user: str) -> InferRequest:
        """Parse the JSON of an inference request; raises as `read_call`."""
        if len(text) <= INLINE_BYTES:
            return oip_request.decode_request(bytes(text))
        async with self._admission.admitted(user, len(text)):
            body = from_json(_checked(text), oip_request.WHAT, constants=True)
            await asyncio.sleep(0)
            request = oip_request.check_request(body)
            inputs = [
                given
                if given.data is None
                else dataclasses.replace(given, data=json_values.to_array(given.data, given.info))
                for given in request.inputs
            ]
            return dataclasses.replace(request, inputs=tuple(inputs))


def _checked(text: memoryview) -> bytes:
    """The bytes of a document, unless they have too many brackets, in texts or outside of them."""
    content = bytes(text)
    count = content.count(b"[") + content.count(b"{")
    if count > MAX_BRACKETS:
        raise InvalidInput(
            f"a JSON body must have at most {MAX_BRACKETS} of the brackets [ and {{, got {count}: "
            "write the values of each tensor as one flat list, or send tensors as binary data",
            field="body",
        )
    return content


def _check_params(params: Params) -> None:
    count, left = 0, list[object]([params])
    while left and count <= MAX_PARAM_VALUES:
        node = left.pop()
        if isinstance(node, dict):
            node = list(node.values())
        if isinstance(node, list):
            count += len(node)
            left += [entry for entry in node if isinstance(entry, dict | list)]
    if count > MAX_PARAM_VALUES:
        raise InvalidInput(
            f"params must have at most {MAX_PARAM_VALUES} values, got {count} or more",
            field="params",
        )
