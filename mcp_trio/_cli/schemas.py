"""What a tool's JSON Schema says of its arguments, as far as a command line needs to know.

Schemas come from servers: whatever does not look as it should says nothing, and the server decides.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

_DEPTH_MAX: Final = 6
_ALTERNATIVES: Final = ("anyOf", "oneOf")

# What JSON Schema calls the types of values.
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
    """The schemas of the arguments, by name."""
    return _members(schema.get("properties"))


def typed_names(schema: Mapping[str, Any]) -> str:
    """The arguments, as `city=string [days=integer]`."""
    return " ".join(_typed_names(schema))


def _typed_names(schema: Mapping[str, Any]) -> Iterator[str]:
    required = _items(schema.get("required"))
    for name, argument in properties_of(schema).items():
        types = "|".join(sorted(wanted_types(argument, schema)))
        typed = f"{name}={types or 'any'}"
        yield typed if name in required else f"[{typed}]"


def wanted_types(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The names of the types that fit a schema inside `root`; none if it does not say."""
    members = _members(schema)
    if depth > _DEPTH_MAX:  # it refers to itself
        return frozenset()
    if "$ref" in members:
        return wanted_types(_referred(members["$ref"], root), root, depth + 1)
    names = _declared(members)
    for keyword in _ALTERNATIVES:
        for alternative in _items(members.get(keyword)):
            names |= wanted_types(alternative, root, depth + 1)
    return names


def _declared(members: Mapping[str, Any]) -> frozenset[str]:
    declared = members.get("type")
    names = [declared] if isinstance(declared, str) else _items(declared)
    values = _items(members.get("enum")) + ([members["const"]] if "const" in members else [])
    return frozenset(map(str, names)).union(*(TYPE_NAMES[type(value)] for value in values))


def _referred(reference: object, root: Mapping[str, Any]) -> object:
    """The schema at a pointer such as `#/$defs/Day`; None for any other reference."""
    place: object = root
    for step in str(reference).removeprefix("#/").split("/"):
        place = _members(place).get(step)
    return place


def _items(value: Any) -> list[Any]:
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


def _members(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
