"""`mcp-trio install` adds a server to the configuration file of an MCP host."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import click

from mcp_trio._cli.completion import complete_hosts, complete_targets
from mcp_trio._cli.hosts import (
    HOSTS,
    Host,
    HostFile,
    Location,
    Scope,
    local_entry,
    project_location,
    read_host_file,
    remote_entry,
    replace_host_file,
    user_location,
)
from mcp_trio._cli.options import UNUSABLE_STATUS, load_server
from mcp_trio._cli.output import echo_error, echo_text, printable, prints_to_stderr
from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio.errors import ConfigError

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

_URL: Final = re.compile("https?://", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=(.*)", re.ASCII | re.DOTALL)
_CREDENTIALS_OR_QUERY: Final = re.compile(r"(?<=//)[^/]*@|\?.*", re.DOTALL)


def parse_variables(lines: Sequence[str]) -> dict[str, str]:
    """Return the variables of a file with a line `NAME=VALUE` for each.

    Empty lines and comments, which begin with `#`, are ignored. `export` before a name, and
    quotation marks around a value, are left out.

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
        name, value = found[1], found[2].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        variables[name] = value
    return variables


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
    shell_complete=complete_hosts,
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
    if _URL.match(target) is not None:
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
        launch = _Launch(target, packages, python, variables)
        if packages or python is not None:  # This process may lack what the server needs.
            server_name = launch.name_from_session()
        else:
            server = launch.imported_server()
            server_name = server.name
            launch = attrs.evolve(launch, packages=server.dependencies)
        name = name or server_name
        entry = launch.entry(host, recordings)
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
        return user_location(host, sys.platform, Path.home(), os.environ)
    location = project_location(host, Path.cwd())
    if location is None:
        raise click.UsageError(f"{host.title} has no configuration file in projects")
    return location


@attrs.frozen
class _Launch:
    """The start of a server by a host: its TARGET, packages, Python and environment variables."""

    target: str
    packages: Sequence[str]
    python: str | None
    variables: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """The command that serves the target over stdio.

        Raises:
            click.UsageError: Packages need `uv`, which is not installed.
        """
        from mcp_trio._replay.targets import split_target

        source, colon, name = split_target(self.target)
        if source.endswith(".py"):
            source = _absolute(source)
        run = ["run", f"{source}{colon}{name}"]
        if not self.packages:
            return [_absolute(self.python or sys.executable), "-m", "mcp_trio", *run]
        uv = shutil.which("uv")
        if uv is None:
            raise click.UsageError(
                f"{', '.join(self.packages)}: packages of --with, or of the server's dependencies,"
                " need uv, which is not installed"
            )
        with_packages = (word for each in ("mcp-trio", *self.packages) for word in ("--with", each))
        python = [] if self.python is None else ["--python", _absolute(self.python)]
        # A host may start servers in the folder of some project, whose environment uv would use.
        return [_absolute(uv), "run", "--no-project", *python, *with_packages, "mcp-trio", *run]

    @property
    def environment(self) -> Mapping[str, str]:
        """The server's variables, with the import path of a module in the working directory."""
        from mcp_trio._replay.targets import split_target

        source = split_target(self.target)[0]
        top = source.partition(".")[0]
        is_here = Path(top).is_dir() or Path(f"{top}.py").is_file()
        if source.endswith(".py") or not is_here:
            return self.variables
        return {"PYTHONPATH": str(Path.cwd()), **self.variables}

    def entry(self, host: Host, recordings: str | None) -> dict[str, Any]:
        """Return the host's entry of the server."""
        program, *arguments = self.command
        if recordings is not None:
            arguments += ["--record", _absolute(recordings)]
        return local_entry(host, program, arguments, self.environment)

    def imported_server(self) -> "Server":
        """Import the server with its variables.

        Raises:
            click.ClickException: The target names no server, or cannot be imported.
        """
        before = dict(os.environ)
        os.environ.update(self.variables)
        try:
            with prints_to_stderr():
                return load_server(self.target)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def name_from_session(self) -> str:
        """Return the server's name; start it for that.

        Raises:
            MCPError: The server cannot be started.
        """
        import trio

        from mcp_trio._client.client import Client
        from mcp_trio._client.config import ServerConfig

        program, *arguments = self.command
        config = ServerConfig(command=program, args=arguments, env=dict(self.environment))

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
