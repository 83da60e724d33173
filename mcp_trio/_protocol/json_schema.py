"""Validation by JSON Schema, within limits; nothing is fetched.

The dialects that are understood are those of `DIALECTS`; a schema that names none is of 2020-12, at
every revision (JSCH-01, TRAP-79). A `$ref` leads to a place in the schema itself, or to what a
dialect publishes; one that leads elsewhere makes the whole schema useless, and it is refused.

Three bounds hold: how deep a schema is, how many objects and arrays it has, and how many keywords
are looked at for one value. The last is counted by keywords of our own around those of the library,
because a few references can ask for more work than any computer ever does.
"""

import copy
import functools
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast

import attrs

from mcp_trio.errors import SchemaError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# How mistakes in a value are told: in short lines, each with its place, and not too many.


_ODD_KEY: Final = re.compile(r"[^\w$@:/-]|\A\Z")


def path_step(key: str | int) -> str:
    """How a path goes on to a member, or to an item; keys come from the peer, and may be odd."""
    if isinstance(key, int):
        return f"[{key}]"
    return f"[{json.dumps(key)}]" if _ODD_KEY.search(key) else f".{key}"


def shown(lines: Sequence[str], limits: Limits) -> list[str]:
    """As many of the lines, and as much of each, as `limits` allow, and how many more there are.

    Nobody looks for more than `limits.messages.validation_error_members_max`, so there may be more
    than these.
    """
    kept = [
        it[: limits.messages.validation_error_chars_max]
        for it in lines[: limits.messages.validation_errors_max]
    ]
    if len(lines) == len(kept):
        return kept
    least = "at least " if len(lines) >= limits.messages.validation_error_members_max else ""
    return [*kept, f"and {least}{len(lines) - len(kept)} more"]


DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

# The library's class for each dialect; an empty fragment at the end of its name says nothing.
DIALECTS: Final = {
    DEFAULT_DIALECT: "Draft202012Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
}

_REFERENCES: Final = ("$ref", "$dynamicRef")


@attrs.define(eq=False)
class SchemaValidator:
    """A schema that somebody gave, ready to check values.

    Attributes:
        given: The schema; it is copied, and stays as it is.
        of: What lines call the value as a whole.
        limits: The bounds, and how many lines there may be and how long they are.

    Raises:
        SchemaError: It is too large, is no valid schema of its dialect, is of a dialect that is not
            known here, or refers to what lies outside of it.
    """

    given: Mapping[str, Any]
    of: str = attrs.field(default="value", kw_only=True)
    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True)
    _validator: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        _check_size(self.given, self.limits)
        try:
            self._validator = _validator(self.given)
        except RecursionError:
            raise SchemaError("schema nested too deeply") from None

    def check(self, value: Any) -> list[str]:
        """What is wrong with a plain JSON value: short lines, or none if the schema accepts it."""
        steps = _STEPS_LEFT.set(itertools.count(self.limits.messages.schema_steps_max, -1))
        mistakes: Iterator[Any] = self._validator.iter_errors(value)
        try:
            lines = sorted(
                map(
                    self._line,
                    itertools.islice(mistakes, self.limits.messages.validation_error_members_max),
                )
            )
        except RecursionError:
            lines = [f"{self.of}: nested too deeply"]
        except _TooManySteps:
            most = self.limits.messages.schema_steps_max
            lines = [
                f"{self.of}: takes too long to check (limits.messages.schema_steps_max={most})"
            ]
        finally:
            _STEPS_LEFT.reset(steps)
        return shown(lines, self.limits)

    def _line(self, mistake: Any) -> str:
        """From a `ValidationError` to "days[0]: 'x' is not of type 'integer'"."""
        path = "".join(map(path_step, mistake.absolute_path)).removeprefix(".") or self.of
        return " ".join(f"{path}: {mistake.message}".split())


# Reading a schema -------------------------------------------------------------------------------


def _check_size(schema: Mapping[str, Any], limits: Limits) -> None:
    """Refuse what is too large before anybody walks through it by recursion."""
    for count, (_, depth) in enumerate(_holders(schema), 1):
        if depth > limits.messages.schema_depth_max:
            raise SchemaError(
                "schema deeper than"
                f" limits.messages.schema_depth_max={limits.messages.schema_depth_max}"
            )
        if count > limits.messages.schema_objects_max:
            raise SchemaError(
                "schema larger than"
                f" limits.messages.schema_objects_max={limits.messages.schema_objects_max}"
            )


def _holders(schema: Any) -> Iterator[tuple[Any, int]]:
    """Every object and array inside, the whole itself first, and how deep it lies."""
    left = [(schema, 1)]
    while left:
        holder, depth = left.pop()
        yield holder, depth
        members: Iterable[Any] = holder.values() if hasattr(holder, "values") else holder
        left += [(it, depth + 1) for it in members if isinstance(it, Mapping | list | tuple)]


def _validator(given: Mapping[str, Any]) -> Any:
    """The library's validator of a copy of the schema."""
    from referencing.jsonschema import EMPTY_REGISTRY

    dialect = _dialect(given.get("$schema", DEFAULT_DIALECT))
    kind, schema = _kind(dialect), copy.deepcopy(dict(given))
    _check_valid(kind, schema)
    validator = kind(schema, registry=EMPTY_REGISTRY)
    _Reach(dialect, {id(holder) for holder, _ in _holders(schema)}).settle(schema, validator)
    return validator


def _dialect(named: Any) -> str:
    """The name of a dialect as it stands in `DIALECTS`."""
    dialect = named.removesuffix("#") if isinstance(named, str) else ""
    if dialect not in DIALECTS:
        raise SchemaError(f"unknown dialect {named!r}: one of {', '.join(DIALECTS)}")
    return dialect


def _check_valid(kind: Any, schema: dict[str, Any]) -> None:
    from jsonschema.exceptions import SchemaError as Invalid

    try:
        kind.check_schema(schema)
    except Invalid as error:
        path = "".join(map(path_step, error.absolute_path)).removeprefix(".") or "its root"
        raise SchemaError(f"invalid schema, at {path}: {error.message}") from error


@attrs.frozen(eq=False)
class _Reach:
    """All that a check can come to in one schema: its own parts, and what they refer to."""

    dialect: str
    own: Collection[int]

    def settle(self, schema: dict[str, Any], validator: Any) -> None:
        """Go through it once, before any check does.

        The name of the dialect is taken out of each part, for the library would go on there by its
        own keywords, which do not count. References come last, since to look one up is to read all
        parts.

        Raises:
            SchemaError: A part is of another dialect, or refers to what is not there.
        """
        from referencing.jsonschema import specification_with

        specification: Any = specification_with(self.dialect)
        settled: set[int] = set()
        parts: list[tuple[Any, Any]] = [(schema, validator._resolver)]  # noqa: SLF001 - no other way
        references: list[tuple[str, Any]] = []
        while parts or references:
            part, resolver = parts.pop() if parts else _looked_up(*references.pop())
            if id(part) not in self.own or id(part) in settled:
                continue
            settled.add(id(part))
            self._take_dialect_out(part)
            resolver = resolver.in_subresource(specification.create_resource(part))
            parts += [(inner, resolver) for inner in specification.subresources_of(part)]
            references += [(part[it], resolver) for it in _REFERENCES if it in part]

    def _take_dialect_out(self, part: dict[str, Any]) -> None:
        if _dialect(part.pop("$schema", self.dialect)) != self.dialect:
            raise SchemaError(f"a part is of another dialect than the whole, {self.dialect}")


def _looked_up(reference: str, resolver: Any) -> tuple[Any, Any]:
    from referencing.exceptions import Unresolvable

    try:
        found = resolver.lookup(reference)
    except Unresolvable:
        text = f"$ref {reference!r} leads nowhere in the schema, and nothing is fetched"
        raise SchemaError(text) from None
    contents: Any = found.contents
    if not isinstance(contents, dict | bool):
        raise SchemaError(f"$ref {reference!r} leads to what is no schema")
    return cast("Any", contents), found.resolver


# Counting ---------------------------------------------------------------------------------------


class _TooManySteps(Exception):  # noqa: N818 - never seen outside of this file
    """The check of one value looked at more keywords than `limits.messages.schema_steps_max`."""


_STEPS_LEFT: Final[ContextVar[Iterator[int]]] = ContextVar("steps_left")


@functools.cache
def _kind(dialect: str) -> Any:
    """The library's class for a dialect, with keywords that count."""
    from jsonschema import validators

    library: Any = validators
    kind = getattr(library, DIALECTS[dialect])
    counted = {name: _counted(keyword) for name, keyword in kind.VALIDATORS.items()}
    return library.extend(kind, counted)


def _counted(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def count_and_go_on(*arguments: Any) -> Any:
        if next(_STEPS_LEFT.get()) <= 0:
            raise _TooManySteps
        return keyword(*arguments)

    return count_and_go_on
