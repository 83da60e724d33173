"""`mcp-trio install`: entries, files, refusals, and a session with what a host would start."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
import trio

from mcp_trio import Client
from mcp_trio._cli.install import parse_variables
from mcp_trio.hosts import read_config

SERVER = """
import os
from mcp_trio import Server
print("printed while importing")
server = Server(os.environ.get("TITLE", "weather"))

@server.tool
async def tide() -> str:
    return "high"
"""
HOST = ("--host", "cursor")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a server, and a home folder in which Cursor is installed."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "COPILOT_HOME", "TITLE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home" / ".cursor").mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    (work / "server.py").write_text(SERVER)
    monkeypatch.chdir(work)
    yield work
    sys.modules.pop("server", None)


@pytest.fixture
def file(folder):
    return folder.parent / "home" / ".cursor" / "mcp.json"


def servers_in(file):
    return json.loads(file.read_text())["mcpServers"]


def python_entry(folder, *more, python=sys.executable):
    return {"command": python, "args": ["-m", "mcp_trio", "run", f"{folder}/server.py", *more]}


def error_of(shown, status=2):
    """The last line on stderr, which has to be the error; click prints the usage before it."""
    assert shown.exit_code == status, shown.output
    assert shown.stdout == ""
    return shown.stderr.splitlines()[-1].removeprefix("Error: ")


# The entry.


def test_the_server_gets_its_own_name_and_the_host_has_to_be_restarted(invoke, folder, file):
    shown = invoke("install", "server.py", *HOST)
    assert shown.exit_code == 0
    assert shown.stdout == (
        f"added 'weather' to {file}\nrestart Cursor, which reads the file when it starts\n"
    )
    assert servers_in(file) == {"weather": python_entry(folder)}
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_an_object_a_name_and_recordings_are_in_the_entry(invoke, folder, file):
    (folder / "recordings").mkdir()
    shown = invoke(
        *("install", "server.py:server", *HOST, "--name", "sea", "--record", "recordings")
    )
    assert shown.exit_code == 0, shown.output
    arguments = [f"{folder}/server.py:server", "--record", f"{folder}/recordings"]
    assert servers_in(file)["sea"]["args"] == ["-m", "mcp_trio", "run", *arguments]


def test_variables_come_from_options_and_files_and_apply_to_the_import(invoke, folder, file):
    (folder / ".env").write_text("# secrets\nexport KEY='a b'\nTITLE = sea\n\nempty=\n")
    shown = invoke(
        *("install", "server.py", *HOST, "--env-file", ".env", "--env", "KEY=x=y", "--env", "A=")
    )
    assert shown.exit_code == 0, shown.output
    variables = {"KEY": "x=y", "TITLE": "sea", "empty": "", "A": ""}
    assert servers_in(file) == {"sea": python_entry(folder) | {"env": variables}}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "x=y" not in shown.output
    assert "TITLE" not in os.environ


def test_a_module_of_the_working_directory_is_found_from_anywhere(invoke, folder, file):
    shown = invoke("install", "server", *HOST)
    assert shown.exit_code == 0, shown.output
    entry = servers_in(file)["weather"]
    assert entry["args"][-1] == "server"
    assert entry["env"] == {"PYTHONPATH": str(folder)}
    invoke("install", "mcp_trio.examples.weather", *HOST, "--name", "example")
    assert "env" not in servers_in(file)["example"]


def test_a_url_becomes_a_remote_server_where_the_host_has_them(invoke, file):
    url = "https://example.com/mcp"
    assert invoke("install", url, *HOST, "--name", "far").exit_code == 0
    assert servers_in(file) == {"far": {"url": url}}
    assert error_of(invoke("install", url, *HOST)) == "a URL needs --name NAME"
    assert "are for a server that the host starts, not for a URL" in error_of(
        invoke("install", url, *HOST, "--name", "far", "--env", "A=1")
    )
    assert "reads only local servers" in error_of(
        invoke("install", url, "--host", "claude-desktop", "--name", "far")
    )


def test_a_project_gets_its_own_file(invoke, folder):
    shown = invoke("install", "server.py", "--host", "vscode", "--scope", "project")
    assert shown.exit_code == 0, shown.output
    written = json.loads((folder / ".vscode" / "mcp.json").read_text())
    assert written == {"servers": {"weather": {"type": "stdio"} | python_entry(folder)}}
    assert error_of(invoke("install", "server.py", "--host", "windsurf", "--scope", "project")) == (
        "Windsurf has no configuration file in projects"
    )


def test_print_writes_nothing(invoke, folder, file):
    shown = invoke("install", "server.py", *HOST, "--print")
    assert json.loads(shown.stdout) == {"mcpServers": {"weather": python_entry(folder)}}
    assert shown.stderr == f"printed while importing\n// {file}\n"
    assert not file.exists()
    shown = invoke("install", "server.py", "--host", "zed", "--print")
    assert json.loads(shown.stdout) == {"context_servers": {"weather": python_entry(folder)}}


# Other environments.


STUB = """#!/bin/sh
while [ "$1 $2" != "mcp-trio run" ]; do echo "$1" >> "{log}"; shift; done
shift
exec "{python}" -m mcp_trio "$@"
"""


@pytest.fixture
def stub(folder, monkeypatch):
    """A program that stands for `uv run`: it logs its options, and runs the command."""
    path = folder / "bin" / "uv"
    path.parent.mkdir()
    path.write_text(STUB.format(log=folder / "log", python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    return path


def test_packages_are_provided_by_uv(invoke, folder, file, stub):
    shown = invoke("install", "server.py", *HOST, "--with", "pandas", "--with", "numpy>=2")
    assert shown.exit_code == 0, shown.output
    options = ["--with", "mcp-trio", "--with", "pandas", "--with", "numpy>=2"]
    arguments = ["run", "--no-project", *options]
    assert (folder / "log").read_text().split() == arguments
    assert servers_in(file) == {
        "weather": {
            "command": str(stub),
            "args": [*arguments, "mcp-trio", "run", f"{folder}/server.py"],
        }
    }


def test_without_uv_packages_are_refused(invoke, file, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    shown = invoke("install", "server.py", *HOST, "--with", "pandas")
    assert error_of(shown) == (
        "pandas: packages of --with, or of the server's dependencies, need uv, which is not"
        " installed"
    )
    assert not file.exists()


def test_dependencies_of_the_server_are_provided_by_uv(invoke, folder, file, stub):
    (folder / "needy.py").write_text(
        "from mcp_trio import Server\nserver = Server('needy', dependencies=['pandas', 'numpy>=2'])\n"
    )
    shown = invoke("install", "needy.py", *HOST)
    assert shown.exit_code == 0, shown.output
    options = ["--with", "mcp-trio", "--with", "pandas", "--with", "numpy>=2"]
    (entry,) = servers_in(file).values()
    assert entry["command"] == str(stub)
    assert entry["args"][:-3] == ["run", "--no-project", *options]


def test_another_python_starts_the_server_and_is_no_link_followed(invoke, folder, file):
    link = folder / "python"
    link.symlink_to(sys.executable)
    wrapper = folder / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nTITLE=wrapped exec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    shown = invoke("install", "server.py", *HOST, "--python", "wrapper")
    assert shown.exit_code == 0, shown.output
    assert servers_in(file)["wrapped"] == python_entry(folder, python=str(wrapper))
    shown = invoke("install", "https://a/b", "--name", "x", *HOST, "--python", "python")
    assert shown.exit_code == 2


def test_a_server_that_does_not_start_elsewhere_is_reported(invoke, folder, file):
    broken = folder / "broken"
    broken.write_text("#!/bin/sh\necho no module >&2\nexit 3\n")
    broken.chmod(0o755)
    shown = invoke("install", "server.py", *HOST, "--python", "broken")
    assert "no module" in error_of(shown, status=1)
    assert not file.exists()


# Refusals.


def test_a_server_that_cannot_be_imported_is_reported_and_nothing_is_written(invoke, folder, file):
    (folder / "server.py").write_text("import no_such_thing")
    assert "No module named 'no_such_thing'" in error_of(invoke("install", "server.py", *HOST))
    assert error_of(invoke("install", "other.py", *HOST)) == "other.py: no such file"
    assert not file.exists()


def test_a_host_that_is_not_installed_is_refused_in_one_line(invoke, folder):
    shown = invoke("install", "server.py", "--host", "claude-code")
    assert error_of(shown) == (
        f"{folder.parent}/home/.claude: no such folder; if Claude Code is installed, name its file"
        " with --config, or add --print"
    )
    shown = invoke("install", "server.py", "--host", "claude-code", "--config", "mcp.json")
    assert shown.exit_code == 0, shown.output
    assert servers_in(folder / "mcp.json")["weather"]["type"] == "stdio"


def test_a_user_without_a_home_folder_has_to_name_one(invoke, folder, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # no user with this id is known
    shown = invoke("install", "server.py", *HOST)
    assert error_of(shown) == "this user has no home folder: set the environment variable HOME"


def test_another_entry_of_the_name_is_replaced_only_with_force(invoke, folder, file):
    other = {"command": "other", "args": ["-v"], "env": {"KEY": "hidden"}}
    file.write_text(json.dumps({"mcpServers": {"weather": other, "last": {}}, "x": 1}))
    before = file.read_bytes()
    shown = invoke("install", "server.py", *HOST)
    assert error_of(shown) == (
        f"{file} has another 'weather': other -v, env KEY;"
        " add --force to replace it, or --name NAME"
    )
    assert file.read_bytes() == before
    shown = invoke("install", "server.py", *HOST, "--force")
    assert shown.stdout.splitlines()[:2] == [
        f"replaced 'weather' in {file}",
        f"the old file is {file}.bak-1",
    ]
    assert list(servers_in(file).items()) == [("weather", python_entry(folder)), ("last", {})]
    assert Path(f"{file}.bak-1").read_bytes() == before
    shown = invoke("install", "server.py", *HOST)
    assert shown.stdout == f"{file} has 'weather' already; nothing was changed\n"
    assert not Path(f"{file}.bak-2").exists()


@pytest.mark.parametrize(
    ("entry", "summary"),
    [
        (
            {"url": "https://me:hidden@a.example/mcp?key=hidden", "headers": {"Key": "hidden"}},
            "https://a.example/mcp, headers Key",
        ),
        ({"command": {"path": "p", "env": {"KEY": "hidden"}}}, "neither a command nor a URL"),
        ("hidden", "neither a command nor a URL"),
        ({"command": "a\x1b", "args": "hidden"}, "a\\x1b"),
    ],
)
def test_what_may_be_secret_is_not_shown(invoke, file, entry, summary):
    file.write_text(json.dumps({"mcpServers": {"weather": entry}}))
    shown = invoke("install", "server.py", *HOST)
    assert f"has another 'weather': {summary}; add" in error_of(shown)
    assert "hidden" not in shown.output


def test_a_file_with_comments_is_not_changed_and_the_entry_is_printed(invoke, folder):
    file = folder / ".vscode" / "mcp.json"
    file.parent.mkdir()
    commented = '{"servers": {"old": {}} /* ours */}'
    file.write_text(commented)
    project = ("--host", "vscode", "--scope", "project")
    shown = invoke("install", "server.py", *project)
    assert shown.exit_code == 2
    assert json.loads(shown.stdout)["servers"]["weather"]["type"] == "stdio"
    assert shown.stderr.splitlines()[-1] == (
        f"{file} has comments, which would be lost, so it was not changed: paste the entry above"
        " into its 'servers'"
    )
    shown = invoke("install", "--uninstall", "--name", "old", *project)
    assert error_of(shown).endswith("remove 'old' from its 'servers' by hand")
    assert file.read_text() == commented
    assert [each.name for each in file.parent.iterdir()] == ["mcp.json"]


def test_an_invalid_file_is_left_alone(invoke, file):
    file.write_text('{\n  "mcpServers": {,}\n}')
    shown = invoke("install", "server.py", *HOST)
    assert error_of(shown).startswith(f"{file}: line 2, column 18: ")
    assert [each.name for each in file.parent.iterdir()] == ["mcp.json"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name a TARGET; with --uninstall, --name NAME is enough"),
        (["server.py", "--name", ""], "--name is empty"),
        (["server.py", "--uninstall", "--print"], "cannot be used with --print or --force"),
        (["server.py", "--env", "hidden"], "a variable must be written as NAME=VALUE"),
        (["server.py", "--env", "a b=hidden"], "a variable must be written as NAME=VALUE"),
        (["server.py", "--env-file", "bad.env"], "bad.env: line 2 is not NAME=VALUE"),
        (["server.py", "--env-file", "binary.env"], "binary.env: is not UTF-8"),
        (["server.py", "--record", "nowhere"], "nowhere"),
        (["http://", "--name", "far"], "'http://' is not a URL"),
        (["https:///mcp", "--name", "far"], "'https:///mcp' is not a URL"),
        (["http://a.example/m cp", "--name", "far"], "'http://a.example/m cp' is not a URL"),
    ],
)
def test_wrong_usage_is_explained_without_secrets(invoke, folder, arguments, complaint):
    (folder / "bad.env").write_text("A=1\nhidden\n")
    (folder / "binary.env").write_bytes(b"A=\xff")
    shown = invoke("install", *arguments, *HOST)
    assert complaint in error_of(shown)
    assert "hidden" not in shown.output


def test_an_unknown_host_is_rejected(invoke):
    assert error_of(invoke("install", "server.py", "--host", "emacs")).endswith(
        "'emacs' is not one of claude-desktop, claude-code, cursor, vscode,"
        " windsurf, devin-desktop, gemini-cli, copilot-cli, kiro, lm-studio, zed"
    )


def test_quotation_marks_are_part_of_a_value_unless_they_surround_it():
    lines = ['A="a=b"', "B='", 'C="x', "export D = d ", "  # no", 'E=""']
    assert parse_variables(lines) == {"A": "a=b", "B": "'", "C": '"x', "D": "d", "E": ""}


def test_a_comment_after_a_value_is_no_part_of_it():
    lines = ["A=a # b", "B= # b", 'C="c # c" # "b"', "D=#fff", "E='it's' # b", "F=a#b  "]
    assert parse_variables(lines) == {
        "A": "a",
        "B": "",
        "C": "c # c",
        "D": "#fff",
        "E": "it's",
        "F": "a#b",
    }


# Removing.


def test_uninstall_removes_the_entry_and_nothing_else(invoke, file):
    file.write_text('{"mcpServers": {"other": {}}, "x": 1}')
    invoke("install", "server.py", *HOST)
    shown = invoke("install", "server.py", *HOST, "--uninstall")
    assert shown.stdout == (
        f"removed 'weather' from {file}\nthe old file is {file}.bak-2\n"
        "restart Cursor, which reads the file when it starts\n"
    )
    assert json.loads(file.read_text()) == {"mcpServers": {"other": {}}, "x": 1}


def test_a_server_that_is_gone_is_removed_by_its_name(invoke, folder, file):
    invoke("install", "server.py", *HOST)
    (folder / "server.py").unlink()
    shown = invoke("install", "--uninstall", "--name", "wether", *HOST)
    assert (
        error_of(shown)
        == f"{file} has no server 'wether'; it has: weather; did you mean 'weather'?"
    )
    assert invoke("install", "--uninstall", "--name", "weather", *HOST).exit_code == 0
    assert servers_in(file) == {}
    shown = invoke("install", "--uninstall", "--name", "weather", *HOST)
    assert error_of(shown) == f"{file} has no server 'weather'; it has: none"


# From end to end.


async def tools_of(config):
    async with Client(config) as client:
        return [tool.name for tool in await client.list_tools()]


def test_the_printed_command_starts_the_server_and_records(mcp_trio, folder, monkeypatch):
    (folder / "recordings").mkdir()
    shown = mcp_trio(
        *("install", "server.py", *HOST, "--print", "--env", "TITLE=sea"),
        *("--record", "recordings"),
    )
    assert shown.returncode == 0, shown.stderr
    monkeypatch.chdir("/")  # a host may start servers anywhere
    config = read_config(json.loads(shown.stdout))["sea"]
    assert trio.run(tools_of, config) == ["tide"]
    (recording,) = (folder / "recordings").iterdir()
    assert '"name":"sea"' in recording.read_text()
