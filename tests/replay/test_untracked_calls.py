"""Calls of a handler outside its context: captured, named, or blocked; never silent.

A few sources of each table of `sources.py` are recorded and replayed here, and all of
them, in two processes, by `tools/proof/outside.py`.
"""

import hashlib
import logging
import os
import random
import shutil
import signal
import sys
import time
import uuid
import webbrowser
from pathlib import Path
from random import random as number_below_one
from time import time as wall
from uuid import uuid4 as new_id
from zoneinfo import ZoneInfo

import pytest
import trio
from memory_sessions import client_session

from mcp_trio import Client, Context, Server, ThreadContext, effect
from mcp_trio.errors import MCPError, ReplayDivergence, ToolError
from mcp_trio.recording import RecordOptions, Redaction, open_recording, replay, sweep
from mcp_trio.types import CallToolResult
from tests.replay.sources import (
    BLOCKED,
    CAPTURED,
    NAMED,
    OPENED,
    close_files,
    folder_with_files,
    snapshot,
)


def server_of(source, folder):
    server = Server("sources")

    @server.tool
    async def run(*, ctx: Context) -> str:
        try:
            value = source(folder)
            return str(await value if hasattr(value, "__await__") else value)
        except OSError as error:
            return type(error).__name__

    return server


async def record(server, record):
    async with client_session(server, record) as client:
        try:
            return await client.call_tool("run", {})
        except ToolError as error:
            return error


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return a function that records a source, and then makes its files anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/sources")
    usual = signal.getsignal(signal.SIGUSR1)
    folder, path = tmp_path / "folder", tmp_path / "a.mcprec.jsonl"

    def make(source):
        folder_with_files(folder)
        result = trio.run(record, server_of(source, folder), path)
        close_files()
        shutil.rmtree(folder)
        signal.signal(signal.SIGUSR1, usual)
        os.chdir(tmp_path)
        folder_with_files(folder)
        return path, folder, result

    yield make
    close_files()
    for name in ("MCP_TRIO_SET", "MCP_TRIO_SOURCE"):
        os.environ.pop(name, None)


def notes_of(path):
    return [line for line in open_recording(path) if b'"untracked"' in line]


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")  # since 3.12
def test_clocks_and_random_numbers_are_captured(recorded):
    def every_source(folder):
        return {name: str(source(folder)) for name, source in CAPTURED.items()}

    path, folder, result = recorded(every_source)
    assert isinstance(result, CallToolResult)
    report = replay(path, server_of(every_source, folder))
    assert (report.requests, report.untracked_calls) == (1, ())
    assert notes_of(path) == []
    with pytest.raises(ReplayDivergence):
        replay(path, server_of(lambda _: {**every_source(_), "time": ""}, folder))


@pytest.mark.parametrize("name", ["open", "environ", "urandom", "platform.node"])
def test_a_call_that_only_reads_is_made_and_named(recorded, name):
    source, target = NAMED[name]
    path, folder, result = recorded(source)
    assert isinstance(result, CallToolResult)
    assert len(notes_of(path)) == 1
    before = snapshot(folder)
    try:
        untracked_calls = replay(path, server_of(source, folder)).untracked_calls
    except ReplayDivergence as divergence:
        assert divergence.kind == "message"  # noqa: PT017  some sources have another value here
        untracked_calls = divergence.untracked_calls
    assert snapshot(folder) == before
    assert any(Path(call.target).name.startswith(target) for call in untracked_calls)
    assert not any(call.changes_outside for call in untracked_calls)
    assert untracked_calls[0].location.startswith("at sources.py:")


@pytest.mark.parametrize(
    "name",
    [
        "remove",
        "append",
        "truncate an open file",
        "FileHandler",
        "an open database",
        "send",
        "thread",
    ],
)
def test_a_call_that_changes_anything_outside_is_blocked(recorded, name):
    path, folder, result = recorded(BLOCKED[name])
    assert isinstance(result, CallToolResult)
    assert notes_of(path)
    before = snapshot(folder)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server_of(BLOCKED[name], folder))
    assert snapshot(folder) == before
    assert caught.value.kind == "blocked"
    blocked = [call for call in caught.value.untracked_calls if call.changes_outside]
    assert len(blocked) == 1
    assert blocked[0].location.startswith("at sources.py:")


# Strict recordings, effects, and threads.


@pytest.mark.parametrize("source", [NAMED["getpid"][0], BLOCKED["remove"]])
def test_a_strict_recording_rejects_both_kinds(tmp_path, source):
    (tmp_path / "a").write_text("a")
    options = RecordOptions(tmp_path / "a.mcprec.jsonl", strict=True)
    assert isinstance(trio.run(record, server_of(source, tmp_path), options), ToolError)
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize("source", [NAMED["getpid"][0], BLOCKED["remove"]])
def test_a_replay_of_a_strict_recording_rejects_the_same_calls(tmp_path, source):
    (tmp_path / "a").write_text("a")
    path = tmp_path / "a.mcprec.jsonl"

    def reporting(folder):
        try:
            return source(folder)
        except MCPError as error:
            return f"{type(error).__name__}: {error}"

    server = server_of(reporting, tmp_path)
    result = trio.run(record, server, RecordOptions(path, strict=True))
    assert "UntrackedNondeterminism: a replay of this would differ" in result.content[0].text
    report = replay(path, server)
    assert [call.lane for call in report.untracked_calls] == ["r4"]
    assert sweep(path, lambda: server_of(reporting, tmp_path), schedules=2).is_clean
    assert (tmp_path / "a").exists()


@effect
async def do(kind: str, name: str) -> str:
    folder = Path(kind)
    (folder / name).write_text("x")
    return f"{time.time()} {random.random()} {os.getpid()} {len(os.listdir(folder))}"


def test_in_an_effect_everything_is_allowed_and_nothing_is_noted(recorded):
    async def source(folder):
        return await do(str(folder), "new")

    path, folder, result = recorded(source)
    assert isinstance(result, CallToolResult)
    assert notes_of(path) == []
    report = replay(path, server_of(source, folder))
    assert report.untracked_calls == ()
    assert not (folder / "new").exists()


def test_clocks_and_chance_of_a_handler_in_a_thread_are_captured(tmp_path):
    server = Server("threads")

    @server.tool
    def run(*, ctx: ThreadContext) -> list[str]:
        return [str(each) for each in (time.time(), random.random(), uuid.uuid4(), ctx.now())]

    path = tmp_path / "a.mcprec.jsonl"
    trio.run(record, server, path)
    assert replay(path, server).untracked_calls == ()


def test_a_repeated_untracked_call_is_noted_once(recorded):
    path, _, _ = recorded(lambda _: [os.getpid() for _ in range(20)])
    (note,) = notes_of(path)
    assert b"os.getpid" in note
    assert b"test_untracked_calls.py:" in note


def test_a_divergence_behind_a_reading_names_it(recorded):
    def source(folder):
        return (folder / "a").read_text()

    path, folder, _ = recorded(source)
    (folder / "a").write_text("changed")
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server_of(source, folder))
    call = f"pathlib.Path.read_text('{folder / 'a'}') at test_untracked_calls.py:"
    causes = [line for line in str(caught.value).splitlines() if "cause" in line]
    assert any(call in line for line in causes), str(caught.value)
    assert f"untracked: {call}" in str(caught.value)


def test_files_of_the_interpreter_are_not_listed(recorded):
    def source(folder):
        return len(Path(hashlib.__file__).read_text()) + len(Path(trio.__file__).read_text())

    path, folder, _ = recorded(source)
    assert replay(path, server_of(source, folder)).untracked_calls == ()


def test_files_of_time_zones_are_not_listed(recorded):
    def source(folder):
        return ZoneInfo.no_cache("Europe/Oslo").key

    path, folder, result = recorded(source)
    assert result.content[0].text == "Europe/Oslo"
    assert replay(path, server_of(source, folder)).untracked_calls == ()


def test_a_browser_is_not_opened(recorded, monkeypatch):
    class Browser:
        def open(self, *_):
            OPENED["browser"] = OPENED.get("browser", 0) + 1
            return True

    monkeypatch.setattr(webbrowser, "_browsers", {"a": [None, Browser()]})
    monkeypatch.setattr(webbrowser, "_tryorder", ["a"])

    def source(folder):
        return webbrowser.open("http://localhost")

    path, folder, _ = recorded(source)
    with pytest.raises(ReplayDivergence):
        replay(path, server_of(source, folder))
    assert OPENED["browser"] == 1


# Other handlers, and other ends of a call.


REMOVE = "notifications/com.example/remove"


async def notify_and_call(server, path):
    async with client_session(
        server, path, methods={REMOVE: dict}, protocol_versions=["2025-11-25"]
    ) as client:
        await client.notify(REMOVE, {})
        await client.call_tool("run", {})


def test_a_handler_of_notifications_is_captured_and_blocked(tmp_path):
    removed, seen = tmp_path / "a", []

    def make_server():
        server = Server("notified")

        @server.method(REMOVE)
        async def remove(params: dict) -> None:
            seen.append(time.time())
            removed.unlink()

        @server.tool
        async def run() -> int:
            return len(seen) % 2

        return server

    path = tmp_path / "a.mcprec.jsonl"
    removed.write_text("a")
    trio.run(notify_and_call, make_server(), path)
    assert not removed.exists()
    removed.write_text("a")
    seen.pop()
    (untracked_call,) = replay(path, make_server()).untracked_calls
    assert removed.exists()
    assert untracked_call.changes_outside
    assert f'"value":{seen[0]!r}'.encode() in b"".join(open_recording(path))


def test_a_client_that_a_handler_opens_starts_no_process_in_a_replay(recorded):
    async def source(folder):
        script = f"open({str(folder / 'started')!r}, 'w').close()"
        with pytest.raises(MCPError):
            async with Client([sys.executable, "-c", script]):
                pass
        return (folder / "a").exists()

    path, folder, result = recorded(source)
    assert isinstance(result, CallToolResult)
    try:
        calls = replay(path, server_of(source, folder)).untracked_calls
    except ReplayDivergence as divergence:
        calls = divergence.untracked_calls
    (blocked,) = (call for call in calls if call.changes_outside)
    assert blocked.call == "mcp_trio.client.Client.__aenter__"
    assert not (folder / "started").exists()


def test_each_task_draws_its_own_recorded_numbers(recorded):
    async def source(folder):
        numbers = []

        async def draw():
            await trio.lowlevel.checkpoint()
            numbers.append(random.random())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(draw)
        assert len(set(numbers)) == 3
        return sorted(numbers)

    path, folder, _ = recorded(source)
    assert replay(path, server_of(source, folder)).untracked_calls == ()


def test_an_error_of_a_captured_function_is_recorded(recorded):
    def source(folder):
        return time.clock_gettime(10**6), time.time()

    path, folder, _ = recorded(source)
    assert any(b'"OSError' in line or b"OSError" in line for line in open_recording(path))
    assert replay(path, server_of(source, folder)).requests == 1


def test_a_name_that_was_imported_before_is_captured_in_a_users_module(recorded):
    path, folder, _ = recorded(lambda _: (wall(), new_id(), number_below_one()))
    assert replay(path, server_of(lambda _: (wall(), new_id(), number_below_one()), folder))


def test_a_clock_that_the_recorded_code_did_not_read_is_a_divergence(recorded):
    path, folder, _ = recorded(lambda _: 1)
    with pytest.raises(ReplayDivergence, match=r"reading 'time\.time'"):
        replay(path, server_of(lambda _: time.time() and 1, folder))


def test_the_replay_of_a_redacted_recording_keeps_clocks_and_makes_another_uuid(tmp_path):
    server = Server("redacted")

    @server.tool
    async def run() -> dict[str, str]:
        return {"at": str(time.time_ns()), "token": str(uuid.uuid4())}

    path = tmp_path / "a.mcprec.jsonl"
    trio.run(record, server, RecordOptions(path, redaction=Redaction()))
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server)
    assert caught.value.kind == "redacted"


@pytest.mark.parametrize(
    ("recorded_text", "text", "cause"),
    [
        ("['a', 'b']", "['b', 'a']", "the order of a set differs in each process"),
        ("<Cup at 0x7fa2b0c4d5e0>", "<Cup at 0x7f11b0c4d5e0>", "the address of an object"),
    ],
)
def test_the_hint_of_a_divergence_names_the_untracked_call_that_caused_it(
    recorded, recorded_text, text, cause
):
    path, folder, _ = recorded(lambda _: recorded_text)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server_of(lambda _: text, folder))
    assert cause in caught.value.hint


@effect
async def count(items: list[object]) -> int:
    return len(items)


@pytest.mark.parametrize(
    ("before", "after", "is_order"),
    [
        (["a", "b", "c"], ["b", "c", "a"], True),
        ([{"x": 1, "y": 5}, {"x": 2, "y": 5}], [{"x": 2, "y": 5}, {"x": 1, "y": 5}], True),
        (["b, a"], ["a, b"], True),
        ([1.46], [1.64], False),
        (["2026-11-12"], ["2026-12-11"], False),
        (["stale"], ["least"], False),
        (["a, b"], ["a; b"], False),
    ],
)
def test_values_in_another_order_point_to_a_set(tmp_path, before, after, is_order):
    def server_with(items):
        server = Server("sets")

        @server.tool
        async def run() -> int:
            return await count(items)

        return server

    path = tmp_path / "a.mcprec.jsonl"
    trio.run(record, server_with(before), path)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server_with(after))
    assert any("order of a set" in cause for cause in caught.value.causes) is is_order


def test_a_record_of_a_log_whose_file_is_set_up_elsewhere_is_allowed(recorded, tmp_path):
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    logging.getLogger("sources").addHandler(handler)

    def source(folder):
        logging.getLogger("sources").error("told")

    try:
        path, folder, _ = recorded(source)
        assert replay(path, server_of(source, folder)).untracked_calls == ()
    finally:
        logging.getLogger("sources").removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "told\n" * 2
