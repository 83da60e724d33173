"""Serving over HTTP: natively, by hypercorn, mounted, and in one or several processes."""

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Context, Limits, Server
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._server.http_serve import HttpAddress
from mcp_trio._server.http_sessions import RestartBackoff
from mcp_trio._server.sessions import ServerSessions
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio.errors import RecordingError
from mcp_trio.http import HttpStores, MemoryInstances, MemoryStore
from mcp_trio.limits import DEFAULT_LIMITS, HttpLimits
from mcp_trio.recording import RecordOptions, SharedRecording, replay
from tests.server.http.conftest import Site, call, harbour, hello, request, site_of, text
from tests.server.rounds import TRUE, text_of

HOSTS = ["native", "hypercorn"]
ACCEPT = {"Accept": "application/json, text/event-stream"}
SECONDS = 10.0


def stateless(message):
    """The headers and the body of a stateless request."""
    exchange = Site(None, None).stateless(message)
    wanted = ("accept", "content-type", "mcp-protocol-version", "mcp-method", "mcp-name")
    headers = {name: it for name in wanted if (it := exchange.request.header(name))}
    return {"headers": headers, "content": exchange.sent_body}


@contextlib.asynccontextmanager
async def served(harbour, **options):
    async with trio.open_nursery() as nursery, httpx2.AsyncClient(timeout=SECONDS) as http:
        serve = functools.partial(harbour.serve_http, port=0, **options)
        url = await nursery.start(serve)
        yield url, http, nursery.cancel_scope
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", HOSTS)
async def test_stateless_and_legacy_clients_are_served(host):
    async with served(harbour(), server=host) as (url, http, _scope):
        assert url.startswith("http://127.0.0.1:")
        answer = await http.post(url, json=hello("2025-11-25"), headers=ACCEPT)
        fields = {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert text((await http.post(url, json=call("tide"), headers=fields)).json()) == "high"
        assert (await http.delete(url, headers=fields)).status_code == 200
        assert (await http.post(url, json=call("tide"), headers=fields)).status_code == 404
        assert text((await http.post(url, **stateless(call("tide")))).json()) == "high"
        assert (await http.get(url.replace("/mcp", "/health"))).status_code == 200


@pytest.mark.parametrize("host", HOSTS)
async def test_the_listener_runs_the_first_step_of_a_handler_itself(host):
    serving, handling = [], []

    async def verify(_head):
        serving.append(trio.lowlevel.current_task())
        return "anna"

    server = Server("harbour", auth=verify)

    @server.tool
    async def look() -> None:
        handling.append(trio.lowlevel.current_task())

    async with served(server, server=host) as (url, http, _scope):
        for _ in range(2):
            await http.post(url, **stateless(call("look")))
    assert (serving == handling) == (host == "native")


@pytest.mark.requirement("SUB-14", "MHTTP-18")
@pytest.mark.parametrize("host", HOSTS)
async def test_a_cancelled_server_ends_each_stream_as_its_protocol_requires(host):
    wish = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "a")
    async with served(harbour(), server=host) as (url, http, scope):
        answer = await http.post(url, json=hello("2025-11-25"), headers=ACCEPT)
        fields = {"Accept": "text/event-stream", "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        async with (
            http.stream("POST", url, **stateless(wish)) as subscribed,
            http.stream("GET", url, headers=fields) as listening,
        ):
            lines = subscribed.aiter_lines()
            while "acknowledged" not in await anext(lines):
                pass
            scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(SECONDS):
                rest = [line async for line in lines]
                await listening.aread()
    [last] = [json.loads(line[6:]) for line in rest if line.startswith("data: ")]
    assert last["result"]["_meta"][SUBSCRIPTION_ID] == "a"


@pytest.mark.requirement("LIFE-17")
@pytest.mark.real_time
async def test_a_stopped_instance_answers_on_open_connections_before_it_closes():
    stores = HttpStores(instances=MemoryInstances())
    async with (
        served(harbour(), stores=stores),
        served(harbour(), stores=stores) as (url, http, scope),
    ):
        answer = await http.post(url, json=hello("2025-11-25"), headers=ACCEPT)
        fields = {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(SECONDS):
            await trio.sleep(1)  # the session is handed over
            answer = await http.post(url, json=call("tide"), headers=fields)
    assert text(answer.json()) == "high"
    assert answer.headers["connection"] == "close"


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
async def test_a_slow_client_gets_the_last_message_when_the_server_is_cancelled(host):
    server, flooded = harbour(), trio.Event()

    @server.tool
    async def spring_tide(*, ctx: Context) -> None:
        for _ in range(3000):
            await ctx.warning("x" * 2000)
        flooded.set()

    flood = call("spring_tide", id="last")
    async with served(server, server=host, streams_answers=True) as (url, http, scope):
        answer = await http.post(url, json=hello("2025-11-25"), headers=ACCEPT)
        fields = {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        async with http.stream("POST", url, json=flood, headers=fields) as slow:
            with trio.fail_after(SECONDS):
                await flooded.wait()
            # Now the answer is there, and the sockets between us are full.
            await trio.testing.wait_all_tasks_blocked(0.1)
            scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(SECONDS):
                lines = [line async for line in slow.aiter_lines() if line.startswith("data: {")]
    assert json.loads(lines[-1][6:])["id"] == "last"
    assert len(lines) == 3001


@pytest.mark.requirement("HTTP-04", "MHTTP-07", "SSE-06")
async def test_a_server_listens_on_loopback_by_default():
    assert HttpAddress().host == "127.0.0.1"
    async with served(harbour()) as (url, http, _scope):
        port = httpx2.URL(url).port
        rejected = await http.post(url, json={}, headers={"Host": f"evil.example:{port}"})
        assert rejected.status_code == 403


async def test_an_address_in_use_is_an_error():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
    ):
        await harbour().serve_http(port=taken.getsockname()[1])


@pytest.mark.skipif(not socket.has_ipv6, reason="has no IPv6")
async def test_an_ipv6_address_is_in_brackets_in_the_url():
    async with served(harbour(), host="::1") as (url, http, _scope):
        assert url.startswith("http://[::1]:")
        assert (await http.get(url.replace("/mcp", "/health"))).status_code == 200


def test_options_that_contradict_each_other_are_rejected():
    with pytest.raises(ValueError, match="certfile="):
        HttpAddress(keyfile="x")
    with pytest.raises(ValueError, match="uvicorn"):
        HttpAddress(server="uvicorn")
    assert HttpAddress(certfile="x").url(80, "/mcp") == "https://127.0.0.1:80/mcp"


async def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="workers"):
        await harbour().serve_http(port=0, workers=2)
    with pytest.raises(TypeError, match="hostnames"):
        harbour().asgi(hostnames=["harbour.example"])


class Begun(NamedTuple):
    """A task status that does something."""

    started: Callable


@pytest.mark.parametrize("at", ["beginning", "end"])
async def test_an_error_of_the_lifespan_is_raised_unchanged(at):
    @contextlib.asynccontextmanager
    async def lifespan(_server):
        if at == "beginning":
            raise KeyError(at)
        yield
        raise KeyError(at)

    with trio.CancelScope() as scope:
        status = Begun(lambda _url: scope.cancel())
        with pytest.raises(KeyError) as raised:
            await Server("harbour", lifespan=lifespan).serve_http(port=0, task_status=status)
    assert raised.value.args == (at,)  # and no cancellation instead


# Mounted.


async def answered(app, method, path, message=None, headers=(), *, root_path=""):
    """Return the response of an ASGI application: status, headers and body."""
    body = b"" if message is None else json.dumps(message).encode()
    fields = {"host": "localhost", "accept": ACCEPT["Accept"], "content-type": "application/json"}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": root_path + path,
        "raw_path": (root_path + path).encode(),
        "root_path": root_path,
        "query_string": b"",
        "scheme": "http",
        "headers": [(n.encode(), v.encode()) for n, v in {**fields, **dict(headers)}.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    received, sent = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive():
        await trio.lowlevel.checkpoint()
        if not received:
            await trio.sleep_forever()
        return received.pop(0)

    async def send(event):
        await trio.lowlevel.checkpoint()
        sent.append(event)

    with trio.fail_after(SECONDS):
        await app(scope, receive, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], head, b"".join(event.get("body", b"") for event in sent[1:])


def counted(events):
    @contextlib.asynccontextmanager
    async def lifespan(_server):
        events.append("in")
        yield
        events.append("out")

    return harbour(lifespan=lifespan)


async def test_a_mounted_application_begins_with_its_first_request():
    events = []
    app = counted(events).asgi()
    assert events == []
    status, head, _body = await answered(
        app, "POST", "/mcp", hello("2025-11-25"), root_path="/under"
    )
    assert (status, events) == (200, ["in"])
    fields = {"mcp-session-id": head["mcp-session-id"]}
    status, _head, body = await answered(app, "POST", "/mcp", call("tide"), fields)
    assert text(json.loads(body)) == "high"
    await app.aclose()
    await app.aclose()
    assert events == ["in", "out"]
    status, _head, _body = await answered(app, "POST", "/mcp", call("tide"), fields)
    assert (status, events) == (404, ["in", "out", "in"])
    await app.aclose()


def test_one_application_is_used_in_two_trio_runs():
    events = []
    app = counted(events).asgi()

    async def use():
        status, _head, _body = await answered(app, "POST", "/mcp", hello("2025-11-25"))
        assert status == 200

    trio.run(use)
    trio.run(use)
    assert [word for word in events if word == "in"] == ["in", "in"]


async def test_simultaneous_first_requests_start_an_application_once():
    events = []
    app = counted(events).asgi()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(answered, app, "POST", "/mcp", hello("2025-11-25"))
    assert events == ["in"]
    await app.aclose()


async def test_a_lifespan_that_fails_at_its_beginning_is_tried_again(caplog):
    tries = []

    @contextlib.asynccontextmanager
    async def lifespan(_server):
        tries.append("try")
        if len(tries) == 1:
            raise KeyError("not yet")
        yield

    app = harbour(lifespan=lifespan).asgi()
    status, _head, _body = await answered(app, "POST", "/mcp", hello("2025-11-25"))
    assert status == 500
    assert "not yet" in caplog.text
    status, _head, _body = await answered(app, "POST", "/mcp", hello("2025-11-25"))
    assert status == 200
    await app.aclose()


@pytest.mark.parametrize("fault", [KeyError("late"), SystemExit("late")])
async def test_a_lifespan_that_fails_at_its_end_is_logged(caplog, fault):
    """Out of a system task nothing may come: Trio would take it for a fault of its own."""

    @contextlib.asynccontextmanager
    async def lifespan(_server):
        yield
        raise fault

    app = harbour(lifespan=lifespan).asgi()
    await answered(app, "POST", "/mcp", hello("2025-11-25"))
    await app.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert "lifespan of a mounted server failed" in caplog.text


async def test_an_application_is_mounted_under_hypercorn(nursery):
    app = harbour().asgi()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await nursery.start(functools.partial(serve_hypercorn, app, listeners, limits=Limits()))
    async with httpx2.AsyncClient(timeout=SECONDS) as http:
        answer = await http.post(f"http://127.0.0.1:{port}/mcp", **stateless(call("tide")))
    assert text(answer.json()) == "high"
    await app.aclose()


# A server process.

PROGRAM = """
import logging
import trio
from mcp_trio import Context, Server
logging.basicConfig(level="INFO", format="%(message)s")
server = Server("harbour")
@server.tool
async def tide() -> str:
    return "high"
@server.tool
async def stay() -> None:
    with trio.CancelScope(shield=True):
        logging.info("staying")
        await trio.sleep(60)
server.run("http", port=0, has_sse=False)
"""
FAULTY = """
from mcp_trio import Context, Server
from contextlib import asynccontextmanager
@asynccontextmanager
async def lifespan(server):
    raise KeyError("sunk")
    yield
Server("harbour", lifespan=lifespan).run("http", port=0)
"""


@contextlib.contextmanager
def running(program):
    """A process, and the URL that it prints."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stderr.readline()
            assert line.startswith("serving http://127.0.0.1:"), line
            yield process, line.split()[1]
        finally:
            process.kill()


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_serves_until_a_signal_arrives(number):
    with running(PROGRAM) as (process, url):
        assert text(httpx2.post(url, **stateless(call("tide"))).json()) == "high"
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number
        assert "Traceback" not in process.stderr.read()


@pytest.mark.real_time
def test_a_second_signal_ends_a_process_at_once():
    with running(PROGRAM) as (process, url):
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, **stateless(call("stay")), timeout=1)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM


@pytest.mark.slow
@pytest.mark.real_time
def test_a_process_whose_lifespan_fails_prints_only_the_error():
    done = subprocess.run(
        [sys.executable, "-c", FAULTY],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'sunk'"
    assert "ExceptionGroup" not in done.stderr


# Recordings of stateless requests, one after the other.


FORMS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
BYTES_MAX = 6000


def recorded_server():
    server = Server("harbour")

    @server.tool
    async def hail(*, ctx: Context) -> str:
        return f"{ctx.uuid4()}"

    @server.tool
    async def wait(*, ctx: Context) -> str:
        await ctx.sleep(100)
        return "waited"

    @server.tool
    async def steer(*, ctx: Context) -> str:
        return f"{(await ctx.elicit('sure?', bool)).data}"

    return server


async def hailed(site, count):
    for _ in range(count):
        answer = await site.ask_stateless(call("hail"))
        assert answer.status == 200
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def recorded(tmp_path):
    """`recorded(talk)` are the files that are there when a server has been talked with."""

    async def run(talk):
        async with site_of(
            recorded_server(),
            record=RecordOptions(tmp_path, segment_bytes_max=BYTES_MAX),
        ) as (site):
            await talk(site)
            site.runtime.close()
            await site.runtime.ended.wait()

    def recorded(talk):
        trio.run(run, talk, clock=trio.testing.MockClock(autojump_threshold=0))
        return sorted(tmp_path.iterdir())

    return recorded


def firsts(files):
    """Those with which a recording begins."""
    return [file for file in files if len(file.name.split(".")) == 3]


def replayed(files):
    """Return the number of requests in each recording, each replayed alone; the least first."""
    reports = [replay(file, recorded_server()) for file in firsts(files)]
    assert all(report.is_complete for report in reports)
    return sorted(report.requests for report in reports)


def test_a_long_recording_ends_between_requests_and_another_begins(recorded):
    async def talk(site):
        await hailed(site, 30)

    files = recorded(talk)
    assert len(files) > 3
    assert firsts(files) == files
    assert max(file.stat().st_size for file in files) < 1.2 * BYTES_MAX
    assert sum(replayed(files)) == 30


def test_a_recording_continues_in_further_files_while_a_request_runs(recorded):
    async def talk(site):
        waiting = site.begin_stateless(call("wait"))
        await hailed(site, 20)
        assert text((await waiting.rest())[-1]) == "waited"
        await hailed(site, 1)

    files = recorded(talk)
    assert len(firsts(files)) == 2
    assert len(files) > 3
    assert replayed(files) == [1, 21]


def test_a_recording_does_not_end_between_the_rounds_of_a_request(recorded):
    async def talk(site):
        asked = await site.ask_stateless(call("steer"), meta=FORMS)
        state = asked.json["result"]["requestState"]
        await hailed(site, 20)
        retry = call("steer", id=2, requestState=state, inputResponses={"q1": TRUE})
        answer = await site.ask_stateless(retry, meta=FORMS)
        assert text_of(answer.json["result"]) == "True"

    files = recorded(talk)
    assert len(firsts(files)) == 1
    assert replayed(files) == [21]


def test_a_recording_does_not_end_during_a_subscription(recorded):
    async def talk(site):
        wish = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        listening = site.begin_stateless(wish)
        await listening.message()
        await hailed(site, 20)
        assert not listening.is_ended
        listening.leave()
        await trio.testing.wait_all_tasks_blocked()
        await hailed(site, 1)

    assert replayed(recorded(talk)) == [1, 21]


def test_a_recording_continues_if_the_next_cannot_begin(recorded, monkeypatch, caplog):
    begin = ServerSessions.begin_session

    def fail(*_, **__):
        raise RecordingError("the disk is full")

    async def talk(site):
        monkeypatch.setattr(ServerSessions, "begin_session", fail)
        await hailed(site, 20)
        monkeypatch.setattr(ServerSessions, "begin_session", begin)
        await hailed(site, 1)
        await trio.sleep(DEFAULT_LIMITS.recording.retry_seconds)
        await hailed(site, 1)

    assert replayed(recorded(talk)) == [1, 21]
    assert caplog.text.count("RecordingError: the disk is full") == 1


def test_the_end_of_a_long_recording_is_not_logged_as_a_loss(recorded, caplog):
    async def talk(site):
        await hailed(site, 30)
        await trio.sleep(1000)
        await hailed(site, 1)

    assert sum(replayed(recorded(talk))) == 31
    assert "was lost" not in caplog.text


# Recording and replay.


LOGS = {"io.modelcontextprotocol/logLevel": "debug"}


def recorded_recordings_over_http():
    server = Server("harbour")

    @server.tool
    async def ask(*, ctx: Context) -> str:
        answer = await ctx.sample("which way?", max_tokens=5)
        return answer.content.text

    @server.tool
    async def log(name: str, *, ctx: Context) -> str:
        await ctx.warning(name)
        await trio.sleep(0.1)
        return name

    return server


def sampled(question):
    result = {"role": "assistant", "content": {"type": "text", "text": "north"}, "model": "m"}
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


async def record(folder, leads):
    async with site_of(recorded_recordings_over_http(), leads=leads, record=folder) as site:
        for _ in range(2):
            client = await site.open(capabilities={"sampling": {}})
            asked = client.begin(call("ask"))
            await client.ask(sampled(await asked.message()))
            assert text((await asked.rest())[-1]) == "north"
        exchanges = [site.begin_stateless(call("log", {"name": name}), meta=LOGS) for name in "abc"]
        for exchange in exchanges:
            await exchange.rest()
        gone = site.begin_stateless(call("log", {"name": "d"}), meta=LOGS)
        await gone.message()
        gone.leave()
        site.runtime.close()
        await site.runtime.ended.wait()


@pytest.mark.parametrize("leads", [False, True])
def test_each_session_has_a_recording_and_all_stateless_requests_one(tmp_path, leads):
    trio.run(record, tmp_path, leads, clock=trio.testing.MockClock(autojump_threshold=0))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    for file in files:
        assert replay(file, recorded_recordings_over_http()).is_complete, file


# The loss of the session of all stateless requests.


LIMITS = Limits(http=HttpLimits(restart_seconds=1, restart_seconds_max=4))


async def lose_stateless(site):
    """As a defect of the engine would end it."""
    await site.runtime.stateless.aclose()
    await trio.sleep(0.1)


async def test_a_lost_stateless_session_is_replaced(open_site, caplog, autojump_clock):
    site = await open_site(harbour(limits=LIMITS))
    await lose_stateless(site)
    rejected = await site.ask_stateless(call("tide"))
    assert (rejected.status, rejected.json["id"]) == (503, 1)
    assert "another" in rejected.json["error"]["message"]
    await trio.sleep(1)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"
    assert "stateless requests was lost" in caplog.text


async def test_a_lost_stateless_session_ends_only_its_own_requests(
    open_site, ended, autojump_clock
):
    site = await open_site(harbour(ended, limits=LIMITS))
    client = await site.open()
    kept = client.begin(call("wait", {"seconds": 9}))
    lost = site.begin_stateless(call("wait", {"seconds": 9}), accept="application/json")
    await trio.sleep(1)
    await lose_stateless(site)
    assert (lost.status, lost.json["id"]) == (503, 1)
    assert text((await client.ask(call("tide", id=2))).json) == "high"
    assert (await site.open()).id != client.id
    assert [text(each) for each in await kept.rest()] == ["waited"]
    assert ended == ["cancelled", "done"]


async def test_a_lost_legacy_session_does_not_affect_the_others(open_site, autojump_clock):
    site = await open_site(harbour(limits=LIMITS))
    client, other = await site.open(), await site.open()
    await site.runtime.sessions.use(client.id).channel.aclose()
    await trio.sleep(0.1)
    assert (await client.ask(call("tide"))).status == 404
    assert text((await other.ask(call("tide"))).json) == "high"
    assert text((await site.ask_stateless(call("tide"))).json) == "high"


async def test_a_stateless_session_lost_repeatedly_restarts_after_growing_pauses(
    open_site, autojump_clock
):
    site = await open_site(harbour(limits=LIMITS))
    pauses = []
    for _ in range(4):
        await lose_stateless(site)
        lost_at = trio.current_time()
        while (await site.ask_stateless(call("tide"))).status == 503:
            await trio.sleep(0.25)
        pauses.append(round(trio.current_time() - lost_at))
    assert pauses == [1, 2, 4, 4]


async def test_a_closing_runtime_does_not_replace_a_lost_session(open_site, caplog, autojump_clock):
    site = await open_site(harbour(limits=LIMITS))
    await lose_stateless(site)
    site.runtime.close()
    await site.runtime.ended.wait()
    assert caplog.text.count("was lost") == 1
    other = await open_site(harbour(limits=LIMITS))
    other.runtime.close()
    await other.runtime.ended.wait()
    assert caplog.text.count("was lost") == 1
    assert (await other.ask_stateless(call("tide"))).status == 503


async def test_a_stateless_session_that_cannot_be_recorded_is_started_again(
    open_site, tmp_path, caplog, autojump_clock
):
    folder = tmp_path / "here"
    folder.mkdir()
    site = await open_site(harbour(limits=LIMITS), record=f"{folder}/")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    await lose_stateless(site)
    await trio.sleep(1.5)
    assert (await site.ask_stateless(call("tide"))).status == 503
    assert "cannot open" in caplog.text
    folder.mkdir()
    await trio.sleep(2.5)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"


async def test_a_lost_session_with_a_long_recording_is_replaced_once(
    open_site, tmp_path, caplog, autojump_clock
):
    options = RecordOptions(tmp_path, segment_bytes_max=1)
    site = await open_site(harbour(limits=LIMITS), record=options)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"
    await lose_stateless(site)
    lost = site.runtime.stateless
    assert (await site.ask_stateless(call("tide"))).status == 503
    assert site.runtime.stateless is lost
    await trio.sleep(1)
    assert text((await site.ask_stateless(call("tide"))).json) == "high"
    assert caplog.text.count("was lost") == 1


@pytest.mark.parametrize(
    ("lived", "pauses"),
    [([0, 0, 0, 0], [1, 2, 4, 4]), ([0, 3.9, 4, 0], [1, 2, 1, 2]), ([9, 9], [1, 1])],
)
def test_pauses_grow_until_a_session_lasts_long_enough(lived, pauses):
    restarts = RestartBackoff(LIMITS)
    assert [restarts.pause_seconds(seconds) for seconds in lived] == pauses


# Several processes at one address.


WORKERS_PROGRAM = """
import logging
import os
import trio
from mcp_trio import Context, Server

server = Server("harbour")

@server.tool
async def where() -> int:
    return os.getpid()

@server.tool(resumable=True)
async def sealed(*, ctx: Context) -> str:
    answer = await ctx.elicit("sure?", bool)
    return f"{answer.data} {os.getpid()}"

@server.tool
async def suspended(*, ctx: Context) -> None:
    await ctx.elicit("sure?", bool)

@server.tool
async def stay() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(60)

if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    server.run("http", port=0, workers=2)
"""
FAULTY_WORKERS = """
from contextlib import asynccontextmanager
from mcp_trio import Server

@asynccontextmanager
async def lifespan(server):
    raise KeyError("sunk")
    yield

server = Server("harbour", lifespan=lifespan)
"""
STATELESS_ONLY = ["2026-07-28"]


@attrs.define
class Served:
    """Two workers, and the process that holds them."""

    parent: subprocess.Popen
    url: str

    def ask(self, message, **meta):
        """Return the response of one process: each request has a connection of its own."""
        message["params"] = {**message.get("params", {}), "_meta": meta}
        return httpx2.post(self.url, **stateless(message), timeout=SECONDS)

    def where(self):
        """Return the id of the process that answered a call."""
        return int(text(self.ask(call("where")).json()))

    def pids(self, but=()):
        """Both of them."""
        seen, patience = set(), time.monotonic() + SECONDS
        while len(seen) < 2:
            assert time.monotonic() < patience, f"only {seen} answer"
            with contextlib.suppress(httpx2.TransportError):  # one of them was just killed
                seen.add(self.where())
            seen -= {*but}
        return seen

    def ended(self, *numbers):
        """Return the status with which the parent ends after signals, and its output."""
        for number in numbers:
            self.parent.send_signal(number)
            time.sleep(0.5 if len(numbers) > 1 else 0)
        stderr = self.parent.communicate(timeout=SECONDS)[1]
        return self.parent.returncode, stderr


@pytest.fixture
def served_by_workers(tmp_path):
    """Serve a program until the test ends."""
    with contextlib.ExitStack() as stack:

        def served_by_workers(*options, program=WORKERS_PROGRAM, command=("-m", "mcp_trio", "run")):
            (tmp_path / "there.py").write_text(program)
            by_us = ("--transport", "http", "--port", "0", "--workers", "2")
            options = [*by_us, *options] if command else []
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            parent = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *command, "there.py", *options],
                    cwd=tmp_path,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                    start_new_session=True,
                )
            )
            stack.callback(kill_all, parent)
            line = parent.stderr.readline()
            words = line.split()
            assert words[:1] == ["serving"], line + parent.stderr.read()
            return Served(parent, words[1])

        yield served_by_workers


def kill_all(parent):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(parent.pid, signal.SIGKILL)


def are_gone(pids):
    patience = time.monotonic() + SECONDS
    while time.monotonic() < patience:
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("host", HOSTS)
def test_workers_answer_stateless_requests_and_end_with_their_parent(served_by_workers, host):
    there = served_by_workers("--server", host)
    pids = there.pids()
    assert there.parent.pid not in pids
    assert httpx2.get(there.url.replace("/mcp", "/health")).status_code == 200
    answer = there.ask(request("server/discover")).json()
    assert answer["result"]["supportedVersions"] == STATELESS_ONLY
    rejected = httpx2.post(there.url, json=hello("2025-11-25"), headers=ACCEPT)
    assert (rejected.status_code, rejected.json()["error"]["data"]) == (
        400,
        {"supported": STATELESS_ONLY},
    )
    assert "workers" in rejected.json()["error"]["message"]
    status, stderr = there.ended(signal.SIGTERM)
    assert (status, stderr) == (128 + signal.SIGTERM, "")
    assert are_gone(pids)


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.requirement("SUB-14")
@pytest.mark.parametrize("host", HOSTS)
def test_a_signal_to_the_process_group_ends_streams_as_their_protocol_requires(
    served_by_workers, host
):
    there = served_by_workers("--server", host)
    wish = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "a")
    asked = httpx2.stream("POST", there.url, **stateless(wish), timeout=SECONDS)
    with asked as subscribed:
        lines = subscribed.iter_lines()
        while "acknowledged" not in next(lines):
            pass
        os.killpg(there.parent.pid, signal.SIGINT)  # to all of them, as a terminal does
        [last] = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert last["result"]["_meta"][SUBSCRIPTION_ID] == "a"
    assert there.ended() == (128 + signal.SIGINT, "")


@pytest.mark.slow
@pytest.mark.real_time
def test_a_worker_that_dies_is_replaced(served_by_workers):
    there = served_by_workers()
    killed, other = there.pids()
    os.kill(killed, signal.SIGKILL)
    assert other in there.pids(but=[killed])
    status, stderr = there.ended(signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert f"worker {killed} ended with status -9; a new worker starts" in stderr


@pytest.mark.slow
@pytest.mark.real_time
def test_workers_end_when_their_parent_dies(served_by_workers):
    there = served_by_workers()
    pids = there.pids()
    there.parent.kill()
    assert are_gone(pids)


@pytest.mark.slow
@pytest.mark.real_time
def test_a_second_signal_kills_workers_that_do_not_stop(served_by_workers):
    there = served_by_workers(command=())
    pids = there.pids()
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(there.url, **stateless(call("stay")), timeout=1)
    status, stderr = there.ended(signal.SIGTERM, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert re.search(r"worker \d+ did not stop in time and is killed", stderr)
    assert are_gone(pids)


@pytest.mark.slow
@pytest.mark.real_time
def test_a_state_sealed_by_one_worker_is_opened_by_another(served_by_workers):
    there = served_by_workers()
    seen, patience = set(), time.monotonic() + SECONDS
    while len(seen) < 2:
        assert time.monotonic() < patience
        state = there.ask(call("sealed"), **FORMS).json()["result"]["requestState"]
        answers = {"q1": {"action": "accept", "content": {"value": True}}}
        retry = call("sealed", requestState=state, inputResponses=answers)
        answer, pid = text(there.ask(retry, **FORMS).json()).split()
        assert answer == "True"
        seen.add(pid)
    rejected = there.ask(call("suspended"), **FORMS).json()["error"]["message"]
    assert "limits.requests.suspended_max" in rejected
    assert "resumable" in rejected


@pytest.mark.slow
@pytest.mark.real_time
def test_each_worker_records_to_files_of_its_own(served_by_workers, tmp_path):
    (tmp_path / "files").mkdir()
    there = served_by_workers("--record", "files")
    pids = there.pids()
    there.ended(signal.SIGTERM)
    names = [file.name for file in (tmp_path / "files").iterdir()]
    assert sorted(int(name.split("-")[-2]) for name in names) == sorted(pids)


@pytest.mark.slow
@pytest.mark.real_time
def test_workers_that_fail_at_their_start_are_not_restarted(tmp_path):
    (tmp_path / "there.py").write_text(FAULTY_WORKERS)
    options = ["--transport", "http", "--port", "0", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "mcp_trio", "run", "there.py", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "KeyError: 'sunk'" in done.stderr
    assert "never served" in done.stderr
    assert "serving http" not in done.stderr
    assert done.stderr.count("a new worker starts") == 0


# Options that are rejected before any process is started.


@pytest.mark.slow
def test_workers_need_a_stateless_protocol_version():
    with pytest.raises(ValueError, match="stateless"):
        Server("harbour", protocol_versions=["2025-11-25"]).run("http", port=0, workers=2)


@pytest.mark.slow
def test_in_memory_state_is_rejected_with_several_workers(tmp_path):
    with pytest.raises(ValueError, match="states"):
        Server("harbour", states=MemoryStore()).run("http", port=0, workers=2)
    with (
        SharedRecording(tmp_path / "one.mcprec.jsonl") as shared,
        pytest.raises(ValueError, match="SharedRecording"),
    ):
        Server("harbour").run("http", port=0, workers=2, record=shared)
    with pytest.raises(ValueError, match="record to a folder"):
        Server("harbour").run("http", port=0, workers=2, record=tmp_path / "one.jsonl")


@pytest.mark.slow
def test_zero_workers_are_rejected():
    with pytest.raises(ValueError, match="workers"):
        Server("harbour").run("http", port=0, workers=0)
