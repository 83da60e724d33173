"""Parse the arguments of a tool or prompt on a command line, by the tool's JSON Schema."""

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import click
import msgspec

from mcp_trio._journal.conversation import members_of

# JSON Schemas -------------------------------------------------------------------------------------
#
# The input schema of a tool comes from its server. A part of it that these functions do not
# understand restricts nothing here; the server validates the arguments in any case.

SCHEMA_DEPTH_MAX: Final = 6

# The types of JSON Schema that a decoded value has, by its class.
TYPE_NAMES: Final[Mapping[type, frozenset[str]]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of the arguments, by name."""
    return members_of(schema.get("properties"))


def arguments_with_types(schema: Mapping[str, Any]) -> str:
    """Return the arguments with their types, such as `city=string [days=integer]`."""
    required = array_items(schema.get("required"))
    texts: list[str] = []
    for name, argument in properties_of(schema).items():
        types = "|".join(sorted(schema_types(argument, schema)))
        text = f"{name}={types or 'any'}"
        texts.append(text if name in required else f"[{text}]")
    return " ".join(texts)


def schema_types(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema inside of `root` allows; none if it does not restrict them."""
    types: set[str] = set()
    # By identity: a union may contain itself, or the same schema in many places.
    followed: dict[int, Mapping[str, Any]] = {}
    waiting = [schema]
    while waiting:
        members = resolved(waiting.pop(), root)
        if id(members) in followed:
            continue
        followed[id(members)] = members
        declared = members.get("type")
        names = [declared] if isinstance(declared, str) else array_items(declared)
        types.update(map(str, names))
        types.update(*(TYPE_NAMES[type(value)] for value in listed_values(members)))
        waiting += alternatives(members)
    return frozenset(types)


def resolved(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema inside of `root`, or in place of a reference the schema that it refers to.

    A reference that leads nowhere, or to itself, becomes an empty schema.
    """
    members = members_of(schema)
    for _ in range(SCHEMA_DEPTH_MAX):
        if "$ref" not in members:
            return members
        # A pointer such as `#/$defs/Day`; any other reference leads to no schema.
        target: object = root
        for step in str(members["$ref"]).removeprefix("#/").split("/"):
            target = members_of(target).get(step)
        members = members_of(target)
    return {}


def listed_values(members: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema with these members lists, as `enum` or `const`."""
    constant = [members["const"]] if "const" in members else []
    return array_items(members.get("enum")) + constant


def alternatives(members: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of which a schema with these members allows one."""
    return array_items(members.get("anyOf")) + array_items(members.get("oneOf"))


def array_items(value: Any) -> list[Any]:
    """Return the items of a JSON array; none for anything else."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


# The command line -------------------------------------------------------------------------------
#
# Each ARGUMENT of `mcp-trio call` and `mcp-trio prompt` is `key=value` or `key:=json`. A single one
# may contain all arguments: a JSON object, `@file`, or `-` for stdin. In `key=value`, the value is
# a string if the tool's schema allows a string, and JSON otherwise.

Arguments: TypeAlias = dict[str, Any]


class Assignment(msgspec.Struct, frozen=True):
    """One ARGUMENT: a name, and the text of its value, which is JSON after `:=`."""

    name: str
    text: str
    is_json: bool


ParsedArguments: TypeAlias = Arguments | list[Assignment]
"""All arguments as a JSON object, or an assignment for each."""


def parse_arguments(texts: Sequence[str]) -> ParsedArguments:
    """Parse each ARGUMENT of a command line; read the file or stdin, if one is given.

    Raises:
        click.UsageError: They have another form, one is given twice, or the file cannot be read.
    """
    if len(texts) == 1 and texts[0].startswith(("{", "@", "-")):
        (source,) = texts
        try:
            encoded = source.encode()
            if source == "-":
                encoded = sys.stdin.buffer.read()
            elif source.startswith("@"):
                encoded = Path(source[1:]).read_bytes()
            return msgspec.json.decode(encoded, type=dict[str, Any])
        except OSError as error:
            raise click.UsageError(f"{source}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"the arguments are not a JSON object: {error}") from error
    assignments: list[Assignment] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.removesuffix(":"):
            advice = "write key=value, key:=json, or one {...}, @file or -"
            raise click.UsageError(f"{text!r} is not an argument: {advice}")
        assignments.append(Assignment(name.removesuffix(":"), value, name.endswith(":")))
    names = [assignment.name for assignment in assignments]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"{name}: given twice; write a list as {name}:='[...]'")
    return assignments


def tool_arguments(assignments: Iterable[Assignment], schema: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a tool, with values of the types in its input schema.

    Raises:
        click.UsageError: A value has a type that the schema does not allow.
    """
    properties = properties_of(schema)
    arguments: Arguments = {}
    for assignment in assignments:
        name, text = assignment.name, assignment.text
        types = schema_types(properties.get(name), schema)
        value: Any = text
        if assignment.is_json:
            value = _json(assignment)
        elif "string" not in types:
            with contextlib.suppress(ValueError, RecursionError):  # The text is not JSON.
                value = msgspec.json.decode(text)
            if types and not TYPE_NAMES[type(value)] & types:
                expected = " or ".join(sorted(types))
                raise click.UsageError(f"{name}: the tool expects {expected}, not {text!r}")
        arguments[name] = value
    return arguments


def prompt_arguments(given: ParsedArguments) -> dict[str, str]:
    """Return the arguments of a prompt, which have to be strings."""
    if isinstance(given, list):
        given = {each.name: _json(each) if each.is_json else each.text for each in given}
    for name, value in given.items():
        if not isinstance(value, str):
            raise click.UsageError(f"{name}: the arguments of a prompt must be strings")
    return given


def _json(assignment: Assignment) -> Any:
    try:
        return msgspec.json.decode(assignment.text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{assignment.name}: not JSON: {error}") from error
