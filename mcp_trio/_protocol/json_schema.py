"""Validation by JSON Schema within limits. No document is fetched.

The supported dialects are those of `DIALECTS`. A schema without `$schema` has dialect 2020-12, for
every protocol version. A `$ref` must lead to a part of the schema itself, or to a document that its
dialect publishes; a schema with any other `$ref` is rejected.

The work is counted, because a few references, `uniqueItems` or a regular expression can require
more than any computer can do: `schema_keywords.py` has the keywords, each of which counts its
steps. Limited are the depth of a schema, its number of objects and arrays, the steps of reading it,
the steps of checking one value, and the depth to which subschemas apply within one another. The
result depends on the schema and the value alone, never on time, so that a replay gets the same.

https://modelcontextprotocol.io/specification/2025-11-25/basic#json-schema-usage
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import attrs

from mcp_trio._protocol.error_lines import path_step, shortened
from mcp_trio._protocol.schema_keywords import (
    KEYWORDS,
    Check,
    Failure,
    Failures,
    Resource,
    Run,
    Subschema,
    TooDeep,
    TooManySteps,
    representation,
    text_of,
)
from mcp_trio.errors import SchemaError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

DIALECTS: Final = tuple(KEYWORDS)

_FAILURES_OF_ONE_PATH_MAX: Final = 128


@attrs.define(eq=False, repr=False)
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
    _root: Subschema = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            run = self._run()
            schema = _copied(self.given, run, self.limits)
            dialect = _dialect(schema.get("$schema", DEFAULT_DIALECT))
            self._root = _Reader(dialect, run, self.limits).read(schema)
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
        run = self._run()
        run.scope.append(self._root.resource)
        try:
            failures = self._root.failures(run, value)
        except (RecursionError, TooDeep):
            return [f"{self.of}: nested too deeply"]
        except TooManySteps:
            most = self.limits.messages.schema_steps_max
            return [f"{self.of}: takes too long to check (limits.messages.schema_steps_max={most})"]
        except UnicodeError as error:
            return [f"{self.of}: {error}"]
        return self._lines(failures) if failures else []

    def _run(self) -> Run:
        messages = self.limits.messages
        return Run(
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
            path = f"{path.removeprefix('.') or self.of}: "
            by_path.setdefault(path, []).append(failure)
        lines: list[str] = []
        for path in sorted(by_path):
            # For example: days[0]: 'x' is not of type 'integer'
            texts = (
                text_of(failure, chars_max) for failure in by_path[path][:_FAILURES_OF_ONE_PATH_MAX]
            )
            lines += sorted(" ".join((path + text).split()) for text in texts)
            if len(lines) >= messages.validation_errors_max:
                break
        return shortened(lines, self.limits, count)


# Reading a schema.


def _copied(given: Mapping[str, Any], run: Run, limits: Limits) -> dict[str, Any]:
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
        run.spend(12 + (len(source) >> 1))
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


def _dialect(named: Any) -> str:
    """Return the key of a dialect in `DIALECTS`."""
    dialect = named.removesuffix("#") if isinstance(named, str) else ""
    if dialect not in DIALECTS:
        raise SchemaError(
            f"unknown dialect {representation(named, 200)}: choose one of {', '.join(DIALECTS)}"
        )
    return dialect


_INDEX: Final = re.compile("[0-9]{1,9}")

_IDENTIFIERS: Final = frozenset(
    {"$schema", "id", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"}
)


def _is_false(_run: Run, value: Any) -> Failures:
    return [Failure("False schema does not allow {}", (value,))]


@attrs.define(eq=False, repr=False)
class _Reader:
    """Reads a schema part by part, without recursion, then looks up its references."""

    dialect: str
    run: Run
    limits: Limits
    _resources: dict[str, Resource] = attrs.field(factory=dict[str, Resource], init=False)
    _known: dict[int, Subschema] = attrs.field(factory=dict[int, Subschema], init=False)
    _unread: list[Subschema] = attrs.field(factory=list[Subschema], init=False)
    _references: list[tuple[str, Subschema, str, list[Subschema]]] = attrs.field(
        factory=list[tuple[str, Subschema, str, list[Subschema]]], init=False
    )

    def read(self, schema: dict[str, Any]) -> Subschema:
        """Return the root of the schema, with all that it can reach."""
        root = self._document("", schema)
        while self._unread or self._references:
            if self._unread:
                self._read(self._unread.pop())
            else:
                reference, subschema, keyword, target = self._references.pop()
                target.append(self._target(reference, subschema, keyword))
        return root

    def subschema(self, part: Any, parent: Subschema, *steps: str | int) -> Subschema:
        """Return the subschema at these steps below another one."""
        if part is True or part is False:
            checks = () if part else (_is_false,)
            return Subschema(part, parent.resource, parent, steps, checks)
        if part.__class__ is not dict:
            raise self.invalid(
                parent, steps, f"{representation(part, 80)} is not of type 'object', 'boolean'"
            )
        found = self._known.get(id(part))
        if found is None:
            self.run.spend(7)
            found = Subschema(part, parent.resource, parent, steps)
            self._known[id(part)] = found
            self._unread.append(found)
        return found

    def follow(self, reference: str, subschema: Subschema, keyword: str) -> list[Subschema]:
        """Return a list that has the target of a reference, once all is read."""
        self._check_length(reference, subschema, keyword)
        target: list[Subschema] = []
        self._references.append((reference, subschema, keyword, target))
        return target

    def invalid(self, subschema: Subschema, steps: Iterable[str | int], text: str) -> SchemaError:
        """Return an error about the schema, to be raised."""
        parts = [*steps]
        outer: Subschema | None = subschema
        while outer is not None:
            parts = [*outer.steps_below, *parts]
            outer = outer.parent
        path = "".join(map(path_step, parts)).removeprefix(".") or "its root"
        return SchemaError(f"invalid schema, at {path}: {text}")

    def _document(self, uri: str, schema: dict[str, Any]) -> Subschema:
        resource = Resource(uri)
        resource.root = Subschema(schema, resource)
        self._resources[uri] = resource
        self._known[id(schema)] = resource.root
        self._unread.append(resource.root)
        return resource.root

    def _read(self, subschema: Subschema) -> None:
        source: Any = subschema.source
        self.run.spend(8 + 8 * len(source))
        if "$ref" in source and "/draft-0" in self.dialect:
            # Until draft 7, all other keywords beside a reference are ignored.
            source = {key: source[key] for key in ("$ref", "definitions") if key in source}
        elif not _IDENTIFIERS.isdisjoint(source):
            self._identify(subschema)
        keywords = KEYWORDS[self.dialect]
        checks: list[Check] = []
        for key, value in source.items():
            if key in keywords:
                check = keywords[key](self, subschema, key, value)
                if check is not None:
                    checks.append(check)
        subschema.checks = tuple(checks)
        subschema.steps += len(checks)

    def _identify(self, subschema: Subschema) -> None:
        """Register the URI and the anchors of a subschema."""
        source: Any = subschema.source
        if "$schema" in source and _dialect(source["$schema"]) != self.dialect:
            raise SchemaError(f"a part of the schema has another dialect than {self.dialect}")
        key = "id" if "draft-04" in self.dialect else "$id"
        if key in source:
            given = source[key]
            if not isinstance(given, str):
                raise self.invalid(
                    subschema, [key], f"{representation(given, 80)} is not of type 'string'"
                )
            if given.startswith("#"):  # An anchor, until draft 7.
                subschema.resource.anchors[given[1:]] = subschema
            else:
                uri, _ = self._split(given, subschema, key)
                if subschema.resource.root is subschema:
                    subschema.resource.uri = uri
                else:
                    subschema.resource = Resource(uri, subschema)
                self._resources.setdefault(uri, subschema.resource)
        resource = subschema.resource
        for key in ("$anchor", "$dynamicAnchor"):
            if key in source and "/draft-0" not in self.dialect:
                if not isinstance(source[key], str):
                    raise self.invalid(
                        subschema,
                        [key],
                        f"{representation(source[key], 80)} is not of type 'string'",
                    )
                resource.anchors[source[key]] = subschema
                if key == "$dynamicAnchor":
                    resource.dynamic_anchors[source[key]] = subschema
        if source.get("$recursiveAnchor") is True and resource.root is subschema:
            resource.dynamic_anchors[""] = subschema

    def _check_length(self, reference: str, subschema: Subschema, keyword: str) -> None:
        most = self.limits.messages.uri_chars_max
        if len(reference) > most:
            text = f"a URI longer than limits.messages.uri_chars_max={most}"
            raise self.invalid(subschema, [keyword], text)

    def _split(self, reference: str, subschema: Subschema, keyword: str) -> tuple[str, str]:
        """Return the URI and the fragment of a reference, which may be relative."""
        self.run.spend(50)
        self._check_length(reference, subschema, keyword)
        try:
            uri, fragment = urldefrag(urljoin(subschema.resource.uri, reference))
            urlsplit(uri)  # Checks what the other functions take as it is.
        except ValueError as error:
            text = f"{_brief(reference)} is not a URI: {error}"
            raise self.invalid(subschema, [keyword], text) from None
        return uri, fragment

    def _target(self, reference: str, subschema: Subschema, keyword: str) -> Subschema:
        """Return the subschema to which a reference leads."""
        if reference.startswith("#"):
            resource: Resource | None = subschema.resource
            fragment = reference[1:]
        else:
            uri, fragment = self._split(reference, subschema, keyword)
            resource = self._resources.get(uri) or self._published(uri)
        if resource is None or resource.root is None:
            raise self._dead_end(reference)
        root = resource.root
        self.run.spend(4 + (len(fragment) >> 3))
        fragment = unquote(fragment)
        if not fragment.startswith("/"):
            found = resource.anchors.get(fragment) if fragment else root
            if found is None:
                raise self._dead_end(reference)
            return found
        # A JSON Pointer: https://www.rfc-editor.org/rfc/rfc6901
        part: Any = root.source
        nearest, steps = root, list[str]()
        for step in fragment[1:].split("/"):
            self.run.spend(2)
            key = step.replace("~1", "/").replace("~0", "~")
            if part.__class__ is dict and key in part:
                part = part[key]
            elif part.__class__ is list and _INDEX.fullmatch(key) and int(key) < len(part):
                part = part[int(key)]
            else:
                raise self._dead_end(reference)
            steps.append(key)
            known = self._known.get(id(part))
            if known is not None:
                nearest, steps = known, []
        if not isinstance(part, dict | bool):
            raise SchemaError(f"$ref {_brief(reference)} leads to a value that is not a schema")
        return nearest if not steps else self.subschema(part, nearest, *steps)

    def _published(self, uri: str) -> Resource | None:
        """Return a document of the dialect itself."""
        if not uri.startswith(self.dialect.removesuffix("schema")):
            return None
        import jsonschema_specifications as library  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

        specifications: Any = library
        document = specifications.REGISTRY.get(uri)
        return None if document is None else self._document(uri, document.contents).resource

    @staticmethod
    def _dead_end(reference: str) -> SchemaError:
        return SchemaError(
            f"$ref {_brief(reference)} leads nowhere in the schema, and nothing is fetched"
        )


def _brief(text: str) -> str:
    return repr(text[:200])
