"""What a server hands out for the client to use again: cursors, URIs, ids of its own."""

import re
from typing import Any, Final

import attrs
from msgspec import Raw

from mcp_trio._journal.frames import json_difference

# The last step of a path that ends in such a word: nextCursor, uri, sessionId, task_id.
_IS_HANDED_ON: Final = re.compile(r"(^|[._])(id|uri|cursor|token)$|[a-z](Id|Uri|URI|Cursor|Token)$")


@attrs.define
class HandedOn:
    """Recorded texts, and what the live server has said instead of each."""

    _instead: dict[str, str] = attrs.field(factory=dict[str, str], init=False)

    def learn(self, recorded: Raw, live: Raw) -> None:
        """Note what stands in the live answer where the recorded one had a text to hand on."""
        for path, old, new in json_difference(bytes(recorded), bytes(live)):
            if isinstance(old, str) and isinstance(new, str) and _IS_HANDED_ON.search(path):
                self._instead[old] = new

    def rewritten(self, value: Any) -> Any:
        """A JSON value, with the live texts where the recorded client used the others verbatim."""
        match value:
            case str():
                return self._instead.get(value, value)
            case [*items]:
                return [self.rewritten(item) for item in items]
            case {**inner}:
                return {name: self.rewritten(item) for name, item in inner.items()}
            case _:
                return value
