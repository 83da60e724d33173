"""Read the JSON file in which an MCP host configures its servers (`mcpServers`)."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

import attrs
import msgspec

from mcp_trio.errors import ConfigError

ConfigSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a configuration file, or its parsed content."""


@attrs.frozen(kw_only=True)
class ServerConfig:
    """A server of a configuration file, either a command or a URL; a target of `Client`.

    Attributes:
        command: The program to start.
        args: The arguments of the program.
        env: Environment variables of the program, in addition to the few that it inherits.
        cwd: The working directory of the program.
        url: The URL of a running server.
        headers: HTTP headers of each request to `url`.
        disabled: Whether `ClientGroup.from_config` skips the server.
    """

    # Arguments, variables, URLs and headers may hold secrets, so `repr` leaves them out.
    command: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    args: list[str] = attrs.field(factory=list[str], repr=False)
    env: dict[str, str] = attrs.field(factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: Annotated[str, msgspec.Meta(min_length=1)] | None = attrs.field(default=None, repr=False)
    headers: dict[str, str] = attrs.field(factory=dict[str, str], repr=False)
    disabled: bool = False


# The members of the file that may contain the servers. Hosts use one of them.
_GROUPS: Final = ("mcpServers", "servers", "context_servers")

# Names of some hosts for `url`.
_OTHER_URL_NAMES: Final = ("httpUrl", "serverUrl")
_MEMBERS: Final = frozenset(field.name for field in attrs.fields(ServerConfig))
_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_VARIABLE: Final = re.compile(r"(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?", re.DOTALL)


def read_config(
    source: ConfigSource, *, variables: Mapping[str, str] | None = None
) -> dict[str, ServerConfig]:
    """Return the servers of a host's JSON configuration, by name, in the file's order.

    The servers are the members of "mcpServers", "servers" or "context_servers". A URL is in "url",
    "httpUrl" or "serverUrl". Unknown members of a server are ignored. In values, `${NAME}` and
    `${env:NAME}` are replaced by the variable, `${NAME:-default}` by the default if the variable is
    unset or empty. Values of disabled servers stay as they are, since their variables may be unset.

    Args:
        source: The path of the file, or its parsed content.
        variables: The variables, by default those of the environment.

    Raises:
        ConfigError: The file cannot be read, or a server is invalid. The text names the file, the
            server and the member, but no value, since that may be secret.
    """
    return {name: read() for name, read in config_readers(source, variables=variables).items()}


def config_readers(
    source: ConfigSource, *, variables: Mapping[str, str] | None = None
) -> dict[str, Callable[[], ServerConfig]]:
    """Return a function for each server that reads its entry, so that one can be read alone.

    This function, and the functions that it returns, raise the errors of `read_config`.
    """
    where = "the configuration" if isinstance(source, Mapping) else os.fspath(source)
    document = source if isinstance(source, Mapping) else _read_document(where)
    values = os.environ if variables is None else variables
    group = next((group for group in _GROUPS if group in document), _GROUPS[0])
    entries = document.get(group)
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{where}: {group}: must be an object with a member for each server")

    def read(name: str, entry: object) -> ServerConfig:
        try:
            return _server_config(entry, values)
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(f"{where}: server {name!r}: {_one_line(error)}") from None

    servers = cast("Mapping[str, object]", entries)
    return {name: partial(read, name, entry) for name, entry in servers.items()}


def expanded(text: str, member: str, variables: Mapping[str, str]) -> str:
    """Return `text` with its references to variables replaced; see `read_config`.

    Raises:
        ValueError: A reference is malformed; the text names `member`, but no value.
        LookupError: A variable is not set.
    """

    def value_of(found: re.Match[str]) -> str:
        variable = _VARIABLE.fullmatch(found[1])
        if variable is None:
            raise ValueError(f"{member}: {found[0]} is not a reference to a variable")
        value = variables.get(variable["name"])
        if not value and variable["default"] is not None:
            return variable["default"]
        if value is None:
            raise LookupError(f"{member}: the variable {variable['name']} is not set")
        return value

    return _REFERENCE.sub(value_of, text)


def _read_document(where: str) -> Mapping[str, Any]:
    try:
        text = Path(where).read_text(encoding="utf-8-sig")
        return msgspec.json.decode(text, type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {_one_line(error)}") from None


def _server_config(entry: object, variables: Mapping[str, str]) -> ServerConfig:
    if not isinstance(entry, Mapping):
        raise TypeError("must be an object")
    entry = cast("Mapping[str, Any]", entry)
    for name in _OTHER_URL_NAMES:
        if entry.get(name) is not None:
            entry = {**entry, "url": entry[name]}
    if entry.get("type") is not None:
        is_stdio = entry["type"] == "stdio"
    elif entry.get("command") is not None and entry.get("url") is not None:
        raise ValueError("type: missing, although there are both a command and a url")
    else:
        is_stdio = entry.get("url") is None
    needed, other = ("command", "url") if is_stdio else ("url", "command")
    if entry.get(needed) is None:
        raise ValueError(f"{needed}: missing")
    given = {
        key: value
        for key, value in entry.items()
        if key in _MEMBERS and key != other and value is not None
    }
    if given.get("disabled") is not True:
        given = {key: _with_values(value, key, variables) for key, value in given.items()}
    return msgspec.convert(given, ServerConfig)


def _with_values(value: object, member: str, variables: Mapping[str, str]) -> object:
    """Return a text, or the texts in a list or an object, with their references replaced."""
    if isinstance(value, list):
        return [
            expanded(item, member, variables) if isinstance(item, str) else item
            for item in cast("list[object]", value)
        ]
    if isinstance(value, Mapping):
        return {
            key: expanded(item, f"{member}.{key}", variables) if isinstance(item, str) else item
            for key, item in cast("Mapping[str, object]", value).items()
        }
    return expanded(value, member, variables) if isinstance(value, str) else value


def _one_line(error: Exception) -> str:
    """Return the text of the error, with the path of the member first if msgspec names one."""
    text, _, path = " ".join(str(error).split()).partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    return f"{path}: {text}" if path else text
