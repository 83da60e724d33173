"""The parts of records that are redacted, and those that the protocol defines."""

import json

import pytest

from mcp_trio._journal.redaction_zones import PARAMS
from mcp_trio._protocol.methods import METHODS
from tests.journal.conftest import SECRET, call, encoded, redactor, result


@pytest.mark.parametrize("kind", ["cmd", "res", "err", "val", "mark", "open"])
def test_values_that_are_known_to_be_secret_reach_no_body(kind):
    body = {"name": "what", "text": f"no {SECRET}", "value": [SECRET], "arguments": {"a": SECRET}}
    changed = redactor(secrets=[SECRET]).redact(kind, encoded(body))
    assert SECRET.encode() not in changed
    assert json.loads(changed).keys() == body.keys()


@pytest.mark.parametrize("kind", ["cmd", "val", "mark"])
def test_the_name_of_an_effect_or_mark_is_no_secret(kind):
    body = {"name": "what", "value": "what"}
    changed = json.loads(redactor(secrets=["what"]).redact(kind, encoded(body)))
    assert changed["name"] == "what" != changed["value"]


@pytest.mark.parametrize("name", ["ctx.now", "ctx.monotonic", "ctx.timeout"])
def test_a_clock_is_left_alone(name):
    body = encoded({"name": name, "value": "2026-01-01"})
    assert redactor(secrets=["2026-01-01"]).redact("val", body) == body


@pytest.mark.parametrize("kind", ["cxl", "shut", "end"])
def test_our_own_bodies_are_left_alone(kind):
    assert redactor(secrets=["closed"]).redact(kind, b'{"cause":"closed"}') == b'{"cause":"closed"}'


def test_every_method_of_the_protocol_has_its_zones():
    assert set(METHODS) == set(PARAMS)


def test_protocol_fields_are_never_touched():
    secrets = ["tools/call", "login", "token", "text", "user", "2024-11-05", "nobody", "cursor7"]
    one = redactor(secrets=secrets)
    frames = [
        call(),
        result(""),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": "nobody",
                "result": {
                    "tools": [{"name": "login", "inputSchema": {"token": "text"}}],
                    "nextCursor": "cursor7",
                },
            }
        ),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "initialize",
                "params": {"protocolVersion": "2024-11-05", "clientInfo": {"name": "login"}},
            }
        ),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "result": {
                    "role": "user",
                    "model": "login",
                    "content": {"type": "text", "text": ""},
                },
            }
        ),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "completion/complete",
                "params": {"ref": {"name": "login"}, "argument": {"name": "token", "value": ""}},
            }
        ),
    ]
    for frame in frames:
        assert one.redact("in", frame) == frame


def test_all_params_of_a_users_method_are_data():
    frame = encoded(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "own/thing",
            "params": {"name": SECRET, "token": "abcd1", "_meta": {"progressToken": "abcd1"}},
        }
    )
    changed = json.loads(redactor(secrets=[SECRET]).redact("in", frame))
    assert changed["params"]["name"] != SECRET
    assert changed["params"]["token"] != "abcd1"
    assert changed["params"]["_meta"] == {"progressToken": "abcd1"}


def test_messages_with_unusual_members_are_redacted():
    for frame in (
        {"method": 5, "params": {"password": SECRET}},
        {"params": [{"password": SECRET}]},
        [{"password": SECRET}],
    ):
        assert SECRET.encode() not in redactor().redact("in", encoded(frame))
