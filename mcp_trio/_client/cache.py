"""The cache of a client: results that a stateless server allows to be kept.

Pure: the time comes in. An answer is kept as bytes and read anew each time, so that whoever changes
what he was given changes nothing for the next one. One client is one authorization context, and has
a cache of its own (CACHE-13).
"""

from collections import OrderedDict
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import msgspec

from mcp_trio._protocol.methods import METHODS, RESOURCE_UPDATED, ParamsToSend
from mcp_trio.types import CacheableResult, ResourceUpdatedParams

CacheKey: TypeAlias = tuple[str, bytes]
"""A method and its params, as text: nothing else is served by the same answer (CACHE-07)."""

_CHANGED: Final = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
_READ: Final = "resources/read"

# What makes a request the retry of a round, whose answer is never kept (CACHE-08).
_RETRY_MEMBERS: Final = frozenset({"inputResponses", "requestState"})

_MS_PER_SECOND: Final = 1000


class _Entry(NamedTuple):
    body: bytes
    stale_from: float


class _ReadKey(msgspec.Struct):
    uri: str


@attrs.define(kw_only=True, eq=False)
class Cache:
    """Answers by method and params, each fresh until its time is up or something has changed.

    The oldest ones make room when there are more than `entries_max`, or more than `bytes_max`; one
    that is larger than that is not kept.
    `changes` counts what was said to have changed: an answer that was asked for before a change and
    came after it may be older, and is not kept.
    """

    entries_max: int
    bytes_max: int
    changes: int = attrs.field(default=0, init=False)
    _entries: OrderedDict[CacheKey, _Entry] = attrs.field(
        factory=OrderedDict[CacheKey, _Entry], init=False
    )
    _size_bytes: int = attrs.field(default=0, init=False)

    def fresh(self, key: CacheKey, now: float) -> Any:
        """The answer, or None if there is none that is fresh now (CACHE-05, CACHE-09)."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.stale_from:
            self._drop(key)
            return None
        return METHODS[key[0]].decode_result(msgspec.Raw(entry.body))

    def keep(self, key: CacheKey, result: CacheableResult, *, now: float, changes: int) -> None:
        """Keep an answer that came `now`, if its hints allow that (CACHE-05, CACHE-06).

        `changes` is what the cache's counted when the answer was asked for.
        """
        self._drop(key)
        ttl_ms = result.ttl_ms or 0
        if ttl_ms <= 0 or changes != self.changes:
            return
        entry = _Entry(msgspec.json.encode(result), now + ttl_ms / _MS_PER_SECOND)
        if len(entry.body) > self.bytes_max:
            return
        self._entries[key] = entry
        self._size_bytes += len(entry.body)
        while len(self._entries) > self.entries_max or self._size_bytes > self.bytes_max:
            self._drop(next(iter(self._entries)))

    def notice(self, notification: str, params: Any) -> None:
        """Make stale what the server says has changed, whatever time was left (CACHE-15)."""
        if notification == RESOURCE_UPDATED:
            self._forget_resource(params)
        for method in _CHANGED.get(notification, ()):
            self.forget(method)

    def forget(self, method: str) -> bool:
        """Drop all answers to a method, each page of a list (CACHE-18); False if there was none."""
        self.changes += 1
        stale = [key for key in self._entries if key[0] == method]
        for key in stale:
            self._drop(key)
        return bool(stale)

    def clear(self) -> None:
        """Drop everything: it came from a server that is gone, or changes may have been missed."""
        self.changes += 1
        self._entries.clear()
        self._size_bytes = 0

    def _forget_resource(self, updated: ResourceUpdatedParams) -> None:
        """What was updated may be a part of what was read (TRAP-78)."""
        self.changes += 1
        for key in [key for key in self._entries if key[0] == _READ]:
            uri = msgspec.json.decode(key[1], type=_ReadKey).uri
            if updated.uri == uri or updated.uri.startswith(f"{uri.rstrip('/')}/"):
                self._drop(key)

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size_bytes -= len(entry.body)


def cache_key(method: str, params: ParamsToSend | None) -> CacheKey | None:
    """Where the answer to a request is kept; None if it must not be, or cannot be, kept."""
    row = METHODS.get(method)
    if row is None or not row.is_cacheable:
        return None
    try:
        text = msgspec.json.encode({} if params is None else params, order="sorted")
    except (TypeError, ValueError):  # whoever sends it says so better
        return None
    if _RETRY_MEMBERS & msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys():
        return None
    return method, text
