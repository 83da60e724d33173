"""The JSON Schemas of readable types, named ones under `$defs`."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec

from mcp_trio._server.converter_types import no_json_form
from mcp_trio._server.stand_ins import StandIn

_PLACE: Final = "#/$defs/"


def json_schema(hint: Any) -> dict[str, Any]:
    """The schema of a readable type; those of the types with names are under its `$defs`.

    Raises:
        TypeError: a type in it has no JSON form, or msgspec cannot read it.
    """
    found = _Found()
    (schema, *others), definitions = found.all_of(hint)
    for definition in definitions.values():
        definition.pop("title", None)
    replaced: dict[str, Any] = {}
    for number, kind in enumerate(found.stand_ins):
        inner = [others.pop(0) for _ in kind.reading.inner]
        replaced[_mark(number)] = kind.reading.schema(inner, definitions)
    whole = schema | {"$defs": definitions} if definitions else schema
    resolved: dict[str, Any] = _resolved(whole, replaced)
    return resolved


def _mark(number: int) -> str:
    """What a stand-in refers to, until all names are known."""
    return f"stand-in:{number}"


class _Found:
    """The stand-ins that were met, each once."""

    def __init__(self) -> None:
        self.stand_ins: list[StandIn] = []

    def all_of(self, hint: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The schema of `hint` and of all inner types of the stand-ins, and the definitions.

        One call of msgspec has to see them all, for only so are names unique.
        """
        hints: list[Any] = []
        wanted = [hint]
        schemas: Iterable[dict[str, Any]] = ()
        definitions: dict[str, Any] = {}
        while len(wanted) > len(hints):
            hints = wanted
            _refuse_unreadable(hints)
            schemas, definitions = msgspec.json.schema_components(
                hints, schema_hook=self._hook, ref_template=_PLACE + "{name}"
            )
            wanted = [hint, *(it for kind in self.stand_ins for it in kind.reading.inner)]
        return [*schemas], definitions

    def _hook(self, kind: Any) -> dict[str, Any]:
        if not isinstance(kind, StandIn):
            raise no_json_form(kind)
        if kind not in self.stand_ins:
            self.stand_ins.append(kind)
        return {"$ref": _mark(self.stand_ins.index(kind))}


def _refuse_unreadable(hints: Iterable[Any]) -> None:
    for hint in hints:
        msgspec.json.Decoder(hint)


def _resolved(schema: Any, replaced: dict[str, Any]) -> Any:
    """The schema with what stands for its stand-ins; their neighbours win, such as descriptions."""
    if isinstance(schema, list):
        return [_resolved(item, replaced) for item in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    members = {key: _resolved(it, replaced) for key, it in given.items()}
    found = replaced.get(str(members.get("$ref")))
    if found is None:
        return members
    del members["$ref"]
    return _resolved(found, replaced) | members
