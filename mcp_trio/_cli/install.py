"""`mcp-trio install` adds a server to the configuration file of an MCP host.

The table `HOSTS` has where each host has its file, and the file's format. The files are read
strictly, and replaced in one step.
"""

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import click
import msgspec

from mcp_trio._cli.completion import complete_targets
from mcp_trio._cli.options import UNUSABLE_STATUS, load_server
from mcp_trio._cli.output import echo_error, echo_text, printable, prints_to_stderr
from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio._system import home_folder
from mcp_trio.errors import ConfigError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mcp_trio._server.server import Server

# The hosts.

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
        user_files=dict.fromkeys(PLATFORMS, "{home}/.claude.json"),
        project_file=".mcp.json",
        folder="{home}/.claude",
        folder_variable="CLAUDE_CONFIG_DIR",
        local_members={"type": "stdio"},
        remote_members={"type": "http"},
    ),
    "cursor": Host(
        title="Cursor",
        user_files=dict.fromkeys(PLATFORMS, "{home}/.cursor/mcp.json"),
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
        user_files=dict.fromkeys(PLATFORMS, "{home}/.codeium/windsurf/mcp_config.json"),
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
        user_files=dict.fromkeys(PLATFORMS, "{home}/.gemini/settings.json"),
        project_file=".gemini/settings.json",
        may_have_comments=True,
        url_key="httpUrl",
    ),
    "copilot-cli": Host(
        title="GitHub Copilot CLI",
        user_files=dict.fromkeys(PLATFORMS, "{home}/.copilot/mcp-config.json"),
        project_file=".mcp.json",
        folder_variable="COPILOT_HOME",
        local_members={"type": "stdio", "tools": ["*"]},
        remote_members={"type": "http", "tools": ["*"]},
    ),
    "kiro": Host(
        title="Kiro",
        user_files=dict.fromkeys(PLATFORMS, "{home}/.kiro/settings/mcp.json"),
        project_file=".kiro/settings/mcp.json",
        folder="{home}/.kiro",
    ),
    "lm-studio": Host(
        title="LM Studio",
        user_files=dict.fromkeys(PLATFORMS, "{home}/.lmstudio/mcp.json"),
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
    """Return the location of the user's configuration file on a platform, as in `sys.platform`.

    The home folder is a path of that platform; some environment variables move the file.
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
_SECRET_MODE: Final = 0o600

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
        """Return the entries of the servers by name; none if the file has no member `key`."""
        servers = self.members.get(key, {})
        if not isinstance(servers, dict):
            raise ConfigError(
                f"{self.path}: {key}: must be an object with a member for each server"
            )
        return dict(cast("dict[str, Any]", servers))

    def encoded_with(self, key: str, servers: Mapping[str, Any]) -> bytes:
        """Return the file with other servers, in the order and with the indentation that it has."""
        members = {**self.members, key: dict(servers)}
        old = self.data or b""
        found = re.search(rb"^([ \t]+)\S", old, re.MULTILINE)
        indent = "  " if found is None else found[1].decode()
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

    With `may_have_comments`, the file may have comments and trailing commas.

    Raises:
        ConfigError: The file cannot be read, or is not a JSON object.
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
        mode = _SECRET_MODE if is_secret else 0o644
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


# `mcp-trio install`.

_SCHEME: Final = re.compile("https?://", re.IGNORECASE)
_URL: Final = re.compile(r"https?://[^\s/?#]\S*", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=(.*)", re.ASCII | re.DOTALL)
_QUOTED: Final = re.compile(r"""\s*(["'])(.*?)\1(?:\s+#.*)?""", re.DOTALL)
_COMMENT: Final = re.compile(r"\s#.*", re.DOTALL)
_CREDENTIALS_OR_QUERY: Final = re.compile(r"(?<=//)[^/]*@|\?.*", re.DOTALL)


def parse_variables(lines: Sequence[str]) -> dict[str, str]:
    """Return the variables of a file with a line `NAME=VALUE` for each, and with comments.

    `export` before a name, quotation marks around a value, and a comment after it are left out. A
    comment begins with `#` after white space.

    Raises:
        ValueError: A line has another form. The text has its number, but not the line, which may
            hold a secret.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _VARIABLE.fullmatch(text)
        if found is None:
            raise ValueError(f"line {number} is not NAME=VALUE")
        name, value = found[1], found[2]
        quoted = _QUOTED.fullmatch(value)
        variables[name] = quoted[2] if quoted else _COMMENT.sub("", value).strip()
    return variables


def _complete_hosts(
    _: click.Context, __: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(name, help=host.title)
        for name, host in HOSTS.items()
        if name.startswith(incomplete)
    ]


def _host(_: click.Context, __: click.Parameter, name: str) -> Host:
    if name not in HOSTS:
        raise click.BadParameter(
            f"{name!r} is not one of {', '.join(HOSTS)}{did_you_mean(name, HOSTS)}"
        )
    return HOSTS[name]


def _assignments(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> Mapping[str, str]:
    """Parse `--env`. Errors do not repeat the text, which may be a secret."""
    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or _VARIABLE.fullmatch(f"{name}=") is None:
            raise click.BadParameter("a variable must be written as NAME=VALUE")
        variables[name] = value
    return variables


def _variables_in(_: click.Context, __: click.Parameter, file: str | None) -> Mapping[str, str]:
    if file is None:
        return {}
    try:
        return parse_variables(Path(file).read_text(encoding="utf-8-sig").splitlines())
    except OSError as error:
        raise click.BadParameter(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise click.BadParameter(f"{file}: {reason}") from None


@click.command(
    short_help="Add a server to an MCP host.",
    epilog=f"""\b
HOST is one of
  {", ".join(list(HOSTS)[:6])},
  {", ".join(list(HOSTS)[6:])}.
TARGET is a server in Python, which the host starts over stdio with this installation of mcp-trio,
or the http(s):// URL of a server that runs already. A TARGET is imported first; with --with or
--python, it is started once. Nothing is written if that fails. Packages that its Server names as
dependencies count like those of --with.

\b
The old file is copied to FILE.bak-1, or the next number that is free. A file with comments is not
changed: the entry is printed instead. Variables of --env and --env-file are stored in the host's
file as plain text.

\b
Exit status: 0 success; 1 the server cannot be started; 2 wrong usage, TARGET names no server, the
host is not installed, or its file cannot be used.

\b
Examples:
  mcp-trio install server.py --host claude-desktop
  mcp-trio install server.py --host vscode --scope project --record recordings/
  mcp-trio install server.py --host cursor --env-file .env --with pandas
  mcp-trio install https://example.com/mcp --host claude-code --name example
  mcp-trio install server.py --host cursor --print
  mcp-trio install --uninstall --name weather --host cursor
""",
)
@click.argument("target", required=False, shell_complete=complete_targets)
@click.option(
    "--host",
    metavar="HOST",
    required=True,
    callback=_host,
    shell_complete=_complete_hosts,
    help="The host that gets the server.",
)
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="Write the user's configuration file, or that of the project in the working directory.",
)
@click.option(
    "--name", metavar="NAME", help="The name of the entry; by default that of the server."
)
@click.option(
    "--env",
    "assignments",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_assignments,
    help="Set an environment variable of the server.",
)
@click.option(
    "--env-file",
    "file_variables",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    callback=_variables_in,
    help="Set the variables in this file, which has a line NAME=VALUE for each.",
)
@click.option(
    "--with",
    "packages",
    metavar="PACKAGE",
    multiple=True,
    help="Start the server with `uv run`, in an environment that has this package.",
)
@click.option(
    "--record",
    "recordings",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="Record each session to a file in this folder.",
)
@click.option(
    "--python",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False, executable=True),
    help="Start the server with this Python, which needs mcp-trio; by default the current one.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write this file instead of the one where the host is expected to look.",
)
@click.option("--print", "prints", is_flag=True, help="Print the entry, and write nothing.")
@click.option("--uninstall", "uninstalls", is_flag=True, help="Remove the entry.")
@click.option("--force", is_flag=True, help="Replace another entry of the same name.")
def install_command(
    target: str | None,
    host: Host,
    scope: Scope,
    name: str | None,
    assignments: Mapping[str, str],
    file_variables: Mapping[str, str],
    packages: tuple[str, ...],
    recordings: str | None,
    python: str | None,
    config: str | None,
    *,
    prints: bool,
    uninstalls: bool,
    force: bool,
) -> None:
    """Add the server TARGET to the configuration file of an MCP host."""
    if name == "":
        raise click.UsageError("--name is empty")
    if uninstalls and (prints or force):
        raise click.UsageError("--uninstall cannot be used with --print or --force")
    location = _location(host, scope, config)
    variables = {**file_variables, **assignments}
    if uninstalls and name is not None:
        _remove(host, location, name)
        return
    if target is None:
        raise click.UsageError("name a TARGET; with --uninstall, --name NAME is enough")
    if _SCHEME.match(target) is not None:
        if _URL.fullmatch(target) is None:
            raise click.UsageError(f"{target!r} is not a URL: it needs a host, and has no spaces")
        entry = remote_entry(host, target)
        if variables or packages or recordings or python:
            raise click.UsageError(
                "--env, --env-file, --with, --record and --python are for a server that the host"
                " starts, not for a URL"
            )
        if entry is None:
            raise click.UsageError(
                f"{host.title} reads only local servers from its file: add the URL as a connector"
                " in its settings"
            )
        if name is None:
            raise click.UsageError("a URL needs --name NAME")
    else:
        if packages or python is not None:  # This process may lack what the server needs.
            command, environment = _launch(target, packages, python, variables)
            server_name = _name_from_session(command, environment)
        else:
            server = _import_server(target, variables)
            server_name = server.name
            command, environment = _launch(target, server.dependencies, None, variables)
        name = name or server_name
        program, *arguments = command
        if recordings is not None:
            arguments += ["--record", _absolute(recordings)]
        entry = local_entry(host, program, arguments, environment)
    if uninstalls:
        _remove(host, location, name)
    elif prints:
        click.echo(f"// {location.file}", err=True)
        click.echo(_snippet(host, name, entry))
    else:
        _add(host, location, name, entry, force=force)


def _location(host: Host, scope: Scope, config: str | None) -> Location:
    if config is not None:
        file = Path(config).absolute()
        return Location(file, file.parent)
    if scope == "user":
        return user_location(host, sys.platform, home_folder(), os.environ)
    if host.project_file is None:
        raise click.UsageError(f"{host.title} has no configuration file in projects")
    return Location(Path(host.project_file).absolute(), Path.cwd())


def _launch(
    target: str, packages: Sequence[str], python: str | None, variables: Mapping[str, str]
) -> tuple[list[str], Mapping[str, str]]:
    """Return the command by which a host serves a TARGET over stdio, and its variables."""
    from mcp_trio._replay.targets import split_target

    source, colon, name = split_target(target)
    top = source.partition(".")[0]
    if source.endswith(".py"):
        source = _absolute(source)
    elif Path(top).is_dir() or Path(f"{top}.py").is_file():  # a module of the working directory
        variables = {"PYTHONPATH": str(Path.cwd()), **variables}
    run = ["run", f"{source}{colon}{name}"]
    if not packages:
        return [_absolute(python or sys.executable), "-m", "mcp_trio", *run], variables
    uv = shutil.which("uv")
    if uv is None:
        raise click.UsageError(
            f"{', '.join(packages)}: packages of --with, or of the server's dependencies, need uv,"
            " which is not installed"
        )
    with_packages = (word for each in ("mcp-trio", *packages) for word in ("--with", each))
    with_python = [] if python is None else ["--python", _absolute(python)]
    # A host may start servers in the folder of some project, whose environment uv would use.
    start = [_absolute(uv), "run", "--no-project", *with_python, *with_packages, "mcp-trio"]
    return [*start, *run], variables


def _import_server(target: str, variables: Mapping[str, str]) -> "Server":
    """Import a server with its variables."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        with prints_to_stderr():
            return load_server(target)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _name_from_session(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return the name of a server; start it for that."""
    import trio

    from mcp_trio._client.client import Client
    from mcp_trio._client.config import ServerConfig

    program, *arguments = command
    config = ServerConfig(command=program, args=arguments, env=dict(variables))

    async def handshake() -> str:
        async with Client(config, name="mcp-trio") as client:
            return client.server_info.name

    return trio.run(handshake)


def _absolute(path: str) -> str:
    """Return the absolute path; the `python` of a virtual environment is a link, and stays one."""
    return os.path.abspath(path)  # noqa: PTH100  Path.resolve follows links


def _add(
    host: Host, location: Location, name: str, entry: Mapping[str, Any], *, force: bool
) -> None:
    file = _host_file(host, location)
    servers = file.servers(host.servers_key)
    if servers.get(name) == entry:
        echo_text(f"{file.path} has {name!r} already; nothing was changed")
        return
    if name in servers and not force:
        raise ConfigError(
            f"{file.path} has another {name!r}: {_summary(servers[name])};"
            " add --force to replace it, or --name NAME"
        )
    if file.has_comments:
        click.echo(_snippet(host, name, entry))
        echo_error(
            f"{file.path} has comments, which would be lost, so it was not changed: paste the entry"
            f" above into its {host.servers_key!r}"
        )
        click.get_current_context().exit(UNUSABLE_STATUS)
    action = f"replaced {name!r} in" if name in servers else f"added {name!r} to"
    data = file.encoded_with(host.servers_key, {**servers, name: entry})
    backup = replace_host_file(file, data, is_secret="env" in entry)
    _report(host, f"{action} {file.path}", backup)


def _remove(host: Host, location: Location, name: str) -> None:
    file = _host_file(host, location)
    servers = file.servers(host.servers_key)
    if name not in servers:
        raise ConfigError(
            f"{file.path} has no server {name!r}; it has: {', '.join(servers) or 'none'}"
            f"{did_you_mean(name, servers)}"
        )
    if file.has_comments:
        raise ConfigError(
            f"{file.path} has comments, which would be lost, so it was not changed: remove {name!r}"
            f" from its {host.servers_key!r} by hand"
        )
    del servers[name]
    backup = replace_host_file(file, file.encoded_with(host.servers_key, servers), is_secret=False)
    _report(host, f"removed {name!r} from {file.path}", backup)


def _host_file(host: Host, location: Location) -> HostFile:
    file = Path(location.file)
    if not (Path(location.folder).is_dir() or file.is_file()):
        raise ConfigError(
            f"{location.folder}: no such folder; if {host.title} is installed, name its file with"
            " --config, or add --print"
        )
    return read_host_file(file, may_have_comments=host.may_have_comments)


def _summary(entry: object) -> str:
    """Return the command or the URLs of an entry, without values that may be secret.

    These are the values of variables and headers, and the credentials and query of a URL.
    """
    members = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    command, arguments = members.get("command"), members.get("args")
    words = [command, *(cast("list[object]", arguments) if isinstance(arguments, list) else ())]
    facts = [" ".join(word for word in words if isinstance(word, str))]
    urls = (members.get(key) for key in ("url", "serverUrl", "httpUrl"))
    facts += [_CREDENTIALS_OR_QUERY.sub("", url) for url in urls if isinstance(url, str)]
    secrets = [(key, members.get(key)) for key in ("env", "headers")]
    facts += [
        " ".join([key, *cast("dict[str, object]", values)])
        for key, values in secrets
        if isinstance(values, dict)
    ]
    return printable(", ".join(filter(None, facts))) or "neither a command nor a URL"


def _snippet(host: Host, name: str, entry: Mapping[str, Any]) -> str:
    return json.dumps({host.servers_key: {name: entry}}, indent=2, ensure_ascii=False)


def _report(host: Host, text: str, backup: Path | None) -> None:
    echo_text(text)
    if backup is not None:
        echo_text(f"the old file is {backup}")
    click.echo(f"restart {host.title}, which reads the file when it starts")
