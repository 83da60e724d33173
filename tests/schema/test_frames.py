"""The definitions that the wire makes: frames and errors, through its decoder and its encoders."""

import json
from typing import Any

import pytest

from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    ErrorResponse,
    Notification,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
)
from tests.schema.definitions import DEFINITIONS

FRAMES = sorted(name for name, row in DEFINITIONS.items() if row.envelope)


def error_again(message: ErrorResponse) -> bytes:
    error = message.error
    return encode_error(message.id, error.code, error.message, error.data)


ENCODERS = {
    Request: lambda message: encode_request(message.id, message.method, message.params),
    Notification: lambda message: encode_notification(message.method, message.params),
    Response: lambda message: encode_response(message.id, message.result),
    ErrorResponse: error_again,
}


def again(value: Any) -> Any:
    """What we send of a frame that was read; a batch is read, and its messages leave one by one."""
    message = Decoder(json_depth_max=64).decode(json.dumps(value).encode())
    if isinstance(message, Batch):
        return [json.loads(ENCODERS[type(each)](each)) for each in message.messages]
    return json.loads(ENCODERS[type(message)](message))


def survives(schema: Any, name: str, value: Any) -> None:
    definition = schema.definitions[name]
    is_error = "code" in definition.get("properties", {})
    frame = {"jsonrpc": "2.0", "id": 1, "error": value} if is_error else value
    after = again(frame)["error"] if is_error else again(frame)
    schema.validate(name, after)
    assert not list(schema.lost(definition, value, after))


@pytest.mark.requirement("BASE-01")
@pytest.mark.parametrize("name", FRAMES)
def test_a_published_frame_or_error_survives_the_wire(name, published_anew, for_all):
    for _protocol_version, schema in published_anew(name):
        values = schema.values(name).filter(lambda value: value != [])
        for_all(values, survives, schema, name)
