"""All validation errors of a value, as short lines.

msgspec stops at the first validation error. To find the others, the walk decodes the members of the
value one by one, and descends into each member that fails. Every text is msgspec's own. The walk is
bounded in depth and breadth; where it stops, one error stands for all errors below.
"""

import itertools
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from mcp_trio._protocol.error_lines import path_step, shortened
from mcp_trio._server.introspection import (
    InvalidValue,
    count_known_keys,
    fields_of,
    has_fields,
    is_array,
    is_closed,
    is_object,
    is_union,
    strip_metadata,
    tag_of,
)
from mcp_trio._server.type_adapters import StandIn
from mcp_trio.limits import Limits

_AT: Final = " - at "
_PATH: Final = re.compile(r"(`key` in )?`\$([^`]*)`")


def line(error: Exception, path: str = "") -> str:
    """Return "Expected `int`, got `str` - at `$.days[0]`" as "days[0]: expected int, got str"."""
    prefix, inner, text = _split(str(error))
    # attrs' validators raise errors with further arguments; the first one is the text.
    match error.__cause__:
        case TypeError(args=(str(first), _, *_)) | ValueError(args=(str(first), _, *_)):
            text = first or text
        case _:
            pass
    return prefix + _line(path + inner, text)


def _split(text: str) -> tuple[str, str, str]:
    """Return "key in " for an error about a key (else ""), its path, and the rest of the text."""
    prefix = path = ""
    while found := _PATH.fullmatch(text.rpartition(_AT)[2]):  # The outermost path comes last.
        prefix = prefix or found[1] or ""
        path += found[2]
        text = text.rpartition(_AT)[0]
    return prefix.replace("`", ""), path, text


def _line(path: str, text: str) -> str:
    plain = " ".join(text.replace("`", "").split())
    return f"{path.removeprefix('.') or 'arguments'}: {plain[:1].lower()}{plain[1:]}"


def lines_of(
    hint: Any, value: Any, *, read: Callable[[Any, Any], Any], limits: Limits
) -> list[str]:
    """Return a short line for each validation error in `value`, within `limits`.

    `read` decodes a value as a readable type, or raises. The result may be empty, because JSON text
    can be invalid although the values in it are valid.
    """
    found = _Walk(read, limits).inside(hint, value, "", limits.messages.validation_error_depth_max)
    return shortened(
        [*itertools.islice(found, limits.messages.validation_error_members_max)], limits
    )


class _Walk(msgspec.Struct, frozen=True):
    """A walk through a value; each method yields a line for each validation error found."""

    read: Callable[[Any, Any], Any]
    limits: Limits

    def at(self, hint: Any, value: Any, path: str, depth: int) -> Iterator[str]:
        """Yield the errors inside the value, or else the error of the value itself."""
        try:
            self.read(value, hint)
        except msgspec.ValidationError as error:
            inside = self.inside(hint, value, path, depth) if depth else iter(())
            first = next(inside, None)
            if first is not None:
                yield first
                yield from inside
                return
            # An `InvalidValue` about this value has all of its errors; msgspec's error has one.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, InvalidValue):
                cause = cause.__cause__
            if cause is None or str(cause) != str(error):
                yield line(error, path)
                return
            for inner, message in cause.errors:
                _, deeper, text = _split(message)
                yield _line(path + inner + deeper, text)

    def inside(self, hint: Any, value: Any, path: str, depth: int) -> Iterator[str]:
        """Yield the errors of the members of the value."""
        hint = strip_metadata(hint)
        if isinstance(hint, StandIn):
            likely = hint.reading.likeliest(value)
            return iter(()) if likely is None else self.at(likely, value, path, depth)
        if is_union(hint):
            members = [it for it in typing.get_args(hint) if it is not types.NoneType]
            likely = max(members, key=lambda member: count_known_keys(member, value))
            if len(members) > 1 and count_known_keys(likely, value) < 0:
                return iter(())  # The error of the union helps most.
            return self.inside(likely, value, path, depth)
        if isinstance(value, dict) and is_object(hint):
            walk = self._fields if has_fields(hint) else self._members
            return walk(hint, cast("dict[str, Any]", value), path, depth - 1)
        if isinstance(value, list) and is_array(hint):
            return self._items(hint, cast("Sequence[Any]", value), path, depth - 1)
        return iter(())

    def _fields(self, hint: Any, value: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        fields = {field.wire_name: field for field in fields_of(hint)}
        for name, field in fields.items():
            if name in value:
                yield from self.at(field.hint, value[name], path + self._step(name), depth)
            elif field.is_required:
                yield _line(path + self._step(name), "missing")
        if is_closed(hint):
            what = "field" if path else "argument"
            for name in value:
                if name not in fields and name != tag_of(hint)[1]:
                    yield _line(path + self._step(name), f"unknown {what}")

    def _members(self, hint: Any, value: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        _, member_hint = typing.get_args(hint) or (str, Any)
        for key, member in itertools.islice(
            value.items(), self.limits.messages.validation_error_members_max
        ):
            yield from self.at(member_hint, member, path + self._step(key), depth)

    def _items(self, hint: Any, value: Sequence[Any], path: str, depth: int) -> Iterator[str]:
        item_hints: Iterable[Any]
        if has_fields(hint):
            item_hints = (field.hint for field in fields_of(hint))
        else:
            items = typing.get_args(hint) or (Any,)
            is_row = typing.get_origin(hint) is tuple and items[-1] is not ...
            item_hints = items if is_row else itertools.repeat(items[0])
        pairs = zip(item_hints, value, strict=False)
        for index, (item_hint, item) in enumerate(
            itertools.islice(pairs, self.limits.messages.validation_error_members_max)
        ):
            yield from self.at(item_hint, item, f"{path}[{index}]", depth)

    def _step(self, key: str) -> str:
        """Return the path step for a key, which is shortened if it is long."""
        return path_step(key[: self.limits.messages.validation_error_chars_max])
