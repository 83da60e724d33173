"""The pytest plugin, in test runs of its own."""

import runpy
import sys
from pathlib import Path

# Test runs in this process forget the modules that they import first. httpx2 keeps the exceptions
# of the httpcore2 that it has seen first, and would not know those of a second import. Those of the
# replay would be compiled again in each run.
import httpcore2  # noqa: F401
import pytest

from mcp_trio import Client
from mcp_trio.recording import replay  # noqa: F401
from mcp_trio.testing import simulate

pytest_plugins = ["pytester"]

DESK = """
import os
from mcp_trio import Context, Server, ToolError

def make(greeting="Hello"):
    server = Server("desk")

    @server.tool
    async def greet(name: str, *, ctx: Context) -> str:
        await ctx.sleep(0.01)
        return f"{greeting}, {name}"

    @server.tool
    async def when(*, ctx: Context) -> str:
        return "process" if os.getpid() else "none"

    return server

server = make()
"""
MARKED = """
import pytest
from desk import make, server

@pytest.mark.mcp_recording("trip.mcprec.jsonl")
def test_the_trip(mcp_replay):
    {}
"""


@pytest.fixture
def desk(pytester, monkeypatch):
    """A folder with a server, and a recording of it: run tests there."""
    pytester.makeini("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    pytester.makepyfile(desk=DESK)
    pytester.syspathinsert()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files change within a second
    return pytester


@pytest.fixture
def trip(desk):
    record(desk, "trip", "greet", {"name": "Ada"})
    return desk


def record(desk, name, tool, arguments):
    async def story(client, random_source):
        await client.call_tool(tool, arguments)

    server = runpy.run_path(desk.path / "desk.py")["server"]
    simulate(server, story, sessions=1, record=desk.path / f"{name}.mcprec.jsonl")


def run(desk, *arguments, **files):
    if files:
        desk.makepyfile(**files)
    return desk.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:timeout", *arguments)


def outcome(result, **counts):
    result.assert_outcomes(**counts)
    return result.stdout.str()


# The marker and mcp_replay.


COUNTING = """
from mcp_trio import Server

server = Server("counting")
calls = []

@server.tool
async def count() -> int:
    calls.append(1)
    return len(calls)

@server.tool
async def shuffled() -> str:
    return "".join({"a", "b", "c", "d", "e"})
"""


@pytest.fixture
def counting(desk):
    """A server whose module counts, and a recording of its first call."""
    desk.makepyfile(desk=COUNTING)
    record(desk, "trip", "count", {})
    return desk


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
def test_replays_do_not_disturb_each_other(counting):
    test = """
        import sys
        import pytest
        import desk

        @pytest.mark.mcp_recording("trip.mcprec.jsonl")
        @pytest.mark.parametrize("server", [desk.server, "desk.py", "desk.py:server", "desk"])
        def test_it(mcp_replay, server):
            for _ in range(2):
                mcp_replay(server)
            assert desk.calls == []
            assert sys.modules["desk"] is desk

        @pytest.mark.mcp_recording("trip.mcprec.jsonl")
        def test_a_server_that_the_test_changed_is_replayed_itself(mcp_replay):
            desk.server.tool(name="new")(lambda: 1)
            assert 'the tool "new" was added' in mcp_replay(desk.server).list_changes
            assert desk.calls == [1]
    """
    outcome(run(counting, test_it=test), passed=5)


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
def test_a_replay_can_be_repeated_under_many_seeds(counting, monkeypatch):
    record(counting, "shuffled", "shuffled", {})
    test = """
        import desk

        def test_same(mcp_replay):
            mcp_replay(desk.server, "trip.mcprec.jsonl", repeat=2)

        def test_all(mcp_replay):
            mcp_replay.all("desk.py", ".", repeat=2)

        def test_made(mcp_replay):
            mcp_replay(desk.make(), "trip.mcprec.jsonl", repeat=2)
    """
    with (counting.path / "desk.py").open("a") as file:
        file.write("\ndef make():\n    made = Server('counting')\n    made.tool(count)\n")
        file.write("    made.tool(shuffled)\n    return made\n")
    text = outcome(run(counting, test_it=test), passed=1, failed=2)
    assert "replays differ; with scheduler seed 0 and hash seed" in text
    assert "repeat needs a server that other processes can import" in text


@pytest.mark.usefixtures("findable")
def test_a_folder_without_recordings_fails(desk):
    test = """
        import desk

        def test_it(mcp_replay):
            mcp_replay.all(desk.server, "recordings")
    """
    text = outcome(run(desk, test_it=test), failed=1)
    assert "nothing was compared" in text


@pytest.mark.usefixtures("findable")
def test_a_recording_that_shows_nothing_fails(trip):
    path = trip.path / "trip.mcprec.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    test = MARKED.format("mcp_replay(server)")
    assert "nothing was compared" in outcome(run(trip, test_it=test), failed=1)
    path.write_bytes(b"".join(lines).replace(b"Hello", b"Howdy"))
    assert "the recording is damaged" in outcome(run(trip), failed=1)
    trip.makepyfile(test_it=MARKED.format("mcp_replay(server, allow_damaged=True)"))
    assert "replay diverged" in outcome(run(trip), failed=1)


@pytest.mark.usefixtures("findable")
def test_a_marker_and_the_fixture_replay_a_recording(trip):
    outcome(run(trip, test_it=MARKED.format("mcp_replay(server)")), passed=1)


@pytest.mark.usefixtures("findable")
def test_a_divergence_fails_the_test_without_a_traceback_of_the_package(trip):
    text = outcome(run(trip, test_it=MARKED.format('mcp_replay(make("Goodbye"))')), failed=1)
    assert '>   mcp_replay(make("Goodbye"))' in text.replace(">       ", ">   ")
    assert "E       AssertionError: replay diverged at record" in text
    assert '"Hello, Ada" became "Goodbye, Ada"' in text
    for inside in ("_replay", "pytest_plugin.py", "ReplayDivergence", "concurrent", "trio.run"):
        assert inside not in text.replace("mcp_replay", "")


@pytest.mark.usefixtures("findable")
def test_all_divergences_are_reported_on_request(desk):
    async def story(client, random_source):
        for name in ("Ada", "Bob"):
            await client.call_tool("greet", {"name": name})

    server = runpy.run_path(desk.path / "desk.py")["server"]
    simulate(server, story, sessions=1, record=desk.path / "trip.mcprec.jsonl")
    changed = "mcp_replay(make('Bye'){})"
    desk.makepyfile(test_it=MARKED.format(changed.format(", all_divergences=True")))
    assert "2 divergences in 2 requests, in 1 way" in outcome(run(desk), failed=1)
    desk.makepyfile(test_it=MARKED.format(changed.format("")))
    assert "divergences in" not in outcome(run(desk), failed=1)


def test_an_unreadable_recording_fails_the_test(trip):
    text = outcome(run(trip, test_it=MARKED.format('mcp_replay(server, "none.jsonl")')), failed=1)
    assert "AssertionError: cannot read" in text


@pytest.mark.usefixtures("findable")
def test_a_path_replaces_the_marker_and_the_report_is_returned(trip):
    test = """
        from desk import server

        def test_it(mcp_replay):
            report = mcp_replay(server, "trip.mcprec.jsonl")
            assert report.is_complete and report.requests == 1
    """
    outcome(run(trip, test_it=test), passed=1)


@pytest.mark.usefixtures("findable")
def test_without_marker_and_path_the_test_fails(trip):
    test = "def test_it(mcp_replay): mcp_replay(None)"
    text = outcome(run(trip, test_it=test), failed=1)
    assert (
        "AssertionError: no recording given: pass a path, or mark the test with mcp_recording(path)"
        in text
    )


@pytest.mark.usefixtures("findable")
def test_a_replay_runs_inside_a_trio_test(trip):
    test = MARKED.format("mcp_replay(server)").replace("def test", "async def test")
    outcome(run(trip, test_it=test), passed=1)
    text = outcome(run(trip, test_it=test.replace("(server)", "(make('Bye'))")), failed=1)
    assert "AssertionError: replay diverged at record" in text


@pytest.mark.usefixtures("findable")
def test_outbound_is_a_mode_of_the_marker(trip):
    test = MARKED.replace('jsonl"', 'jsonl", mode="outbound"').format("mcp_replay(server)")
    outcome(run(trip, test_it=test), passed=1)


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
def test_inputs_mode_compares_all_but_the_ignored_paths(trip):
    test = MARKED.replace('jsonl"', 'jsonl", mode="inputs"').format('mcp_replay(make("Bye"))')
    text = outcome(run(trip, test_it=test), failed=1)
    assert "AssertionError: changed answer to tools/call" in text
    ignoring = test.replace(
        '"inputs"', '"inputs", ignore=["$.result.content", "$.result.structuredContent"]'
    )
    outcome(run(trip, test_it=ignoring), passed=1)
    outcome(run(trip, test_it=test.replace('make("Bye")', "server")), passed=1)


@pytest.mark.usefixtures("findable")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('"x", mode="fast"', "unknown mode 'fast': one of strict, outbound, inputs"),
        ('"x", ignore=["$"]', "ignore is for mode='inputs'"),
        ("", "missing 1 required positional argument: 'path'"),
        ('"x", speed=1', "unexpected keyword argument 'speed'"),
        ("3", "expected str, bytes or os.PathLike object, not int"),
    ],
)
def test_an_invalid_marker_is_an_error_before_the_test(trip, arguments, expected):
    test = MARKED.replace('"trip.mcprec.jsonl"', arguments).format("mcp_replay(server)")
    text = outcome(run(trip, test_it=test), errors=1)
    assert expected in text
    assert "mcp_recording" in text


@pytest.mark.usefixtures("findable")
def test_a_marker_without_a_fixture_is_an_error(trip):
    test = MARKED.replace("(mcp_replay)", "()").format("pass")
    text = outcome(run(trip, test_it=test), errors=1)
    assert "has no effect without one of the fixtures mcp_mock, mcp_recorder, mcp_replay" in text


@pytest.mark.usefixtures("findable")
def test_a_test_can_request_the_fixture_later(trip):
    test = MARKED.replace("(mcp_replay)", "(request)")
    later = 'request.getfixturevalue("mcp_replay")(server)'
    outcome(run(trip, test_it=test.format(later)), passed=1)


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
def test_untracked_calls_are_warnings(desk):
    record(desk, "trip", "when", {})
    test = MARKED.format("mcp_replay(server)")
    text = outcome(run(desk, "-W", "default", test_it=test), passed=1, warnings=1)
    assert "UntrackedCallWarning" in text
    assert "os.getpid() at desk.py" in text
    outcome(run(desk, test_it=test), failed=1)


@pytest.mark.usefixtures("findable")
def test_the_marker_and_the_option_have_help_texts(desk):
    assert "mcp_recording(path, mode='strict', ignore=())" in run(desk, "--markers").stdout.str()
    assert "--mcp-record={none,once,new,all}" in run(desk, "--help").stdout.str()


# mcp_client, mcp_mock, mcp_clock.


@pytest.mark.usefixtures("findable")
def test_a_client_of_a_server_object_in_every_kind_of_test(desk):
    test = """
        import trio
        from desk import server

        async def test_async(mcp_client):
            async with mcp_client(server, name="me") as client:
                assert client.name == "me"
                assert len(await client.list_tools()) == 2

        def test_plain(mcp_client):
            async def main():
                async with mcp_client(server) as client:
                    return len(await client.list_tools())
            assert trio.run(main) == 2
    """
    outcome(run(desk, test_it=test), passed=2)


@pytest.mark.usefixtures("findable")
def test_a_mock_gives_recorded_answers_and_a_strict_one_is_checked(trip):
    test = """
        import pytest
        from mcp_trio import Client, RequestError

        @pytest.mark.mcp_recording("trip.mcprec.jsonl")
        async def test_answers(mcp_mock):
            async with Client(mcp_mock()) as client:
                result = await client.call_tool("greet", {"name": "Ada"})
                assert result.content[0].text == "Hello, Ada"

        async def test_strict(mcp_mock):
            async with Client(mcp_mock("trip.mcprec.jsonl", strict=True)) as client:
                with pytest.raises(RequestError):
                    await client.call_tool("greet", {"name": "Bob"})

        def test_missing(mcp_mock):
            mcp_mock("none.jsonl")
    """
    text = outcome(run(trip, test_it=test), passed=2, failed=1, errors=1)
    assert "AssertionError: cannot read" in text
    assert "greet" in text
    assert "not requested: tools/call" in text


@pytest.mark.usefixtures("findable")
def test_a_strict_mock_is_not_checked_after_a_test_that_has_not_passed(trip):
    test = """
        import pytest

        @pytest.fixture
        def broken(mcp_mock):
            mcp_mock("trip.mcprec.jsonl", strict=True)
            raise RuntimeError("the setup failed")

        def test_setup(broken):
            pass

        def test_skipped(mcp_mock):
            mcp_mock("trip.mcprec.jsonl", strict=True)
            pytest.skip("not here")

        def test_failed(mcp_mock):
            mcp_mock("trip.mcprec.jsonl", strict=True)
            assert False, "the reason"
    """
    text = outcome(run(trip, test_it=test), errors=1, failed=1, skipped=1)
    assert "not requested" not in text


def test_the_clock_jumps_while_all_tasks_wait(desk):
    test = """
        import trio

        async def test_trio(mcp_clock):
            begun = trio.current_time()
            await trio.sleep(1000)
            assert trio.current_time() == begun + 1000

        def test_plain(mcp_clock):
            trio.run(trio.sleep, 1000, clock=mcp_clock)
    """
    outcome(run(desk, test_it=test), passed=2)


# mcp_recorder.

RECORDED = """
import pytest
from desk import make

async def test_desk(mcp_recorder):
    async with mcp_recorder(make({greeting!r})) as client:
        result = await client.call_tool("greet", {{"name": {name!r}}})
        assert result.content[0].text == "Hello, Ada"
"""
COMMAND = RECORDED.replace("make({greeting!r})", "[sys.executable, '-c', SCRIPT]").replace(
    "import pytest",
    'import sys\nSCRIPT = "from desk import make; make({greeting!r}).run()"',
)
KINDS = pytest.mark.parametrize("test", [RECORDED, COMMAND], ids=["server object", "command"])


@pytest.fixture
def recordings(desk):
    return desk.path / "recordings" / "test_it"


def run_recorded(desk, mode, test, greeting="Hello", name="Ada"):
    options = () if mode is None else (f"--mcp-record={mode}",)
    return run(desk, *options, test_it=test.format(greeting=greeting, name=name))


@pytest.fixture
def findable(monkeypatch, request):
    """A command finds the server's module."""
    monkeypatch.setenv("PYTHONPATH", str(request.getfixturevalue("pytester").path))


@pytest.mark.usefixtures("findable")
@KINDS
def test_a_missing_recording_fails_unless_the_option_allows_recording(desk, recordings, test):
    text = outcome(run_recorded(desk, None, test), failed=1)
    assert "AssertionError: no recording at" in text
    assert "run pytest with --mcp-record=once" in text
    assert not recordings.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
@KINDS
def test_once_makes_missing_recordings_and_none_uses_them(desk, recordings, test):
    outcome(run_recorded(desk, "once", test), passed=1)
    assert [path.name for path in recordings.iterdir()] == ["test_desk.mcprec.jsonl"]
    first = next(recordings.iterdir()).read_bytes()
    for mode in ("none", "once"):
        outcome(run_recorded(desk, mode, test), passed=1)
    assert next(recordings.iterdir()).read_bytes() == first


@pytest.mark.usefixtures("findable")
def test_a_recorded_server_object_is_replayed_before_its_answers_are_used(desk):
    outcome(run_recorded(desk, "once", RECORDED), passed=1)
    text = outcome(run_recorded(desk, "none", RECORDED, greeting="Goodbye"), failed=1)
    assert "AssertionError: replay diverged at record" in text


@pytest.mark.usefixtures("findable")
def test_a_recorded_command_is_not_started_again(desk):
    outcome(run_recorded(desk, "once", COMMAND), passed=1)
    outcome(run_recorded(desk, "none", COMMAND, greeting="Goodbye"), passed=1)


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
@KINDS
def test_an_unrecorded_request_fails_the_test(desk, test):
    outcome(run_recorded(desk, "once", test), passed=1)
    text = outcome(run_recorded(desk, "none", test, name="Bob"), failed=1)
    assert "not recorded" in text


@pytest.mark.usefixtures("findable")
def test_an_unrecorded_request_fails_the_test_even_if_its_error_is_caught(desk):
    swallowing = RECORDED.replace("import pytest", "from contextlib import suppress").replace(
        "        result = await", "        with suppress(Exception): await"
    )
    swallowing, _, _ = swallowing.partition("        assert")
    outcome(run_recorded(desk, "once", swallowing), passed=1)
    text = outcome(run_recorded(desk, "none", swallowing, name="Bob"), failed=1)
    assert "AssertionError: the test made requests that are not recorded in" in text
    assert "--mcp-record=all" in text


@pytest.mark.usefixtures("findable")
@KINDS
def test_new_replaces_outdated_recordings(desk, recordings, test):
    outcome(run_recorded(desk, "new", test), passed=1)
    (path,) = recordings.iterdir()
    first = path.read_bytes()
    outcome(run_recorded(desk, "new", test), passed=1)
    assert path.read_bytes() == first
    changed = test.replace("Hello, Ada", "Goodbye, Ada")
    outcome(run_recorded(desk, "new", changed, greeting="Goodbye"), passed=1)
    assert b"Goodbye, Ada" in path.read_bytes()


def test_the_options_of_a_command_are_for_its_recording_only(desk, recordings):
    folder = desk.mkdir("elsewhere")
    (desk.path / "desk.py").rename(folder / "desk.py")
    test = """
        import sys

        COMMAND = [sys.executable, "-c", "from desk import server; server.run()"]

        async def test_it(mcp_recorder):
            async with mcp_recorder(COMMAND, cwd="elsewhere", env={"DESK": "1"}) as client:
                await client.call_tool("greet", {"name": "Ada"})
    """
    outcome(run(desk, "--mcp-record=once", test_it=test), passed=1)
    (path,) = recordings.iterdir()
    first = path.read_bytes()
    outcome(run(desk), passed=1)
    outcome(run(desk, "--mcp-record=new"), passed=1)
    assert path.read_bytes() == first


@pytest.mark.slow
def test_new_replaces_recordings_that_depend_on_an_earlier_test(desk):
    counter = """
        from mcp_trio import Server

        server, numbers = Server("counter"), []

        @server.tool
        async def count() -> int:
            numbers.append(1)
            return len(numbers)
    """
    test = """
        import pytest
        from counter import server

        @pytest.mark.parametrize("number", [1, 2])
        async def test_count(mcp_recorder, number):
            async with mcp_recorder(server) as client:
                await client.call_tool("count")
    """
    once = run(desk, "--mcp-record=once", counter=counter, test_it=test)
    assert "1 other session of the recorded process" in outcome(once, passed=1, failed=1)
    outcome(run(desk), passed=1, failed=1)
    outcome(run(desk, "--mcp-record=new"), passed=2)
    outcome(run(desk), passed=2)


@pytest.mark.usefixtures("findable")
def test_all_replaces_every_recording(desk, recordings):
    outcome(run_recorded(desk, "once", RECORDED), passed=1)
    (path,) = recordings.iterdir()
    first = path.read_bytes()
    outcome(run_recorded(desk, "all", RECORDED), passed=1)
    assert path.read_bytes() != first


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
@KINDS
def test_a_failing_test_keeps_the_old_recording(desk, recordings, test):
    outcome(run_recorded(desk, "once", test, greeting="Goodbye"), failed=1)
    assert list(recordings.iterdir()) == []
    outcome(run_recorded(desk, "once", test), passed=1)
    (path,) = recordings.iterdir()
    first = path.read_bytes()
    outcome(run_recorded(desk, "all", test, greeting="Goodbye"), failed=1)
    assert [path.read_bytes() for path in recordings.iterdir()] == [first]


@pytest.mark.usefixtures("findable")
def test_an_unreachable_target_leaves_no_file(desk, recordings):
    test = """
        async def test_it(mcp_recorder):
            async with mcp_recorder(["no-such-command"]):
                pass
    """
    assert "ConnectionLost" in outcome(run(desk, "--mcp-record=all", test_it=test), failed=1)
    assert list(recordings.iterdir()) == []


@pytest.mark.usefixtures("findable")
def test_two_clients_of_one_test_have_labels_and_one_may_have_the_marker_s_path(desk, recordings):
    test = """
        import pytest
        from desk import server

        @pytest.mark.parametrize("name", ["a-b", "c"])
        async def test_two(mcp_recorder, name):
            async with mcp_recorder(server) as one, mcp_recorder(server, label="two") as two:
                await one.list_tools(), await two.list_tools()

        async def test_twice(mcp_recorder):
            async with mcp_recorder(server), mcp_recorder(server):
                pass

        async def test_again(mcp_recorder):
            recorded = mcp_recorder(server)
            async with recorded as client:
                await client.list_tools()
            with pytest.raises(RuntimeError, match="connects once"):
                async with recorded:
                    pass

        @pytest.mark.mcp_recording("mine.mcprec.jsonl")
        async def test_mine(mcp_recorder):
            async with mcp_recorder(server) as client:
                await client.list_tools()
    """
    text = outcome(run(desk, "--mcp-record=once", test_it=test), passed=4, failed=1)
    assert "pass a label= for the second client" in text
    assert (desk.path / "mine.mcprec.jsonl").exists()
    assert sorted(path.name for path in recordings.iterdir()) == [
        "test_again.mcprec.jsonl",
        "test_two-a-b-.two.mcprec.jsonl",
        "test_two-a-b.mcprec.jsonl",
        "test_two-c-.two.mcprec.jsonl",
        "test_two-c.mcprec.jsonl",
    ]


@pytest.mark.usefixtures("findable")
def test_tests_with_similar_names_have_recordings_of_their_own(desk, recordings):
    test = """
        import pytest
        from desk import server

        NAMES = ["a-b", "a/b", "a b", "a-b-", "a]b", "a[b", "\\u00e4", "\\u00f6", "x" * 500, "x" * 501]

        @pytest.mark.parametrize("name", NAMES, ids=NAMES)
        async def test_it(mcp_recorder, name):
            async with mcp_recorder(server) as client, mcp_recorder(server, label="b") as other:
                await client.list_tools(), await other.list_tools()

        @pytest.mark.parametrize("name", ["::1", ".1", "GET", "get"])
        async def test_address(mcp_recorder, name):
            async with mcp_recorder(server) as client:
                await client.list_tools()

        @pytest.mark.parametrize("name", ["a.b", "a"])
        async def test_dots(mcp_recorder, name):
            async with mcp_recorder(server, label="b" if name == "a" else "") as client:
                await client.list_tools()
    """
    outcome(run(desk, "--mcp-record=once", test_it=test), passed=16)
    names = [path.name for path in recordings.iterdir()]
    assert len({name.lower() for name in names}) == 2 * 10 + 4 + 2
    assert max(map(len, names)) < 200
    assert "test_it-a-b.mcprec.jsonl" in names


@pytest.mark.usefixtures("findable")
def test_a_test_does_not_replace_the_recording_that_another_one_has_just_made(desk):
    test = """
        import pytest
        from desk import server

        @pytest.mark.mcp_recording("greeting.mcprec.jsonl")
        @pytest.mark.parametrize("name", ["Ada", "Ada again", "Ben"])
        async def test_greeting(mcp_recorder, name):
            async with mcp_recorder(server) as client:
                await client.call_tool("greet", {"name": name.split()[0]})
    """
    for _ in range(2):
        text = outcome(run(desk, "--mcp-record=all", test_it=test), passed=2, failed=1)
        assert "differs at $.arguments.name" in text
    outcome(run(desk, test_it=test), passed=2, failed=1)


# Beside other plugins.


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
def test_the_fixtures_work_under_the_anyio_plugin(trip):
    trip.makeini("[pytest]\n")
    test = """
        import pytest, trio
        from desk import make, server
        from mcp_trio import Client

        pytestmark = pytest.mark.anyio

        @pytest.fixture
        def anyio_backend(mcp_clock):
            return "trio", {"clock": mcp_clock}

        @pytest.mark.mcp_recording("trip.mcprec.jsonl")
        async def test_replay(mcp_replay):
            await trio.sleep(1000)
            mcp_replay(server)

        @pytest.mark.mcp_recording("trip.mcprec.jsonl")
        async def test_mock(mcp_mock):
            async with Client(mcp_mock()) as client:
                await client.call_tool("greet", {"name": "Ada"})

        async def test_client(mcp_client):
            async with mcp_client(server) as client:
                await client.ping()

        async def test_recorder(mcp_recorder):
            async with mcp_recorder(server) as client:
                await client.call_tool("greet", {"name": "Ada"})
    """
    trip.makepyfile(test_it=test)
    for mode in ("once", "none"):
        outcome(run(trip, "-p", "no:trio", "-W", "error", f"--mcp-record={mode}"), passed=4)


@pytest.mark.slow
@pytest.mark.usefixtures("findable")
def test_the_package_is_imported_only_when_a_fixture_is_used(desk):
    test = """
        import sys

        def ours():
            return {name for name in sys.modules if name.partition(".")[0] in ("mcp_trio", "trio")}

        def test_before():
            assert ours() == {"mcp_trio", "mcp_trio._public_names", "mcp_trio.pytest_plugin"}

        def test_after(mcp_client):
            from desk import server
            mcp_client(server)
            assert "mcp_trio._client" in ours()
    """
    desk.makeini("[pytest]\n")
    desk.makepyfile(test_it=test)
    plugins = ("-p", "no:trio", "-p", "no:anyio", "-p", "no:hypothesispytest", "-p", "no:timeout")
    desk.runpytest_subprocess(*plugins, "-p", "no:cacheprovider").assert_outcomes(passed=2)


@pytest.mark.usefixtures("findable")
def test_the_recorder_gives_a_public_client(mcp_client):
    assert type(mcp_client(["command"])) is Client


# The fixtures over HTTP, in a test run of its own.


WEATHER = Path(__file__).parents[2] / "recordings" / "weather.mcprec.jsonl"

TESTS = f"""
import functools
import threading
import pytest
import trio
from mcp_trio.examples.weather import server

pytestmark = pytest.mark.mcp_recording({str(WEATHER)!r}, mode="inputs")

async def test_a_mock_is_served_to_a_client_at_a_url(mcp_mock, mcp_client, nursery):
    url = await nursery.start(functools.partial(mcp_mock().serve_http, port=0))
    async with mcp_client(url) as client:
        assert [tool.name for tool in await client.list_tools()] == ["forecast", "warmest"]

async def test_a_url_is_recorded_once(mcp_recorder, nursery):
    url = await nursery.start(functools.partial(server.serve_http, port=0))
    async with mcp_recorder(url, label="x") as client:
        assert await client.list_tools()

@pytest.fixture
def url():
    started, ready = [], threading.Event()

    async def serve():
        started.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            started.append(nursery.cancel_scope)
            started.append(await nursery.start(functools.partial(server.serve_http, port=0)))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(10)
    token, scope, url = started
    yield url
    token.run_sync_soon(scope.cancel)
    thread.join()

def test_the_inputs_of_a_recording_are_sent_to_a_url(mcp_replay, url):
    assert mcp_replay(url).answered == 6

def test_the_inputs_of_a_recording_are_sent_to_a_url_from_a_trio_test(mcp_replay, url):
    async def main():
        assert mcp_replay(url).answered == 6

    trio.run(main)
"""


@pytest.mark.slow
def test_a_url_is_a_target_and_a_mock_has_one(pytester):
    pytester.makeini("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    pytester.makepyfile(test_it=TESTS)
    options = ("-p", "no:cacheprovider", "-p", "no:timeout", "--mcp-record=once")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=4)
    assert [path.suffix for path in (pytester.path / "recordings" / "test_it").iterdir()]
    pytester.runpytest_inprocess(*options, "-k", "recorded_once").assert_outcomes(
        passed=1, deselected=3
    )
