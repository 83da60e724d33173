"""Visibility: which tools, resources and prompts clients can list and use.

`Server.enable` and `Server.disable` set it for all sessions, `Context.enable` and
`Context.disable` for one. A hidden entry stays registered; for a client it does not exist.
"""

import itertools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from mcp_trio._server.registry import RegisteredEntry

Selector: TypeAlias = tuple[str, str | None, str | None]
"""A kind of entries, and a name or a tag; with neither, all entries of the kind."""


@attrs.frozen
class Selection:
    """The entries that a call of `enable` or `disable` means.

    Attributes:
        names: The names of tools and prompts, and the URIs and templates of resources.
        tags: The tags; an entry with one of them is meant.
        kinds: The kinds of entries, without names and tags all of them.
    """

    names: frozenset[str]
    tags: frozenset[str]
    kinds: frozenset[str]

    def selectors(self) -> Iterator[Selector]:
        """Yield the selectors that together mean the same."""
        for kind in sorted(self.kinds):
            if not self.names and not self.tags:
                yield kind, None, None
            for name in self.names:
                yield kind, name, None
            for tag in self.tags:
                yield kind, None, tag


KINDS: Final = ("tools", "resources", "prompts")


def selection_of(
    names: Collection[str], tags: Collection[str], kinds: Collection[str]
) -> Selection:
    """Return the selection of the arguments of `enable` or `disable`.

    Raises:
        TypeError: `tags` or `kinds` is a string.
        ValueError: Nothing is selected, or a kind is unknown.
    """
    for option, given in ("tags", tags), ("kinds", kinds):
        if isinstance(given, str):
            raise TypeError(f"{option} are a set of strings: write {{{given!r}}}")
    if not (names or tags or kinds):
        raise ValueError("give names, tags= or kinds=: nothing is selected")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ValueError(f"unknown kinds {unknown}: choose from {', '.join(KINDS)}")
    return Selection(frozenset(names), frozenset(tags), frozenset(kinds or KINDS))


@attrs.define(eq=False, repr=False)
class Visibility:
    """The decisions of `enable` and `disable`, of which the latest about an entry counts.

    A decision replaces an earlier one about the same name, tag or kind, so their number is bounded
    by those.
    """

    decisions: dict[Selector, tuple[int, bool]] = attrs.field(
        factory=dict[Selector, tuple[int, bool]], init=False
    )
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    def decide(self, selection: Selection, *, shows: bool) -> None:
        """Show or hide the entries of a selection; may be called in any thread."""
        number = next(self._numbers)
        for selector in selection.selectors():
            self.decisions[selector] = (number, shows)

    def decision(self, entry: "RegisteredEntry") -> bool | None:
        """Return whether an entry is shown; None if nothing was decided about it."""
        if not self.decisions:
            return None
        selectors: list[Selector] = [(entry.kind, None, None), (entry.kind, entry.key, None)]
        selectors += [(entry.kind, None, tag) for tag in entry.tags]
        found = [self.decisions[each] for each in selectors if each in self.decisions]
        return max(found)[1] if found else None
