"""Elicitation with each protocol version that has it."""

import functools
import socket

import pytest
import trio
import trio.testing

from mcp_trio import Limits, UserRejected
from mcp_trio import types as t
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.limits import RequestLimits
from tests.client.server_requests import asked, check_rejected
from tests.client.stateless import legacy_client

*_, C, D, E = PROTOCOL_VERSIONS
FORMS, MODES = (C, D, E), (D, E)
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603

FORM = {
    "type": "object",
    "properties": {"ship": {"type": "string"}, "nights": {"type": "integer", "default": 1}},
    "required": ["ship"],
}
SHIP = {"message": "Which ship?", "requestedSchema": FORM}
URL = "https://xn--harbur-9ta.example/pay?to=http://elsewhere.example"
BOTH = ("form", "url")


def visit(protocol_version, **change):
    """The params of a question to visit a URL."""
    ids = {"elicitationId": "p7"} if protocol_version == D else {}
    return {"mode": "url", "message": "Pay", "url": URL, **ids, **change}


@pytest.fixture
def ask(nursery):
    """Ask a client one thing, as the servers of a protocol version do."""
    return functools.partial(asked, nursery)


# Forms.


@pytest.mark.requirement("ELIC-01", "ELIC-02", "ELIC-03", "TRAP-89")
@pytest.mark.parametrize("protocol_version", FORMS)
@pytest.mark.parametrize("modes", [("form",), ("url",), BOTH])
async def test_a_client_announces_its_modes(ask, protocol_version, modes):
    answer = await ask(
        protocol_version,
        "elicitation/create",
        SHIP,
        elicitation=lambda _params: False,
        elicitation_modes=modes,
    )
    assert answer.announced == {"elicitation": {mode: {} for mode in modes}}


@pytest.mark.requirement("ELIC-08", "ELIC-14", "ELIC-15", "ELIC-16", "ELIC-18", "ELIC-19")
@pytest.mark.parametrize("protocol_version", FORMS)
@pytest.mark.parametrize("mode", [{}, {"mode": "form"}])
@pytest.mark.parametrize(
    ("said", "result"),
    [
        (
            {"ship": "Ada", "nights": 3},
            {"action": "accept", "content": {"ship": "Ada", "nights": 3}},
        ),
        ({"ship": "Ada"}, {"action": "accept", "content": {"ship": "Ada", "nights": 1}}),
        (False, {"action": "decline"}),
        (t.ElicitResult(action="cancel"), {"action": "cancel"}),
    ],
)
async def test_a_form_is_filled_in_or_not(ask, protocol_version, mode, said, result):
    answer = await ask(
        protocol_version, "elicitation/create", {**SHIP, **mode}, elicitation=lambda _params: said
    )
    assert answer.result == result


@pytest.mark.requirement("ELIC-35", "ELIC-37", "ELIC-51", "ELIC-52")
@pytest.mark.parametrize("protocol_version", FORMS)
async def test_a_user_sees_the_request_and_may_decline(ask, protocol_version):
    heard = []

    async def elicitation(params):
        heard.append((params.message, params.requested_schema))
        await trio.lowlevel.checkpoint()
        raise UserRejected

    answer = await ask(protocol_version, "elicitation/create", SHIP, elicitation=elicitation)
    assert answer.result == {"action": "decline"}
    assert heard == [("Which ship?", FORM)]


@pytest.mark.requirement("ELIC-16", "ELIC-18", "ELIC-19", "ELIC-21", "ELIC-22")
@pytest.mark.parametrize("protocol_version", FORMS)
@pytest.mark.parametrize(
    "said",
    [
        {},
        True,
        {"ship": "Ada", "nights": "3"},
        {"ship": ["Ada"]},
        {"ship": {"name": "Ada"}},
        {"ship": "Ada", "other": {"a": 1}},
        "Ada",
    ],
)
async def test_invalid_content_of_a_form_is_never_sent(ask, protocol_version, said):
    answer = await ask(
        protocol_version, "elicitation/create", SHIP, elicitation=lambda _params: said
    )
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (TypeError, ValueError))


@pytest.mark.requirement("ELIC-03", "ELIC-08", "ELIC-36", "TRAP-89", "TRAP-90")
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize("mode", BOTH)
async def test_a_mode_that_was_not_announced_is_rejected(ask, protocol_version, mode):
    other = SHIP if mode == "url" else visit(protocol_version)
    heard = []
    answer = await ask(
        protocol_version,
        "elicitation/create",
        other,
        elicitation=heard.append,
        elicitation_modes=[mode],
    )
    check_rejected(answer, protocol_version, INVALID_PARAMS)
    assert heard == []


@pytest.mark.requirement("ELIC-50")
@pytest.mark.parametrize("protocol_version", [C, D])
async def test_too_many_elicitations_at_once_are_rejected(nursery, protocol_version):
    async def elicitation(_params):
        await trio.sleep_forever()

    limits = Limits(requests=RequestLimits(in_flight_max=1, queued_max=1))
    client, server = await legacy_client(
        nursery, protocol_version=protocol_version, elicitation=elicitation, limits=limits
    )
    for place in "abc":
        await server.peer.send_request("elicitation/create", SHIP, id=place)
    await trio.testing.wait_all_tasks_blocked()
    (rejected,) = [it for it in server.requests if "error" in it]
    assert rejected["id"] == "c"
    assert "limits.requests.queued_max" in rejected["error"]["message"]
    await client.aclose()


# Visits.


def barred(*_args, **_options):
    raise AssertionError("the URL was looked up")


@pytest.mark.requirement(
    "ELIC-17", "ELIC-30", "ELIC-37", "ELIC-38", "ELIC-39", "ELIC-40", "ELIC-41", "TRAP-93"
)
@pytest.mark.parametrize("protocol_version", MODES)
@pytest.mark.parametrize(
    ("said", "result"),
    [
        (True, {"action": "accept"}),
        (t.ElicitResult(action="accept", content={}), {"action": "accept"}),
        (False, {"action": "decline"}),
        (t.ElicitResult(action="cancel"), {"action": "cancel"}),
    ],
)
async def test_a_url_is_passed_to_the_user_unchanged_and_never_opened(
    ask, monkeypatch, protocol_version, said, result
):
    monkeypatch.setattr(socket, "getaddrinfo", barred)
    monkeypatch.setattr(socket.socket, "connect", barred)
    monkeypatch.setattr("webbrowser.open", barred)
    monkeypatch.setattr("subprocess.Popen", barred)
    heard = []

    def elicitation(params):
        heard.append(params)
        return said

    answer = await ask(
        protocol_version,
        "elicitation/create",
        visit(protocol_version, icons=[{"src": "https://elsewhere.example/i.png"}]),
        elicitation=elicitation,
        elicitation_modes=BOTH,
    )
    assert answer.result == result
    assert [(params.message, params.url) for params in heard] == [("Pay", URL)]


@pytest.mark.requirement("ELIC-17")
@pytest.mark.parametrize("protocol_version", MODES)
async def test_content_for_a_url_elicitation_is_never_sent(ask, protocol_version):
    answer = await ask(
        protocol_version,
        "elicitation/create",
        visit(protocol_version),
        elicitation=lambda _params: {"card": "4"},
        elicitation_modes=BOTH,
    )
    check_rejected(answer, protocol_version, INTERNAL_ERROR, (TypeError, ValueError))
