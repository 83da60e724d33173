"""The `mcpServers` configuration file of hosts."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

import attrs
import msgspec

from mcp_trio.errors import ConfigError

ConfigSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A file's path, or what would stand in the file."""


@attrs.frozen(kw_only=True)
class ServerConfig:
    """One server of a configuration file: a command to start, or a URL. A target of `Client`.

    Attributes:
        command: The program.
        args: Its arguments.
        env: Variables that it gets besides the few that are inherited.
        cwd: The folder that it starts in.
        url: Where a server runs that is not started here.
        headers: What is sent along to `url`.
        disabled: Whether a group leaves it out.
    """

    # Secrets stand in many of these: only what is none is shown.
    command: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    args: list[str] = attrs.field(factory=list[str], repr=False)
    env: dict[str, str] = attrs.field(factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: Annotated[str, msgspec.Meta(min_length=1)] | None = attrs.field(default=None, repr=False)
    headers: dict[str, str] = attrs.field(factory=dict[str, str], repr=False)
    disabled: bool = False


_GROUPS: Final = ("mcpServers", "servers")
_FIELDS: Final = frozenset(field.name for field in attrs.fields(ServerConfig))
_LOCAL: Final = "stdio"
_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_VARIABLE: Final = re.compile(r"(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?", re.DOTALL)


def read_config(
    source: ConfigSource, *, variables: Mapping[str, str] | None = None
) -> dict[str, ServerConfig]:
    """The servers of a JSON file like those of hosts, by name, in the file's order.

    They stand under "mcpServers", or "servers". `${NAME}` and `${env:NAME}` in a value become that
    variable, and `${NAME:-default}` the default where the variable is unset or empty; `variables`
    are our environment's by default. A disabled server's stay as they are: what it would need may
    not be there. Members that are unknown here are ignored.

    Raises:
        ConfigError: The file cannot be read, or is not as described; the text names file, server,
            and member, but no value.
    """
    where = "the configuration" if isinstance(source, Mapping) else os.fspath(source)
    document = source if isinstance(source, Mapping) else _load(where)
    values = os.environ if variables is None else variables
    servers: dict[str, ServerConfig] = {}
    for name, entry in _entries(document, where).items():
        try:
            servers[name] = _server(entry, values)
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(f"{where}: server {name!r}: {_one_line(error)}") from None
    return servers


def expanded(text: str, member: str, variables: Mapping[str, str]) -> str:
    """A value with its references to variables resolved, as in a file.

    Raises:
        ValueError: One is no reference to a variable; the text names `member`, but no value.
        LookupError: A variable is not set.
    """
    return _REFERENCE.sub(lambda found: _value_of(found, member, variables), text)


def _load(where: str) -> Mapping[str, Any]:
    try:
        text = Path(where).read_text(encoding="utf-8-sig")
        return msgspec.json.decode(text, type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {_one_line(error)}") from None


def _entries(document: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    group = next((group for group in _GROUPS if group in document), _GROUPS[0])
    entries = document.get(group)
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{where}: {group}: expected an object with a member for each server")
    return cast("Mapping[str, Any]", entries)


def _server(entry: object, variables: Mapping[str, str]) -> ServerConfig:
    if not isinstance(entry, Mapping):
        raise TypeError("expected an object")
    entry = cast("Mapping[str, Any]", entry)
    is_local = _is_local(entry)
    needed, other = ("command", "url") if is_local else ("url", "command")
    if entry.get(needed) is None:
        raise ValueError(f"{needed}: missing")
    given = {key: entry[key] for key in _FIELDS - {other} if entry.get(key) is not None}
    if given.get("disabled") is not True:
        given = {key: _expanded(value, key, variables) for key, value in given.items()}
    return msgspec.convert(given, ServerConfig)


def _is_local(entry: Mapping[str, Any]) -> bool:
    """Whether a command is started; where both that and a URL are given, the type has to say."""
    kind = entry.get("type")
    if kind is not None:
        return bool(kind == _LOCAL)
    if entry.get("command") is not None and entry.get("url") is not None:
        raise ValueError("type: missing, where there are both a command and a url")
    return entry.get("url") is None


def _expanded(value: object, member: str, variables: Mapping[str, str]) -> object:
    """`value` with its references resolved, at whatever depth they stand."""
    if isinstance(value, str):
        return expanded(value, member, variables)
    if isinstance(value, list):
        return [_expanded(item, member, variables) for item in cast("list[object]", value)]
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return {key: _expanded(item, f"{member}.{key}", variables) for key, item in members.items()}
    return value


def _value_of(found: re.Match[str], member: str, variables: Mapping[str, str]) -> str:
    variable = _VARIABLE.fullmatch(found[1])
    if variable is None:
        raise ValueError(f"{member}: {found[0]} is no reference to a variable")
    value = variables.get(variable["name"])
    if not value and variable["default"] is not None:
        return variable["default"]
    if value is None:
        raise LookupError(f"{member}: the variable {variable['name']} is not set")
    return value


def _one_line(error: Exception) -> str:
    """The error, with the place first where msgspec names one."""
    text, _, place = " ".join(str(error).split()).partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    return f"{place}: {text}" if place else text
