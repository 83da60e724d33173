"""Values, validation and comparison by the published schemas."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio.types import (
    CreateMessageParams,
    ElicitParams,
    EmptyParams,
    InputRequest,
    ResourceContents,
)
from tests.schema.definitions import DEFINITIONS

PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

TEXT = st.text(max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_OBJECTS = st.dictionaries(TEXT, TEXT, max_size=2)
SCALARS = st.none() | st.booleans() | st.integers() | FLOATS | TEXT
ANYTHING = SCALARS | st.lists(SCALARS, max_size=2) | JSON_OBJECTS

# Many definitions in five protocol versions: few values of each.
modest = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Published as a circle, in which Hypothesis loses itself.
CIRCLES = {
    "JSONValue": st.booleans() | st.integers() | JSON_OBJECTS,
    "JSONObject": JSON_OBJECTS,
    "JSONArray": st.lists(TEXT, max_size=2),
}


class Published:
    """The published schema of one protocol version."""

    def __init__(self, text: str) -> None:
        document = json.loads(text)
        # TRAP-09: three are draft-07 with `definitions`, two are 2020-12 with `$defs`.
        self.definitions: dict[str, Any] = document.get("definitions") or document["$defs"]
        self.root = jsonschema.validators.validator_for(document)(document)
        self.values_of_reference = functools.cache(self.values_of_reference)

    def definition(self, schema: dict[str, Any]) -> str:
        return schema["$ref"].rpartition("/")[2]

    def resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self.definitions[self.definition(schema)]
        return schema

    def is_valid(self, schema: dict[str, Any], value: Any) -> bool:
        return self.root.evolve(schema=schema).is_valid(value)

    def validate(self, name: str, value: Any) -> None:
        self.root.evolve(schema=self.definitions[name]).validate(value)

    def branches(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """Those of a union; tasks are not spoken."""
        return [each for each in schema["anyOf"] if "Task" not in each.get("$ref", "")]

    def values(self, name: str) -> st.SearchStrategy[Any]:
        """Values that the published definition allows, of bounded size."""
        return self.values_of_reference(name)

    def values_of_reference(self, name: str) -> st.SearchStrategy[Any]:
        return CIRCLES[name] if name in CIRCLES else self.values_of(self.definitions[name])

    def meaning(self, name: str) -> dict[str, Any]:
        """The definition and all that it refers to, without the prose."""
        found: dict[str, Any] = {}
        wanted = [name]
        while wanted:
            each = wanted.pop()
            if each not in found:
                found[each] = without_prose(self.definitions[each])
                wanted += re.findall(r'"#/(?:definitions|\$defs)/(\w+)"', json.dumps(found[each]))
        return found

    def values_of(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "$ref" in schema:
            return self.values_of_reference(self.definition(schema))
        if "anyOf" in schema:
            return st.one_of([self.values_of(branch) for branch in self.branches(schema)])
        if "allOf" in schema:
            schema = merged([self.resolve(part) for part in schema["allOf"]])
        if "const" in schema:
            return st.just(schema["const"])
        if "type" not in schema:
            return published_objects(self, schema) if "properties" in schema else ANYTHING
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return st.one_of([PUBLISHED_KINDS[kind](self, schema) for kind in kinds])

    def lost(self, schema: dict[str, Any], before: Any, after: Any) -> Iterator[str]:
        """The declared members of `before` that `after` does not have."""
        schema = self.resolve(schema)
        if "anyOf" in schema:
            fitting = [branch for branch in schema["anyOf"] if self.is_valid(branch, before)]
            losses = [list(self.lost(branch, before, after)) for branch in fitting]
            yield from min(losses, key=len)
        elif isinstance(before, dict):
            yield from self.lost_members(schema, before, after)
        elif isinstance(before, list):
            for old, new in zip(before, after, strict=True):
                yield from self.lost(schema.get("items", {}), old, new)

    def undeclared(self, schema: dict[str, Any], value: Any) -> Iterator[str]:
        """The members that structs in `value` say, and the schema does not know."""
        schema = self.resolve(schema)
        if "anyOf" in schema:
            plain = json.loads(msgspec.json.encode(value))
            branches = [each for each in schema["anyOf"] if self.is_valid(each, plain)]
            yield from min((list(self.undeclared(each, value)) for each in branches), key=len)
        elif isinstance(value, list):
            for each in value:
                yield from self.undeclared(schema.get("items", {}), each)
        elif isinstance(value, msgspec.Struct):
            yield from self.undeclared_members(schema.get("properties", {}), value)

    def undeclared_members(self, declared: dict[str, Any], value: Any) -> Iterator[str]:
        for field in msgspec.structs.fields(value):
            member = getattr(value, field.name)
            if member is not field.default and field.encode_name not in declared:
                yield field.encode_name
            elif member is not field.default:
                yield from self.undeclared(declared[field.encode_name], member)

    def lost_members(self, schema: dict[str, Any], before: Any, after: Any) -> Iterator[str]:
        for name, member in schema.get("properties", {}).items():
            if name in before and name not in after:
                yield name
            elif name in before:
                yield from self.lost(member, before[name], after[name])


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    properties = {name: each for part in parts for name, each in part["properties"].items()}
    required = {name for part in parts for name in part.get("required", [])}
    return {"type": "object", "properties": properties, "required": sorted(required)}


def without_prose(schema: Any) -> Any:
    """The schema with what counts; the two dialects have two names for the same place."""
    if isinstance(schema, dict):
        return {
            name: each.replace("$defs", "definitions") if name == "$ref" else without_prose(each)
            for name, each in schema.items()
            if name != "description" or isinstance(each, dict)
        }
    return [without_prose(each) for each in schema] if isinstance(schema, list) else schema


def declared_names(schema: Any) -> Iterator[str]:
    """The names of all members that are declared anywhere."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from declared_names(part)


PUBLISHED_SCHEMAS = Path(__file__).parents[1] / "published_schemas"


@functools.cache
def all_published() -> dict[str, Published]:
    paths = {
        protocol_version: PUBLISHED_SCHEMAS / f"{protocol_version}.json"
        for protocol_version in PROTOCOL_VERSIONS
    }
    return {
        protocol_version: Published(path.read_text("utf-8"))
        for protocol_version, path in paths.items()
    }


@functools.cache
def all_declared_names() -> set[str]:
    return {name for each in all_published().values() for name in declared_names(each.definitions)}


@pytest.fixture(scope="session")
def published():
    """The published schema of a protocol version, by its name."""
    return all_published().__getitem__


@pytest.fixture(scope="session")
def for_all():
    """Tries a few values of a strategy with `holds_for(*of, value)`."""

    def check(values, holds_for, *of):
        modest(given(values)(lambda value: holds_for(*of, value)))()

    return check


@pytest.fixture(scope="session")
def published_anew():
    """The protocol versions in which a definition differs from the one before, with their schemas."""
    return news


def news(name: str) -> Iterator[tuple[str, Published]]:
    before = None
    for protocol_version, schema in all_published().items():
        meaning = schema.meaning(name) if name in schema.definitions else None
        if meaning is not None and meaning != before:
            yield protocol_version, schema
        before = meaning


def published_texts(_: Published, schema: dict[str, Any]) -> st.SearchStrategy[str]:
    return st.sampled_from(schema["enum"]) if "enum" in schema else TEXT


def published_integers(_: Published, schema: dict[str, Any]) -> st.SearchStrategy[int]:
    return st.integers(schema.get("minimum"))


def published_numbers(_: Published, schema: dict[str, Any]) -> st.SearchStrategy[float]:
    least, most = schema.get("minimum"), schema.get("maximum")
    floats = st.floats(least, most, allow_nan=False, allow_infinity=False)
    return st.integers(least, most) | floats


def published_arrays(published: Published, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.lists(published.values_of(schema["items"]), max_size=2)


def published_objects(published: Published, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Objects with all required members, some optional ones, and some undeclared ones.

    Names that are declared elsewhere are left out: Hypothesis tries words of our source, and
    `_meta`, for instance, is known to us on all parameters, published or not.
    """
    properties = schema.get("properties", {})
    members = {name: published.values_of(member) for name, member in properties.items()}
    required = {name: members.pop(name) for name in schema.get("required", [])}
    declared = st.fixed_dictionaries(required, optional=members)
    others = schema.get("additionalProperties")
    open_values = published.values_of(others) if isinstance(others, dict) else ANYTHING
    open_names = TEXT.filter(lambda name: name not in all_declared_names())
    undeclared = st.dictionaries(open_names, open_values, max_size=2)
    return st.builds(lambda *parts: {**parts[0], **parts[1]}, undeclared, declared)


PUBLISHED_KINDS = {
    "string": published_texts,
    "integer": published_integers,
    "number": published_numbers,
    "boolean": lambda _published, _schema: st.booleans(),
    "array": published_arrays,
    "object": published_objects,
}


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


CONTENTS_HEAD = {"uri": TEXT, "mime_type": st.none() | TEXT, "meta": st.none() | JSON_OBJECTS}
TEXT_CONTENTS = st.builds(ResourceContents, **CONTENTS_HEAD, text=TEXT)
BLOB_CONTENTS = st.builds(ResourceContents, **CONTENTS_HEAD, blob=TEXT)

FORM_MEMBERS = [
    {"type": "string", "title": "Name", "format": "email", "default": "a@b", "maxLength": 9},
    {"type": "number", "minimum": 0.5, "default": 1.5},
    {"type": "integer", "maximum": 7},
    {"type": "boolean", "default": False},
    {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"], "default": "a"},
    {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]},
    {"type": "array", "items": {"type": "string", "enum": ["a"]}, "default": ["a"]},
    {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "minItems": 1},
]
FORM_SCHEMAS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(TEXT, st.sampled_from(FORM_MEMBERS), max_size=2),
    },
    optional={"$schema": TEXT, "required": st.lists(TEXT, max_size=2)},
)
QUESTION = {"message": TEXT, "meta": st.none() | JSON_OBJECTS}
FORMS = st.builds(
    ElicitParams, **QUESTION, mode=st.none() | st.just("form"), requested_schema=FORM_SCHEMAS
)
URLS = st.builds(ElicitParams, **QUESTION, mode=st.just("url"), url=TEXT, elicitation_id=TEXT)

# Values that our types leave open, and the published schemas narrow.
ANSWERS = st.just({"q1": raw({"action": "cancel"}), "q2": raw({"roots": []})})
SCHEMAS = st.builds(
    lambda notes, members: {"type": "object", "properties": members, "x-notes": notes},
    JSON_OBJECTS,
    st.dictionaries(TEXT, st.booleans() | JSON_OBJECTS, max_size=2),
)
NARROWED_MEMBERS = {
    "inputSchema": SCHEMAS,
    "outputSchema": st.none() | SCHEMAS | st.just({"type": "array"}) | JSON_OBJECTS,
    "experimental": st.none() | st.dictionaries(TEXT, JSON_OBJECTS, max_size=2),
    "extensions": st.none() | st.dictionaries(TEXT, JSON_OBJECTS, max_size=2),
    "inputResponses": st.none() | ANSWERS,
    "ttlMs": st.none() | st.integers(min_value=0),
    "content.value": st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2),
}
NARROWED_DEFINITIONS = {
    "TextResourceContents": TEXT_CONTENTS,
    "BlobResourceContents": BLOB_CONTENTS,
    "ElicitRequestFormParams": FORMS,
    "ElicitRequestURLParams": URLS,
    "InputResponses": ANSWERS,
}


def values_of_type(info: Any) -> st.SearchStrategy[Any]:
    return INSPECTED[type(info)](info)


def values_of_struct(info: Any) -> st.SearchStrategy[Any]:
    if info.cls in NARROWED_STRUCTS:
        return NARROWED_STRUCTS[info.cls]()
    return st.builds(info.cls, **{field.name: values_of_member(field) for field in info.fields})


def values_of_member(field: Any) -> st.SearchStrategy[Any]:
    if field.encode_name in NARROWED_MEMBERS:
        return NARROWED_MEMBERS[field.encode_name]
    values = values_of_type(field.type)
    return values | st.just(msgspec.UNSET) if field.default is msgspec.UNSET else values


def values_of_dict(info: Any) -> st.SearchStrategy[Any]:
    if isinstance(info.value_type, msgspec.inspect.AnyType):
        return JSON_OBJECTS
    if isinstance(info.value_type, msgspec.inspect.UnionType):  # what was filled in (TRAP-07)
        return st.dictionaries(TEXT, NARROWED_MEMBERS["content.value"], max_size=2)
    return st.dictionaries(TEXT, values_of_type(info.value_type), max_size=2)


def input_requests() -> st.SearchStrategy[InputRequest]:
    samples = values_of_type(msgspec.inspect.type_info(CreateMessageParams))
    return st.one_of(
        st.builds(InputRequest, method=st.just("sampling/createMessage"), params=samples),
        st.builds(InputRequest, method=st.just("elicitation/create"), params=FORMS | URLS),
        st.just(InputRequest(method="roots/list")),
        st.just(InputRequest(method="roots/list", params=EmptyParams())),
    )


NARROWED_STRUCTS = {
    ResourceContents: lambda: TEXT_CONTENTS | BLOB_CONTENTS,
    ElicitParams: lambda: FORMS | URLS,
    InputRequest: input_requests,
}

INSPECTED = {
    msgspec.inspect.NoneType: lambda _info: st.none(),
    msgspec.inspect.BoolType: lambda _info: st.booleans(),
    msgspec.inspect.StrType: lambda _info: TEXT,
    msgspec.inspect.RawType: lambda _info: JSON_OBJECTS.map(raw),
    msgspec.inspect.AnyType: lambda _info: ANYTHING,
    msgspec.inspect.StructType: values_of_struct,
    msgspec.inspect.IntType: lambda info: st.integers(info.ge, info.le),
    msgspec.inspect.FloatType: lambda info: st.floats(
        info.ge, info.le, allow_nan=False, allow_infinity=False
    ),
    msgspec.inspect.LiteralType: lambda info: st.sampled_from(info.values),
    msgspec.inspect.UnionType: lambda info: st.one_of(map(values_of_type, info.types)),
    msgspec.inspect.ListType: lambda info: st.lists(values_of_type(info.item_type), max_size=2),
    msgspec.inspect.DictType: values_of_dict,
}


@functools.cache
def our_values(name: str) -> st.SearchStrategy[Any]:
    """Values of our type for a published definition that has one."""
    if name in NARROWED_DEFINITIONS:
        return NARROWED_DEFINITIONS[name]
    row = DEFINITIONS[name]
    return values_of_type(msgspec.inspect.type_info(row.params or row.body))


@pytest.fixture(scope="session")
def ours():
    return our_values
