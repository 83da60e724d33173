"""`mcp-trio dev`: changes of files, the log, reloading, recordings, keys and the Inspector."""

import codecs
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock

from mcp_trio import Client
from mcp_trio._cli.dev_server import Logged, MessageReporter, subject_of
from mcp_trio._cli.reloader import (
    INSPECTOR,
    POLL_SECONDS,
    MessageLog,
    Watcher,
    handle_keys,
    print_recordings,
    replay_last,
    run_inspector,
)
from mcp_trio._cli.timeline import Row
from mcp_trio._journal.records import Record
from mcp_trio.errors import ConnectionLost, MCPError
from tests.cli.conftest import Terminal

pytestmark = pytest.mark.usefixtures("measured_processes")

# Changes of files.


@pytest.fixture
def clock():
    return MockClock(autojump_threshold=0)


async def change_of(watcher, *steps):
    """The names of the files that changed, and the time that passed, for steps after a second."""
    begin = trio.current_time()
    found = []

    async def wait():
        found.extend(await watcher.changed())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        for step in steps:
            step()
            await trio.sleep(POLL_SECONDS)
    return [path.name for path in found], trio.current_time() - begin


async def test_a_changed_and_a_new_file_are_found(clock, tmp_path):
    (tmp_path / "server.py").write_text("a = 1")
    watcher = Watcher([tmp_path])
    changed, seconds = await change_of(watcher, lambda: (tmp_path / "server.py").write_text("b"))
    assert changed == ["server.py"]
    assert seconds <= 1 + 3 * POLL_SECONDS
    changed, _ = await change_of(watcher, (tmp_path / "new.py").touch)
    assert changed == ["new.py"]
    changed, _ = await change_of(watcher, (tmp_path / "new.py").unlink)
    assert changed == ["new.py"]


async def test_files_that_are_written_one_after_the_other_are_one_change(clock, tmp_path):
    watcher = Watcher([tmp_path])
    changed, _ = await change_of(watcher, *((tmp_path / name).touch for name in ("a.py", "b.py")))
    assert changed == ["a.py", "b.py"]


async def test_other_files_count_only_if_they_are_named(clock, tmp_path):
    named, other = tmp_path / "named.toml", tmp_path / "other.toml"
    named.touch()
    other.touch()
    watcher = Watcher([tmp_path, named])
    changed, _ = await change_of(
        watcher, lambda: other.write_text("a = 1"), lambda: named.write_text("a = 1")
    )
    assert changed == ["named.toml"]


async def test_the_folders_of_imported_modules_are_watched(clock, tmp_path):
    (tmp_path / "inside").mkdir()
    module = tmp_path / "inside" / "module.py"
    module.touch()
    watcher = Watcher([tmp_path])
    watcher.add([str(module)])
    with trio.move_on_after(5) as scope:
        await watcher.changed()
    assert scope.cancelled_caught
    changed, _ = await change_of(watcher, lambda: module.write_text("a = 1"))
    assert changed == ["module.py"]


# The log.


LOG = MessageLog(now=lambda: datetime(2026, 11, 28, 9, 30, 1, 234_567, UTC))


@pytest.fixture
def line(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)

    def line(subject="", columns_max=None, **row):
        logged = Logged(session=1, row=Row(kind="in", **row), subject=subject)
        return LOG.line(logged, 12, columns_max=columns_max)

    return line


def test_a_request_has_its_arguments_and_a_response_its_duration(line):
    shown = line('a=1 b="\x1b"', direction="to server", what="tools/call add", id=3, size_bytes=284)
    assert shown.split() == [
        *("09:30:01.234", "12", "->", "tools/call", "add", "3", "284", "bytes", "a=1", 'b="\\x1b"')
    ]
    shown = line("3", direction="to client", what="answer tools/call add", id=3, took_ms=1.26)
    assert shown.split() == ["09:30:01.234", "12", "<-", "tools/call", "add", "3", "1.3", "ms", "3"]


def test_errors_and_cancellations_have_colours(line):
    shown = line("x", direction="to client", what="a", outcome="error", note="gone")
    assert shown.startswith("\x1b[31m")
    assert "gone" in shown
    assert line(direction="to server", outcome="cancelled").startswith("\x1b[33m")
    assert "\x1b" not in line(direction="to server")


def test_a_line_is_cut_at_the_edge_of_the_screen(line):
    assert len(line("x" * 200, direction="to server", columns_max=90)) == 90


@pytest.mark.parametrize(
    ("message", "subject"),
    [
        (b'{"params":{"name":"add","arguments":{"a":1,"b":[2]}}}', "a=1 b=[2]"),
        (b'{"params":{"arguments":3}}', ""),
        (b'{"result":{"content":[{"type":"text","text":"five"}]}}', "five"),
        (b'{"result":{"tools":[{"name":"a"},{"name":"b"}],"ttlMs":0}}', "tools: a, b"),
        (b'{"result":{"tools":5}}', '{"tools":5}'),
        (b'{"result":{"prompts":{"name":"a"}}}', '{"prompts":{"name":"a"}}'),
        (b'{"result":{"_meta":{},"resultType":"complete"}}', "{}"),
        (b'{"result":{"text":"' + b"x" * 200 + b'"}}', '{"text":"' + "x" * 90 + "…"),
        (b"[]", ""),
    ],
)
def test_the_content_of_a_message_is_short(message, subject):
    assert subject_of(message) == subject


def test_the_memory_of_the_log_does_not_grow_with_the_number_of_requests():
    rows = []
    add = MessageReporter(lambda logged: rows.append(logged.row))()

    def add_call(number, *, is_cancelled):
        state = f'"requestState":"{number}"'
        request = f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{{state},'
        request += f'"_meta":{{"progressToken":{number}}},"name":"tide"}}}}'
        result = f'{{"jsonrpc":"2.0","id":{number},"result":{{"resultType":"input_required",{state}'
        for kind, body in [("in", request), ("out", result + "}}")][: 1 if is_cancelled else 2]:
            add(Record(number=2 * number, kind=kind, time_ns=0, body=Raw(body.encode())))

    sizes = []
    tracemalloc.start()
    try:
        for number in range(1, 3301):
            rows.clear()
            add_call(number, is_cancelled=number % 2 == 0)
            if number % 1100 == 0:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[2] < sizes[1] * 1.1
    add(
        Record(
            number=1, kind="out", time_ns=0, body=Raw(b'{"jsonrpc":"2.0","id":3300,"result":{}}')
        )
    )
    assert rows[-1].what == "answer tools/call tide"


# Reloading, in a process.


SERVER = """
import trio
from mcp_trio import Context, Server

server = Server("there", version="1")

@server.tool
def tide(when: str = "now") -> str:
    print("printed by the tool")
    return "high"

@server.tool
def fail() -> str:
    raise KeyError("lost")

@server.tool
async def wait(*, ctx: Context) -> str:
    print("it waits")
    await trio.sleep_forever()

@server.tool
def end() -> str:
    import os
    os._exit(7)
"""
SECONDS = 30


def answer_at(url, tool="tide", **arguments):
    async def call():
        async with Client(url, raise_tool_errors=False) as client:
            with trio.fail_after(SECONDS):
                result = await client.call_tool(tool, arguments)
            return result.content[0].text

    return trio.run(call)


class Dev:
    """A running `mcp-trio dev`, what it printed, and its URL."""

    def __init__(self, process):
        self._process = process
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._unread = self.shown = ""

    def wait_for(self, text):
        """Read until a line has the text; return all since the last such line."""
        end = time.monotonic() + SECONDS
        while not (found := re.match(f"(?s).*?{re.escape(text)}.*?\n", self._unread)):
            ready = select.select([self._process.stdout], [], [], end - time.monotonic())[0]
            assert ready, f"no {text!r} in {self._unread!r}"
            chunk = os.read(self._process.stdout.fileno(), 65536)
            assert chunk, f"no {text!r} in {self._unread!r}, and no more"
            text_read = self._decode(chunk)
            self._unread += text_read
            self.shown += text_read
        self._unread = self._unread[found.end() :]
        return found[0]

    @property
    def url(self):
        return re.search(r"URL: (http://127\.0\.0\.1:\d+/mcp)", self.shown)[1]

    def call(self, tool="tide", **arguments):
        return answer_at(self.url, tool, **arguments)

    def end(self, number=signal.SIGTERM):
        self._process.send_signal(number)
        self._process.stdout.read()
        return self._process.wait(SECONDS)


@contextmanager
def started(*options, folder=None, inspector=("--no-inspector",), **variables):
    """Run `mcp-trio dev server.py` in a folder, or in the current one."""
    command = [sys.executable, "-m", "mcp_trio", "dev", "server.py", *inspector, *options]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        cwd=folder,
        env=os.environ | variables,
    ) as process:
        try:
            running = Dev(process)
            running.wait_for("URL: ")
            yield running
        finally:
            process.kill()


@pytest.fixture
def dev(tmp_path, monkeypatch):
    """`dev(*options)` runs the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text(SERVER)
    return started


@pytest.fixture(scope="module")
def shared(tmp_path_factory, measuring):
    """A command that the tests of this module share, and its folder."""
    folder = tmp_path_factory.mktemp("dev")
    (folder / "server.py").write_text(SERVER)
    with started(folder=folder, **measuring) as running:
        yield running, folder


@pytest.fixture
def running(shared, monkeypatch):
    """The shared command, in whose folder the test runs; it serves `SERVER`."""
    running, folder = shared
    monkeypatch.chdir(folder)
    if Path("server.py").read_text() != SERVER:
        Path("server.py").write_text(SERVER)
        running.wait_for("serving server.py")
    return running


def rewrite(old, new, name="server.py"):
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))


def test_a_change_is_served_under_the_same_url_and_a_signal_is_a_success(dev):
    with dev() as running:
        assert running.call(when="then") == "high"
        log = running.wait_for("<-  tools/call tide")
        assert re.search(r'\d\d:\d\d:\d\d\.\d{3} +1  ->  tools/call tide .* when="then"\n', log)
        assert "printed by the tool" in log
        rewrite("high", "low")
        assert "changed: server.py\nserving" in running.wait_for("serving server.py")
        assert running.call() == "low"
        assert re.search(r" 2  <-  tools/call tide .* low\n", running.wait_for("  low"))
        folder = Path(re.search("recording to (.*)", running.shown)[1])
        assert len(list(folder.iterdir())) == 2
        assert running.end(signal.SIGTERM) == 0
        assert not folder.exists()


def test_the_last_good_code_is_served_while_the_new_one_has_an_error(running):
    Path("server.py").write_text(f"{SERVER}\nboom(\n")
    shown = running.wait_for("still served")
    assert "server.py cannot be imported:\n  File " in shown
    assert "SyntaxError" in shown
    assert running.call() == "high"
    running.wait_for("<-  tools/call tide")

    Path("server.py").write_text(f"{SERVER}\n@server.tool\ndef bad(*many): ...\n")
    shown = running.wait_for("still served")
    assert re.search(r'server.py", line \d+, in <module>', shown)
    assert "mcp_trio/_server" not in shown

    Path("server.py").write_text(f"{SERVER}\nimport sys\nsys.exit(3)\n")
    assert "ended with status 3 while it imported server.py" in running.wait_for("still served")

    Path("server.py").write_text(f"{SERVER}\nimport time\ntime.sleep(1000)\n")
    running.wait_for("changed: ")
    Path("server.py").write_text(SERVER.replace("high", "low"))
    running.wait_for("serving server.py")
    assert running.call() == "low"


def test_each_version_is_served_until_a_signal_ends_the_command(dev, while_listening):
    def wait_until(text, url):
        end, answer = time.monotonic() + SECONDS, None
        while answer != text:
            assert time.monotonic() < end
            time.sleep(POLL_SECONDS)
            with suppress(ConnectionLost):  # The version before has closed an idle connection.
                answer = answer_at(url)

    def use(url):
        wait_until("high", url)
        Path("server.py").write_text(SERVER.replace("high", "low"))
        wait_until("low", url)
        with pytest.raises(ConnectionLost):
            answer_at(url, "end")
        rewrite("low", "higher")
        wait_until("higher", url)

    options = ("--no-inspector", "--port", "0", "--record", "kept")
    shown, _ = while_listening(use, "dev", "server.py", *options)
    assert shown.exit_code == 0
    for text in (
        "changed: server.py\n",
        "the process that served ended with status 7",
        "nothing is served until a file changes",
        "<-  tools/call tide",
    ):
        assert text in shown.output
    assert list(Path("kept").iterdir())


def test_a_server_that_cannot_be_served_at_first_is_served_once_it_can(dev):
    Path("server.py").write_text(f"import helper\n{SERVER}")
    Path("helper.py").write_text("a = ")
    with dev() as running:
        assert "nothing is served until a file changes" in running.shown
        assert 'helper.py", line 1' in running.shown
        Path("helper.py").write_text("a = 1")
        running.wait_for("serving server.py")
        assert running.call() == "high"
        Path("helper.py").write_text("a = 2")
        assert "changed: helper.py" in running.wait_for("serving server.py")


LIFESPAN = """
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(server):
    value = {}["missing"]
    yield value
"""


def test_an_error_of_the_lifespan_is_shown_in_the_users_frames(running):
    broken = SERVER.replace('version="1"', 'version="1", lifespan=lifespan')
    Path("server.py").write_text(LIFESPAN + broken)
    shown = running.wait_for("nothing is served")
    assert 'line 6, in lifespan\n    value = {}["missing"]' in shown
    assert "mcp_trio/_" not in shown
    Path("server.py").write_text(SERVER)
    running.wait_for("serving server.py")
    assert running.call() == "high"


def test_an_exception_of_a_handler_is_shown_with_its_traceback(running):
    assert running.call("fail") == "internal error in fail"
    shown = running.wait_for("raise KeyError")
    assert 'line 14, in fail\n    raise KeyError("lost")' in shown


def test_a_running_call_is_ended_by_a_change(running):
    async def call():
        async with trio.open_nursery() as nursery:

            async def wait():
                async with Client(running.url) as client:
                    with pytest.raises(MCPError):
                        await client.call_tool("wait")

            nursery.start_soon(wait)
            await trio.to_thread.run_sync(running.wait_for, "it waits")
            rewrite("high", "low")

    trio.run(call)
    running.wait_for("serving server.py")
    assert running.call() == "low"


SLOW_END = """
from contextlib import asynccontextmanager
from pathlib import Path

@asynccontextmanager
async def lifespan(server):
    yield
    print("the lifespan ends")
    while not Path("go on").exists():
        await trio.sleep(0.01)
"""


def test_a_request_waits_while_the_version_before_stops(dev):
    served = SERVER.replace('version="1"', 'version="1", lifespan=lifespan')
    Path("server.py").write_text(SLOW_END + served)
    with dev() as running, ThreadPoolExecutor() as executor:
        assert running.call() == "high"
        rewrite("high", "low")
        running.wait_for("the lifespan ends")
        try:
            response = executor.submit(running.call)
            with pytest.raises(TimeoutError):  # a rejection would arrive at once
                response.result(0.5)
        finally:
            Path("go on").touch()
        assert response.result(SECONDS) == "low"


def test_a_server_that_ends_is_reported_and_starts_with_the_next_change(running):
    with pytest.raises(ConnectionLost):
        running.call("end")
    shown = running.wait_for("nothing is served")
    assert "the process that served ended with status 7" in shown
    rewrite("high", "low")
    running.wait_for("serving server.py")
    assert running.call() == "low"


def test_recordings_are_kept_and_replay_with_the_code(dev, mcp_trio):
    Path("settings.toml").touch()
    with dev("--record", "kept/here", "--watch", "settings.toml") as running:
        Path("settings.toml").write_text("a = 1")
        assert "changed: settings.toml" in running.wait_for("serving server.py")
        assert running.call() == "high"
        running.wait_for("<-  tools/call tide")
        assert running.end(signal.SIGHUP) == 0
    file = max(Path("kept/here").iterdir(), key=lambda file: file.stat().st_size)
    assert "the same, byte for byte" in mcp_trio("replay", file, "server.py").stdout


def test_the_command_ends_with_the_reader_of_its_output(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, "-m", "mcp_trio", "dev", "server.py", "--no-inspector"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert b"recording to" in process.stdout.readline()
        process.stdout.close()
        shown = process.stderr.read()
        assert (process.wait(SECONDS), b"Traceback" in shown) == (1, False), shown


def test_what_cannot_work_is_an_error_at_once(invoke, tmp_path):
    server = tmp_path / "server.py"
    shown = invoke("dev", server)
    assert (shown.exit_code, "server.py: no such file" in shown.stderr) == (2, True)
    server.touch()
    shown = invoke("dev", server, "--record", server / "inside")
    assert (shown.exit_code, "cannot create" in shown.stderr) == (2, True)
    shown = invoke("dev", server, "--host", "no.such.host.invalid")
    assert (shown.exit_code, "cannot listen at" in shown.stderr) == (2, True)


def test_the_keys_replay_list_help_and_quit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text(SERVER)
    with Terminal("dev", "server.py", "--no-inspector") as terminal:
        shown = terminal.wait_for("q  quit")
        url = re.search(r"http://[\w.:]+/mcp", shown)[0]
        terminal.type("r")
        terminal.wait_for("nothing is recorded yet")

        async def call():
            async with Client(url) as client:
                await client.call_tool("tide")

        trio.run(call)
        terminal.wait_for("<-  tools/call tide")
        terminal.type("r")
        terminal.wait_for("replaying there-")
        terminal.wait_for("the same, byte for byte")
        rewrite("high", "low")
        terminal.wait_for("serving server.py")
        terminal.type("r")
        terminal.wait_for("low")
        terminal.type("l")
        terminal.wait_for("1 recording in ")
        terminal.type("xh")
        terminal.wait_for("h  show this help")
        terminal.type("q")
        assert terminal.process.wait(20) == 0


async def test_each_key_has_its_action_until_the_terminal_is_closed():
    ours, theirs = os.pipe()
    pressed = []
    os.write(theirs, b"axb")
    os.close(theirs)
    with trio.fail_after(SECONDS):
        await handle_keys(ours, {key: lambda key=key: pressed.append(key) for key in "ab"})
    os.close(ours)
    assert pressed == ["a", "b"]


async def test_recordings_are_listed_and_the_last_one_is_replayed(dev, capfd):
    folder = Path("kept")
    folder.mkdir()
    print_recordings(folder)
    await replay_last(folder, "server.py")
    assert capfd.readouterr().out == "no recordings in kept\nnothing is recorded yet\n"
    command = [sys.executable, "-m", "mcp_trio", "run", "server.py", "--record", "kept/"]
    async with Client(command) as client:
        await client.call_tool("tide")
    print_recordings(folder)
    assert re.search(r" there-\S+\.mcprec\.jsonl\n1 recording in kept\n", capfd.readouterr().out)
    (folder / "odd.mcprec.jsonl").write_text("odd\n")
    print_recordings(folder)
    shown = capfd.readouterr()
    assert shown.out.endswith("\n1 recording in kept\n")
    assert shown.err.startswith("left out: kept/odd.mcprec.jsonl: ")
    with trio.fail_after(SECONDS):
        await replay_last(folder, "server.py")
    assert "the same, byte for byte" in capfd.readouterr().out


# The Inspector.


def executable(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def programs(tmp_path):
    """A folder that is the PATH, with stand-ins for Node and npx."""
    folder = tmp_path / "bin"
    folder.mkdir()
    executable(folder / "node", "echo v24.1.0")
    executable(folder / "npx", 'echo "with $@"; exec sleep 1000')
    (folder / "sleep").symlink_to("/bin/sleep")
    return folder


def test_the_inspector_is_opened_for_the_url_and_ends_with_the_command(dev, programs):
    with dev(inspector=(), PATH=str(programs)) as running:
        running.wait_for("inspector: with")
        assert (
            f"with --yes {INSPECTOR} --web --transport http --server-url {running.url}"
            in running.shown
        )
        assert running.end(signal.SIGINT) == 0


@pytest.fixture
def shown_of_inspector(programs, monkeypatch, capsys):
    """Run the Inspector until it ends; return what it printed."""
    monkeypatch.setenv("PATH", str(programs))

    async def shown_of_inspector():
        with trio.fail_after(SECONDS):
            await run_inspector("http://127.0.0.1:1/mcp")
        return "".join(capsys.readouterr())

    return shown_of_inspector


async def test_an_inspector_that_cannot_run_is_one_line(programs, shown_of_inspector):
    executable(programs / "npx", "echo one; exit 4")
    assert await shown_of_inspector() == ("inspector: one\nthe MCP Inspector ended with status 4\n")
    (programs / "npx").write_text("not a program")
    assert "the MCP Inspector is not opened: " in await shown_of_inspector()
    executable(programs / "node", "echo v20.20.2")
    assert "it needs Node 22.19, not v20.20.2\n" in await shown_of_inspector()
    (programs / "node").unlink()
    assert await shown_of_inspector() == (
        "the MCP Inspector is not opened: Node is not installed\n"
    )


async def test_a_cancelled_inspector_is_stopped(programs, shown_of_inspector):
    running = programs / "running"
    executable(programs / "npx", f"echo $$ > {running}; exec sleep 1000")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shown_of_inspector)
        while not (running.exists() and running.read_text().endswith("\n")):
            await trio.sleep(POLL_SECONDS)
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(running.read_text()), 0)
