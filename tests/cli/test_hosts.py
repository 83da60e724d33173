"""The table of MCP hosts: each file on each platform, the variables that move it, and entries."""

import json
import re
import sys
import tomllib
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from mcp_trio._cli.hosts import (
    HOSTS,
    PLATFORMS,
    local_entry,
    project_location,
    remote_entry,
    user_location,
)

HOMES = {
    "linux": PurePosixPath("/home/ada"),
    "darwin": PurePosixPath("/Users/ada"),
    "win32": PureWindowsPath(r"C:\Users\ada"),
}

# The user's file on Linux, macOS and Windows, and that of a project, below their folders.
FILES = {
    "claude-desktop": (
        ".config/Claude/claude_desktop_config.json",
        "Library/Application Support/Claude/claude_desktop_config.json",
        r"AppData\Roaming\Claude\claude_desktop_config.json",
        None,
    ),
    "claude-code": (".claude.json", ".claude.json", ".claude.json", ".mcp.json"),
    "cursor": (".cursor/mcp.json", ".cursor/mcp.json", r".cursor\mcp.json", ".cursor/mcp.json"),
    "vscode": (
        ".config/Code/User/mcp.json",
        "Library/Application Support/Code/User/mcp.json",
        r"AppData\Roaming\Code\User\mcp.json",
        ".vscode/mcp.json",
    ),
    "windsurf": (
        ".codeium/windsurf/mcp_config.json",
        ".codeium/windsurf/mcp_config.json",
        r".codeium\windsurf\mcp_config.json",
        None,
    ),
    "devin-desktop": (
        ".config/devin/mcp_config.json",
        ".config/devin/mcp_config.json",
        r"AppData\Roaming\devin\mcp_config.json",
        ".devin/mcp_config.json",
    ),
    "gemini-cli": (
        ".gemini/settings.json",
        ".gemini/settings.json",
        r".gemini\settings.json",
        ".gemini/settings.json",
    ),
    "copilot-cli": (
        ".copilot/mcp-config.json",
        ".copilot/mcp-config.json",
        r".copilot\mcp-config.json",
        ".mcp.json",
    ),
    "kiro": (
        ".kiro/settings/mcp.json",
        ".kiro/settings/mcp.json",
        r".kiro\settings\mcp.json",
        ".kiro/settings/mcp.json",
    ),
    "lm-studio": (
        ".lmstudio/mcp.json",
        ".lmstudio/mcp.json",
        r".lmstudio\mcp.json",
        None,
    ),
    "zed": (
        ".config/zed/settings.json",
        ".config/zed/settings.json",
        r"AppData\Roaming\Zed\settings.json",
        ".zed/settings.json",
    ),
}


def test_every_host_has_its_files_here():
    assert FILES.keys() == HOSTS.keys()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", HOSTS)
def test_the_users_file_is_where_the_host_documents_it(name, platform):
    home = HOMES[platform]
    location = user_location(HOSTS[name], platform, home, {})
    assert location.file == home / FILES[name][PLATFORMS.index(platform)]
    # Its folder shows whether the host is installed, so it must not be the home folder.
    assert home in location.folder.parents


@pytest.mark.parametrize("name", HOSTS)
def test_the_file_of_a_project_is_where_the_host_documents_it(name):
    project = PurePosixPath("/home/ada/project")
    location = project_location(HOSTS[name], project)
    if FILES[name][3] is None:
        assert location is None
    else:
        assert (location.file, location.folder) == (project / FILES[name][3], project)


@pytest.mark.parametrize(
    ("name", "platform", "variables", "file", "folder"),
    [
        ("vscode", "linux", {"XDG_CONFIG_HOME": "/c"}, "/c/Code/User/mcp.json", "/c/Code/User"),
        (
            "claude-desktop",
            "win32",
            {"APPDATA": r"D:\data"},
            r"D:\data\Claude\claude_desktop_config.json",
            r"D:\data\Claude",
        ),
        ("claude-code", "darwin", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json", "/c"),
        ("copilot-cli", "linux", {"COPILOT_HOME": "/c"}, "/c/mcp-config.json", "/c"),
        ("cursor", "freebsd14", {}, "/home/ada/.cursor/mcp.json", "/home/ada/.cursor"),
        ("claude-code", "linux", {}, "/home/ada/.claude.json", "/home/ada/.claude"),
        ("kiro", "linux", {}, "/home/ada/.kiro/settings/mcp.json", "/home/ada/.kiro"),
    ],
)
def test_variables_move_files(name, platform, variables, file, folder):
    location = user_location(HOSTS[name], platform, HOMES.get(platform, HOMES["linux"]), variables)
    assert (str(location.file), str(location.folder)) == (file, folder)


COMMAND = {"command": "python", "args": ["server.py"]}
URL = "https://example.com/mcp"

# The members that a host's entries have besides these: of a local server, and of a remote one.
ENTRIES = {
    "claude-desktop": ({}, None),
    "claude-code": ({"type": "stdio"}, {"type": "http", "url": URL}),
    "cursor": ({}, {"url": URL}),
    "vscode": ({"type": "stdio"}, {"type": "http", "url": URL}),
    "windsurf": ({}, {"serverUrl": URL}),
    "devin-desktop": ({}, {"url": URL}),
    "gemini-cli": ({}, {"httpUrl": URL}),
    "copilot-cli": (
        {"type": "stdio", "tools": ["*"]},
        {"type": "http", "tools": ["*"], "url": URL},
    ),
    "kiro": ({}, {"url": URL}),
    "lm-studio": ({}, {"url": URL}),
    "zed": ({}, {"url": URL}),
}


@pytest.mark.parametrize("name", HOSTS)
def test_entries_have_the_members_that_the_host_expects(name):
    host = HOSTS[name]
    extra, remote = ENTRIES[name]
    assert local_entry(host, "python", ["server.py"], {}) == COMMAND | extra
    with_variables = local_entry(host, "python", ["server.py"], {"A": "1"})
    assert with_variables == COMMAND | extra | {"env": {"A": "1"}}
    assert remote_entry(host, URL) == remote


def test_the_servers_are_under_the_key_that_the_host_reads():
    keys = {name: host.servers_key for name, host in HOSTS.items()}
    assert {name: key for name, key in keys.items() if key != "mcpServers"} == {
        "vscode": "servers",
        "zed": "context_servers",
    }


def test_the_documentation_has_the_files_of_every_host():
    page = Path(__file__).parents[2] / "docs/how-to/install-into-a-host.md"
    rows = re.findall(r"^\| `(.*)` \| (.*) \| `~/(.*)` \| (.*) \|$", page.read_text(), re.MULTILINE)
    assert rows == [
        (name, host.title, FILES[name][0], f"`{host.project_file}`" if host.project_file else "–")
        for name, host in HOSTS.items()
    ]


DOCS = Path(__file__).parents[2] / "docs/how-to/hosts.md"
SECTIONS = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
SYSTEMS = {"Linux": "linux", "macOS": "darwin", "Windows": "win32"}


@pytest.fixture
def printed(invoke, tmp_path, monkeypatch):
    """Return the entry that the command prints, with the paths of the documentation."""
    (tmp_path / "greeter.py").write_text(
        "from mcp_trio import Server\nserver = Server('greeter')\n"
    )
    (tmp_path / "recordings").mkdir()
    monkeypatch.chdir(tmp_path)

    def print_entry(*arguments):
        done = invoke("install", *arguments, "--print")
        text = done.stdout.replace(sys.executable, "/path/to/.venv/bin/python")
        return None if done.exit_code else json.loads(text.replace(str(tmp_path), "/path/to"))

    return print_entry


def test_the_pages_of_hosts_are_complete():
    assert list(SECTIONS) == [*(host.title for host in HOSTS.values()), "Codex CLI"]


@pytest.mark.parametrize("name", HOSTS)
def test_the_page_of_a_host_has_its_files(name):
    host, section = HOSTS[name], SECTIONS[HOSTS[name].title]
    assert f"`--host {name}`" in section
    rows = dict(re.findall(r"^\| (\w+) \| `(.*)` \|$", section, re.MULTILINE))
    home = {"linux": PurePosixPath("~"), "darwin": PurePosixPath("~")}
    for system, platform in SYSTEMS.items():
        file = user_location(
            host,
            platform,
            home.get(platform, PureWindowsPath("%USERPROFILE%")),
            {"APPDATA": "%APPDATA%"} if platform == "win32" else {},
        ).file
        assert rows.pop(system) == str(file)
    assert not rows
    assert (f"`{host.project_file}` (`--scope project`)" in section) == bool(host.project_file)


@pytest.mark.parametrize("name", HOSTS)
def test_the_page_of_a_host_has_what_the_command_prints(name, printed):
    section = SECTIONS[HOSTS[name].title]
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]
    local = printed("greeter.py", "--host", name)
    remote = printed("http://localhost:8000/mcp", "--name", "greeter", "--host", name)
    assert blocks == ([local] if remote is None else [local, remote])


def test_the_page_of_hosts_has_the_arguments_that_record(printed):
    entry = printed("greeter.py", "--host", "cursor", "--record", "recordings")
    arguments = entry["mcpServers"]["greeter"]["args"]
    shown = re.search(r"then end with `(.*?)`", DOCS.read_text("utf-8"))[1]
    assert json.dumps(arguments[-2:])[1:-1] == shown


def test_the_page_of_codex_has_the_command_of_the_other_hosts(printed):
    command = printed("greeter.py", "--host", "cursor")["mcpServers"]["greeter"]
    section = SECTIONS["Codex CLI"]
    local, remote = (
        tomllib.loads(block)["mcp_servers"]["greeter"]
        for block in re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    )
    assert (local, remote) == (command, {"url": "http://localhost:8000/mcp"})
    shell = " ".join([command["command"], *command["args"]])
    assert f"codex mcp add greeter -- {shell}" in " ".join(section.split())
