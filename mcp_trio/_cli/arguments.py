"""The arguments of a tool or prompt, as a person types them.

Words are `key=value` or `key:=json`; or there is a single one, which is the whole object as JSON,
or says where that is: `@file`, or `-` for stdin. A value is what the tool's schema wants: a text
is taken as it stands, anything else is read as JSON.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import click
import msgspec

from mcp_trio._cli.schemas import TYPE_NAMES, properties_of, wanted_types

Arguments: TypeAlias = dict[str, Any]


@attrs.frozen
class Assignment:
    """One word: a name, and the text of its value, which `:=` declares to be JSON."""

    name: str
    text: str
    is_json: bool


Given: TypeAlias = Arguments | list[Assignment]
"""The whole object, or an assignment for each word."""


def read_words(words: Sequence[str]) -> Given:
    """The whole object, or an assignment for each word.

    Raises:
        click.UsageError: They are neither.
    """
    if len(words) == 1 and words[0].startswith(("{", "@", "-")):
        return _object(words[0])
    assignments = [_assignment(word) for word in words]
    names = [assignment.name for assignment in assignments]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"{name}: given twice; a list is {name}:='[...]'")
    return assignments


def tool_arguments(assignments: Iterable[Assignment], schema: Mapping[str, Any]) -> Arguments:
    """The arguments of a tool with this schema.

    Raises:
        click.UsageError: A value is not what the schema wants.
    """
    properties = properties_of(schema)
    return {
        each.name: _typed(each, wanted_types(properties.get(each.name), schema))
        for each in assignments
    }


def prompt_arguments(given: Given) -> dict[str, str]:
    """The arguments of a prompt, which are all texts.

    Raises:
        click.UsageError: One is not.
    """
    if isinstance(given, list):
        given = {each.name: _json(each) if each.is_json else each.text for each in given}
    for name, value in given.items():
        if not isinstance(value, str):
            raise click.UsageError(f"{name}: the arguments of a prompt are texts")
    return given


def _assignment(word: str) -> Assignment:
    name, equals, text = word.partition("=")
    if not equals or not name.removesuffix(":"):
        raise click.UsageError(
            f"{word!r} is no argument: write key=value, key:=json, or one {{...}}, @file or -"
        )
    return Assignment(name.removesuffix(":"), text, name.endswith(":"))


def _object(word: str) -> Arguments:
    try:
        return msgspec.json.decode(_source(word), type=dict[str, Any])
    except OSError as error:
        raise click.UsageError(f"{word}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the arguments are not a JSON object: {error}") from error


def _source(word: str) -> str | bytes:
    if word == "-":
        return sys.stdin.buffer.read()
    return Path(word[1:]).read_bytes() if word.startswith("@") else word


def _typed(assignment: Assignment, wanted: frozenset[str]) -> Any:
    if assignment.is_json:
        return _json(assignment)
    if "string" in wanted:
        return assignment.text
    try:
        value = msgspec.json.decode(assignment.text)
    except (ValueError, RecursionError):
        value = assignment.text
    if wanted and not TYPE_NAMES[type(value)] & wanted:
        choices = " or ".join(sorted(wanted))
        raise click.UsageError(
            f"{assignment.name}: the tool wants {choices}, not {assignment.text!r}"
        )
    return value


def _json(assignment: Assignment) -> Any:
    try:
        return msgspec.json.decode(assignment.text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{assignment.name}: not JSON: {error}") from error
