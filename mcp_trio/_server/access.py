"""Access to tools, resources and prompts: access rules, and entries that are hidden.

An access rule has the scopes that an entry needs, and conditions, which are functions of the
server's code. The rule is checked when a list is made, which leaves out the entries that the sender
of the request may not use, and when an entry is used. The decision about a use is recorded, so a
replay with another rule diverges at that request.

`Server.enable` and `Server.disable` show and hide entries in all sessions, `Context.enable` and
`Context.disable` in one. A hidden entry stays registered; for a client it does not exist.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import attrs
import msgspec

from mcp_trio._server.introspection import check_positional_call
from mcp_trio.errors import AccessDenied

if TYPE_CHECKING:
    from mcp_trio._server.context import Context
    from mcp_trio._server.registry import RegisteredEntry

# Access rules ------------------------------------------------------------------------------------

Access: TypeAlias = Callable[["Context"], Any]
"""A condition: returns whether the sender of a request may use an entry.

It is called in the event loop: a `def` that does not block, or an `async def`.
"""


class AccessRule(msgspec.Struct, frozen=True, eq=False):
    """The scopes that the sender of a request needs, and the conditions that have to allow it."""

    scopes: tuple[str, ...]
    conditions: tuple[Access, ...]

    async def denial(self, granted: frozenset[str], context: "Context") -> AccessDenied | None:
        """Return the error for a sender with these scopes; None if the sender is allowed."""
        if not granted.issuperset(self.scopes):
            return AccessDenied("the token lacks a scope that this needs", scopes=self.scopes)
        try:
            for condition in self.conditions:
                allowed = condition(context)
                if isawaitable(allowed):
                    allowed = await allowed
                if not allowed:
                    return AccessDenied()
        except AccessDenied as error:
            return error
        return None


def joined_rule(first: AccessRule | None, second: AccessRule | None) -> AccessRule | None:
    """Return the rule that allows what both rules allow: that of a mount, and that of an entry."""
    if first is None or second is None:
        return first or second
    scopes = tuple(sorted({*first.scopes, *second.scopes}))
    return AccessRule(scopes, first.conditions + second.conditions)


def access_rule(scopes: Collection[str], access: Access | None) -> AccessRule | None:
    """Return the rule for the arguments of a decorator; None if they restrict nothing."""
    if access is not None:
        if not callable(access):
            raise TypeError(f"access= takes a function of the context, not {type(access).__name__}")
        check_positional_call(access, "the condition of access=", "ctx")
    if scopes == () and access is None:
        return None
    from mcp_trio._auth.challenges import checked_scopes  # only a server with access rules needs it

    rule = AccessRule(checked_scopes(scopes), () if access is None else (access,))
    return rule if rule.scopes or rule.conditions else None


# Hidden entries ---------------------------------------------------------------------------------

Selector: TypeAlias = tuple[str, str | None, str | None]
"""A kind of entries, a name and a tag, at most one of which is set; all of the kind if none is."""


class Selection(msgspec.Struct, frozen=True):
    """The entries that a call of `enable` or `disable` selects.

    Attributes:
        names: The names of tools and prompts, and the URIs and templates of resources.
        tags: The tags; an entry with one of them is selected.
        kinds: The kinds of the entries. Without names and tags, all entries of these kinds are
            selected.
    """

    names: frozenset[str]
    tags: frozenset[str]
    kinds: frozenset[str]

    def selectors(self) -> Iterator[Selector]:
        """Yield the selectors that together select the same entries."""
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
    """Return the selection of the arguments of `enable` or `disable`."""
    for option, given in ("tags", tags), ("kinds", kinds):
        if isinstance(given, str):
            raise TypeError(f"{option} are a set of strings: write {{{given!r}}}")
    if not (names or tags or kinds):
        raise ValueError("give names, tags= or kinds=: nothing is selected")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ValueError(f"unknown kinds {unknown}: choose from {', '.join(KINDS)}")
    return Selection(frozenset(names), frozenset(tags), frozenset(kinds or KINDS))


class Unregistered(msgspec.Struct, frozen=True):
    """A stand-in for all entries of a kind that are not registered: those of remote servers.

    Only a decision about the kind applies to them, since their names and tags are not known. It has
    those attributes of a `RegisteredEntry` that are read to decide whether an entry is visible.
    """

    kind: str
    key: ClassVar[str] = ""
    tags: ClassVar[frozenset[str]] = frozenset()
    origin: ClassVar[None] = None


@attrs.define(eq=False, repr=False)
class Visibility:
    """The decisions of `enable` and `disable`; the latest one about an entry counts.

    A decision replaces an earlier one about the same name, tag or kind, so there is at most one for
    each of them.

    Attributes:
        decisions: The number of each decision, which is higher for a later one, and whether it
            shows the entries.
    """

    decisions: dict[Selector, tuple[int, bool]] = attrs.field(factory=dict[Any, Any], init=False)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)

    def decide(self, selection: Selection, *, shows: bool) -> None:
        """Show or hide the entries of a selection; may be called in any thread."""
        number = next(self._numbers)
        for selector in selection.selectors():
            self.decisions[selector] = (number, shows)

    def rename(self, kind: str, old: str, new: str) -> None:
        """Move the decision about a name, if there is one, to the new name of the entry."""
        decision = self.decisions.pop((kind, old, None), None)
        if decision is not None:
            self.decisions[kind, new, None] = decision

    def in_order(self) -> list[tuple[Selector, bool]]:
        """Return the decisions that count, from the oldest to the newest."""
        ordered = sorted(self.decisions.items(), key=lambda item: item[1][0])
        return [(selector, shows) for selector, (_, shows) in ordered]

    @classmethod
    def of(cls, decisions: Iterable[tuple[Selector, bool]]) -> "Visibility":
        """Return the visibility with decisions that `in_order` returned."""
        visibility = cls()
        for selector, shows in decisions:
            visibility.decisions[selector] = (next(visibility._numbers), shows)
        return visibility

    def decision(self, entry: "RegisteredEntry | Unregistered") -> bool | None:
        """Return whether an entry is shown; None if nothing was decided about it."""
        if not self.decisions:
            return None
        selectors: list[Selector] = [(entry.kind, None, None), (entry.kind, entry.key, None)]
        selectors += [(entry.kind, None, tag) for tag in entry.tags]
        found = [self.decisions[each] for each in selectors if each in self.decisions]
        return max(found)[1] if found else None
