"""What OpenAPI says of the requests that monitors send."""

from __future__ import annotations

from warpcall_bench.monitors import sender
from warpcall_service.formats.media_types import JSON
from warpcall_service.http.openapi_parts import REFERENCES, Schema, parameter

OPENAPI: Schema = {
    "monitor": {
        "post": {
            "operationId": "notify",
            "summary": "What the server sends to the URL of a monitor",
            "description": "It is sent when a run shows steps, when runs begin to fail, and when they "
            "work again.",
            "parameters": [
                parameter(sender.DELIVERY, "id of the delivery, the same in each attempt"),
                parameter(sender.TIMESTAMP, "time of this attempt in seconds since 1970"),
                parameter(
                    sender.SIGNATURE, "`sha256=` and the HMAC-SHA256 of timestamp, dot, body"
                ),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    JSON: {"schema": {"$ref": REFERENCES.format(model="MonitorNotification")}}
                },
            },
            "responses": {"2XX": {"description": "It has arrived; otherwise it is sent again."}},
            "security": [],
        }
    }
}
