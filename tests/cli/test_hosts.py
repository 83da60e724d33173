"""The table of MCP hosts, and their configuration files: what is read, kept and replaced."""

import json
import os
import re
import stat
import sys
import tomllib
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from mcp_trio._cli.install import (
    HOSTS,
    PLATFORMS,
    local_entry,
    read_host_file,
    remote_entry,
    replace_host_file,
    user_location,
)
from mcp_trio.errors import ConfigError
from mcp_trio.hosts import read_config

# The table: each file on each platform, the variables that move it, and entries.

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
def test_the_file_of_a_project_is_where_the_host_documents_it(name, invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = ("install", "server.py", "--host", name, "--scope", "project")
    (tmp_path / "server.py").write_text("from mcp_trio import Server\nserver = Server('s')\n")
    shown = invoke(*project, "--print")
    if FILES[name][3] is None:
        assert shown.exit_code == 2
        assert f"{HOSTS[name].title} has no configuration file in projects" in shown.stderr
    else:
        assert shown.stderr == f"// {tmp_path / FILES[name][3]}\n"


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


@pytest.mark.parametrize("name", HOSTS)
def test_the_entries_of_each_host_can_be_read_as_its_configuration(name):
    host = HOSTS[name]
    entries = {"local": local_entry(host, "python", ["server.py"], {})}
    if remote_entry(host, URL) is not None:
        entries["remote"] = remote_entry(host, URL)
    read = read_config({host.servers_key: entries})
    assert (read["local"].command, read["local"].args) == ("python", ["server.py"])
    assert "remote" not in entries or read["remote"].url == URL


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


# Configuration files: what is read, what is kept, and how they are replaced.

ENTRY = {"command": "python", "args": ["server.py"]}
OLD = {
    "theme": "dark",
    "mcpServers": {"b": {"command": "b", "unknown": [1.5, None]}, "a": {"url": "https://a"}},
    "numbers": [1, 2.5, -0.0, 10**30],
    "text": "grüße ☃",
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mcp.json"


def names_beside(path):
    return sorted(each.name for each in path.parent.iterdir())


def added(path, **options):
    file = read_host_file(path)
    servers = file.servers("mcpServers") | {"weather": ENTRY}
    replace_host_file(
        file, file.encoded_with("mcpServers", servers), **({"is_secret": False} | options)
    )
    return path.read_bytes()


@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
def test_everything_else_stays_in_its_order_and_with_its_indentation(path, indent):
    path.write_text(json.dumps(OLD, indent=indent, ensure_ascii=False), encoding="utf-8")
    new = added(path).decode()
    expected = OLD | {"mcpServers": OLD["mcpServers"] | {"weather": ENTRY}}
    assert new == json.dumps(expected, indent=indent, ensure_ascii=False) + "\n"
    assert list(json.loads(new)) == list(OLD)
    assert list(json.loads(new)["mcpServers"]) == ["b", "a", "weather"]


def test_line_ends_and_a_byte_order_mark_stay(path):
    path.write_bytes(b'\xef\xbb\xbf{\r\n  "a": 1\r\n}\r\n')
    new = added(path)
    assert new.startswith(b'\xef\xbb\xbf{\r\n  "a": 1,\r\n')
    assert new.count(b"\n") == new.count(b"\r\n")


def test_a_lone_surrogate_stays(path):
    path.write_text(r'{"a": "\ud83d"}')
    assert rb'"a": "\ud83d"' in added(path)


@pytest.mark.parametrize("content", [None, "", " \n", "{}", '{"mcpServers": {}}'])
def test_a_missing_or_empty_file_gets_the_server(path, content):
    if content is not None:
        path.write_text(content)
    assert json.loads(added(path)) == {"mcpServers": {"weather": ENTRY}}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"a": 1,\n  "b" 2}', "line 2, column 7: Expecting ':' delimiter"),
        ('{"a": 1,}', "line 1, column "),
        ("[]", "line 1, column 1: is not a JSON object"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": {"b": 1, "b": 2}}', "an object has the member 'b' twice"),
        ("{} // no", "line 1, column 4: Extra data"),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_no_json_object_is_left_alone(path, content, complaint):
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        added(path)
    assert str(caught.value).startswith(f"{path}: {complaint}")
    assert str(caught.value).endswith("; nothing was written")
    assert path.read_text() == content
    assert names_beside(path) == ["mcp.json"]


def test_other_unusable_files_are_named(path):
    path.write_bytes(b'{\n"\xff": 1}')
    with pytest.raises(ConfigError, match=r"mcp\.json: line 2: is not UTF-8$"):
        read_host_file(path)
    path.write_text('{"mcpServers": []}')
    with pytest.raises(ConfigError, match=r"mcp\.json: mcpServers: must be an object"):
        read_host_file(path).servers("mcpServers")
    path.write_text('{"a": 1e999}')
    with pytest.raises(ConfigError, match="nothing was written"):
        read_host_file(path).encoded_with("mcpServers", {})
    with pytest.raises(ConfigError, match="is not a file"):
        read_host_file(path.parent)
    loop = path.with_name("loop")
    loop.symlink_to(loop)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_host_file(loop / "mcp.json")


COMMENTED = """{
  // the servers
  "servers": { /* one */
    "a": {"url": "https://a//b", "text": "/* no */ ,}"},
  },
}
"""


def test_comments_are_found_only_where_a_host_accepts_them(path):
    path.write_text(COMMENTED)
    file = read_host_file(path, may_have_comments=True)
    assert file.has_comments
    assert file.servers("servers") == {"a": {"url": "https://a//b", "text": "/* no */ ,}"}}
    with pytest.raises(ConfigError, match="line 2, column 3"):
        read_host_file(path)
    path.write_text(COMMENTED.replace("{ /*", "/*"))
    with pytest.raises(ConfigError, match="line 2, column 3"):
        read_host_file(path, may_have_comments=True)
    path.write_text('{"a": "// no comment"}')
    assert not read_host_file(path, may_have_comments=True).has_comments


# Replacing.


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o664])
def test_the_old_file_is_copied_and_its_mode_is_kept(path, mode):
    path.write_text('{"a": 1}')
    path.chmod(mode)
    (path.parent / "mcp.json.bak-1").write_text("an earlier one")
    file = read_host_file(path)
    backup = replace_host_file(file, b"{}", is_secret=True)
    assert backup == path.with_name("mcp.json.bak-2")
    assert backup.read_text() == '{"a": 1}'
    assert path.read_text() == "{}"
    assert (mode_of(path), mode_of(backup)) == (mode, mode)
    assert path.with_name("mcp.json.bak-1").read_text() == "an earlier one"


def test_a_new_file_with_variables_is_for_its_owner_only(path):
    added(path, is_secret=True)
    assert mode_of(path) == 0o600
    path.unlink()
    added(path)
    assert mode_of(path) == 0o644


def test_links_are_followed(path):
    real = path.parent / "dotfiles" / "real.json"
    real.parent.mkdir()
    real.write_text("{}")
    path.symlink_to(real)
    added(path)
    assert path.is_symlink()
    assert "weather" in real.read_text()
    assert real.with_name("real.json.bak-1").read_text() == "{}"


def interrupted(monkeypatch, owner, name, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace")])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_the_old_file_is_intact_after_an_interrupted_write(path, monkeypatch, owner, name, error):
    path.write_text('{"a": 1}')
    interrupted(monkeypatch, owner, name, error)
    expected = ConfigError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        added(path)
    if expected is ConfigError:
        assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert path.read_text() == '{"a": 1}'
    assert not [name for name in names_beside(path) if name.startswith(".")]


def test_a_change_by_the_host_meanwhile_is_not_overwritten(path):
    path.write_text('{"a": 1}')
    file = read_host_file(path)
    path.write_text('{"a": 2}')
    with pytest.raises(ConfigError, match="was changed meanwhile; run the command again"):
        replace_host_file(file, b"{}", is_secret=False)
    assert path.read_text() == '{"a": 2}'
    assert names_beside(path) == ["mcp.json"]
