"""The MCP hosts of `mcp-trio install`: where each has its configuration file, and its format.

The files are read strictly, and replaced in one step.
"""

import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from mcp_trio.errors import ConfigError

Scope: TypeAlias = Literal["user", "project"]

PLATFORMS: Final = ("linux", "darwin", "win32")
"""The values of `sys.platform` that have files of their own; other systems have those of Linux."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP host.

    In paths, `{home}` is the user's home folder, `{config}` the folder that `XDG_CONFIG_HOME` names
    or `~/.config`, and `{appdata}` the one that `APPDATA` names or `~/AppData/Roaming`.

    Attributes:
        title: The name of the host.
        user_files: The user's configuration file, for each platform.
        project_file: The configuration file within a project, if the host reads one.
        folder: The folder that exists once the host is installed; by default that of the user's
            file.
        folder_variable: The environment variable that moves the folder, and the user's file into
            it.
        servers_key: The member of the file under which the servers are.
        may_have_comments: Whether the host accepts comments in the file.
        local_members: Members of the entry of each server that the host starts.
        remote_members: Members of the entry of each server at a URL.
        url_key: The member with the URL of a server; None if the file is for local servers only.
    """

    title: str
    user_files: Mapping[str, str]
    project_file: str | None = None
    folder: str | None = None
    folder_variable: str | None = None
    servers_key: str = "mcpServers"
    may_have_comments: bool = False
    local_members: Mapping[str, Any] = {}
    remote_members: Mapping[str, Any] = {}
    url_key: str | None = "url"


class Location(msgspec.Struct, frozen=True):
    """A configuration file, and the folder that has to exist before it is written."""

    file: PurePath
    folder: PurePath


def _everywhere(file: str) -> Mapping[str, str]:
    return dict.fromkeys(PLATFORMS, file)


def _in_application_data(file: str) -> Mapping[str, str]:
    """Return the paths of a file that each platform has in its folder for applications' data."""
    return {
        "linux": f"{{config}}/{file}",
        "darwin": f"{{home}}/Library/Application Support/{file}",
        "win32": f"{{appdata}}/{file}",
    }


HOSTS: Final[Mapping[str, Host]] = {
    "claude-desktop": Host(
        title="Claude Desktop",
        user_files=_in_application_data("Claude/claude_desktop_config.json"),
        url_key=None,
    ),
    "claude-code": Host(
        title="Claude Code",
        user_files=_everywhere("{home}/.claude.json"),
        project_file=".mcp.json",
        folder="{home}/.claude",
        folder_variable="CLAUDE_CONFIG_DIR",
        local_members={"type": "stdio"},
        remote_members={"type": "http"},
    ),
    "cursor": Host(
        title="Cursor",
        user_files=_everywhere("{home}/.cursor/mcp.json"),
        project_file=".cursor/mcp.json",
    ),
    "vscode": Host(
        title="VS Code",
        user_files=_in_application_data("Code/User/mcp.json"),
        project_file=".vscode/mcp.json",
        servers_key="servers",
        may_have_comments=True,
        local_members={"type": "stdio"},
        remote_members={"type": "http"},
    ),
    "windsurf": Host(
        title="Windsurf",
        user_files=_everywhere("{home}/.codeium/windsurf/mcp_config.json"),
        url_key="serverUrl",
    ),
    # Windsurf has this name since June 2026. Its new agent does not read the file above.
    "devin-desktop": Host(
        title="Devin Desktop",
        user_files={
            "linux": "{config}/devin/mcp_config.json",
            "darwin": "{home}/.config/devin/mcp_config.json",
            "win32": "{appdata}/devin/mcp_config.json",
        },
        project_file=".devin/mcp_config.json",
    ),
    "gemini-cli": Host(
        title="Gemini CLI",
        user_files=_everywhere("{home}/.gemini/settings.json"),
        project_file=".gemini/settings.json",
        may_have_comments=True,
        url_key="httpUrl",
    ),
    "copilot-cli": Host(
        title="GitHub Copilot CLI",
        user_files=_everywhere("{home}/.copilot/mcp-config.json"),
        project_file=".mcp.json",
        folder_variable="COPILOT_HOME",
        local_members={"type": "stdio", "tools": ["*"]},
        remote_members={"type": "http", "tools": ["*"]},
    ),
    "kiro": Host(
        title="Kiro",
        user_files=_everywhere("{home}/.kiro/settings/mcp.json"),
        project_file=".kiro/settings/mcp.json",
        folder="{home}/.kiro",
    ),
    "lm-studio": Host(
        title="LM Studio",
        user_files=_everywhere("{home}/.lmstudio/mcp.json"),
    ),
    "zed": Host(
        title="Zed",
        user_files={
            "linux": "{config}/zed/settings.json",
            "darwin": "{home}/.config/zed/settings.json",
            "win32": "{appdata}/Zed/settings.json",
        },
        project_file=".zed/settings.json",
        servers_key="context_servers",
        may_have_comments=True,
    ),
}


def user_location(
    host: Host, platform: str, home: PurePath, variables: Mapping[str, str]
) -> Location:
    """Return the location of the user's configuration file.

    Args:
        host: The host.
        platform: The platform, as in `sys.platform`.
        home: The user's home folder, as a path of that platform.
        variables: The environment variables, some of which move the file.
    """
    template = host.user_files[platform if platform in PLATFORMS else "linux"]

    def path(template: str) -> PurePath:
        return type(home)(
            template.format(
                home=home,
                config=variables.get("XDG_CONFIG_HOME") or home / ".config",
                appdata=variables.get("APPDATA") or home / "AppData" / "Roaming",
            )
        )

    file = path(template)
    if host.folder_variable is not None and variables.get(host.folder_variable):
        folder = type(home)(variables[host.folder_variable])
        return Location(folder / file.name, folder)
    return Location(file, file.parent if host.folder is None else path(host.folder))


def project_location(host: Host, project: PurePath) -> Location | None:
    """Return the location of the configuration file in a project; None if the host has none."""
    return None if host.project_file is None else Location(project / host.project_file, project)


def local_entry(
    host: Host, command: str, args: Sequence[str], variables: Mapping[str, str]
) -> dict[str, Any]:
    """Return the entry of a server that the host starts with a command."""
    entry = {**host.local_members, "command": command, "args": list(args)}
    return {**entry, "env": dict(variables)} if variables else entry


def remote_entry(host: Host, url: str) -> dict[str, Any] | None:
    """Return the entry of a server at a URL; None if the host's file cannot hold one."""
    return None if host.url_key is None else {**host.remote_members, host.url_key: url}


# The files, which are read strictly and replaced safely.

_BOM: Final = b"\xef\xbb\xbf"
_DEFAULT_INDENT: Final = "  "

_SECRET_MODE: Final = 0o600
_NEW_FILE_MODE: Final = 0o644

# A string, which is matched first because it may hold what looks like a comment; or a comment.
_STRING_OR_COMMENT: Final = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LAST_COMMA: Final = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)


class HostFile(msgspec.Struct, frozen=True):
    """A host's configuration file as it was read.

    Attributes:
        path: The file itself, also if a symbolic link was named.
        data: Its bytes; None if there is no such file.
        members: The members of its JSON object.
        has_comments: Whether it has comments or trailing commas, which writing it would lose.
    """

    path: Path
    data: bytes | None
    members: Mapping[str, Any]
    has_comments: bool = False

    def servers(self, key: str) -> dict[str, Any]:
        """Return the entries of the servers by name; none if the file has no member `key`.

        Raises:
            ConfigError: The member is not an object.
        """
        servers = self.members.get(key, {})
        if not isinstance(servers, dict):
            raise ConfigError(
                f"{self.path}: {key}: must be an object with a member for each server"
            )
        return dict(cast("dict[str, Any]", servers))

    def encoded_with(self, key: str, servers: Mapping[str, Any]) -> bytes:
        """Return the file with other servers, in the order and with the indentation that it has.

        Raises:
            ConfigError: A number in the file is too large to be written again.
        """
        members = {**self.members, key: dict(servers)}
        old = self.data or b""
        found = re.search(rb"^([ \t]+)\S", old, re.MULTILINE)
        indent = _DEFAULT_INDENT if found is None else found[1].decode()
        try:
            data = _dumped(members, indent, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can express
            data = _dumped(members, indent, ensure_ascii=True).encode()
        except ValueError as error:
            raise ConfigError(f"{self.path}: {error}; nothing was written") from None
        if b"\r\n" in old:
            data = data.replace(b"\n", b"\r\n")
        return _BOM + data if old.startswith(_BOM) else data


def read_host_file(path: Path, *, may_have_comments: bool = False) -> HostFile:
    """Read a host's configuration file; an empty or missing one has no members.

    Args:
        path: The file, or a symbolic link to it.
        may_have_comments: Whether the file may have comments and trailing commas.

    Raises:
        ConfigError: The file cannot be read, or is not a JSON object; the text names the line and
            column.
    """
    try:
        path = path.resolve()
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path}: is not a file")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return HostFile(path, None, {})
    # If links form a loop, `resolve` raises RuntimeError up to Python 3.12, and `stat` since 3.13.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        text = data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: line {line}: is not UTF-8") from None
    if not text.strip():
        return HostFile(path, data, {})
    try:
        return HostFile(path, data, _parsed(text))
    except (ValueError, RecursionError) as error:
        if may_have_comments:
            with suppress(ValueError, RecursionError):
                text = _STRING_OR_COMMENT.sub(lambda found: found[1] or " ", text)
                text = _STRING_OR_LAST_COMMA.sub(lambda found: found[1] or "", text)
                return HostFile(path, data, _parsed(text), has_comments=True)
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, json.JSONDecodeError):
            reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise ConfigError(f"{path}: {reason}; nothing was written") from None


def replace_host_file(file: HostFile, data: bytes, *, is_secret: bool) -> Path | None:
    """Replace a file in one step, so that it has either its old or its new content at any time.

    Args:
        file: The file as it was read. Its old content is copied to a file beside it first.
        data: The new content.
        is_secret: Whether a file that did not exist is for its owner only.

    Returns:
        The copy of the old file; None if there was none.

    Raises:
        ConfigError: The file was changed since it was read, or cannot be written.
    """
    temporary = None
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        mode = _SECRET_MODE if is_secret else _NEW_FILE_MODE
        if file.data is not None:
            mode = stat.S_IMODE(file.path.stat().st_mode)
        descriptor, temporary = tempfile.mkstemp(dir=file.path.parent, prefix=f".{file.path.name}.")
        _write(descriptor, data)
        Path(temporary).chmod(mode)
        # The host itself may have written the file meanwhile.
        if (file.path.read_bytes() if file.path.exists() else None) != file.data:
            raise ConfigError(f"{file.path}: was changed meanwhile; run the command again")
        backup = None if file.data is None else _write_backup(file.path, file.data, mode)
        Path(temporary).replace(file.path)
        temporary = None
    except OSError as error:
        raise ConfigError(f"{file.path}: cannot be written: {error.strerror}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return backup


def _dumped(members: Mapping[str, Any], indent: str, *, ensure_ascii: bool) -> str:
    text = json.dumps(members, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)
    return f"{text}\n"


def _parsed(text: str) -> dict[str, Any]:
    document = json.loads(text, object_pairs_hook=_unique, parse_constant=_reject_constant)
    if not isinstance(document, dict):
        raise ValueError("line 1, column 1: is not a JSON object")  # noqa: TRY004  as other errors
    return cast("dict[str, Any]", document)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the member {twice!r} twice")
    return members


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _write_backup(path: Path, data: bytes, mode: int) -> Path:
    """Copy the old content to the first name `FILE.bak-N` that is free."""
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.bak-{number}")
        try:
            descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET_MODE)
        except FileExistsError:
            number += 1
        else:
            _write(descriptor, data)
            backup.chmod(mode)
            return backup


def _write(descriptor: int, data: bytes) -> None:
    """Write to a new file, and wait until it is on the disk."""
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
