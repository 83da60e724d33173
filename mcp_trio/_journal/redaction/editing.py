"""JSON texts, changed only where a secret stands: spaces, escapes and order stay as they are."""

import json
import re
from collections.abc import Collection
from typing import Final, Protocol

import attrs
import msgspec

from mcp_trio._journal.redaction.names import NAMED, NAMING, SecretNames
from mcp_trio._journal.redaction.zones import HIDE, Rule, Zone

# What JSON begins with that has values in it.
OPENINGS: Final = frozenset({"{", "["})

_TOKEN: Final = re.compile(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*:)?|([{\[])|([}\]])|(-?[0-9][-+.0-9eE]*)', re.DOTALL
)
_VALUE, _KEY, _OPENING, _CLOSING, _NUMBER = range(1, 6)


class Changing(Protocol):
    """What becomes of the values in a JSON text; whatever is given back has the same type."""

    names: SecretNames

    def hidden(self, text: str) -> str:
        """A text all of which is secret."""
        ...

    def searched(self, text: str) -> str:
        """A text in which secrets may stand."""
        ...

    def hidden_number(self, number: str) -> str:
        """A number that is secret."""
        ...

    def searched_number(self, number: str) -> str:
        """A number that may be known to be secret."""
        ...


@attrs.define
class _Container:
    """An object or array that was opened at some place, and the zone of what is in it.

    `is_pair`: an array in an array, whose first item may name the second. `is_next_secret`: the
    value that was named, or the item behind one that names it, is secret.
    """

    place: int
    zone: Zone
    next_zone: Zone
    is_array: bool = False
    is_pair: bool = False
    key: str = ""
    is_next_secret: bool = False
    has_value: bool = False

    def take_zone(self) -> Zone:
        """The zone of the value that comes now."""
        zone = self.next_zone
        if self.is_array and zone.rule is Rule.SEARCH and self.is_next_secret:
            zone = HIDE
        if self.is_array:
            self.is_next_secret = False
        return zone


def changed(text: str, zone: Zone, changing: Changing) -> str:
    """A valid JSON text, with the values in it changed as their zones say."""
    named: set[int] = set()
    while True:
        editor = _Editor(text, zone, changing, named)
        for match in _TOKEN.finditer(text):
            editor.take(match)
        if not editor.named_late:
            return editor.text()
        named |= editor.named_late


def is_json(body: bytes | str) -> bool:
    """Whether it is JSON as our decoder reads it."""
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return False
    return True


class _Editor:
    """Changes a text; `named` are the places of objects whose values are known to be secret.

    `named_late` are those of which that was seen only behind the value.
    """

    def __init__(self, text: str, zone: Zone, changing: Changing, named: Collection[int]) -> None:
        self._text = text
        self._changing = changing
        self._named = named
        self._open = [_Container(-1, zone, zone)]
        self._pieces: list[str] = []
        self._copied = 0
        self.named_late: set[int] = set()

    def take(self, match: re.Match[str]) -> None:
        """The next token of the text."""
        what = match.lastindex
        if what == _OPENING:
            self._enter(match)
        elif what == _CLOSING:
            self._open.pop()
        elif what == _KEY:
            self._take_key(match)
        elif what == _VALUE:
            self._take_text(match)
        else:
            self._take_number(match)

    def text(self) -> str:
        """The changed text, when all tokens were taken."""
        return "".join((*self._pieces, self._text[self._copied :]))

    def _enter(self, match: re.Match[str]) -> None:
        outer = self._open[-1]
        zone, place, is_array = outer.take_zone(), match.start(), match[0] == "["
        inner = _Container(place, zone, zone, is_array, is_array and outer.is_array)
        inner.is_next_secret = place in self._named
        self._open.append(inner)

    def _take_key(self, match: re.Match[str]) -> None:
        container = self._open[-1]
        name = _said(match[_VALUE])
        container.key = name
        container.next_zone = self._zone_of(container, name)
        container.has_value |= name in NAMED
        if container.zone.has_free_names and not self._changing.names.lists(name):
            self._put(match, name, self._changing.searched(name))

    def _zone_of(self, container: _Container, name: str) -> Zone:
        inner = container.zone.member(name)
        if inner.rule is not Rule.SEARCH:
            return inner
        is_value = name in NAMED and container.is_next_secret
        return HIDE if is_value or self._changing.names.covers(name) else inner

    def _take_text(self, match: re.Match[str]) -> None:
        container = self._open[-1]
        value = _said(match[_VALUE])
        rule = container.take_zone().rule
        if self._names_next(container, value):
            container.is_next_secret = True
            if container.has_value and container.place not in self._named:
                self.named_late.add(container.place)
        container.is_pair = False
        if rule is Rule.HIDE:
            self._put(match, value, self._changing.hidden(value))
        elif rule is Rule.SEARCH:
            self._put(match, value, self._changing.searched(value))

    def _names_next(self, container: _Container, value: str) -> bool:
        """Whether a text says of the value beside it, or of the item behind it, what it is."""
        if container.is_array:
            may_name = container.is_pair or value.startswith("-")
        else:
            may_name = container.key in NAMING
        return may_name and self._changing.names.covers(value)

    def _take_number(self, match: re.Match[str]) -> None:
        rule = self._open[-1].take_zone().rule
        if rule is Rule.HIDE:
            self._replace(match, self._changing.hidden_number(match[0]))
        elif rule is Rule.SEARCH:
            self._replace(match, self._changing.searched_number(match[0]))

    def _put(self, match: re.Match[str], before: str, after: str) -> None:
        if before != after:
            is_in_ascii = match[_VALUE].isascii() and not before.isascii()
            encoded = json.dumps(after) if is_in_ascii else msgspec.json.encode(after).decode()
            self._replace(match, encoded)

    def _replace(self, match: re.Match[str], token: str) -> None:
        self._pieces += (self._text[self._copied : match.start()], token)
        self._copied = match.end(_VALUE) if match[_VALUE] else match.end()


def _said(quoted: str) -> str:
    return msgspec.json.decode(quoted, type=str) if "\\" in quoted else quoted[1:-1]
