"""A policy keeps the sessions of a proxy that its rules name, and forgets the others."""

import json

import httpx2
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Limits, RequestError, Server, ToolError
from mcp_trio._proxy.journal import recording_for_sessions, start_message_journal
from mcp_trio.recording import Catalogue, RecordPolicy, check, open_recording
from tests.processes import python
from tests.proxy.bridged import bridged
from tests.transports.http.scripted_server import (
    INITIALIZE,
    Legacy,
    Modern,
    Reply,
    asking,
    error,
    result,
)
from tests.ways import served

STATELESS = "2026-07-28"
PROTOCOL_VERSIONS = ["2025-11-25", STATELESS]
SECRET = "red-tulip-97"


def policy_in(folder, **options):
    """A policy that keeps nothing by its rate, and whose recordings are not compressed."""
    return RecordPolicy(folder, **{"rate": 0.0, "compress": False, **options})


def kept_in(folder):
    """The recordings of a folder, as its catalogue has them when the proxy has ended."""
    with Catalogue(folder) as catalogue:
        return catalogue.find(oldest_first=True)


def counts_of(file):
    (*_, last) = open_recording(file)
    return json.loads(last)["f"]["counts"]


# HTTP clients, and a server at an HTTP URL.


async def book(seen):
    """Book a seat: each number from 7 on is an error of its own kind."""
    match seen.message["params"]["arguments"].get("seat"):
        case 7:
            return result(seen, content=[{"type": "text", "text": "taken"}], isError=True)
        case 8:
            return error(seen, -32602)
        case 9:
            return Reply(500, {"content-type": "text/html"}, b"<p>no</p>")
        case 10:
            raise httpx2.ConnectError("connection refused")
        case 11:
            await trio.sleep(3)
    return result(seen, content=[])


class Sessions(Legacy):
    """A server of sessions that gives each its own id."""

    number = 0

    def initialized(self, seen):
        self.number += 1
        self.session = f"s-{self.number}"
        return super().initialized(seen)


def legacy():
    return Sessions(answers={"tools/call": book})


async def call_in_session(proxy, seat, **headers):
    """Call the tool in a session of its own, which then ends."""
    session = (await proxy.ask(INITIALIZE)).headers["mcp-session-id"]
    headers["Mcp_Session_Id"] = session
    arguments = {"seat": seat, "password": SECRET}
    await proxy.ask(asking(1, "tools/call", name="book", arguments=arguments), **headers)
    await proxy.ask(method="DELETE", Mcp_Session_Id=session)


async def call_stateless(proxy, seat, **headers):
    arguments = {"seat": seat, "password": SECRET}
    call = asking(1, "tools/call", STATELESS, name="book", arguments=arguments)
    await proxy.ask(call, **headers)


CALLS = {
    "legacy": (legacy, call_in_session),
    "stateless": (lambda: Modern(answers={"tools/call": book}), call_stateless),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(
    ("seat", "options", "kept"),
    [
        (1, {}, None),
        (7, {}, "error"),
        (7, {"errors": False}, None),
        (8, {}, "error"),
        (9, {}, "error"),
        (10, {}, "error"),
        (11, {"slow_seconds": 2}, "slow"),
        (1, {"slow_seconds": 2}, None),
        (1, {"tools": ["book"]}, "tool book"),
        (1, {"tools": ["moor"]}, None),
        (1, {"headers": {"X-Debug": "1"}}, "header x-debug"),
        (1, {"headers": {"X-Debug": "2"}}, None),
        (1, {"rate": 1.0}, "rate"),
    ],
)
async def test_a_session_over_http_is_kept_for_what_happened_in_it(
    between, tmp_path, autojump_clock, kind, seat, options, kept
):
    make, call = CALLS[kind]
    async with between(make(), policy_in(tmp_path, **options)) as proxy:
        await call(proxy, seat, X_Debug="1")
    rows = kept_in(tmp_path)
    assert [[*row.kept] for row in rows] == ([] if kept is None else [[kept]])
    for row in rows:
        assert (row.role, row.errors) == ("proxy", int(kept == "error"))
        assert check(open_recording(row.file)).complete
        assert counts_of(row.file)["masked: password"] >= 1
        assert SECRET.encode() not in b"".join(open_recording(row.file))


async def test_a_session_is_kept_and_the_ones_around_it_are_not(between, tmp_path):
    async with between(legacy(), policy_in(tmp_path / "kept")) as proxy:
        for seat in (1, 7, 2):
            await call_in_session(proxy, seat)
    (row,) = kept_in(tmp_path / "kept")
    assert row.error_kinds == {"tool": 1}


async def test_an_error_keeps_the_stateless_requests_around_it_only(
    between, tmp_path, autojump_clock
):
    async with between(Modern(answers={"tools/call": book}), policy_in(tmp_path)) as proxy:
        for seat in (1, 2, 7, 3, 4):
            await call_stateless(proxy, seat)
            await trio.sleep(0.1)
        await trio.sleep(30)
        await call_stateless(proxy, 5)
    (row,) = kept_in(tmp_path)
    assert (row.calls, row.errors) == (3, 1)


async def test_a_choice_about_stateless_requests_is_repeated(between, tmp_path, autojump_clock):
    numbers = iter([0.9, 0.1, 0.9])
    policy = policy_in(tmp_path, rate=0.5, errors=False, chance=lambda: next(numbers, 1))
    async with between(Modern(answers={"tools/call": book}), policy) as proxy:
        for seat in range(4):
            await call_stateless(proxy, seat)
            await trio.sleep(11)
    (row,) = kept_in(tmp_path)
    assert (row.calls, policy.status.sessions) == (1, 4)


@pytest.mark.real_time
async def test_recordings_are_compressed_and_the_oldest_removed(between, tmp_path):
    policy = policy_in(tmp_path, rate=1.0, compress=True, keep_count_max=1, check_seconds=0.05)
    async with between(legacy(), policy) as proxy:
        await call_in_session(proxy, 1)
        await call_in_session(proxy, 7)
        with trio.fail_after(20):
            while not (policy.status.removed and [*tmp_path.glob("*.mcprec.jsonl.zst")]):
                await trio.sleep(0.02)
    (row,) = kept_in(tmp_path)
    assert (row.errors, policy.status.removed) == (1, 1)


async def test_a_request_to_authenticate_is_no_error(between, tmp_path):
    async def reject(seen):
        return Reply(401, {"www-authenticate": "Bearer"})

    async with between(reject, policy_in(tmp_path)) as proxy:
        assert (await proxy.ask(INITIALIZE)).status == 401
        await call_stateless(proxy, 1)
    assert kept_in(tmp_path) == []


# Bridges.


def harbour():
    server = Server("harbour")

    @server.tool
    async def moor(ship: str, password: str) -> str:
        if ship == "raft":
            raise ToolError(f"no ship, {password}")
        return "moored"

    return server


@pytest.mark.real_time
@pytest.mark.parametrize("version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("downstream", "upstream"), [("http", "unix"), ("unix", "http"), ("websocket", "unix")]
)
async def test_a_session_through_a_bridge_is_kept_for_an_error(
    tmp_path, downstream, upstream, version
):
    policy = policy_in(tmp_path / "kept")
    if upstream == "unix":
        (tmp_path / "to").mkdir()
    serving = served(harbour(), upstream, tmp_path / "to")
    async with serving as (url, _), bridged(downstream, url, tmp_path, record=policy) as bridge:
        for ship in ("barge", "raft", "barge"):
            options = {"protocol_versions": [version], "raise_tool_errors": False}
            async with Client(bridge, **options) as client:
                await client.call_tool("moor", {"ship": ship, "password": SECRET})
    (row,) = kept_in(tmp_path / "kept")
    assert (row.kept, row.error_kinds, row.role) == (["error"], {"tool": 1}, "proxy")
    # Each client makes two requests, and stateless requests over HTTP share a recording.
    is_shared = downstream == "http" and version == STATELESS
    assert row.calls == (4 if is_shared else 2)
    assert SECRET.encode() not in b"".join(open_recording(row.file))


@pytest.mark.real_time
async def test_a_request_that_a_lost_server_does_not_answer_is_an_error(tmp_path):
    policy = policy_in(tmp_path / "kept")
    target = f"unix:{tmp_path}/nothing"
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Mcp-Protocol-Version": STATELESS,
        "Mcp-Method": "tools/list",
    }
    async with (
        bridged("http", target, tmp_path, record=policy) as bridge,
        httpx2.AsyncClient(headers=headers) as client,
    ):
        answer = await client.post(bridge, content=asking(1, "tools/list", STATELESS))
    assert "cannot connect" in answer.json()["error"]["message"]
    (row,) = kept_in(tmp_path / "kept")
    assert (row.kept, row.error_kinds) == (["error"], {"protocol": 1})


CRASHING_SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "tools/call":
        break
    if "id" in message:
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "x", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("downstream", ["http", "websocket"])
async def test_a_session_is_kept_if_the_server_ends_during_a_call(tmp_path, downstream):
    policy = policy_in(tmp_path / "kept")
    command = python(CRASHING_SERVER)
    options = {"protocol_versions": ["2025-11-25"]}
    async with bridged(downstream, command, tmp_path, record=policy) as bridge:
        async with Client(bridge, **options) as client:
            await client.ping()
        async with Client(bridge, **options) as client:
            with pytest.raises((ConnectionLost, RequestError)):
                await client.call_tool("moor")
    (row,) = kept_in(tmp_path / "kept")
    assert (row.kept, row.error_kinds, [*row.tools]) == (["error"], {"protocol": 1}, ["moor"])


async def test_a_call_that_the_client_leaves_open_or_cancels_is_no_error(tmp_path):
    policy = policy_in(tmp_path / "kept")
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": 1}}
    async with recording_for_sessions(policy) as recording:
        journals = [
            start_message_journal(recording, transport="tcp", name="x", limits=Limits())
            for _ in range(3)
        ]
        for journal in journals:
            journal.record_received(*received(journal, {"id": 1, "method": "tools/call"}))
        answered, withdrawn, left = journals
        answered.record("out", b'{"jsonrpc":"2.0","id":1,"result":{}}')
        withdrawn.record_received(*received(withdrawn, cancelled))
        left.record_cause("eof")
        for journal in journals:
            journal.server_ended("the server has exited")
            journal.close()
    assert kept_in(tmp_path / "kept") == []


def received(journal, message):
    data = json.dumps({"jsonrpc": "2.0", **message}).encode()
    return data, journal.read(data)


# What a proxy cannot do.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"principals": ["ada"]}, "cannot keep the sessions of a user"),
        ({"headers": ["X-Debug"]}, "only between HTTP clients and a server at an http"),
        ({"strict": True}, "handlers run in the server behind it"),
    ],
)
async def test_a_rule_that_a_proxy_cannot_follow_is_rejected(tmp_path, options, text):
    policy = policy_in(tmp_path / "kept", **options)
    with pytest.raises(ValueError, match=text):
        async with bridged("tcp", "unix:nothing", tmp_path, record=policy):
            pass
    assert not (tmp_path / "kept").exists()
