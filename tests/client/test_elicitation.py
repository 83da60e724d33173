"""Elicitation: a server asks the user by a form or a URL."""

import dataclasses
import datetime as dt
import socket

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, Limits, UserRejected
from mcp_trio import types as t
from mcp_trio.limits import RequestLimits

C, D = "2025-06-18", "2025-11-25"
FORM = {
    "type": "object",
    "properties": {
        "ship": {"type": "string"},
        "nights": {"type": "integer", "default": 1},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["ship"],
}
ASKED = {"message": "Which ship?", "requestedSchema": FORM}
URL = "https://harbour.example/pay?state=7"
VISIT = {"mode": "url", "message": "Pay", "url": URL, "elicitationId": "p7"}
BOTH = ("form", "url")


@pytest.fixture
def answer(reply):
    """The client's answer to a single elicitation."""

    async def ask(params, said, **options):
        return await reply("elicitation/create", params, elicitation=lambda _: said, **options)

    return ask


# What a client announces.


@pytest.mark.requirement("ELIC-01", "ELIC-03")
@pytest.mark.parametrize(
    ("protocol_version", "options", "announced"),
    [
        (D, {}, {"form": {}}),
        (D, {"elicitation_modes": ["form"]}, {"form": {}}),
        (D, {"elicitation_modes": ["url"]}, {"url": {}}),
        (D, {"elicitation_modes": BOTH}, {"form": {}, "url": {}}),
        (C, {}, {}),
        (C, {"elicitation_modes": BOTH}, {}),
    ],
)
async def test_a_client_announces_the_modes_that_it_has_a_callback_for(
    connect, protocol_version, options, announced
):
    client, _, capabilities = await connect(
        protocol_version=protocol_version, elicitation=lambda _params: True, **options
    )
    assert capabilities == {"elicitation": announced}
    await client.aclose()


async def test_without_a_callback_elicitation_is_not_announced(connect):
    client, _, capabilities = await connect(elicitation_modes=BOTH)
    assert capabilities == {}
    await client.aclose()


@pytest.mark.requirement("ELIC-03")
@pytest.mark.parametrize("modes", [(), ("form", "voice")])
def test_unknown_or_missing_elicitation_modes_are_rejected(scripted, modes):
    with pytest.raises(ValueError, match="elicitation_modes must contain 'form', 'url', or both"):
        Client(scripted[0], elicitation_modes=modes)


# Forms.


@attrs.frozen
class Mooring:
    ship: str
    day: dt.date | None = None


@dataclasses.dataclass
class Stay:
    ship: str
    nights: int


@pytest.mark.requirement("ELIC-14", "ELIC-15", "ELIC-16", "ELIC-19")
@pytest.mark.parametrize(
    ("said", "result"),
    [
        ({"ship": "Ada", "nights": 3}, {"ship": "Ada", "nights": 3}),
        ({"ship": "Ada"}, {"ship": "Ada", "nights": 1}),
        ({"ship": "Ada", "day": None}, {"ship": "Ada", "nights": 1}),
        (Mooring("Ada"), {"ship": "Ada", "nights": 1}),
        (
            Mooring("Ada", dt.date(2024, 2, 29)),
            {"ship": "Ada", "nights": 1, "day": "2024-02-29"},
        ),
        (Stay("Ada", 3), {"ship": "Ada", "nights": 3}),
        (
            t.ElicitResult(action="accept", content={"ship": "Ada"}),
            {"ship": "Ada", "nights": 1},
        ),
    ],
)
async def test_the_content_of_a_form_is_sent_with_its_defaults(answer, said, result):
    assert await answer(ASKED, said) == {"action": "accept", "content": result}


@pytest.mark.requirement("ELIC-14")
async def test_accepting_a_form_sends_its_defaults(answer):
    form = {"type": "object", "properties": {"nights": {"type": "integer", "default": 2}}}
    asked = {"message": "Moor?", "requestedSchema": form}
    assert await answer(asked, True) == {"action": "accept", "content": {"nights": 2}}


@pytest.mark.requirement("ELIC-14", "ELIC-18")
async def test_a_client_of_2025_06_18_fills_in_a_form(answer):
    said = {"ship": "Ada", "nights": 2}
    result = await answer(ASKED, said, protocol_version=C)
    assert result == {"action": "accept", "content": said}


@pytest.mark.requirement("ELIC-15", "ELIC-37", "ELIC-51", "ELIC-52")
@pytest.mark.parametrize(
    ("said", "action"),
    [
        (False, "decline"),
        (t.ElicitResult(action="decline"), "decline"),
        (t.ElicitResult(action="decline", content={"ship": "Ada"}), "decline"),
        (t.ElicitResult(action="cancel"), "cancel"),
    ],
)
async def test_a_user_may_decline_or_cancel_at_any_time(answer, said, action):
    assert await answer(ASKED, said) == {"action": action}


@pytest.mark.requirement("ELIC-15", "ELIC-51")
async def test_a_callback_that_raises_user_rejected_declines(connect):
    async def elicitation(_params):
        raise UserRejected

    client, server, _ = await connect(elicitation=elicitation)
    await server.send_request("elicitation/create", ASKED, id="e")
    assert (await server.receive())["result"] == {"action": "decline"}
    await client.aclose()


@pytest.mark.requirement("ELIC-16", "ELIC-21", "ELIC-22")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "ship: missing"),
        (True, "ship: missing"),
        ({"ship": "Ada", "nights": "3"}, "nights: not an integer"),
        ({"ship": "Ada", "day": "soon"}, "day: not of the format date"),
        (t.ElicitResult(action="accept", content={"ship": ["Ada"]}), "ship: not a string"),
        ({"ship": "Ada", "other": {"a": 1}}, "other: neither"),
        (None, "must return an ElicitResult"),
        ("Ada", "must return an ElicitResult"),
        (object(), "must return an ElicitResult"),
    ],
)
async def test_invalid_content_of_a_form_is_never_sent(answer, caplog, said, why):
    assert (await answer(ASKED, said))["code"] == -32603
    assert why in caplog.text


@pytest.mark.requirement("ELIC-37", "ELIC-52")
async def test_the_callback_gets_the_whole_request_and_may_change_the_answer(connect):
    heard = []

    async def elicitation(params):
        heard.append(params)
        await trio.lowlevel.checkpoint()
        return {"ship": "Ada"}

    client, server, _ = await connect(elicitation=elicitation)
    await server.send_request("elicitation/create", ASKED, id="e")
    assert (await server.receive())["result"]["action"] == "accept"
    assert heard == [t.ElicitParams(message="Which ship?", requested_schema=FORM)]
    await client.aclose()


# Modes.


@pytest.mark.requirement("ELIC-08", "ELIC-36", "TRAP-90")
@pytest.mark.parametrize(
    ("modes", "params", "code"),
    [
        (("form",), ASKED, None),
        (("form",), {**ASKED, "mode": "form"}, None),
        (("form",), VISIT, -32602),
        (("url",), ASKED, -32602),
        (("url",), {**ASKED, "mode": "form"}, -32602),
        (("url",), VISIT, None),
        (BOTH, {**ASKED, "mode": "voice"}, -32602),
        (BOTH, {"message": "Which ship?"}, -32602),
        (BOTH, {"message": "Pay", "mode": "url"}, -32602),
    ],
)
async def test_an_unannounced_or_unknown_mode_is_rejected(answer, modes, params, code):
    result = await answer(params, False, elicitation_modes=modes)
    assert result.get("code") == code


async def test_a_client_without_elicitation_gets_no_request(connect):
    client, server, _ = await connect()
    await server.send_request("elicitation/create", ASKED, id="e")
    assert (await server.receive())["error"]["code"] == -32601
    await client.aclose()


# URLs.


@pytest.mark.requirement("ELIC-17", "ELIC-30")
@pytest.mark.parametrize(
    ("said", "result"),
    [
        (True, {"action": "accept"}),
        (t.ElicitResult(action="accept"), {"action": "accept"}),
        (t.ElicitResult(action="accept", content={}), {"action": "accept"}),
        (False, {"action": "decline"}),
        (t.ElicitResult(action="cancel"), {"action": "cancel"}),
    ],
)
async def test_a_url_elicitation_is_accepted_or_declined_without_content(answer, said, result):
    assert await answer(VISIT, said, elicitation_modes=BOTH) == result


@pytest.mark.requirement("ELIC-17")
async def test_content_for_a_url_elicitation_is_never_sent(answer, caplog):
    assert (await answer(VISIT, {"card": "4"}, elicitation_modes=BOTH))["code"] == -32603
    assert "the answer to a URL elicitation must have no content" in caplog.text


@pytest.mark.requirement("ELIC-37", "ELIC-38", "ELIC-39", "ELIC-40", "ELIC-41", "TRAP-93")
async def test_a_url_is_passed_to_the_callback_unchanged_and_never_opened(connect, monkeypatch):
    heard = []

    def barred(*_args, **_options):
        raise AssertionError("the URL was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", barred)
    monkeypatch.setattr(socket.socket, "connect", barred)
    monkeypatch.setattr("webbrowser.open", barred)
    monkeypatch.setattr("subprocess.Popen", barred)

    def elicitation(params):
        heard.append(params)
        return True

    client, server, _ = await connect(elicitation=elicitation, elicitation_modes=["url"])
    url = "https://xn--harbur-9ta.example/pay?to=http://elsewhere.example"
    icons = {"icons": [{"src": "https://elsewhere.example/icon.png"}], "_meta": {"a": URL}}
    await server.send_request("elicitation/create", {**VISIT, "url": url, **icons}, id="e")
    assert (await server.receive())["result"] == {"action": "accept"}
    await trio.testing.wait_all_tasks_blocked()
    assert [params.url for params in heard] == [url]
    await client.aclose()


@pytest.mark.requirement("ELIC-33", "ELIC-35")
async def test_the_completion_callback_gets_each_known_elicitation_once(connect):
    heard = []
    client, server, _ = await connect(
        elicitation=lambda _params: True, elicitation_modes=BOTH, elicitation_complete=heard.append
    )

    async def complete(elicitation_id):
        await server.send_notification(
            "notifications/elicitation/complete", {"elicitationId": elicitation_id}
        )
        await trio.testing.wait_all_tasks_blocked()

    await complete("p7")
    assert heard == []
    await server.send_request("elicitation/create", VISIT, id="e")
    assert (await server.receive())["result"] == {"action": "accept"}
    for elicitation_id in ("p8", "p7", "p7"):
        await complete(elicitation_id)
    assert heard == ["p7"]
    await client.aclose()


@pytest.mark.requirement("ELIC-33")
async def test_completion_without_a_callback_is_ignored(connect, caplog):
    client, server, _ = await connect(
        elicitation=lambda _params: True,
        elicitation_modes=BOTH,
        limits=Limits(requests=RequestLimits(elicitations_remembered_max=1)),
    )
    for place in range(2):
        asked = {**VISIT, "elicitationId": f"p{place}"}
        await server.send_request("elicitation/create", asked, id=place)
        await server.receive()
    for place in range(2):
        await server.send_notification(
            "notifications/elicitation/complete", {"elicitationId": f"p{place}"}
        )
    await trio.testing.wait_all_tasks_blocked()
    assert caplog.records == []
    await client.aclose()


# Together.


@pytest.mark.requirement("ELIC-50")
async def test_too_many_elicitations_at_once_are_rejected(connect):
    release = trio.Event()

    async def elicitation(_params):
        await release.wait()
        return False

    limits = Limits(requests=RequestLimits(in_flight_max=1, queued_max=1))
    client, server, _ = await connect(elicitation=elicitation, limits=limits)
    for place in range(3):
        await server.send_request("elicitation/create", ASKED, id=place)
    rejected = await server.receive()
    assert (rejected["id"], rejected["error"]["code"]) == (2, -32000)
    assert "limits.requests.queued_max" in rejected["error"]["message"]
    release.set()
    answers = await server.receive_many(2)
    assert [answer["result"]["action"] for answer in answers] == ["decline"] * 2
    await client.aclose()
