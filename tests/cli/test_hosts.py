"""The table of MCP hosts: each file on each platform, the variables that move it, and entries."""

import re
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
