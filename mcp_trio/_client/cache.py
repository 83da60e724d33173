"""The cache of a client: results that a stateless server allows it to keep.

Pure: the current time is an argument. A result is kept as bytes and decoded for each use, so that a
caller that changes a result does not change it for the next caller. Each client has its own cache,
since results belong to its authorization context.

https://modelcontextprotocol.io/specification/2026-07-28/server/utilities/caching
"""

from collections import OrderedDict
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from mcp_trio._protocol.methods import METHODS, RESOURCE_UPDATED, ParamsToSend
from mcp_trio.types import CacheableResult

CacheKey: TypeAlias = tuple[str, bytes]
"""A method and its params as JSON, with sorted members."""

_CHANGED: Final = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
_READ: Final = "resources/read"

# A request with one of these members is the retry of a multi round-trip request. Its result
# depends on the user's answers and must not be cached.
_RETRY_MEMBERS: Final = frozenset({"inputResponses", "requestState"})

_MS_PER_SECOND: Final = 1000
# A server may send an integer that is too large for a division.
_TTL_MS_MAX: Final = 10**15


class _Entry(NamedTuple):
    encoded: bytes
    stale_from: float


class _ReadKey(msgspec.Struct):
    uri: str


class Cache:
    """Results by method and params; each is valid until it expires or the server reports a change.

    The oldest entries are dropped when there are more than `entries_max`, or more than `bytes_max`
    together; a single result larger than that is not kept. `changes` counts the reported changes: a
    result that was requested before a change and arrives after it may be outdated, and is not kept.
    """

    def __init__(self, *, entries_max: int, bytes_max: int) -> None:
        self.entries_max = entries_max
        self.bytes_max = bytes_max
        self.changes = 0
        self._entries: OrderedDict[CacheKey, _Entry] = OrderedDict()
        self._size_bytes = 0

    def get(self, key: CacheKey, now: float) -> Any:
        """Return the cached result, or None if there is no valid one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.stale_from:
            self._drop(key)
            return None
        return METHODS[key[0]].decode_result(msgspec.Raw(entry.encoded))

    def put(self, key: CacheKey, result: CacheableResult, *, now: float, changes: int) -> None:
        """Keep a result that arrived at `now`, for as long as its `ttlMs` allows.

        `changes` is the value of `self.changes` when the result was requested.
        """
        self._drop(key)
        ttl_ms = min(result.ttl_ms or 0, _TTL_MS_MAX)
        if ttl_ms <= 0 or changes != self.changes:
            return
        entry = _Entry(msgspec.json.encode(result), now + ttl_ms / _MS_PER_SECOND)
        if len(entry.encoded) > self.bytes_max:
            return
        self._entries[key] = entry
        self._size_bytes += len(entry.encoded)
        while len(self._entries) > self.entries_max or self._size_bytes > self.bytes_max:
            self._drop(next(iter(self._entries)))

    def apply(self, notification: str, params: Any) -> None:
        """Drop the results that a notification of a change makes outdated."""
        if notification == RESOURCE_UPDATED:
            # The updated URI may be that of a sub-resource, so resources that contain it are
            # dropped as well.
            self.changes += 1
            for key in [key for key in self._entries if key[0] == _READ]:
                uri = msgspec.json.decode(key[1], type=_ReadKey).uri
                if params.uri == uri or params.uri.startswith(f"{uri.rstrip('/')}/"):
                    self._drop(key)
        for method in _CHANGED.get(notification, ()):
            self.forget(method)

    def forget(self, method: str) -> bool:
        """Drop all results of a method, every page of a list; return whether there were any."""
        self.changes += 1
        stale = [key for key in self._entries if key[0] == method]
        for key in stale:
            self._drop(key)
        return bool(stale)

    def clear(self) -> None:
        """Drop all results: the server was replaced, or its notifications may have been missed."""
        self.changes += 1
        self._entries.clear()
        self._size_bytes = 0

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size_bytes -= len(entry.encoded)


def cache_key(method: str, params: ParamsToSend | None) -> CacheKey | None:
    """Return the key for the result of a request; None if the result must not be cached."""
    row = METHODS.get(method)
    if row is None or not row.is_cacheable:
        return None
    try:
        encoded = msgspec.json.encode({} if params is None else params, order="sorted")
    except (TypeError, ValueError):  # the request itself fails with a better error
        return None
    if _RETRY_MEMBERS & msgspec.json.decode(encoded, type=dict[str, msgspec.Raw]).keys():
        return None
    return method, encoded
