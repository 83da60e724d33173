"""Whatever the vocabulary can say is fitted to every revision, and is valid there."""

import json
from typing import Any

import msgspec
import pytest

from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    with_result_metadata,
)
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio.errors import LocalProtocolError
from mcp_trio.types import (
    CreateMessageResult,
    ElicitResult,
    Implementation,
    ListRootsResult,
    Params,
    Result,
)
from tests.schema.definitions import DEFINITIONS

# Kept as they come, or made by the wire: there is no struct of ours that says them.
OPEN = {
    name
    for name, row in DEFINITIONS.items()
    if row.envelope or row.members or row.body in {Any, str, dict[str, Any], list[Any]}
}
OURS = sorted(DEFINITIONS.keys() - OPEN)

# What a revision may be unable to say; everything else can always be said.
REJECTED = {
    "CreateMessageRequest",
    "CreateMessageResult",
    "ElicitRequest",
    "ElicitResult",
    "SamplingMessage",
}

# Bases, which are never sent by themselves; our types for them say more.
BASES = {"Annotated", "PaginatedResult"}

# Results that are answers to questions stand inside of a request, and say nothing about themselves.
ANSWERS = (CreateMessageResult, ElicitResult, ListRootsResult)
CACHEABLE = METHODS["server/discover"]
US = Implementation(name="us", version="1")
META = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}, SUBSCRIPTION_ID: 1}


def as_sent(schema: Any, name: str, value: Any) -> Any:
    """The value as it stands in its frame, with what the connection adds to it."""
    body = json.loads(msgspec.json.encode(value))
    row, definition = DEFINITIONS[name], schema.definitions[name]
    if row.params is None:
        return with_required_meta(schema, definition, body)
    params = with_required_meta(schema, params_of(definition), body)
    return {"jsonrpc": "2.0", "id": 1, "method": row.method or "any/method", "params": params}


def params_of(definition: Any) -> Any:
    return definition["properties"].get("params", {})


def with_required_meta(schema: Any, definition: Any, body: Any) -> Any:
    definition = schema.resolve(definition)
    if "_meta" not in definition.get("required", []):
        return body
    required = schema.resolve(definition["properties"]["_meta"])["required"]
    return {**body, "_meta": {**body.get("_meta", {}), **{each: META[each] for each in required}}}


def assert_known(schema: Any, name: str, value: Any) -> None:
    """Nothing is said that the revision does not declare, but for `_meta` of parameters.

    That is declared for requests and notifications as such, and not always again for each.
    """
    definition = schema.definitions[name]
    body = definition if DEFINITIONS[name].params is None else params_of(definition)
    allowed = {"_meta"} if isinstance(value, Params) else set()
    assert set(schema.undeclared(body, value)) <= allowed


def assert_fits(schema: Any, protocol_version: ProtocolVersion, name: str, instance: Any) -> None:
    try:
        value = downgraded(instance, protocol_version)
    except LocalProtocolError:
        assert name in REJECTED
        return
    assert downgraded(value, protocol_version) is value
    if (
        protocol_version.is_stateless
        and isinstance(value, Result)
        and not isinstance(value, ANSWERS)
    ):
        value = with_result_metadata(value, CACHEABLE, {SERVER_INFO: US})
    schema.validate(name, as_sent(schema, name, value))
    assert name in BASES or assert_known(schema, name, value) is None
    again = msgspec.json.decode(msgspec.json.encode(value), type=type_of(name))
    assert msgspec.json.encode(again) == msgspec.json.encode(value)


def type_of(name: str) -> Any:
    return DEFINITIONS[name].params or DEFINITIONS[name].body


@pytest.mark.parametrize("name", OURS)
def test_what_is_downgraded_is_valid_and_reads_back_the_same(name, published, ours, for_all):
    schemas = [
        (published(protocol_version.name), protocol_version)
        for protocol_version in PROTOCOL_VERSIONS.values()
    ]

    def fits_everywhere(instance):
        for schema, protocol_version in schemas:
            if name in schema.definitions:
                assert_fits(schema, protocol_version, name, instance)

    for_all(ours(name), fits_everywhere)
