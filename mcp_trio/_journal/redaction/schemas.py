"""What a JSON schema calls a password (`format: password`)."""

from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

_CHOICES: Final = ("anyOf", "oneOf", "allOf")


def password_paths(schema: Any) -> list[str]:
    """JSON paths to the passwords in a value that the schema describes, itself being `$`.

    Looked for in properties, items and choices; a `$ref` into the schema's own definitions is
    followed once on each way down.
    """
    return list(dict.fromkeys(_paths("$", schema, schema, frozenset())))


def _paths(path: str, schema: Any, root: Any, seen: frozenset[str]) -> Iterator[str]:
    said = _object(schema)
    if not said:
        return
    if said.get("format") == "password":
        yield path
    reference = said.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        yield from _paths(path, _target(reference, root), root, seen | {reference})
    yield from _paths(f"{path}[*]", said.get("items"), root, seen)
    for choice in (each for key in _CHOICES for each in said.get(key, ())):
        yield from _paths(path, choice, root, seen)
    for name, each in _object(said.get("properties")).items():
        yield from _paths(f"{path}[{msgspec.json.encode(name).decode()}]", each, root, seen)


def _target(reference: str, root: Any) -> Any:
    target = root
    for step in reference.removeprefix("#/").split("/"):
        target = _object(target).get(step)
    return target


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
