"""Configuration files of MCP hosts: what is read, what is kept, and how they are replaced."""

import json
import os
import stat
from pathlib import Path

import pytest

from mcp_trio._cli.host_files import read_host_file, replace_host_file
from mcp_trio.errors import ConfigError

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
