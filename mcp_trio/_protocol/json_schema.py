"""Validation by JSON Schema within limits. No document is fetched.

The supported dialects are those of `DIALECTS`. A schema without `$schema` has dialect 2020-12, for
every protocol version. A `$ref` must lead to a part of the schema itself, or to a document that a
dialect publishes; a schema with any other `$ref` is rejected.

Three limits hold: the depth of a schema, its number of objects and arrays, and the number of
keywords that are evaluated for one value. The last is counted by wrapping the library's keywords,
because a few references can require more work than any computer can do.

https://modelcontextprotocol.io/specification/2025-11-25/basic#json-schema-usage
"""

import copy
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast

import attrs

from mcp_trio.errors import SchemaError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

# The library's class for each dialect, whose name may end with an empty fragment.
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
    """A schema, ready to validate values.

    Attributes:
        given: The schema; it is copied, and never changed.
        of: The name of the value in error texts.
        limits: The limits on schemas, and on the number and length of error texts.

    Raises:
        SchemaError: The schema is too large, is invalid, has an unsupported dialect, or refers to
            another document.
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
        """Return a line of text for each error in a plain JSON value; none if it is valid."""
        steps = _STEPS_LEFT.set(itertools.count(self.limits.messages.schema_steps_max, -1))
        errors: Iterator[Any] = self._validator.iter_errors(value)
        try:
            lines = sorted(
                map(
                    self._line,
                    itertools.islice(errors, self.limits.messages.validation_error_members_max),
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
        return shortened(lines, self.limits)

    def _line(self, error: Any) -> str:
        # For example: days[0]: 'x' is not of type 'integer'
        path = "".join(map(path_step, error.absolute_path)).removeprefix(".") or self.of
        return " ".join(f"{path}: {error.message}".split())


# Reading a schema.


def _check_size(schema: Mapping[str, Any], limits: Limits) -> None:
    """Check the size of a schema, before other code walks through it by recursion."""
    for count, (_, depth) in enumerate(_containers(schema), 1):
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


def _containers(schema: Any) -> Iterator[tuple[Any, int]]:
    """Yield every object and array with its depth, beginning with the schema itself."""
    remaining = [(schema, 1)]
    while remaining:
        container, depth = remaining.pop()
        yield container, depth
        members: Iterable[Any] = container.values() if hasattr(container, "values") else container
        remaining += [(it, depth + 1) for it in members if isinstance(it, Mapping | list | tuple)]


def _validator(given: Mapping[str, Any]) -> Any:
    """Return the library's validator for a copy of the schema."""
    from referencing.jsonschema import EMPTY_REGISTRY

    dialect = _dialect(given.get("$schema", DEFAULT_DIALECT))
    kind, schema = _validator_class(dialect), copy.deepcopy(dict(given))
    _check_valid(kind, schema)
    validator = kind(schema, registry=EMPTY_REGISTRY)
    _check_parts(schema, validator, dialect)
    return validator


def _dialect(named: Any) -> str:
    """Return the key of a dialect in `DIALECTS`."""
    dialect = named.removesuffix("#") if isinstance(named, str) else ""
    if dialect not in DIALECTS:
        raise SchemaError(f"unknown dialect {named!r}: choose one of {', '.join(DIALECTS)}")
    return dialect


def _check_valid(kind: Any, schema: dict[str, Any]) -> None:
    from jsonschema.exceptions import SchemaError as Invalid

    try:
        kind.check_schema(schema)
    except Invalid as error:
        path = "".join(map(path_step, error.absolute_path)).removeprefix(".") or "its root"
        raise SchemaError(f"invalid schema, at {path}: {error.message}") from error


def _check_parts(schema: dict[str, Any], validator: Any, dialect: str) -> None:
    """Visit, once, each part of the schema that a validation can reach; check its references.

    `$schema` is removed from each part, because the library would switch to its own keywords there,
    which are not counted. References are followed last: looking one up reads all parts.

    Raises:
        SchemaError: A part has another dialect, or a reference leads nowhere.
    """
    from referencing.jsonschema import specification_with

    specification: Any = specification_with(dialect)
    own = {id(container) for container, _ in _containers(schema)}
    visited: set[int] = set()
    parts: list[tuple[Any, Any]] = [(schema, validator._resolver)]  # noqa: SLF001 - no other way
    references: list[tuple[str, Any]] = []
    while parts or references:
        part, resolver = parts.pop() if parts else _resolve(*references.pop())
        if id(part) not in own or id(part) in visited:
            continue
        visited.add(id(part))
        if _dialect(part.pop("$schema", dialect)) != dialect:
            raise SchemaError(f"a part of the schema has another dialect than {dialect}")
        resolver = resolver.in_subresource(specification.create_resource(part))
        parts += [(inner, resolver) for inner in specification.subresources_of(part)]
        references += [(part[it], resolver) for it in _REFERENCES if it in part]


def _resolve(reference: str, resolver: Any) -> tuple[Any, Any]:
    from referencing.exceptions import Unresolvable

    try:
        found = resolver.lookup(reference)
    except Unresolvable:
        text = f"$ref {reference!r} leads nowhere in the schema, and nothing is fetched"
        raise SchemaError(text) from None
    contents: Any = found.contents
    if not isinstance(contents, dict | bool):
        raise SchemaError(f"$ref {reference!r} leads to a value that is not a schema")
    return cast("Any", contents), found.resolver


# Counting the evaluated keywords.


class _TooManySteps(Exception):  # noqa: N818 - caught in this module
    """The validation of a value has evaluated `limits.messages.schema_steps_max` keywords."""


_STEPS_LEFT: Final[ContextVar[Iterator[int]]] = ContextVar("steps_left")


@functools.cache
def _validator_class(dialect: str) -> Any:
    """Return the library's class for a dialect, with counted keywords."""
    from jsonschema import validators

    library: Any = validators
    kind = getattr(library, DIALECTS[dialect])
    counted = {name: _with_step_count(keyword) for name, keyword in kind.VALIDATORS.items()}
    return library.extend(kind, counted)


def _with_step_count(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def count_and_evaluate(*arguments: Any) -> Any:
        if next(_STEPS_LEFT.get()) <= 0:
            raise _TooManySteps
        return keyword(*arguments)

    return count_and_evaluate


# Error texts.

_UNUSUAL_KEY: Final = re.compile(r"[^\w$@:/-]|\A\Z")


def path_step(key: str | int) -> str:
    """Return the notation for a member or an item in a path; keys come from the peer."""
    if isinstance(key, int):
        return f"[{key}]"
    return f"[{json.dumps(key)}]" if _UNUSUAL_KEY.search(key) else f".{key}"


def shortened(lines: Sequence[str], limits: Limits) -> list[str]:
    """Return as many lines, and as much of each, as `limits` allow, and the number of the others.

    Callers stop searching at `limits.messages.validation_error_members_max` errors, so there may be
    more than the returned number.
    """
    kept = [
        it[: limits.messages.validation_error_chars_max]
        for it in lines[: limits.messages.validation_errors_max]
    ]
    if len(lines) == len(kept):
        return kept
    least = "at least " if len(lines) >= limits.messages.validation_error_members_max else ""
    return [*kept, f"and {least}{len(lines) - len(kept)} more"]
