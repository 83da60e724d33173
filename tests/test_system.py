"""Systems other than Linux, as far as a process on Linux can stand in for them."""

import functools
import ntpath
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from mcp_trio import Client
from mcp_trio._replay import targets
from mcp_trio._system import home_folder, state_folder
from mcp_trio.errors import ConfigError
from mcp_trio.recording import replay

ANOTHER_SYSTEM = Path(__file__).with_name("another_system.py")

GREETER = """
    from mcp_trio import Server

    server = Server("greeter")

    @server.tool
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    if __name__ == "__main__":
        server.run()
"""

pytestmark = pytest.mark.real_time


def write(folder, text, name="script.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def script(tmp_path):
    return functools.partial(write, tmp_path)


def run_on(system, script):
    """Run a script, which has to succeed; return what it prints."""
    done = subprocess.run(
        [sys.executable, ANOTHER_SYSTEM, system, script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        cwd=script.parent,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module", params=["windows", "macos"])
def client_lines(request, tmp_path_factory):
    """What a script prints that imports all modules, and uses two clients."""
    folder = tmp_path_factory.mktemp(request.param)
    write(folder, GREETER, "greeter.py")
    text = """
        import sys, trio
        sys.path.insert(0, "TESTS")
        from another_system import import_all
        from mcp_trio import Client
        from mcp_trio.errors import ConnectionLost

        async def main():
            async with Client([sys.executable, "greeter.py"], inherit_env=True) as client:
                print((await client.call_tool("greet", {"name": "Ada"})).content[0].text)
            try:
                async with Client(["no-such-program"]):
                    pass
            except ConnectionLost as error:
                print(str(error).partition(" on PATH")[0])

        print(import_all() > 150)
        trio.run(main)
    """.replace("TESTS", str(ANOTHER_SYSTEM.parent))
    return run_on(request.param, write(folder, text)).splitlines()


def test_every_module_can_be_imported(client_lines):
    assert client_lines[0] == "True"


@pytest.mark.requirement("STDIO-01")
def test_a_client_starts_and_stops_a_server(client_lines):
    assert client_lines[1:] == ["Hello, Ada!", "cannot start 'no-such-program': not found"]


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_a_server_serves_over_stdio_and_its_recording_replays_here(system, script, tmp_path):
    greeter = script(GREETER.replace("server.run()", 'server.run(record="trip.mcprec.jsonl")'))
    command = [sys.executable, str(ANOTHER_SYSTEM), system, str(greeter)]

    async def call():
        async with Client(command, inherit_env=True, cwd=tmp_path, stderr="inherit") as client:
            for name in ("Ada", "x" * 200_000):
                result = await client.call_tool("greet", {"name": name})
                assert result.content[0].text == f"Hello, {name}!"

    trio.run(call)
    scope = {"__name__": "greeter"}
    exec(textwrap.dedent(GREETER), scope)
    assert replay(tmp_path / "trip.mcprec.jsonl", scope["server"]).requests >= 2


def test_a_file_is_locked_behind_its_content(script):
    text = """
        import msvcrt
        from mcp_trio._system import try_lock

        with open("file", "wb") as file:
            print(try_lock(file.fileno()), try_lock(file.fileno(), is_shared=True), file.tell())

            def fail(*_):
                raise PermissionError(13, "locked")

            msvcrt.locking = fail
            print(try_lock(file.fileno()), file.tell())

            def missing(*_):
                raise OSError(22, "no locks here")

            msvcrt.locking = missing
            print(try_lock(file.fileno()))
    """
    assert run_on("windows", script(text)) == "True True 0\nFalse 0\nTrue\n"


def test_what_windows_lacks_is_named_with_the_alternative(script):
    text = """
        import trio
        from mcp_trio import Client, Server
        from mcp_trio._server.http_serve import check_for_workers
        from mcp_trio._transports.sockets import unix_listener
        from mcp_trio.errors import MCPError

        async def main():
            try:
                async with Client("unix:///run/x.sock"):
                    pass
            except MCPError as error:
                print(error)
            try:
                async with unix_listener("x.sock"):
                    pass
            except OSError as error:
                print(error.strerror)
            try:
                check_for_workers(Server("s"), {}, 2)
            except ValueError as error:
                print(error)

        trio.run(main)
    """
    connect, listen, workers = run_on("windows", script(text)).splitlines()
    assert "Windows has no Unix sockets for Python: use a TCP port" in connect
    assert listen.startswith("Windows has no Unix sockets for Python: use a TCP port")
    assert workers == (
        "Windows cannot fork workers: serve with workers=1, or start servers at several ports"
    )


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (r"C:\here\server.py", (r"C:\here\server.py", "", "")),
        (r"C:\here\server.py:app", (r"C:\here\server.py", ":", "app")),
        (r"here\server.py:app", (r"here\server.py", ":", "app")),
        ("package.module:app", ("package.module", ":", "app")),
    ],
)
def test_a_target_may_have_a_drive_letter(monkeypatch, target, parts):
    monkeypatch.setattr(targets.os, "path", ntpath)
    assert targets.split_target(target) == parts
    assert os.path is ntpath


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "/state", "/state/mcp-trio"),
        ("linux", "", "{home}/.local/state/mcp-trio"),
        ("linux", "relative", "{home}/.local/state/mcp-trio"),
        ("darwin", "", "{home}/Library/Application Support/mcp-trio"),
    ],
)
def test_the_users_state_directory(monkeypatch, tmp_path, platform, variable, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("XDG_STATE_HOME", variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(state_folder()) == expected.format(home=tmp_path)


def test_a_user_without_a_home_folder_is_told_to_name_one(monkeypatch):
    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # as in a container, no such user is known
    for function in (home_folder, state_folder):
        with pytest.raises(ConfigError, match="set the environment variable HOME"):
            function()
