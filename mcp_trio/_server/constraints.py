"""The constraints of `annotated-types`: told to msgspec in its own words, or checked after it.

A row in `_RULES` is a constraint: its member, the keyword of `msgspec.Meta` that it becomes, and
for types where msgspec has none, the check and its text. What has no row is refused, for a
constraint that nobody checks is worse than none.
"""

import decimal
import functools
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, cast

import annotated_types as at
import attrs
import msgspec

from mcp_trio._server.hints import bare, is_union
from mcp_trio._server.stand_ins import Made, name_of, stand_in


@attrs.frozen
class Rule:
    """One kind of constraint; without `holds`, only msgspec can check it."""

    member: str
    keyword: str
    text: str = ""
    holds: Callable[[Any, Any], bool] | None = None


_RULES: Final[dict[type, Rule]] = {
    at.Ge: Rule("ge", "ge", ">= {}", operator.ge),
    at.Gt: Rule("gt", "gt", "> {}", operator.gt),
    at.Le: Rule("le", "le", "<= {}", operator.le),
    at.Lt: Rule("lt", "lt", "< {}", operator.lt),
    at.MultipleOf: Rule(
        "multiple_of",
        "multiple_of",
        "that's a multiple of {}",
        lambda value, unit: not value % unit,
    ),
    at.MinLen: Rule("min_length", "min_length"),
    at.MaxLen: Rule("max_length", "max_length"),
}
_NUMBERS: Final = (int, float, decimal.Decimal)


def is_constrained(metadata: Iterable[Any]) -> bool:
    """Whether there is anything that msgspec would overlook."""
    return any(
        isinstance(item, at.BaseMetadata | at.GroupedMetadata | at.DocInfo) for item in metadata
    )


def constrained(hint: Any, metadata: Iterable[Any]) -> Any:
    """A readable type with its metadata, as msgspec can read it.

    Raises:
        TypeError: A constraint is unknown, or makes no sense for the type.
    """
    limits: list[Any] = []
    kept: list[Any] = []
    for item in _ungrouped(metadata):
        if isinstance(item, at.DocInfo):
            kept.append(msgspec.Meta(description=item.documentation))
        else:
            (limits if isinstance(item, at.BaseMetadata) else kept).append(item)
    limited = _limited(hint, limits) if limits else hint
    return annotated(limited, kept)


def annotated(hint: Any, metadata: Sequence[Any]) -> Any:
    """`Annotated`, if there is anything to annotate; old metadata come after the new."""
    special: Any = Annotated
    if typing.get_origin(hint) is Annotated:
        return special[(hint.__origin__, *metadata, *hint.__metadata__)]
    return special[(hint, *metadata)] if metadata else hint


def _ungrouped(metadata: Iterable[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, at.GroupedMetadata):
            yield from _ungrouped(cast("Iterable[Any]", item))
        else:
            yield item


def _limited(hint: Any, limits: Sequence[Any]) -> Any:
    if is_union(hint):  # a limit of a union is that of each member, and None has none
        union: Any = typing.Union
        members = typing.get_args(hint)
        return union[tuple(it if it is types.NoneType else _limited(it, limits) for it in members)]
    known: dict[str, Any] = {}
    checks: list[Callable[[Any], None]] = []
    for limit in limits:
        keywords = _keywords(limit)
        if keywords and _is_taken(hint, known | keywords):
            known |= keywords
        else:
            checks.append(_check(hint, limit))
    hint = annotated(hint, [msgspec.Meta(**known)] if known else [])
    make = functools.partial(_checked, checks)
    return stand_in(name_of(bare(hint)), Made(hint, make)) if checks else hint


def _keywords(limit: Any) -> dict[str, Any]:
    if isinstance(limit, at.Timezone) and (limit.tz is None or limit.tz is ...):
        return {"tz": limit.tz is not None}
    rule = _RULES.get(limit.__class__)
    return {rule.keyword: getattr(limit, rule.member)} if rule else {}


def _is_taken(hint: Any, keywords: dict[str, Any]) -> bool:
    try:
        msgspec.json.Decoder(annotated(hint, [msgspec.Meta(**keywords)]))
    except (TypeError, ValueError):
        return False
    return True


# Checks that msgspec cannot make ----------------------------------------------------------------


def _checked(checks: Iterable[Callable[[Any], None]], value: Any) -> Any:
    for check in checks:
        check(value)
    return value


def _check(hint: Any, limit: Any) -> Callable[[Any], None]:
    name = name_of(bare(hint))
    if isinstance(limit, at.Predicate):
        called = getattr(limit.func, "__name__", "<lambda>")
        text = f"another `{name}`" if called == "<lambda>" else f"`{name}` that `{called}` accepts"
        return functools.partial(_hold, limit.func, f"Expected {text}")
    rule = _RULES.get(limit.__class__)
    if rule is None:
        raise TypeError(f"the constraint {limit!r} is not supported")
    bound = getattr(limit, rule.member)
    if rule.holds is None or not _compares(bare(hint), bound):
        raise TypeError(f"the constraint {limit!r} does not fit {name}")
    holds = functools.partial(_turned, rule.holds, bound)
    return functools.partial(_hold, holds, f"Expected `{name}` {rule.text.format(bound)}")


def _compares(kind: Any, bound: Any) -> bool:
    if type(kind) is not type:  # a stand-in, or `Any`: who knows what that is
        return False
    return isinstance(bound, _NUMBERS if kind in _NUMBERS else kind)


def _turned(holds: Callable[[Any, Any], bool], bound: Any, value: Any) -> bool:
    return holds(value, bound)


def _hold(holds: Callable[[Any], Any], text: str, value: Any) -> None:
    if not holds(value):
        raise ValueError(text)
