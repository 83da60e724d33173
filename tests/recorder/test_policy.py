"""A policy keeps the sessions that its rules name, redacted, and forgets the others."""

import base64
import contextlib
import errno
import json
import os
import shutil
from datetime import UTC, datetime
from functools import partial

import pytest
import trio

from mcp_trio import Client, Context, Limits, Server, ThreadContext, ToolError
from mcp_trio._journal.calls import CallTracker
from mcp_trio._journal.records import RecordEncoder
from mcp_trio._recorder import options as record_options
from mcp_trio._recorder.files import FileSink
from mcp_trio._recorder.policy import Durations
from mcp_trio._session.handlers import lane_of_caller
from mcp_trio.auth import AuthInfo
from mcp_trio.errors import AccessDenied, RecordingError
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import (
    RecordPolicy,
    Redaction,
    SharedRecording,
    check,
    open_recording,
    read_recording,
    replay_async,
)
from mcp_trio.transports import memory_pair
from tests.server.http.conftest import call, site_of

SECRET = "red-tulip-97"


def policy_in(folder, **options):
    """A policy whose recordings are not compressed when they are complete."""
    return RecordPolicy(folder, compress=False, **options)


def booking(**options):
    """A server with a tool for each way in which a call can go."""
    server = Server("booking", **options)

    @server.tool
    async def book(seat: str, password: str = "") -> str:
        if seat == "taken":
            raise ToolError(f"seat taken {password}")
        if seat == "crash":
            raise KeyError(seat)
        return f"{seat} is booked"

    @server.tool(timeout=2)
    async def wait(ctx: Context, seconds: float) -> str:
        await ctx.sleep(seconds)
        return "done"

    @server.tool(access=lambda _: False)
    async def forbidden() -> str:
        return "never"

    @server.tool
    async def odd(ctx: Context) -> str:
        ctx.keep("an odd number")
        return "kept"

    @server.tool
    def odd_in_thread(ctx: ThreadContext) -> str:
        ctx.keep("a thread")
        return "kept"

    @server.tool
    async def not_unicode(ctx: Context) -> str:
        ctx.keep("a file \udcff")  # as Python decodes a file name that is not UTF-8
        return "kept"

    @server.tool
    async def large() -> str:
        return "x" * 3000

    return server


@contextlib.asynccontextmanager
async def lifespan(_server):
    yield "value"


async def session(server, *calls, **options):
    """Call tools, one after another, in a session of their own."""
    async with Client(server, **options) as client:
        for name, arguments in calls:
            try:
                await client.call_tool(name, arguments)
            except (ToolError, AccessDenied):
                pass
            except Exception as error:
                if type(error).__name__ != "RequestError":
                    raise


def files(folder):
    return sorted(folder.glob("*.mcprec.jsonl*"))


def records(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def counts(path):
    return records(path)[-1]["f"]["counts"]


async def test_the_time_of_day_is_that_of_the_policy(tmp_path):
    policy = policy_in(tmp_path, now=lambda: datetime(2026, 11, 1, 12, tzinfo=UTC))
    async with Client(booking(record=policy)):
        pass
    (file,) = tmp_path.glob("booking-20261101T120000Z-*")
    opened = json.loads(next(open_recording(file)))
    assert opened["f"]["started"] == "2026-11-01T12:00:00.000000+00:00"


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("book", {"seat": "taken"}, "error"),
        ("book", {"seat": "crash"}, "error"),
        ("book", {"seat": 7}, "error"),
        ("nothing", {}, "error"),
        ("wait", {"seconds": 3}, "timeout"),
        ("wait", {"seconds": 1.5}, "slow"),
        ("forbidden", {}, "denied"),
        ("odd", {}, "an odd number"),
        ("not_unicode", {}, r"a file \udcff"),
        ("large", {}, "tool large"),
    ],
)
async def test_a_session_is_kept_for_what_happened_in_it(
    tmp_path, autojump_clock, tool, arguments, reason
):
    policy = policy_in(tmp_path / "new", rate=0, slow_seconds=1, tools=["large"])
    server = booking(record=policy)
    await session(server, ("book", {"seat": "4"}))
    assert files(tmp_path / "new") == []
    await session(server, ("book", {"seat": "4"}), (tool, arguments), ("book", {"seat": "5"}))
    (path,) = files(tmp_path / "new")
    assert f"kept: {reason}" in counts(path)
    assert check(open_recording(path)).complete
    assert (await replay_async(path, booking())).requests == 3
    assert (policy.status.sessions, policy.status.kept, policy.status.forgotten) == (2, 1, 1)
    assert policy.status.held_bytes == 0


async def test_a_recording_has_all_records_from_the_beginning_of_its_session(tmp_path):
    server = booking(record=policy_in(tmp_path, rate=0))
    await session(server, ("book", {"seat": "1"}), ("book", {"seat": "taken"}))
    await session(server, ("book", {"seat": "1"}), ("book", {"seat": "taken"}), record=None)
    held, *_ = files(tmp_path)
    plain = tmp_path / "plain.mcprec.jsonl"
    async with Client(booking(), record=plain) as client:
        await client.call_tool("book", {"seat": "1"})
    assert [record["n"] for record in records(held)] == list(range(len(records(held))))
    assert check(open_recording(held)).damage == []


@pytest.mark.requirement("TOOL-40")
async def test_what_is_kept_is_on_the_disk_before_the_answer(tmp_path):
    server = booking(record=policy_in(tmp_path, rate=0))
    async with Client(server) as client:
        with pytest.raises(ToolError):
            await client.call_tool("book", {"seat": "taken"})
        (path,) = files(tmp_path)
        assert "seat taken" in path.read_text()


async def test_a_handler_in_a_thread_keeps_its_session(tmp_path):
    await session(booking(record=policy_in(tmp_path, rate=0)), ("odd_in_thread", {}))
    assert counts(files(tmp_path)[0]) == {"kept: a thread": 1}


@pytest.mark.requirement("SAMP-29")
async def test_secrets_are_masked_also_where_they_stand_before_their_name(tmp_path):
    policy = policy_in(tmp_path, rate=0)
    server = booking(record=policy)
    calls = [("book", {"seat": seat, "password": SECRET}) for seat in ("1", "taken", "2")]
    await session(server, ("book", {"seat": SECRET}), *calls)
    (path,) = files(tmp_path)
    assert SECRET not in path.read_text()
    assert counts(path)["masked: password"] == 1
    assert policy.status.masked == {"password": 1}
    assert (await replay_async(path, booking())).requests == 4


async def test_redaction_can_be_switched_off(tmp_path):
    server = booking(record=policy_in(tmp_path, redaction=None))
    await session(server, ("book", {"seat": "1", "password": SECRET}))
    assert SECRET in files(tmp_path)[0].read_text()


@pytest.mark.parametrize("has_lifespan", [False, True])
async def test_a_recording_that_cannot_be_redacted_is_not_written(
    tmp_path, caplog, autojump_clock, has_lifespan
):
    fails = []

    def secrets():
        if fails:
            raise RuntimeError(SECRET)
        return []

    policy = policy_in(tmp_path, rate=0, redaction=Redaction(secrets=secrets))
    server = booking(record=policy, lifespan=lifespan if has_lifespan else None)
    async with site_of(server) as site:
        fails.append(True)
        await site.ask_stateless(call("book", {"seat": "taken"}))
        await site.ask_stateless(call("book", {"seat": "1"}))
        await trio.sleep(11)
        answer = await site.ask_stateless(call("book", {"seat": "1"}))
    assert "1 is booked" in str(answer.json)
    assert SECRET not in caplog.text
    assert policy.status.kept == 0
    assert policy.status.unrecorded == 3
    assert "redaction failed: RuntimeError" in policy.status.problem
    assert all("taken" not in path.read_text() for path in files(tmp_path))


async def test_a_client_with_too_many_secrets_loses_these_records_and_not_the_session(tmp_path):
    limits = Limits(recording=RecordingLimits(secrets_max=2))
    policy = policy_in(tmp_path, rate=0)
    server = booking(record=policy, limits=limits)
    calls = [("book", {"seat": str(n), "password": f"tulip-number-{n}"}) for n in range(4)]
    await session(server, *calls, ("book", {"seat": "taken"}))
    (path,) = files(tmp_path)
    assert policy.status.unrecorded == 0
    report = check(open_recording(path))
    assert (report.damage, report.complete, report.has_loss) == ([], True, True)
    assert report.kinds["gap"] == 2
    text = path.read_text()
    assert "tulip" not in text
    assert "3 is booked" in text
    assert "seat taken" in text


async def test_the_rate_keeps_a_share_of_the_sessions_from_their_beginning(tmp_path):
    numbers = iter([0.4, 0.6])
    policy = policy_in(tmp_path, rate=0.5, errors=False, chance=lambda: next(numbers))
    server = booking(record=policy)
    async with Client(server) as client:
        await client.call_tool("book", {"seat": "1"})
        (path,) = files(tmp_path)
        assert len(records(path)) > 3
    assert counts(path) == {"kept: rate": 1}
    await session(server, ("book", {"seat": "taken"}))
    assert files(tmp_path) == [path]
    assert policy.status.reasons == {"rate": 1}


async def test_a_session_that_nothing_could_keep_is_not_recorded(tmp_path):
    lanes = []
    server = booking(record=policy_in(tmp_path, rate=0, errors=False))

    @server.tool
    async def lane(ctx: Context) -> str:
        lanes.append(lane_of_caller(ctx._handling))
        return "looked"

    await session(server, ("lane", {}))
    assert lanes == [None]


async def test_a_share_of_the_sessions_with_a_tool_is_kept(tmp_path):
    numbers = iter([0.5, 0.2, 0.5, 0.4])
    server = booking(
        record=policy_in(tmp_path, rate=0, tools={"book": 0.3}, chance=lambda: next(numbers))
    )
    await session(server, ("book", {"seat": "1"}))
    assert counts(files(tmp_path)[0]) == {"kept: tool book": 1}
    await session(server, ("book", {"seat": "1"}))
    assert len(files(tmp_path)) == 1


async def test_the_share_of_a_tool_is_one_of_sessions_and_not_of_calls(tmp_path):
    numbers = iter([0.5, 0.4, 0.2])
    policy = policy_in(tmp_path, rate=0, tools={"book": 0.3}, chance=lambda: next(numbers))
    await session(booking(record=policy), *[("book", {"seat": str(n)}) for n in range(3)])
    assert files(tmp_path) == []


async def test_sessions_of_a_user_or_with_a_header_are_kept(tmp_path, autojump_clock):
    async def user_of(request):
        return AuthInfo(subject=request.headers["x-user"])

    policy = policy_in(
        tmp_path, rate=0, principals=["ada"], headers={"X-Debug": "1", "x-trace": ""}
    )
    server = booking(auth=user_of, record=policy)
    async with site_of(server, hosts=["*"]) as site:
        for headers in (
            {"X_User": "bob"},
            {"X_User": "ada"},
            {"X_User": "bob", "X_Debug": "0"},
            {"X_User": "bob", "X_Debug": "1"},
            {"X_User": "bob", "X_Trace": "7"},
        ):
            await site.ask_stateless(call("book", {"seat": "1"}), **headers)
    found = [counts(path).keys() - {"sessions beside"} for path in files(tmp_path)]
    assert sorted(map(sorted, found)) == [
        ["kept: header x-debug"],
        ["kept: header x-trace"],
        ["kept: principal ada"],
    ]


async def test_the_slowest_percent_of_the_calls_of_a_tool_is_slow(tmp_path, autojump_clock):
    policy = policy_in(tmp_path, rate=0, slow_percent=1)
    server = booking(record=policy)
    async with Client(server) as client:
        for _ in range(200):
            await client.call_tool("wait", {"seconds": 0.5})
    assert files(tmp_path) == []
    await session(server, ("wait", {"seconds": 1}))
    assert counts(files(tmp_path)[0]) == {"kept: slow": 1}


def test_too_few_calls_say_nothing_about_the_slowest():
    durations = Durations()
    assert {durations.add("book", 10**number) for number in range(1, 19)} == {100}


def test_tools_that_clients_invent_share_their_statistics():
    durations = Durations()
    for number in range(5000):
        durations.add(str(number), 1)
    assert len(durations._by_name) <= 1001


# Bounds.


async def test_a_session_that_holds_too_much_is_written_and_removed_at_its_end(tmp_path):
    policy = policy_in(tmp_path, rate=0, held_bytes_max=10_000)
    server = booking(record=policy)
    async with Client(server) as client:
        for _ in range(9):
            await client.call_tool("large", {})
        (path,) = files(tmp_path)
        assert policy.status.held_bytes == 0
    assert files(tmp_path) == []
    async with Client(server) as client:
        for _ in range(9):
            await client.call_tool("large", {})
        with pytest.raises(ToolError):
            await client.call_tool("book", {"seat": "taken"})
    (path,) = files(tmp_path)
    assert (await replay_async(path, booking())).requests == 10


@pytest.mark.requirement("TOOL-40")
async def test_all_sessions_together_hold_a_bounded_amount(tmp_path, mock_clock):
    policy = policy_in(tmp_path, rate=0, held_bytes_total_max=30_000)
    server = booking(record=policy)
    async with trio.open_nursery() as nursery:
        clients = []
        for _ in range(9):
            client = Client(server)
            await client.__aenter__()
            clients.append(client)
            await client.call_tool("large", {})
            assert policy.status.held_bytes <= 30_000
        assert files(tmp_path) != []
        for client in clients:
            await client.aclose()
        nursery.cancel_scope.cancel()
    assert files(tmp_path) == []
    assert policy.status.held_bytes == 0


# A disk that takes nothing.


class Disk(FileSink):
    """A file on a disk; tests set whether the disk takes new files, and further bytes."""

    takes_files = takes_bytes = True

    def __init__(self, *args, **options):
        if not Disk.takes_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().__init__(*args, **options)

    def write(self, data):
        if not Disk.takes_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(data)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(record_options, "FileSink", Disk)
    monkeypatch.setattr(Disk, "takes_files", True)
    monkeypatch.setattr(Disk, "takes_bytes", True)
    return Disk


@pytest.mark.parametrize("rate", [0, 1])
async def test_a_full_disk_loses_recordings_and_no_session(tmp_path, disk, caplog, rate):
    policy = policy_in(tmp_path, rate=rate)
    server = booking(record=policy)
    disk.takes_files = False
    await session(server, ("book", {"seat": "taken"}), ("odd", {}))
    assert (policy.status.unrecorded, policy.status.kept) == (1, 0)
    assert "No space left on device" in policy.status.problem
    assert caplog.text.count("No space left on device") == 1
    disk.takes_files = True
    await session(server, ("book", {"seat": "taken"}))
    assert (policy.status.unrecorded, policy.status.kept) == (1, 1)
    assert policy.status.problem == ""
    assert len(files(tmp_path)) == 1


async def test_a_held_session_is_tried_again_when_the_disk_has_room(tmp_path, disk):
    disk.takes_files = False
    async with Client(booking(record=policy_in(tmp_path, rate=0))) as client:
        with pytest.raises(ToolError):
            await client.call_tool("book", {"seat": "taken"})
        assert files(tmp_path) == []
        disk.takes_files = True
    (path,) = files(tmp_path)
    assert (await replay_async(path, booking())).requests == 1


async def test_what_a_full_disk_does_not_take_is_not_held(tmp_path, disk):
    disk.takes_files = False
    policy = policy_in(tmp_path, rate=0, held_bytes_max=10_000)
    async with Client(booking(record=policy)) as client:
        for _ in range(9):
            await client.call_tool("large", {})
        assert policy.status.held_bytes == 0
    assert (policy.status.unrecorded, policy.status.held_bytes) == (1, 0)


async def test_records_that_a_failing_disk_loses_are_counted(tmp_path, disk):
    disk.takes_bytes = False
    policy = policy_in(tmp_path, rate=0)
    async with Client(booking(record=policy)) as client:
        with pytest.raises(ToolError):
            await client.call_tool("book", {"seat": "taken"})
        assert "cannot write to" in policy.status.problem
        disk.takes_bytes = True
    (path,) = files(tmp_path)
    report = check(open_recording(path))
    assert report.complete
    assert report.has_loss
    assert policy.status.lost_records > 3
    assert policy.status.problem == ""


@pytest.mark.parametrize("rate", [0, 1])
async def test_a_file_of_which_a_full_disk_took_nothing_is_removed(tmp_path, disk, rate):
    disk.takes_bytes = False
    policy = policy_in(tmp_path, rate=rate)
    await session(booking(record=policy), ("book", {"seat": "taken"}))
    assert files(tmp_path) == []
    assert (policy.status.unrecorded, policy.status.kept) == (1, 0)
    assert policy.status.lost_records > 3


async def test_a_folder_that_cannot_be_made_is_reported_before_anything_is_served(tmp_path):
    (tmp_path / "file").touch()
    server = booking(record=policy_in(tmp_path / "file" / "folder"))
    with pytest.raises(RecordingError, match="the folder cannot be created"):
        await server.serve(memory_pair()[0])


@pytest.mark.parametrize("rate", [0, 1])
@pytest.mark.parametrize("loses_key", [True, False])
async def test_a_folder_or_a_key_that_is_gone_loses_recordings_and_no_session(
    tmp_path, monkeypatch, caplog, rate, loses_key
):
    key = base64.b64encode(bytes(32)).decode()
    monkeypatch.setenv("MCP_TRIO_RECORDING_KEYS", f"desk:{key}")
    policy = policy_in(tmp_path / "kept", rate=rate, encrypt=True)
    async with site_of(booking(record=policy)) as site:
        if loses_key:
            monkeypatch.delenv("MCP_TRIO_RECORDING_KEYS")
        else:
            shutil.rmtree(tmp_path / "kept")
        client = await site.open()
        answer = await client.ask(call("book", {"seat": "taken"}))
        assert answer.status == 200
    assert policy.status.kept == (1 if rate else 0)  # that of the stateless requests
    assert policy.status.unrecorded == 1
    reason = "no key for recordings" if loses_key else "No such file or directory"
    assert reason in caplog.text
    assert "empty sequence" not in caplog.text


def test_the_folder_of_a_policy_is_private(tmp_path):
    trio.run(partial(session, booking(record=policy_in(tmp_path / "a" / "b"))))
    assert (tmp_path / "a" / "b").stat().st_mode & 0o77 == 0


# Lifespans, and targets.


async def test_a_lifespan_is_in_the_recording_of_its_only_session(tmp_path):
    for rate, kept in ((0, 0), (1, 1)):
        policy = policy_in(tmp_path, rate=rate, errors=bool(rate))
        await session(booking(lifespan=lifespan, record=policy), ("book", {"seat": "1"}))
        assert len(files(tmp_path)) == kept
    (path,) = files(tmp_path)
    assert (await replay_async(path, booking(lifespan=lifespan))).lifespan
    await session(booking(lifespan=lifespan, record=policy), ("book", {"seat": "taken"}))
    assert len(files(tmp_path)) == 2


async def test_the_target_of_serve_takes_precedence_over_that_of_the_server(tmp_path):
    server = booking(record=policy_in(tmp_path / "policy"))
    with SharedRecording(tmp_path / "shared.mcprec.jsonl") as shared:
        async with site_of(server, record=shared) as site:
            await site.ask_stateless(call("book", {"seat": "1"}))
    assert (tmp_path / "shared.mcprec.jsonl").exists()
    assert not (tmp_path / "policy").exists()


# Stateless requests over HTTP.


@pytest.mark.requirement("TOOL-40")
async def test_an_error_keeps_the_stateless_requests_around_it_only(tmp_path, autojump_clock):
    server = booking(record=policy_in(tmp_path, rate=0))
    async with site_of(server) as site:
        for seat in ("1", "2", "taken", "3", "4"):
            await site.ask_stateless(call("book", {"seat": seat}))
            await trio.sleep(0.1)
        await trio.sleep(30)
        await site.ask_stateless(call("book", {"seat": "5"}))
    (path,) = files(tmp_path)
    assert (await replay_async(path, booking())).requests == 3


async def test_a_choice_about_stateless_requests_is_repeated(tmp_path, autojump_clock):
    numbers = iter([0.9, 0.1, 0.9])
    policy = policy_in(tmp_path, rate=0.5, errors=False, chance=lambda: next(numbers, 1))
    async with site_of(booking(record=policy)) as site:
        for seat in range(4):
            await site.ask_stateless(call("book", {"seat": str(seat)}))
            await trio.sleep(11)
    (path,) = files(tmp_path)
    assert (await replay_async(path, booking())).requests == 1
    assert policy.status.sessions == 4


# Options.


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rate": 1.5}, "rate is 1.5: it has to be a share"),
        ({"tools": {"book": 2}}, "the share of 'book' is 2"),
        ({"tools": "book"}, "tools= and principals= take collections of names.*\\['book'\\]"),
        ({"headers": "x"}, "write \\['x'\\]"),
        ({"slow_seconds": 0}, "slow_seconds is 0"),
        ({"overwrite": True}, "remove overwrite=True"),
    ],
)
def test_a_wrong_option_is_reported_where_it_is_given(tmp_path, options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        policy_in(tmp_path, **options)


# Calls.


def tracked(*items, role="server"):
    """The calls that a tracker finds in records of some kinds, bodies and lanes."""
    encoder, tracker = RecordEncoder(), CallTracker(role)
    return [
        found
        for time, (kind, body, *lane) in enumerate(items)
        for found in tracker.add(encoder.record(kind, json.dumps(body).encode(), time * 10, *lane))
    ]


@pytest.mark.parametrize("meta", [5, "x", [], None])
def test_a_call_with_an_odd_meta_is_followed(meta):
    params = {"name": "book", "_meta": meta}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = {"jsonrpc": "2.0", "id": 1, "result": {"isError": True}}
    (found,) = tracked(("in", asked), ("out", answer))
    assert (found.name, found.error, found.trace_id) == ("book", "tool", "")


def test_a_batch_with_space_before_it_is_followed():
    encoder, tracker = RecordEncoder(), CallTracker("server")
    request = b' [{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"book"}}]'
    answer = b'{"jsonrpc":"2.0","id":1,"result":{"isError":true}}'
    assert tracker.add(encoder.record("in", request, 0)) == []
    (found,) = tracker.add(encoder.record("out", answer, 10))
    assert (found.name, found.error) == ("book", "tool")


def test_calls_in_batches_and_cancelled_calls_are_followed():
    ask = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "book"}}
    meta = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    found = tracked(
        ("in", [ask | {"id": 1}, ask | {"id": "1"}]),
        ("in", {"jsonrpc": "2.0", "method": "resources/read", "id": 2, "params": {"uri": "a:b"}}),
        ("in", ask | {"id": 3, "params": {"name": "pay", "_meta": meta}}),
        ("out", [{"id": "1", "result": {}}, {"id": 9, "result": {}}]),
        ("in", {"method": "notifications/cancelled", "params": {"requestId": 2}}),
        ("in", {"method": "notifications/cancelled", "params": {"requestId": [2]}}),
        ("out", {"id": 2, "result": {}}),
        ("out", {"method": "ping", "id": 1}),
        ("out", {"id": 1, "error": {"code": -32603, "message": "broken"}}),
        ("out", {"id": 3, "error": {"code": 5, "message": "no"}}),
    )
    assert [(each.name, each.duration_ns, each.error, each.text) for each in found] == [
        ("book", 30, "", ""),
        ("a:b", 30, "cancelled", ""),
        ("book", 80, "internal", "broken"),
        ("pay", 70, "protocol", "no"),
    ]
    assert found[-1].trace_id == "0af7651916cd43dd8448eb211c80319c"


def test_calls_with_an_id_that_is_in_use_are_told_apart():
    ask = {"method": "tools/call", "id": 1}
    book, pay = (ask | {"params": {"name": name}} for name in ("book", "pay"))
    rejected = {"id": 1, "error": {"code": -32600, "message": "the same id"}}
    found = tracked(
        *(("in", book), ("in", pay), ("out", rejected), ("out", {"id": 1, "result": {}}, "r0")),
        *(("in", [book, pay]), ("out", {"id": 1, "result": {}}, "r4"), ("out", rejected, "r4-1")),
        ("out", {"id": 1, "result": {}}),
    )
    assert [(each.name, each.duration_ns, each.error) for each in found] == [
        *(("pay", 10, "protocol"), ("book", 30, "")),
        *(("book", 10, ""), ("pay", 20, "protocol")),
    ]


def test_an_access_rule_that_rejects_one_call_of_a_batch_concerns_that_call_alone():
    from mcp_trio._journal.records import DENIED_MARK, RecordEncoder

    encoder, tracker = RecordEncoder(), CallTracker("server")
    ask, error = {"method": "tools/call", "params": {"name": "book"}}, {"code": 5, "message": "no"}

    def add(kind, body, lane=None):
        encoded = json.dumps(body).encode()
        return [*tracker.add(encoder.record(kind, encoded, 0, lane))]

    add("in", [ask | {"id": 1}, ask | {"id": 2}, ask | {"id": 3}])
    add("mark", {"name": DENIED_MARK, "value": {}}, "r0-1")
    found = [*add("out", {"id": 1, "result": {}}), *add("out", {"id": 3, "error": error})]
    found += add("out", {"id": 2, "error": error})
    assert [each.error for each in found] == ["", "protocol", "denied"]


def test_a_client_records_its_own_calls_as_sent():
    found = tracked(
        ("out", {"method": "tools/call", "id": 1, "params": {"name": "book"}}),
        ("in", {"id": 1, "result": {"isError": True, "content": [{"text": "no"}, {"x": 1}]}}),
        role="client",
    )
    assert [(each.name, each.error, each.text) for each in found] == [("book", "tool", "no\n")]


def test_messages_that_cannot_be_decoded_are_no_calls():
    assert tracked(("in", 7), ("in", {"method": "x", "id": 1, "params": []}), ("out", "x")) == []


async def test_the_records_are_those_of_a_recording_without_a_policy(tmp_path):
    await session(booking(record=policy_in(tmp_path, rate=0)), ("book", {"seat": "taken"}))
    kinds = [record.kind for record in read_recording(open_recording(files(tmp_path)[0]))]
    assert kinds == ["open", "in", "mark", "out", "in", "out", "shut", "mark", "end"]


async def test_a_redaction_that_fails_at_its_beginning_loses_a_recording_with_a_lifespan(tmp_path):
    answers = [[], None]

    def secrets():
        answer = answers.pop(0)
        if answer is None:
            raise RuntimeError(SECRET)
        return answer

    policy = policy_in(tmp_path, redaction=Redaction(secrets=secrets))
    await session(booking(record=policy, lifespan=lifespan), ("book", {"seat": "1"}))
    assert (policy.status.unrecorded, files(tmp_path)) == (1, [])


async def test_wrong_rules_of_the_redaction_are_reported_before_anything_is_served(tmp_path):
    policy = policy_in(tmp_path, redaction=Redaction(paths={"tools/call": ["pin"]}))
    with pytest.raises(ValueError, match="not a JSON path"):
        await booking(record=policy).serve(memory_pair()[0])
