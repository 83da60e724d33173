"""Validation by JSON Schema within limits. No document is fetched.

The supported dialects are those of `DIALECTS` in `schema_keywords.py`. A schema without `$schema`
has dialect 2020-12, for every protocol version. A `$ref` must lead to a part of the schema itself,
or to a document that its dialect publishes; a schema with any other `$ref` is rejected.

The work is counted, because a few references, `uniqueItems` or a regular expression can require
more than any computer can do. `schema_keywords.py` reads the schema and has the keywords, each of
which counts its steps. There are limits on the depth of a schema, its number of objects and arrays,
the steps of reading it, the steps of checking one value, and the depth to which subschemas apply
within one another. The result depends on the schema and the value alone, never on time, so that a
replay gets the same.

https://modelcontextprotocol.io/specification/2025-11-25/basic#json-schema-usage
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import attrs

from mcp_trio._protocol.error_lines import path_step, shortened
from mcp_trio._protocol.schema_keywords import (
    Evaluation,
    Failure,
    Reader,
    Subschema,
    TooDeep,
    TooManySteps,
    dialect_of,
    failure_text,
)
from mcp_trio.errors import SchemaError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_FAILURES_OF_ONE_PATH_MAX: Final = 128


@attrs.define(eq=False, repr=False)
class SchemaValidator:
    """A schema, ready to validate values.

    Attributes:
        given: The schema; it is copied, and never changed.
        name: The name of the value in error texts.
        limits: The limits on schemas, and on the number and length of error texts.

    Raises:
        SchemaError: The schema is too large, is invalid, has an unsupported dialect, or refers to
            another document.
    """

    given: Mapping[str, Any]
    name: str = attrs.field(default="value", kw_only=True)
    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True)
    _root: Subschema = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            evaluation = self._new_evaluation()
            schema = _copied(self.given, evaluation, self.limits)
            dialect = dialect_of(schema.get("$schema", DEFAULT_DIALECT))
            self._root = Reader(dialect, evaluation, self.limits).read(schema)
        except TooDeep:
            raise SchemaError("schema nested too deeply") from None
        except UnicodeError as error:
            raise SchemaError(f"invalid schema: {error}") from None
        except TooManySteps:
            most = self.limits.messages.schema_steps_max
            raise SchemaError(
                f"schema takes too long to read (limits.messages.schema_steps_max={most})"
            ) from None

    def check(self, value: Any) -> list[str]:
        """Return a line of text for each error in a plain JSON value; none if it is valid."""
        evaluation = self._new_evaluation()
        evaluation.scope.append(self._root.resource)
        try:
            failures = self._root.failures(evaluation, value)
        except (RecursionError, TooDeep):
            return [f"{self.name}: nested too deeply"]
        except TooManySteps:
            most = self.limits.messages.schema_steps_max
            return [
                f"{self.name}: takes too long to check (limits.messages.schema_steps_max={most})"
            ]
        except UnicodeError as error:
            return [f"{self.name}: {error}"]
        return self._lines(failures) if failures else []

    def _new_evaluation(self) -> Evaluation:
        messages = self.limits.messages
        return Evaluation(
            messages.schema_steps_max,
            messages.schema_nesting_max,
            messages.validation_error_members_max,
        )

    def _lines(self, failures: Sequence[Failure]) -> list[str]:
        """Return the first lines of failures, in alphabetical order."""
        messages = self.limits.messages
        chars_max = messages.validation_error_chars_max
        by_path: dict[str, list[Failure]] = {}
        count = min(len(failures), messages.validation_error_members_max)
        for failure in failures[:count]:
            path = ""
            for step in reversed(failure.path):
                path += path_step(step[:chars_max] if isinstance(step, str) else step)
                if len(path) > chars_max:
                    break
            path = f"{path.removeprefix('.') or self.name}: "
            by_path.setdefault(path, []).append(failure)
        lines: list[str] = []
        for path in sorted(by_path):
            # For example: days[0]: 'x' is not of type 'integer'
            texts = (
                failure_text(failure, chars_max)
                for failure in by_path[path][:_FAILURES_OF_ONE_PATH_MAX]
            )
            lines += sorted(" ".join((path + text).split()) for text in texts)
            if len(lines) >= messages.validation_errors_max:
                break
        return shortened(lines, self.limits, count)


# Reading a schema.


def _copied(given: Mapping[str, Any], evaluation: Evaluation, limits: Limits) -> dict[str, Any]:
    """Return a copy that consists of JSON values only, made without recursion.

    Raises:
        SchemaError: The schema is too large, or has a value that is not a JSON value.
        TooManySteps: The schema has too many members.
    """
    messages = limits.messages
    schema: dict[str, Any] = {}
    remaining: list[tuple[Any, Any, int]] = [(given, schema, 1)]
    objects = 0
    while remaining:
        source, copy, depth = remaining.pop()
        objects += 1
        evaluation.spend(12 + (len(source) >> 1))
        if depth > messages.schema_depth_max:
            raise SchemaError(
                f"schema deeper than limits.messages.schema_depth_max={messages.schema_depth_max}"
            )
        if objects > messages.schema_objects_max:
            raise SchemaError(
                "schema larger than"
                f" limits.messages.schema_objects_max={messages.schema_objects_max}"
            )
        is_object = copy.__class__ is dict
        for key, member in source.items() if is_object else enumerate(source):
            part: Any = member
            kind = member.__class__
            if kind not in _SCALARS:
                if kind is dict or isinstance(member, Mapping | list | tuple):
                    part = {} if kind is dict or isinstance(member, Mapping) else []
                    remaining.append((cast("Any", member), part, depth + 1))
                else:
                    part = _scalar(member)
            if not is_object:
                copy.append(part)
            elif isinstance(key, str):
                copy[key] = part
            else:
                raise SchemaError(f"invalid schema: the key {key!r} is not a string")
    return schema


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _scalar(value: Any) -> str | int | float:
    """Return the plain value of an instance of a subclass, such as an enumeration's member."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise SchemaError(f"invalid schema: a value of class {type(value).__name__} is not JSON")
