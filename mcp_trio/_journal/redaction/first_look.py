"""Whether a record may hold a secret at all: most do not, and need no other look."""

from typing import Any, Final, cast

import msgspec

from mcp_trio._journal.redaction.editing import OPENINGS
from mcp_trio._journal.redaction.names import NAMED, NAMING, SecretNames
from mcp_trio._journal.redaction.texts import gives_away

_DECODE: Final = msgspec.json.Decoder().decode
_CLEAN_NAMES_MAX: Final = 4096
# No secret that a text gives away reaches over it.
_BETWEEN_TEXTS: Final = "\n\0\n"


class FirstLook:
    """Looks for names of secrets: of members, and in texts. That there are none is certain."""

    def __init__(self, names: SecretNames, others: frozenset[str]) -> None:
        self._names = names
        self._others = others
        self._clean: set[str] = set()

    def finds_names(self, body: bytes) -> bool:
        """Whether one of the names, or of the others, stands in a JSON text."""
        texts: list[str] = []
        try:
            if self._finds(_DECODE(body), body.count(b'":') - body.count(b'\\":'), texts):
                return True
        except (ValueError, RecursionError):
            return True
        return gives_away(_BETWEEN_TEXTS.join(texts), self._names)

    def _finds(self, value: Any, members: int, texts: list[str]) -> bool:
        """Whether it does, in a value in whose text so many members are; its `texts` are left."""
        values = [value]
        while values:
            value = values.pop()
            if isinstance(value, str):
                if value.lstrip()[:1] in OPENINGS and self._finds_in_text(value, texts):
                    return True
                texts.append(value)
            elif isinstance(value, dict):
                inner = cast("dict[str, Any]", value)
                if not self._clean.issuperset(inner) and self._is_suspect(inner):
                    return True
                members -= len(inner)
                values += inner.values()
            elif isinstance(value, list):
                items = cast("list[Any]", value)  # type: ignore[redundant-cast]  # pyright needs it
                if self._may_name(items):
                    return True
                values += items
        # A member that stands there twice, of which the decoder gives only the last.
        return members != 0

    def _finds_in_text(self, text: str, texts: list[str]) -> bool:
        try:
            value = _DECODE(text)
        except (ValueError, RecursionError):
            return False
        return self._finds(value, text.count('":') - text.count('\\":'), texts)

    def _may_name(self, items: list[Any]) -> bool:
        """Whether an item may name the next one."""
        return any(isinstance(item, str) and self._names.covers(item) for item in items)

    def _is_suspect(self, members: dict[str, Any]) -> bool:
        if any(name in self._others or self._names.covers(name) for name in members):
            return True
        if not NAMED.isdisjoint(members):
            return self._may_name([members.get(name) for name in NAMING])
        if len(self._clean) >= _CLEAN_NAMES_MAX:
            self._clean.clear()
        self._clean.update(members)
        return False
