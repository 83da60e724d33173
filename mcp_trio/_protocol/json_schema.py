"""Validation by JSON Schema within limits. No document is fetched.

The supported dialects are those of `DIALECTS`. A schema without `$schema` has dialect 2020-12, for
every protocol version. A `$ref` must lead to a part of the schema itself, or to a document that its
dialect publishes; a schema with any other `$ref` is rejected.

A `Dialect` has a function for each of its keywords. It reads the keyword of a schema, checks that
its value is valid, and returns a `Check` of values, or None if the keyword checks nothing.

The work is counted, because a few references, `uniqueItems` or a regular expression can require
more than any computer can do. Every check subtracts its work from `Evaluation.steps_left` before it
does it; a step is about 0.2 microseconds of work, and the numbers of steps in this module were
measured. There are also limits on the depth of a schema, its number of objects and arrays, and the
depth to which subschemas apply within one another. The result depends on the schema and the value
alone, never on time, so that a replay gets the same.

https://json-schema.org/draft/2020-12/json-schema-validation
https://modelcontextprotocol.io/specification/2025-11-25/basic#json-schema-usage
"""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import attrs
import msgspec

from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio._protocol.error_lines import path_step, shortened
from mcp_trio.errors import SchemaError
from mcp_trio.limits import DEFAULT_LIMITS, Limits


class TooManySteps(Exception):  # noqa: N818 - caught in this package
    """The check of a value, or the reading of a schema, needs more steps than allowed."""


class TooDeep(Exception):  # noqa: N818 - caught in this package
    """The check of a value needs more subschemas within one another than allowed."""


@attrs.define(eq=False, repr=False)
class Evaluation:
    """The evaluation of one value, or the reading of one schema: its remaining work and position.

    Attributes:
        steps_left: Steps that remain.
        depth_left: Subschemas that may still be entered within one another.
        failures_max: Failures after which a check stops searching for more.
        scope: The resources of the schema that the evaluation has entered, for `$dynamicRef`.
    """

    steps_left: int
    depth_left: int
    failures_max: int
    scope: list["Resource"] = attrs.field(factory=list["Resource"])

    def spend(self, steps: int) -> None:
        """Subtract these steps from those that remain.

        Raises:
            TooManySteps: Fewer steps remain.
        """
        self.steps_left -= steps
        if self.steps_left < 0:
            raise TooManySteps


@attrs.define(eq=False, repr=False)
class Failure:
    """A keyword that a value does not satisfy.

    Attributes:
        text: The format of the error text; `{}` stands for the representation of an argument.
        arguments: The values in the text; those in a tuple are listed without brackets.
        path: The path of the failing value, innermost step first.
    """

    text: str
    arguments: tuple[Any, ...] = ()
    path: list[str | int] = attrs.field(factory=list[str | int])


Failures: TypeAlias = "list[Failure] | None"
Check: TypeAlias = tuple[type | None, Callable[[Evaluation, Any], Failures]]
"""The class of the values that a keyword checks, None for all, and the function that checks one."""


@attrs.define(eq=False, repr=False)
class Resource:
    """A schema with a URI of its own, and the anchors in it."""

    uri: str
    root: "Subschema | None" = None
    anchors: dict[str, "Subschema"] = attrs.field(factory=dict[str, "Subschema"])
    dynamic_anchors: dict[str, "Subschema"] = attrs.field(factory=dict[str, "Subschema"])


@attrs.define(eq=False, repr=False)
class Subschema:
    """A part of a schema that is a schema itself.

    Attributes:
        source: The part, as given.
        resource: The resource to which it belongs.
        parent: The subschema in which it is.
        path: The path from the parent.
        checks: A check for each of its keywords that has one.
        steps: The steps that entering it costs.
        parts: What its keywords have read and other keywords need, by keyword: a subschema, a list
            or dict of them, or the function that finds one; and `patterns`, the compiled regular
            expressions of `patternProperties`.
    """

    source: Mapping[str, Any] | bool
    resource: Resource
    parent: "Subschema | None" = None
    path: tuple[str | int, ...] = ()
    checks: tuple[Check, ...] = ()
    steps: int = 3
    parts: dict[str, Any] = NO_ITEMS

    def add(self, key: str, part: Any) -> None:
        """Add an entry to `parts`."""
        if not self.parts:
            self.parts = {}
        self.parts[key] = part

    def failures(self, evaluation: Evaluation, value: Any) -> Failures:
        """Return the failures of all keywords for a value; None or an empty list if it is valid."""
        left = evaluation.steps_left - self.steps
        evaluation.steps_left = left
        if left < 0:
            raise TooManySteps
        if evaluation.depth_left <= 0:
            raise TooDeep
        evaluation.depth_left -= 1
        is_entered = self.resource is not evaluation.scope[-1]
        if is_entered:
            evaluation.scope.append(self.resource)
        found: Failures = None
        for kind, check in self.checks:
            if kind is not None and kind is not value.__class__:
                continue
            more = check(evaluation, value)
            if more:
                if found is None:
                    found = more
                elif len(found) < evaluation.failures_max:
                    evaluation.spend(len(more) >> 3)
                    found += more
        if is_entered:
            evaluation.scope.pop()
        evaluation.depth_left += 1
        return found


# Reading a schema.

_DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_INDEX: Final = re.compile("[0-9]{1,9}")

_IDENTIFIERS: Final = frozenset(
    {"$schema", "id", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"}
)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Dialect:
    """The facts of one dialect of JSON Schema. Nothing else compares the names of dialects.

    Attributes:
        uri: The value of `$schema`, without a `#` at its end.
        keywords: The function that reads each keyword.
        id_keyword: The keyword with the URI of a schema.
        has_anchors: Whether `$anchor` names a part of a schema.
        ignores_siblings_of_ref: Whether the other keywords beside `$ref` are ignored.
        has_integral_floats: Whether 1.0 is an integer.
        counts_contained: Whether `minContains` and `maxContains` bound how many items match
            `contains`.
        evaluates_contained: Whether `contains` evaluates the items that match it.
    """

    uri: str
    keywords: Mapping[str, "Keyword"]
    id_keyword: str = "$id"
    has_anchors: bool = True
    ignores_siblings_of_ref: bool = False
    has_integral_floats: bool = True
    counts_contained: bool = True
    evaluates_contained: bool = False


def dialect_of(named: Any) -> Dialect:
    """Return the dialect that `$schema` names.

    Raises:
        SchemaError: There is no such dialect.
    """
    dialect = DIALECTS.get(named.removesuffix("#")) if isinstance(named, str) else None
    if dialect is None:
        raise SchemaError(
            f"unknown dialect {representation(named, 200)}: choose one of {', '.join(DIALECTS)}"
        )
    return dialect


def _false_schema(_evaluation: Evaluation, value: Any) -> Failures:
    return [Failure("False schema does not allow {}", (value,))]


@attrs.define(eq=False, repr=False)
class Reader:
    """Reads a schema part by part, without recursion, then looks up its references."""

    dialect: Dialect
    evaluation: Evaluation
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

    def subschema(self, part: Any, parent: Subschema, *path: str | int) -> Subschema:
        """Return the subschema at this path from another one."""
        if part is True or part is False:
            checks = () if part else ((None, _false_schema),)
            return Subschema(part, parent.resource, parent, path, checks)
        if part.__class__ is not dict:
            text = f"{_brief(part)} is not of type 'object', 'boolean'"
            raise self.invalid(parent, path, text)
        found = self._known.get(id(part))
        if found is None:
            self.evaluation.spend(7)
            found = Subschema(part, parent.resource, parent, path)
            self._known[id(part)] = found
            self._unread.append(found)
        return found

    def follow(self, reference: str, subschema: Subschema, keyword: str) -> list[Subschema]:
        """Return a list that has the target of a reference, once all is read."""
        self._check_length(reference, subschema, keyword)
        target: list[Subschema] = []
        self._references.append((reference, subschema, keyword, target))
        return target

    def invalid(self, subschema: Subschema, path: Iterable[str | int], text: str) -> SchemaError:
        """Return an error, to be raised, about the part at this path from a subschema."""
        keys = [*path]
        outer: Subschema | None = subschema
        while outer is not None:
            keys = [*outer.path, *keys]
            outer = outer.parent
        place = "".join(map(path_step, keys)).removeprefix(".") or "its root"
        return SchemaError(f"invalid schema, at {place}: {text}")

    def _document(self, uri: str, schema: dict[str, Any]) -> Subschema:
        resource = Resource(uri)
        resource.root = Subschema(schema, resource)
        self._resources[uri] = resource
        self._known[id(schema)] = resource.root
        self._unread.append(resource.root)
        return resource.root

    def _read(self, subschema: Subschema) -> None:
        source: Any = subschema.source
        self.evaluation.spend(8 + 8 * len(source))
        if "$ref" in source and self.dialect.ignores_siblings_of_ref:
            source = {key: source[key] for key in ("$ref", "definitions") if key in source}
        elif not _IDENTIFIERS.isdisjoint(source):
            self._identify(subschema)
        keywords = self.dialect.keywords
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
        if "$schema" in source and dialect_of(source["$schema"]) is not self.dialect:
            raise SchemaError(f"a part of the schema has another dialect than {self.dialect.uri}")
        key = self.dialect.id_keyword
        if key in source:
            given = _expect(self, subschema, key, source[key], str)
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
            if key in source and self.dialect.has_anchors:
                name = _expect(self, subschema, key, source[key], str)
                resource.anchors[name] = subschema
                if key == "$dynamicAnchor":
                    resource.dynamic_anchors[name] = subschema
        if source.get("$recursiveAnchor") is True and resource.root is subschema:
            resource.dynamic_anchors[""] = subschema

    def _check_length(self, reference: str, subschema: Subschema, keyword: str) -> None:
        most = self.limits.messages.uri_chars_max
        if len(reference) > most:
            text = f"a URI longer than limits.messages.uri_chars_max={most}"
            raise self.invalid(subschema, [keyword], text)

    def _split(self, reference: str, subschema: Subschema, keyword: str) -> tuple[str, str]:
        """Return the URI and the fragment of a reference, which may be relative."""
        self.evaluation.spend(50)
        self._check_length(reference, subschema, keyword)
        try:
            uri, fragment = urldefrag(urljoin(subschema.resource.uri, reference))
            urlsplit(uri)  # The other functions do not parse a URI without a fragment.
        except ValueError as error:
            text = f"{representation(reference, 200)} is not a URI: {error}"
            raise self.invalid(subschema, [keyword], text) from None
        return uri, fragment

    def _target(self, reference: str, subschema: Subschema, keyword: str) -> Subschema:
        """Return the subschema to which a reference leads."""
        if reference.startswith("#"):
            resource: Resource | None = subschema.resource
            fragment = reference[1:]
        else:
            uri, fragment = self._split(reference, subschema, keyword)
            resource = self._resources.get(uri) or self._meta_schema(uri)
        if resource is None or resource.root is None:
            raise self._unresolved(reference)
        root = resource.root
        self.evaluation.spend(4 + (len(fragment) >> 3))
        fragment = unquote(fragment)
        if not fragment.startswith("/"):
            found = resource.anchors.get(fragment) if fragment else root
            if found is None:
                raise self._unresolved(reference)
            return found
        # A JSON Pointer: https://www.rfc-editor.org/rfc/rfc6901
        part: Any = root.source
        nearest, path = root, list[str]()
        for step in fragment[1:].split("/"):
            self.evaluation.spend(2)
            key = step.replace("~1", "/").replace("~0", "~")
            if part.__class__ is dict and key in part:
                part = part[key]
            elif part.__class__ is list and _INDEX.fullmatch(key) and int(key) < len(part):
                part = part[int(key)]
            else:
                raise self._unresolved(reference)
            path.append(key)
            known = self._known.get(id(part))
            if known is not None:
                nearest, path = known, []
        if not isinstance(part, dict | bool):
            raise SchemaError(
                f"$ref {representation(reference, 200)} leads to a value that is not a schema"
            )
        return nearest if not path else self.subschema(part, nearest, *path)

    def _meta_schema(self, uri: str) -> Resource | None:
        """Return a meta-schema of the dialect; None if the URI is not that of one."""
        if not uri.startswith(self.dialect.uri.removesuffix("schema")):
            return None
        import jsonschema_specifications as library  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

        specifications: Any = library
        document = specifications.REGISTRY.get(uri)
        return None if document is None else self._document(uri, document.contents).resource

    @staticmethod
    def _unresolved(reference: str) -> SchemaError:
        name = representation(reference, 200)
        return SchemaError(f"$ref {name} leads nowhere in the schema, and nothing is fetched")


# What the keywords have in common.

Keyword: TypeAlias = Callable[[Reader, Subschema, str, Any], Check | None]

_NUMBERS: Final = (int, float)


def _source(subschema: Subschema) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", subschema.source)


def _expect(
    reader: Reader, subschema: Subschema, path: str | Sequence[str], value: Any, kind: type
) -> Any:
    """Return the value of a keyword, or a part of it, which must be of a class."""
    if value.__class__ is not kind:
        name = {dict: "object", list: "array", str: "string", bool: "boolean"}[kind]
        path = [path] if isinstance(path, str) else path
        raise reader.invalid(subschema, path, f"{_brief(value)} is not of type {name!r}")
    return value


def _brief(value: Any) -> str:
    return representation(value, 80)


def _below(failures: list[Failure], evaluation: Evaluation, key: str | int) -> list[Failure]:
    """Add a step to the path of each failure."""
    evaluation.spend(4 * len(failures))
    for failure in failures:
        failure.path.append(key)
    return failures


def _check_all(
    evaluation: Evaluation, pairs: Iterable[tuple[str | int, Any, Subschema]]
) -> Failures:
    """Check members or items by a subschema each."""
    found: list[Failure] = []
    for key, value, subschema in pairs:
        more = subschema.failures(evaluation, value)
        if more:
            found += _below(more, evaluation, key)
            if len(found) >= evaluation.failures_max:
                break
    return found


def _joined(evaluation: Evaluation, groups: Iterable[Failures]) -> Failures:
    """Return the failures of all groups, up to the maximal number."""
    found: list[Failure] = []
    for failures in groups:
        found += failures or ()
        if len(found) >= evaluation.failures_max:
            break
    return found


def _was_or_were(number: int) -> str:
    return "was" if number == 1 else "were"


# Values: types, equality, regular expressions, representations.

_TYPES: Final[dict[str, frozenset[type]]] = {
    "null": frozenset({type(None)}),
    "boolean": frozenset({bool}),
    "object": frozenset({dict}),
    "array": frozenset({list}),
    "number": frozenset({int, float}),
    "integer": frozenset({int}),
    "string": frozenset({str}),
}

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_MAYBE_INTEGRAL: Final = re.compile(rb"[0-9]\.0|[0-9][eE]")


def canonical(evaluation: Evaluation, value: Any) -> bytes:
    """Return a text that is the same for equal JSON values, and for no others.

    A text, because its hash is random: an attacker cannot find values with the same hash.
    """
    if value.__class__ is int:
        evaluation.spend(3 + (value.bit_length() >> 6))
        return str(value).encode()
    try:
        text = _ENCODER.encode(value)
    except OverflowError:
        text = None
    if text is not None:
        evaluation.spend(4 + (len(text) >> 5))
        if _MAYBE_INTEGRAL.search(text) is None:
            return text
    evaluation.spend(4)
    return _ENCODER.encode(_with_integers(evaluation, value))


def _canonical_items(evaluation: Evaluation, items: list[Any]) -> set[bytes]:
    """Return the texts of all items by `canonical`, in a third of the time for most lists."""
    try:
        text = _ENCODER.encode(items)
    except OverflowError:
        text = None
    if text is None or _MAYBE_INTEGRAL.search(text) is not None:
        return {canonical(evaluation, item) for item in items}
    evaluation.spend(len(items) + (len(text) >> 5))
    return set(map(_ENCODER.encode, items))


def _with_integers(evaluation: Evaluation, value: Any) -> Any:
    """Return the value with 1 in place of 1.0, and with the text of large integers."""
    evaluation.spend(4)
    if evaluation.depth_left <= 0:
        raise TooDeep
    evaluation.depth_left -= 1
    result = value
    if value.__class__ is int or (value.__class__ is float and value.is_integer()):
        result = msgspec.Raw(str(int(value)))
    elif value.__class__ is list:
        result = [_with_integers(evaluation, item) for item in value]
    elif value.__class__ is dict:
        result = {key: _with_integers(evaluation, member) for key, member in value.items()}
    evaluation.depth_left += 1
    return result


_REGEX_BYTES_MAX: Final = 512 * 1024
_ECMA_ESCAPE: Final = re.compile(
    r"\\(?:u\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})|c([A-Za-z])|.)", re.DOTALL
)


@attrs.define(eq=False, repr=False)
class Pattern:
    """A regular expression whose search takes time in proportion to the text.

    RE2 has neither look-around nor back references, which cannot be searched in linear time.

    Raises:
        ValueError: RE2 cannot read the regular expression.
    """

    source: str
    reading_steps: int = attrs.field(init=False)
    _compiled: Any = attrs.field(init=False)
    _steps_per_byte: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        import re2 as library  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

        re2: Any = library
        options = re2.Options()
        options.max_mem = _REGEX_BYTES_MAX
        options.log_errors = False
        try:
            self._compiled = re2.compile(_ECMA_ESCAPE.sub(_re2_escape, self.source), options)
        except re2.error as error:
            (text,) = error.args
            reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            raise ValueError(reason) from None
        self.reading_steps = 200 + 2 * self._compiled.programsize
        # Measured: in the worst case, RE2 takes 11 ns for each byte and instruction.
        self._steps_per_byte = self._compiled.programsize / 32

    def finds(self, evaluation: Evaluation, text: str) -> bool:
        """Return whether a part of the text matches."""
        encoded = text.encode("utf-8", "surrogatepass")
        evaluation.spend(16 + int(len(encoded) * self._steps_per_byte))
        return self._compiled.search(encoded) is not None


def _re2_escape(found: re.Match[str]) -> str:
    """Return an escape of ECMA-262 as RE2 writes it."""
    code = found[1] or found[2]
    if found[3]:
        code = f"{ord(found[3]) % 32:x}"
    return rf"\x{{{code}}}" if code else found[0]


def representation(value: Any, chars: int) -> str:
    """Return the first characters, or a few more, of Python's representation of a JSON value."""
    return "".join(_pieces(value, [chars], 32))


def _pieces(value: Any, room: list[int], depth: int) -> Iterator[str]:
    """Yield the pieces of a representation, until no room is left."""
    if value.__class__ is dict or value.__class__ is list:
        opening, closing = "{}" if value.__class__ is dict else "[]"
        yield opening
        for number, member in enumerate(value):
            room[0] -= 1
            if room[0] <= 0 or not depth:
                yield "…"
                break
            yield ", " if number else ""
            yield from _pieces(member, room, depth - 1)
            if value.__class__ is dict:
                yield ": "
                yield from _pieces(value[member], room, depth - 1)
        yield closing
        return
    if isinstance(value, str):
        text = repr(value[: max(room[0], 1)])
    elif isinstance(value, int) and value.bit_length() > 4 * max(room[0], 16):
        text = f"0x{value >> (value.bit_length() - 64):x}…"
    else:
        text = repr(value)
    room[0] -= len(text)
    yield text


def failure_text(failure: Failure, chars: int) -> str:
    """Return the text of a failure; of one that is longer than `chars`, at least so much."""
    texts: list[str] = []
    for argument in failure.arguments:
        shown: list[str] = []
        room = chars
        for value in cast(
            "Sequence[Any]", argument if isinstance(argument, tuple) else (argument,)
        ):
            shown.append(representation(value, chars))
            room -= len(shown[-1])
            if room <= 0:
                break
        texts.append(", ".join(shown))
    return failure.text.format(*texts)


# Keywords for values of every type.


def _type(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    names: list[Any] = value if value.__class__ is list else [value]
    if not 0 < len(names) <= len(_TYPES):
        raise reader.invalid(subschema, [key], f"{_brief(value)} is not a list of different types")
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise reader.invalid(subschema, [key], f"{_brief(name)} is not valid: no such type")
    return _type_check(tuple(names), has_integral_floats=reader.dialect.has_integral_floats)


@functools.lru_cache(maxsize=256)
def _type_check(names: tuple[str, ...], *, has_integral_floats: bool) -> Check:
    classes = frozenset[type]().union(*(_TYPES[name] for name in names))
    is_float_allowed = has_integral_floats and "integer" in names and float not in classes
    text = f"{{}} is not of type {', '.join(map(repr, names))}"

    def check(_evaluation: Evaluation, instance: Any) -> Failures:
        kind = instance.__class__
        if kind in classes or (is_float_allowed and kind is float and instance.is_integer()):
            return None
        return [Failure(text, (instance,))]

    return None, check


def _enum(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    _expect(reader, subschema, key, value, list)
    allowed = {canonical(reader.evaluation, option) for option in value}

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if canonical(evaluation, instance) in allowed:
            return None
        return [Failure("{} is not one of {}", (instance, value))]

    return None, check


def _const(reader: Reader, _subschema: Subschema, _key: str, value: Any) -> Check | None:
    expected = canonical(reader.evaluation, value)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if canonical(evaluation, instance) == expected:
            return None
        return [Failure("{} was expected", (value,))]

    return None, check


# Keywords for numbers.


_BOUNDS: Final[dict[str, tuple[Callable[[Any, Any], Any], str]]] = {
    "minimum": (operator.lt, "{} is less than the minimum of {}"),
    "maximum": (operator.gt, "{} is greater than the maximum of {}"),
    "exclusiveMinimum": (operator.le, "{} is less than or equal to the minimum of {}"),
    "exclusiveMaximum": (operator.ge, "{} is greater than or equal to the maximum of {}"),
}


def _bound(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    if value.__class__ not in _NUMBERS:
        raise reader.invalid(subschema, [key], f"{_brief(value)} is not of type 'number'")
    fails, text = _BOUNDS[key]

    def check(_evaluation: Evaluation, instance: Any) -> Failures:
        if instance.__class__ in _NUMBERS and fails(instance, value):
            return [Failure(text, (instance, value))]
        return None

    return None, check


def _bound_draft_4(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    """Read a bound that a second keyword, a boolean, excludes."""
    exclusive = "exclusive" + key[0].upper() + key[1:]
    if _source(subschema).get(exclusive, False) is not True:
        return _bound(reader, subschema, key, value)
    return _bound(reader, subschema, exclusive, value)


def _multiple_of(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    if value.__class__ not in _NUMBERS or not 0 < value < float("inf"):
        raise reader.invalid(subschema, [key], f"{_brief(value)} is not a number above 0")
    value_bits = int(value).bit_length()

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if instance.__class__ not in _NUMBERS:
            return None
        if instance.__class__ is int and value.__class__ is int:
            evaluation.spend(instance.bit_length() * value_bits >> 18)
            is_multiple = instance % value == 0
        else:
            evaluation.spend(40 + (value_bits >> 8))
            is_multiple = _is_decimal_multiple(instance, value)
        return None if is_multiple else [Failure("{} is not a multiple of {}", (instance, value))]

    return None, check


def _is_decimal_multiple(instance: float, value: float) -> bool:
    """Return whether one number is a multiple of another, as both are written."""
    try:
        (digits, exponent), (divisor, divisor_exponent) = _decimal(instance), _decimal(value)
    except ValueError:  # An infinite number; JSON has none.
        return False
    least = min(exponent, divisor_exponent)
    scaled = digits * 10 ** (exponent - least)
    is_multiple: bool = scaled % (divisor * 10 ** (divisor_exponent - least)) == 0
    return is_multiple


def _decimal(number: float) -> tuple[int, int]:
    """Return the digits of a number as an integer, and the exponent of ten."""
    if isinstance(number, int):
        return number, 0
    mantissa, _, exponent = repr(number).partition("e")
    whole, _, fraction = mantissa.partition(".")
    return int(whole + fraction), int(exponent or 0) - len(fraction)


# Keywords for sizes.

# The class of the values, whether the limit is a minimum, and the error text. Then the error text
# for one special limit, and that limit.
_SIZES: Final[dict[str, tuple[type, bool, str, str, int]]] = {
    "minLength": (str, True, "is too short", "should be non-empty", 1),
    "maxLength": (str, False, "is too long", "is expected to be empty", 0),
    "minItems": (list, True, "is too short", "should be non-empty", 1),
    "maxItems": (list, False, "is too long", "is expected to be empty", 0),
    "minProperties": (dict, True, "does not have enough properties", "should be non-empty", 1),
    "maxProperties": (dict, False, "has too many properties", "is expected to be empty", 0),
}


def _count(reader: Reader, subschema: Subschema, key: str) -> Any:
    """Return the value of a keyword that must be a count."""
    value = _source(subschema)[key]
    if value.__class__ not in _NUMBERS or value != value // 1 or value < 0:
        raise reader.invalid(subschema, [key], f"{_brief(value)} is not an integer of at least 0")
    return value


def _size(reader: Reader, subschema: Subschema, key: str, _value: Any) -> Check | None:
    value = _count(reader, subschema, key)
    kind, is_minimum, usual_text, special_text, special_limit = _SIZES[key]
    text = "{} " + (special_text if value == special_limit else usual_text)

    def check(_evaluation: Evaluation, instance: Any) -> Failures:
        size = len(cast("list[Any]", instance))
        fails = size < value if is_minimum else size > value
        return [Failure(text, (instance,))] if fails else None

    return kind, check


# Keywords for strings.


def _compiled_pattern(
    reader: Reader, subschema: Subschema, path: Sequence[str], source: Any
) -> Pattern:
    try:
        pattern = Pattern(source)
    except ValueError as error:
        text = (
            f"{_brief(source)} is not a regular expression that can be searched in linear time,"
            f" without look-around and back references: {error}"
        )
        raise reader.invalid(subschema, path, text) from None
    reader.evaluation.spend(pattern.reading_steps)
    return pattern


def _pattern(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    pattern = _compiled_pattern(
        reader, subschema, [key], _expect(reader, subschema, key, value, str)
    )

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if not pattern.finds(evaluation, instance):
            return [Failure("{} does not match {}", (instance, value))]
        return None

    return str, check


# Keywords for arrays.


def _items(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    """Read `items` of 2020-12, for the items after those of `prefixItems`."""
    source = _source(subschema)
    prefix = _expect(reader, subschema, "prefixItems", source.get("prefixItems", []), list)
    return _rest_of_items(reader, subschema, key, value, len(prefix))


def _rest_of_items(
    reader: Reader, subschema: Subschema, key: str, value: Any, prefix: int
) -> Check | None:
    """Read a keyword whose schema is for all items after the first `prefix` ones."""
    rest = reader.subschema(value, subschema, key)
    subschema.add(key, rest)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if len(instance) <= prefix:
            return None
        if value is False:
            extra = instance[prefix:]
            evaluation.spend(len(extra) >> 4)
            if key == "additionalItems":
                verb = _was_or_were(len(extra))
                text = f"Additional items are not allowed ({{}} {verb} unexpected)"
                return [Failure(text, (tuple(extra),))]
            noun = "items" if prefix != 1 else "item"
            text = f"Expected at most {prefix} {noun} but found {len(extra)} extra: {{}}"
            return [Failure(text, (extra if len(extra) != 1 else extra[0],))]
        return _check_all(
            evaluation, ((index, instance[index], rest) for index in range(prefix, len(instance)))
        )

    return list, check


def _prefix_items(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    _expect(reader, subschema, key, value, list)
    prefix = [reader.subschema(part, subschema, key, number) for number, part in enumerate(value)]
    subschema.add(key, prefix)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        pairs = zip(instance, prefix, strict=False)
        return _check_all(
            evaluation, ((index, item, part) for index, (item, part) in enumerate(pairs))
        )

    return list, check


def _items_until_2019_09(
    reader: Reader, subschema: Subschema, key: str, value: Any
) -> Check | None:
    """Read `items` of the dialects before 2020-12: a schema for all, or a list of schemas."""
    if isinstance(value, list):
        return _prefix_items(reader, subschema, key, value)
    return _rest_of_items(reader, subschema, key, value, 0)


def _additional_items(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    items: Any = _source(subschema).get("items")
    if items.__class__ is not list:
        reader.subschema(value, subschema, key)
        return None
    return _rest_of_items(reader, subschema, key, value, len(items))


def _contains(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    part = reader.subschema(value, subschema, key)
    has_counts = reader.dialect.counts_contained
    if reader.dialect.evaluates_contained:
        subschema.add(key, part)
    least = most = None
    if has_counts and "minContains" in _source(subschema):
        least = _count(reader, subschema, "minContains")
    if has_counts and "maxContains" in _source(subschema):
        most = _count(reader, subschema, "maxContains")

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        matches = 0
        for item in instance:
            if not part.failures(evaluation, item):
                matches += 1
                if most is not None and matches > most:
                    text = "Too many items match the given schema (expected at most {})"
                    return [Failure(text, (most,))]
        if matches >= (1 if least is None else least):
            return None
        if not has_counts:
            return [Failure("None of {} are valid under the given schema", (instance,))]
        if not matches:
            return [Failure("{} does not contain items matching the given schema", (instance,))]
        text = "Too few items match the given schema (expected at least {} but only {} matched)"
        return [Failure(text, (least, matches))]

    return list, check


def _unique_items(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    if not _expect(reader, subschema, key, value, bool):
        return None

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        evaluation.spend(len(instance))
        if len(_canonical_items(evaluation, instance)) == len(instance):
            return None
        return [Failure("{} has non-unique elements", (instance,))]

    return list, check


# Keywords for objects.


def _subschemas(reader: Reader, subschema: Subschema, key: str, value: Any) -> dict[str, Subschema]:
    """Read a keyword whose value is an object of schemas."""
    _expect(reader, subschema, key, value, dict)
    parts = {name: reader.subschema(part, subschema, key, name) for name, part in value.items()}
    subschema.add(key, parts)
    return parts


def _properties(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    properties = _subschemas(reader, subschema, key, value)
    subschema.steps += len(properties) >> 3

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        found: list[Failure] = []
        for name, part in properties.items():
            if name in instance:
                more = part.failures(evaluation, instance[name])
                if more:
                    found += _below(more, evaluation, name)
                    if len(found) >= evaluation.failures_max:
                        break
        return found

    return dict, check


def _patterns(reader: Reader, subschema: Subschema, source: Any) -> list[tuple[Pattern, str]]:
    key = "patternProperties"
    _expect(reader, subschema, key, source, dict)
    # Two keywords use them; they are compiled once.
    if "patterns" not in subschema.parts:
        compiled = [
            (_compiled_pattern(reader, subschema, [key, name], name), name) for name in source
        ]
        subschema.add("patterns", compiled)
    patterns: list[tuple[Pattern, str]] = subschema.parts["patterns"]
    return patterns


def _pattern_properties(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    patterns = _patterns(reader, subschema, value)
    parts = _subschemas(reader, subschema, key, value)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        return _check_all(
            evaluation,
            (
                (name, member, parts[source])
                for pattern, source in patterns
                for name, member in instance.items()
                if pattern.finds(evaluation, name)
            ),
        )

    return dict, check


def _additional_properties(
    reader: Reader, subschema: Subschema, key: str, value: Any
) -> Check | None:
    part = reader.subschema(value, subschema, key)
    subschema.add(key, part)
    source = _source(subschema)
    known = frozenset[str](
        _expect(reader, subschema, "properties", source.get("properties", {}), dict)
    )
    given = source.get("patternProperties")
    patterns = [] if given is None else _patterns(reader, subschema, given)
    sources = tuple(sorted(name for _, name in patterns))

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if value is True:
            return None
        evaluation.spend(len(instance))
        extras = [
            name
            for name in instance
            if name not in known
            and not any(pattern.finds(evaluation, name) for pattern, _ in patterns)
        ]
        if value is not False:
            return _check_all(evaluation, ((name, instance[name], part) for name in extras))
        if not extras:
            return None
        evaluation.spend(2 * len(extras))
        names = tuple(sorted(extras))
        if patterns:
            verb = "does" if len(extras) == 1 else "do"
            text = f"{{}} {verb} not match any of the regexes: {{}}"
            return [Failure(text, (names, sources))]
        text = (
            f"Additional properties are not allowed ({{}} {_was_or_were(len(extras))} unexpected)"
        )
        return [Failure(text, (names,))]

    return dict, check


def _property_names(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    part = reader.subschema(value, subschema, key)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        return _joined(evaluation, (part.failures(evaluation, name) for name in instance))

    return dict, check


def _names(reader: Reader, subschema: Subschema, path: Sequence[str], value: Any) -> list[str]:
    """Return the value of a keyword that must be an array of strings."""
    names: list[str] = _expect(reader, subschema, path, value, list)
    reader.evaluation.spend(len(names))
    for name in names:
        _expect(reader, subschema, path, name, str)
    return names


def _required(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    names = _names(reader, subschema, [key], value)
    subschema.steps += len(names) >> 2

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        missing = [name for name in names if name not in instance]
        evaluation.spend(len(missing))
        return [
            Failure("{} is a required property", (name,))
            for name in missing[: evaluation.failures_max]
        ]

    return dict, check


def _dependencies(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    """Read the requirements of a present property: other properties, or a schema."""
    _expect(reader, subschema, key, value, dict)
    names: dict[str, list[str]] = {}
    parts: dict[str, Subschema] = {}
    for name, needed in value.items():
        if key == "dependentRequired" or (key == "dependencies" and isinstance(needed, list)):
            names[name] = _names(reader, subschema, [key, name], needed)
        else:
            parts[name] = reader.subschema(needed, subschema, key, name)
    subschema.add(key, parts)
    subschema.steps += len(value) >> 2

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        found: list[Failure] = []
        for name, needed in names.items():
            if name in instance:
                evaluation.spend(len(needed))
                found += (
                    Failure("{} is a dependency of {}", (each, name))
                    for each in needed
                    if each not in instance
                )
        for name, part in parts.items():
            if name in instance and len(found) < evaluation.failures_max:
                found += part.failures(evaluation, instance) or ()
        return found

    return dict, check


# Keywords that apply subschemas to the same value.


def _branches(reader: Reader, subschema: Subschema, key: str, value: Any) -> list[Subschema]:
    _expect(reader, subschema, key, value, list)
    if not value:
        raise reader.invalid(subschema, [key], "[] should be non-empty")
    branches = [reader.subschema(part, subschema, key, number) for number, part in enumerate(value)]
    subschema.add(key, branches)
    return branches


def _all_of(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    branches = _branches(reader, subschema, key, value)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        return _joined(evaluation, (branch.failures(evaluation, instance) for branch in branches))

    return None, check


def _any_of(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    branches = _branches(reader, subschema, key, value)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        for branch in branches:
            if not branch.failures(evaluation, instance):
                return None
        return [Failure("{} is not valid under any of the given schemas", (instance,))]

    return None, check


def _one_of(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    branches = _branches(reader, subschema, key, value)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        valid = [branch.source for branch in branches if not branch.failures(evaluation, instance)]
        if len(valid) == 1:
            return None
        if not valid:
            return [Failure("{} is not valid under any of the given schemas", (instance,))]
        return [Failure("{} is valid under each of {}", (instance, (*valid[1:], valid[0])))]

    return None, check


def _not(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    part = reader.subschema(value, subschema, key)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if part.failures(evaluation, instance):
            return None
        return [Failure("{} should not be valid under {}", (instance, value))]

    return None, check


def _subschema(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    """Read a subschema that this keyword does not apply itself: `if` applies `then` and `else`."""
    subschema.add(key, reader.subschema(value, subschema, key))
    return None


def _if(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    condition = reader.subschema(value, subschema, key)
    subschema.add(key, condition)
    parts = subschema.parts

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        chosen = parts.get("else" if condition.failures(evaluation, instance) else "then")
        return None if chosen is None else chosen.failures(evaluation, instance)

    return None, check


def _definitions(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    """Read schemas that apply where they are referred to."""
    _subschemas(reader, subschema, key, value)
    return None


# References.


def _reference(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    target = reader.follow(_expect(reader, subschema, key, value, str), subschema, key)
    subschema.add(key, target)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        return target[0].failures(evaluation, instance)

    return None, check


def _dynamic_reference(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    """Read a reference that the outermost resource with the same dynamic anchor answers.

    https://json-schema.org/draft/2020-12/json-schema-core#name-dynamic-references-with-dyn
    """
    target = reader.follow(_expect(reader, subschema, key, value, str), subschema, key)
    name = "" if key == "$recursiveRef" else value.partition("#")[2]

    def dynamic_target(evaluation: Evaluation) -> Subschema:
        found = target[0]
        if found.resource.dynamic_anchors.get(name) is not found:
            return found
        evaluation.spend(len(evaluation.scope) >> 2)
        return next(
            (it.dynamic_anchors[name] for it in evaluation.scope if name in it.dynamic_anchors),
            found,
        )

    subschema.add(key, dynamic_target)

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        return dynamic_target(evaluation).failures(evaluation, instance)

    return None, check


# Keywords for members and items that no other keyword has evaluated.


def _applied(subschema: Subschema, evaluation: Evaluation, instance: Any) -> Iterator[Subschema]:
    """Yield the subschemas that apply to the same value, and that it satisfies."""
    parts = subschema.parts
    yield from parts.get("$ref", ())
    for key in ("$dynamicRef", "$recursiveRef"):
        if key in parts:
            yield parts[key](evaluation)
    yield from parts.get("allOf", ())
    for key in ("anyOf", "oneOf"):
        for branch in parts.get(key, ()):
            if not branch.failures(evaluation, instance):
                yield branch
    if "if" in parts:
        is_satisfied = not parts["if"].failures(evaluation, instance)
        if is_satisfied:
            yield parts["if"]
        chosen = parts.get("then" if is_satisfied else "else")
        if chosen is not None:
            yield chosen
    for name, part in parts.get("dependentSchemas", {}).items():
        evaluation.spend(1)
        if name in instance:
            yield part


_EvaluatedBy: TypeAlias = Callable[[Subschema, Evaluation, Any], set[Any]]
"""A function that returns the members, or the items, that a subschema's own keywords evaluate."""


def _evaluated(
    subschema: Subschema,
    evaluation: Evaluation,
    instance: Any,
    evaluated_by: _EvaluatedBy,
    ignored: str = "",
) -> set[Any]:
    """Return the members or items that a subschema evaluates, or one that it applies does.

    `ignored` is the keyword of the subschema that asks, and so does not count.
    """
    evaluation.spend(16 + len(instance))
    if evaluation.depth_left <= 0:
        raise TooDeep
    evaluation.depth_left -= 1
    parts = subschema.parts
    if any(key in parts and key != ignored for key in _EVALUATE_ALL[evaluated_by]):
        found = set[Any](instance if instance.__class__ is dict else range(len(instance)))
    else:
        found = evaluated_by(subschema, evaluation, instance)
        for applied in _applied(subschema, evaluation, instance):
            found |= _evaluated(applied, evaluation, instance, evaluated_by)
    evaluation.depth_left += 1
    return found


def _evaluated_properties(subschema: Subschema, evaluation: Evaluation, instance: Any) -> set[Any]:
    properties = subschema.parts.get("properties", {})
    patterns = subschema.parts.get("patterns", ())
    found = {name for name in instance if name in properties}
    if patterns:
        evaluation.spend(2 * len(instance))
        found |= {
            name for name in instance if any(it.finds(evaluation, name) for it, _ in patterns)
        }
    return found


def _evaluated_items(subschema: Subschema, evaluation: Evaluation, instance: Any) -> set[Any]:
    parts = subschema.parts
    items = parts.get("items", ())
    if isinstance(items, Subschema):
        return set(range(len(instance)))
    prefix = parts.get("prefixItems", items)
    found = set(range(min(len(prefix), len(instance))))
    if "contains" in parts:
        contains = parts["contains"]
        found |= {
            index for index, it in enumerate(instance) if not contains.failures(evaluation, it)
        }
    return found


_EVALUATE_ALL: Final[Mapping[_EvaluatedBy, Sequence[str]]] = {
    _evaluated_properties: ("additionalProperties", "unevaluatedProperties"),
    _evaluated_items: ("additionalItems", "unevaluatedItems"),
}


def _unevaluated(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
    part = reader.subschema(value, subschema, key)
    subschema.add(key, part)
    are_items = key == "unevaluatedItems"
    kind: type[Any] = list if are_items else dict
    evaluated_by = _evaluated_items if are_items else _evaluated_properties

    def check(evaluation: Evaluation, instance: Any) -> Failures:
        if value is True:
            return None
        evaluated = _evaluated(subschema, evaluation, instance, evaluated_by, key)
        evaluation.spend(len(instance))
        members: Any = instance
        left = [
            (key_or_index, member)
            for key_or_index, member in (enumerate(members) if are_items else members.items())
            if key_or_index not in evaluated and part.failures(evaluation, member)
        ]
        if not left:
            return None
        verb = _was_or_were(len(left))
        if are_items:
            text = f"Unevaluated items are not allowed ({{}} {verb} unexpected)"
            return [Failure(text, (tuple(item for _, item in left),))]
        names = [name for name, _ in left]
        if value is False:
            evaluation.spend(len(names))
            text = f"Unevaluated properties are not allowed ({{}} {verb} unexpected)"
            return [Failure(text, (tuple(sorted(names)),))]
        text = (
            "Unevaluated properties are not valid under the given schema"
            f" ({{}} {verb} unevaluated and invalid)"
        )
        return [Failure(text, (tuple(names),))]

    return kind, check


# Keywords without a check: only their own value has to be valid.


def _annotation(kind: type) -> Keyword:
    """Return a keyword whose value must be of a class."""

    def keyword(reader: Reader, subschema: Subschema, key: str, value: Any) -> Check | None:
        _expect(reader, subschema, key, value, kind)
        return None

    return keyword


# The dialects.

_DRAFT_4: Final[Mapping[str, Keyword]] = {
    **dict.fromkeys(("$schema", "title", "description", "format"), _annotation(str)),
    **dict.fromkeys(_SIZES, _size),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _annotation(bool)),
    **dict.fromkeys(("minimum", "maximum"), _bound_draft_4),
    "$ref": _reference,
    "definitions": _definitions,
    "type": _type,
    "enum": _enum,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "items": _items_until_2019_09,
    "additionalItems": _additional_items,
    "uniqueItems": _unique_items,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "required": _required,
    "dependencies": _dependencies,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
}

_DRAFT_6: Final[Mapping[str, Keyword]] = {
    **_DRAFT_4,
    **dict.fromkeys(_BOUNDS, _bound),
    "examples": _annotation(list),
    "const": _const,
    "contains": _contains,
    "propertyNames": _property_names,
}

_DRAFT_7: Final[Mapping[str, Keyword]] = {
    **_DRAFT_6,
    **dict.fromkeys(("$comment", "contentEncoding", "contentMediaType"), _annotation(str)),
    **dict.fromkeys(("readOnly", "writeOnly"), _annotation(bool)),
    "if": _if,
    "then": _subschema,
    "else": _subschema,
}

_DRAFT_2019_09: Final[Mapping[str, Keyword]] = {
    **{key: keyword for key, keyword in _DRAFT_7.items() if key != "dependencies"},
    "deprecated": _annotation(bool),
    "$recursiveRef": _dynamic_reference,
    "$defs": _definitions,
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
    "contentSchema": _subschema,
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), _unevaluated),
}

_DRAFT_2020_12: Final[Mapping[str, Keyword]] = {
    **{
        key: keyword
        for key, keyword in _DRAFT_2019_09.items()
        if key not in {"$recursiveRef", "additionalItems"}
    },
    "$dynamicRef": _dynamic_reference,
    "items": _items,
    "prefixItems": _prefix_items,
}

_DIALECT_7: Final = Dialect(
    uri="http://json-schema.org/draft-07/schema",
    keywords=_DRAFT_7,
    has_anchors=False,
    ignores_siblings_of_ref=True,
    counts_contained=False,
)

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.uri: dialect
    for dialect in (
        Dialect(
            uri=_DEFAULT_DIALECT,
            keywords=_DRAFT_2020_12,
            evaluates_contained=True,
        ),
        Dialect(uri="https://json-schema.org/draft/2019-09/schema", keywords=_DRAFT_2019_09),
        _DIALECT_7,
        attrs.evolve(_DIALECT_7, uri="http://json-schema.org/draft-06/schema", keywords=_DRAFT_6),
        attrs.evolve(
            _DIALECT_7,
            uri="http://json-schema.org/draft-04/schema",
            keywords=_DRAFT_4,
            id_keyword="id",
            has_integral_floats=False,
        ),
    )
}
"""The supported dialects, by their URIs."""


# Validating values.

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
            dialect = dialect_of(schema.get("$schema", _DEFAULT_DIALECT))
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
        """Return a line of text for each error in a plain JSON value; none if it is valid.

        A value whose check takes too many steps has an error.
        """
        errors = self.check_result(value)
        return [f"{self.name}: {self.too_long}"] if errors is None else errors

    @property
    def too_long(self) -> str:
        """The predicate of an error about a value whose check takes too many steps."""
        most = self.limits.messages.schema_steps_max
        return f"takes too long to check (limits.messages.schema_steps_max={most})"

    def check_result(self, value: Any) -> list[str] | None:
        """Check a value as `check` does; return None if that takes too many steps.

        A result may then be passed on unchecked, as one without a schema is.
        """
        evaluation = self._new_evaluation()
        evaluation.scope.append(self._root.resource)
        try:
            failures = self._root.failures(evaluation, value)
        except TooManySteps:
            return None
        except (RecursionError, TooDeep):
            return [f"{self.name}: nested too deeply"]
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
