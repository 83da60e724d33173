"""What the tests of the vocabulary need of the published schemas: values, validity, comparison."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import strategies as st

from mcp_trio._schema import DEFINITIONS, ResourceContents

TEXT = st.text(max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_OBJECTS = st.dictionaries(TEXT, TEXT, max_size=2)
SCALARS = st.none() | st.booleans() | st.integers() | FLOATS | TEXT
ANYTHING = SCALARS | st.lists(SCALARS, max_size=2) | JSON_OBJECTS


class Published:
    """The published schema of one revision."""

    def __init__(self, path: Path) -> None:
        self.definitions: dict[str, Any] = json.loads(path.read_text("utf-8"))["definitions"]
        self.declared_names = set(declared_names(self.definitions))

    def resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self.definitions[schema["$ref"].removeprefix("#/definitions/")]
        return schema

    def validator(self, schema: dict[str, Any]) -> jsonschema.Draft7Validator:
        return jsonschema.Draft7Validator({**schema, "definitions": self.definitions})

    def is_valid(self, schema: dict[str, Any], value: Any) -> bool:
        return self.validator(schema).is_valid(value)

    def validate(self, name: str, value: Any) -> None:
        self.validator(self.definitions[name]).validate(value)

    def values(self, name: str) -> st.SearchStrategy[Any]:
        """Values that the published definition allows, of bounded size."""
        return self.values_of(self.definitions[name])

    def values_of(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        schema = self.resolve(schema)
        if "anyOf" in schema:
            return st.one_of([self.values_of(branch) for branch in schema["anyOf"]])
        if "type" not in schema:
            return ANYTHING
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

    def lost_members(self, schema: dict[str, Any], before: Any, after: Any) -> Iterator[str]:
        for name, member in schema.get("properties", {}).items():
            if name in before and name not in after:
                yield name
            elif name in before:
                yield from self.lost(member, before[name], after[name])


def declared_names(schema: Any) -> Iterator[str]:
    """The names of all members that are declared anywhere."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from declared_names(part)


def published_texts(_: Published, schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "const" in schema:
        return st.just(schema["const"])
    return st.sampled_from(schema["enum"]) if "enum" in schema else TEXT


def published_numbers(_: Published, schema: dict[str, Any]) -> st.SearchStrategy[float]:
    least, most = schema.get("minimum"), schema.get("maximum")
    floats = st.floats(least, most, allow_nan=False, allow_infinity=False)
    return st.integers(least, most) | floats


def published_arrays(published: Published, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.lists(published.values_of(schema["items"]), max_size=2)


def published_objects(published: Published, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Objects with all required members, some optional ones, and some that nobody declared.

    Names that are declared elsewhere are left out: Hypothesis tries words of our source, and
    `_meta`, for instance, is known to us on all parameters, published or not.
    """
    properties = schema.get("properties", {})
    members = {name: published.values_of(member) for name, member in properties.items()}
    required = {name: members.pop(name) for name in schema.get("required", [])}
    declared = st.fixed_dictionaries(required, optional=members)
    others = schema.get("additionalProperties")
    open_values = published.values_of(others) if isinstance(others, dict) else ANYTHING
    open_names = TEXT.filter(lambda name: name not in published.declared_names)
    undeclared = st.dictionaries(open_names, open_values, max_size=2)
    return st.builds(lambda *parts: {**parts[0], **parts[1]}, undeclared, declared)


PUBLISHED_KINDS = {
    "string": published_texts,
    "integer": lambda _published, _schema: st.integers(),
    "number": published_numbers,
    "boolean": lambda _published, _schema: st.booleans(),
    "array": published_arrays,
    "object": published_objects,
}


@pytest.fixture(scope="session")
def published() -> Published:
    folder = os.environ.get("MCP_SCHEMA_DIR")
    if folder is None:
        (pytest.fail if "CI" in os.environ else pytest.skip)("MCP_SCHEMA_DIR is not set")
    return Published(Path(folder) / "2024-11-05.json")


CONTENTS_HEAD = {"uri": TEXT, "mime_type": st.none() | TEXT}
TEXT_CONTENTS = st.builds(ResourceContents, **CONTENTS_HEAD, text=TEXT)
BLOB_CONTENTS = st.builds(ResourceContents, **CONTENTS_HEAD, blob=TEXT)

# What our types leave open, and the published schema narrows.
NARROWED_MEMBERS = {
    "inputSchema": JSON_OBJECTS.map(lambda notes: {"type": "object", "x-notes": notes}),
    "experimental": st.none() | st.dictionaries(TEXT, JSON_OBJECTS, max_size=2),
}
NARROWED_DEFINITIONS = {
    "TextResourceContents": TEXT_CONTENTS,
    "BlobResourceContents": BLOB_CONTENTS,
}


def values_of_type(info: Any) -> st.SearchStrategy[Any]:
    return INSPECTED[type(info)](info)


def values_of_struct(info: Any) -> st.SearchStrategy[Any]:
    if info.cls is ResourceContents:
        return TEXT_CONTENTS | BLOB_CONTENTS
    return st.builds(info.cls, **{field.name: values_of_member(field) for field in info.fields})


def values_of_member(field: Any) -> st.SearchStrategy[Any]:
    if field.encode_name in NARROWED_MEMBERS:
        return NARROWED_MEMBERS[field.encode_name]
    return values_of_type(field.type)


INSPECTED = {
    msgspec.inspect.NoneType: lambda _info: st.none(),
    msgspec.inspect.BoolType: lambda _info: st.booleans(),
    msgspec.inspect.StrType: lambda _info: TEXT,
    msgspec.inspect.RawType: lambda _info: JSON_OBJECTS.map(
        lambda value: msgspec.Raw(json.dumps(value).encode())
    ),
    msgspec.inspect.AnyType: lambda _info: ANYTHING,
    msgspec.inspect.StructType: values_of_struct,
    msgspec.inspect.IntType: lambda info: st.integers(info.ge, info.le),
    msgspec.inspect.FloatType: lambda info: st.floats(
        info.ge, info.le, allow_nan=False, allow_infinity=False
    ),
    msgspec.inspect.LiteralType: lambda info: st.sampled_from(info.values),
    msgspec.inspect.UnionType: lambda info: st.one_of(map(values_of_type, info.types)),
    msgspec.inspect.ListType: lambda info: st.lists(values_of_type(info.item_type), max_size=2),
    msgspec.inspect.DictType: lambda info: st.dictionaries(
        values_of_type(info.key_type), values_of_type(info.value_type), max_size=2
    ),
}


def our_values(name: str) -> st.SearchStrategy[Any]:
    """Values of our type for a published definition that has one."""
    if name in NARROWED_DEFINITIONS:
        return NARROWED_DEFINITIONS[name]
    row = DEFINITIONS[name]
    return values_of_type(msgspec.inspect.type_info(row.params or row.body))


@pytest.fixture(scope="session")
def ours():
    return our_values
