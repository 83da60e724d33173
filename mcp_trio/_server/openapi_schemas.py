"""The schemas of an OpenAPI document as JSON Schemas, which contain all that they refer to.

A schema of OpenAPI 3.0 is written in a dialect of its own, which is translated. A schema of 3.1 is
a JSON Schema already. In both, a reference to another part of the document becomes one to `$defs`,
and some properties are left out: those with `readOnly` from requests, and those with `writeOnly`
from responses.

https://spec.openapis.org/oas/v3.0.4#schema-object
https://spec.openapis.org/oas/v3.1.1#schema-object
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeGuard

import attrs
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from mcp_trio._protocol.json_schema import Pattern
from mcp_trio._server.type_adapters import DEFINITIONS

Schema: TypeAlias = Mapping[str, Any]
Direction: TypeAlias = Literal["request", "response"]
_Properties: TypeAlias = tuple[dict[str, Any], dict[str, None]]
"""The properties of an object, and the names of those that are required, in order."""


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a plain JSON value is an object."""
    return isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Return whether a plain JSON value is an array."""
    return isinstance(value, list)


class Unsupported(Exception):  # noqa: N818 - it is caught, and its text becomes a reason
    """An operation cannot become a tool or resource; the text is the reason."""


# The keywords whose values are schemas, lists of schemas, and schemas by name.
_ONE_SCHEMA: Final = frozenset(
    {"not", "items", "additionalProperties", "contains", "propertyNames", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)

# Keywords that are not those of JSON Schema, or that only help people to read the document.
_DROPPED: Final = frozenset({"discriminator", "xml", "externalDocs", "example", "examples"})

# The keyword of properties that are left out of requests, or of responses.
_LEFT_OUT_KEYWORD: Final[Mapping[Direction, str]] = {"request": "readOnly", "response": "writeOnly"}

_NOT_IN_DEFINITION_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class _Definition:
    """A converted part of a document.

    Attributes:
        references: The names in `$defs` that it refers to.
        size: The number of its objects and arrays.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.references: list[str] = []
        self.size = 0
        waiting = [schema]
        while waiting:
            value = waiting.pop()
            if is_object(value):
                self.size += 1
                reference = value.get("$ref")
                if isinstance(reference, str) and reference.startswith(DEFINITIONS):
                    self.references.append(reference.removeprefix(DEFINITIONS))
                waiting += value.values()
            elif is_array(value):
                self.size += 1
                waiting += value


@attrs.define(eq=False, repr=False)
class Document:
    """An OpenAPI document, and the JSON Schemas that were made of its parts.

    Each method raises `Unsupported` for a reference to another document, to nothing, or to itself.

    Attributes:
        contents: The document as plain JSON.
        is_3_0: Whether its schemas are those of OpenAPI 3.0.
    """

    contents: Mapping[str, Any]
    is_3_0: bool
    _resolver: Any = attrs.field(init=False)
    # The names are those in `$defs`.
    _names_by_reference: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    _references_by_name: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    _definitions: dict[tuple[Direction, str], _Definition] = attrs.field(
        factory=dict[Any, _Definition], init=False
    )

    def __attrs_post_init__(self) -> None:
        resource: Resource[Any] = DRAFT202012.create_resource(self.contents)
        self._resolver = Registry[Any]().with_resource("", resource).resolver()

    def resolve(self, value: Any) -> Any:
        """Return a part of the document, or what it refers to."""
        seen: set[str] = set()
        while is_object(value) and isinstance(value.get("$ref"), str):
            reference: str = value["$ref"]
            if reference in seen:
                raise Unsupported(f"the reference {reference} leads to itself")
            seen.add(reference)
            value = self._lookup(reference)
        return value

    def _lookup(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise Unsupported(
                f"{reference} is in another document: bundle the documents into one first"
            )
        try:
            return self._resolver.lookup(reference).contents
        except (Unresolvable, TypeError, ValueError):
            # TypeError, ValueError: the path leads into a number, or names an item by a word.
            raise Unsupported(f"the reference {reference} leads to nothing") from None

    # Schemas.

    def json_schema(self, schema: Any, direction: Direction) -> Any:
        """Return a JSON Schema whose references lead to `$defs`; `with_definitions` adds those."""
        if isinstance(schema, bool):
            return schema
        if not is_object(schema):
            raise Unsupported(f"{schema!r} is not a schema")
        if "$ref" not in schema:
            return self._converted(schema, direction)
        if not isinstance(schema["$ref"], str):
            raise Unsupported(f"the reference {schema['$ref']!r} is not a string")
        reference = {"$ref": DEFINITIONS + self._definition_name(schema["$ref"])}
        # OpenAPI 3.0 ignores all members beside a reference, but a description does no harm.
        kept = ("description",) if self.is_3_0 else schema.keys() - {"$ref"}
        beside = {key: value for key, value in schema.items() if key in kept}
        return self._converted(beside, direction) | reference

    def _converted(self, given: Schema, direction: Direction) -> dict[str, Any]:
        """Return the keywords of a schema, with their subschemas converted."""
        converted: dict[str, Any] = {}
        for key, value in given.items():
            if key in _DROPPED or key.startswith("x-"):
                continue
            if key in _ONE_SCHEMA:
                value = self.json_schema(value, direction)
            elif key in _SCHEMA_LISTS and is_array(value):
                value = [self.json_schema(each, direction) for each in value]
            elif key in _SCHEMAS_BY_NAME and is_object(value):
                named = self._sent_properties(value, direction) if key == "properties" else value
                value = {name: self.json_schema(each, direction) for name, each in named.items()}
            elif key == "pattern" and isinstance(value, str) and not _has_linear_search(value):
                continue  # A check here could take too long; the API itself checks it.
            converted[key] = value
        properties, required = given.get("properties"), given.get("required")
        if is_object(properties) and is_array(required):
            # A list: a malformed name need not be hashable.
            dropped = [name for name in properties if name not in converted["properties"]]
            converted["required"] = [name for name in required if name not in dropped]
        return _from_openapi_3_0(converted) if self.is_3_0 else converted

    def _sent_properties(
        self, properties: Mapping[str, Any], direction: Direction
    ) -> dict[str, Any]:
        keyword = _LEFT_OUT_KEYWORD[direction]
        return {
            name: each
            for name, each in properties.items()
            if not (is_object(each) and each.get(keyword) is True)
        }

    def _definition_name(self, reference: str) -> str:
        """Return the name in `$defs` for a reference."""
        if reference not in self._names_by_reference:
            self._lookup(reference)  # to reject it if it leads to nothing
            last = reference.rpartition("/")[2]
            name = unique(
                _NOT_IN_DEFINITION_NAMES.sub("_", last) or "root", self._references_by_name
            )
            self._names_by_reference[reference], self._references_by_name[name] = name, reference
        return self._names_by_reference[reference]

    def with_definitions(
        self, schema: Any, direction: Direction, *, objects_max: int
    ) -> dict[str, Any]:
        """Return a converted schema, together with the definitions that it refers to.

        A schema that is nothing but a reference is replaced by what it refers to, since older
        protocol versions require a type at the root. A result with more than `objects_max` objects
        and arrays is unsupported.
        """
        names: set[str] = set()
        root = _Definition(schema)
        while is_object(root.schema) and set(root.schema) == {"$ref"}:
            (name,) = root.references
            if name in names:
                raise Unsupported(f"the reference {self._references_by_name[name]} leads to itself")
            names.add(name)
            root = self._definition(name, direction)
        definitions: dict[str, Any] = {}
        waiting, size = [*root.references], root.size
        while waiting and size <= objects_max:
            name = waiting.pop()
            # A `$ref` in a default or an enum is data, which may name no definition.
            if name in self._references_by_name and name not in definitions:
                definition = self._definition(name, direction)
                definitions[name] = definition.schema
                waiting += definition.references
                size += definition.size
        if size > objects_max:
            raise Unsupported(
                f"the schema has more than {objects_max} objects"
                " (limits.messages.schema_objects_max, limits.messages.schema_steps_max)"
            )
        result = dict(root.schema) if is_object(root.schema) else {}
        if definitions:
            result["$defs"] = {name: definitions[name] for name in sorted(definitions)}
        return result

    def _definition(self, name: str, direction: Direction) -> _Definition:
        key = direction, name
        if key not in self._definitions:
            schema = self.json_schema(self._lookup(self._references_by_name[name]), direction)
            self._definitions[key] = _Definition(schema)
        return self._definitions[key]

    # Objects whose properties become arguments.

    def request_properties(self, schema: Any) -> tuple[Mapping[str, Any], Sequence[str]] | None:
        """Return the properties of an object in a request, not converted, and the required names.

        The result is None if there are no properties, or if the value need not be an object with
        just these. Schemas in `allOf` are merged. `anyOf` and `oneOf` are ignored if their schemas
        have only `required`; the API checks those.
        """
        merged = self._merged_properties(schema, {})
        if merged is None or not merged[0]:
            return None
        properties, required = merged
        return properties, [name for name in required if name in properties]

    def _merged_properties(
        self, schema: Any, found: dict[int, _Properties | None]
    ) -> _Properties | None:
        """Return the properties and the required names of an object and of its `allOf`.

        Any part may require a property of another one. `found` has the results by the identities of
        the schemas: many parts may refer to the same one. A schema inside itself gives None.
        """
        given = self.resolve(schema)
        if not is_object(given):
            return None
        if id(given) in found:
            return found[id(given)]
        found[id(given)] = None
        if given.get("type", "object") != "object" or given.get("nullable") is True:
            return None
        if any(given.get(key) for key in ("additionalProperties", "patternProperties", "not")):
            return None
        lists = [given.get(key, []) for key in ("anyOf", "oneOf", "allOf", "required")]
        properties = given.get("properties", {})
        if not (is_object(properties) and all(map(is_array, lists))):
            return None  # the schema is malformed; the check of the tool reports that
        any_of, one_of, parts, required = lists
        if not all(isinstance(name, str) for name in required):
            return None  # as above
        for alternative in any_of + one_of:
            if not is_object(alternative) or set(alternative) != {"required"}:
                return None
        merged, names = self._sent_properties(properties, "request"), dict.fromkeys(required)
        for part in parts:
            part_found = self._merged_properties(part, found)
            if part_found is None:
                return None
            merged |= part_found[0]
            names |= part_found[1]
        found[id(given)] = merged, names
        return merged, names


@functools.lru_cache
def _has_linear_search(pattern: str) -> bool:
    """Return whether a pattern can be searched in linear time."""
    try:
        Pattern(pattern)
    except ValueError:
        return False
    return True


def _from_openapi_3_0(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of OpenAPI 3.0, whose subschemas are translated, as a JSON Schema."""
    for bound in ("Minimum", "Maximum"):
        is_exclusive, limit = schema.get(f"exclusive{bound}"), bound.lower()
        if isinstance(is_exclusive, bool):
            del schema[f"exclusive{bound}"]
            if is_exclusive and limit in schema:
                schema[f"exclusive{bound}"] = schema.pop(limit)
    if schema.pop("nullable", False) is not True:
        return schema
    if is_array(schema.get("enum")) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        return schema
    if not schema.keys() & {"allOf", "anyOf", "oneOf"}:
        return schema
    annotations = {key: schema.pop(key) for key in ("title", "description") if key in schema}
    return annotations | {"anyOf": [schema, {"type": "null"}]}


def unique(name: str, taken: Mapping[str, object], chars_max: int | None = None) -> str:
    """Return a name that is not taken: the name itself, or with a number at its end."""
    number, candidate = 1, name[:chars_max]
    while candidate in taken:
        number += 1
        ending = f"_{number}"
        stem = name if chars_max is None else name[: chars_max - len(ending)]
        candidate = stem + ending
    return candidate
