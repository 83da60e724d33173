"""Which recording the exchanges of an HTTP proxy go to.

Each session has one of its own, from its `initialize` on, by the id that the server gave it. What
belongs to no session goes to one that all have in common: modern requests, those of a server that
gives no ids, and those of sessions that began elsewhere. Clients number their requests as they
like: so one that has an id, or a progress token, of a request that is still open there goes to
another recording, and in none of them two requests can be taken for each other.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import attrs
import trio

from mcp_trio._journal.conversation import token_of
from mcp_trio._limits import Limits
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._proxy.journal import Cause, FrameJournal
from mcp_trio._wire import Message, Request

_Name: TypeAlias = tuple[str, int | str]

# How often it is looked whether a session has not been used for too long.
_LOOKS_PER_EXPIRY = 10


@attrs.define(eq=False)
class Kept:
    """One recording while it is written.

    Attributes:
        journal: What is written.
        key: By what its session is known; None as long as it has no id, or if it needs none.
        is_common: Whether it takes what belongs to no session.
        is_over: Whether its session has ended.
        passages: How many exchanges are being recorded in it.
        events: The ids of the events that passed last.
    """

    journal: FrameJournal
    key: str | None = None
    is_common: bool = False
    is_over: bool = False
    passages: int = attrs.field(default=0, init=False)
    events: dict[str, None] = attrs.field(factory=dict[str, None], init=False)
    _open: set[_Name] = attrs.field(factory=set[_Name], init=False)
    _used_at: float = attrs.field(factory=trio.current_time, init=False)

    def has_room_for(self, names: Collection[_Name]) -> bool:
        """Whether none of these requests could be taken for one that is open."""
        return self._open.isdisjoint(names)

    @contextmanager
    def holding(self, names: Collection[_Name]) -> Generator[None]:
        """While an exchange with these requests passes."""
        self._open.update(names)
        self.passages += 1
        try:
            yield
        finally:
            self._open.difference_update(names)
            self.passages -= 1
            self._used_at = trio.current_time()

    def is_idle(self, seconds: float) -> bool:
        """Whether nobody has used it for so long."""
        return not self.passages and self._used_at <= trio.current_time() - seconds


@attrs.define(kw_only=True, eq=False)
class Journals:
    """See the module; `start` begins another recording.

    Of as many sessions as `http_sessions_max` a recording is held open, and of as many recordings
    in common as `http_streams_max`.
    """

    start: Callable[[], FrameJournal]
    limits: Limits
    _sessions: dict[str, Kept] = attrs.field(factory=dict[str, Kept], init=False)
    _common: list[Kept] = attrs.field(factory=list[Kept], init=False)
    _new: set[Kept] = attrs.field(factory=set[Kept], init=False)
    _gives_no_ids: bool = attrs.field(default=False, init=False)

    @contextmanager
    def used(self, key: str | None, messages: Sequence[Message]) -> Generator[Kept]:
        """The recording for an exchange that brings these messages, while it passes.

        Raises:
            RecordingError: It cannot be begun.
        """
        names = _names_of(messages)
        kept = self._found(key, messages, names)
        try:
            with kept.holding(names):
                yield kept
        finally:
            self._close_if_over(kept)

    def knows(self, key: str) -> bool:
        """Whether there is a session of this key."""
        return key in self._sessions

    def _found(
        self, key: str | None, messages: Sequence[Message], names: Collection[_Name]
    ) -> Kept:
        if key is not None and key in self._sessions:
            return self._sessions[key]
        is_opening = any(
            isinstance(each, Request) and each.method == INITIALIZE for each in messages
        )
        has_place = len(self._sessions) + len(self._new) < self.limits.http_sessions_max
        if is_opening and key is None and has_place and not self._gives_no_ids:
            return self._begun()
        return self._in_common(names)

    def _begun(self) -> Kept:
        kept = Kept(self.start())
        self._new.add(kept)
        return kept

    def _in_common(self, names: Collection[_Name]) -> Kept:
        fitting = (each for each in self._common if each.has_room_for(names))
        found = next(fitting, None)
        if found is None and len(self._common) < self.limits.http_streams_max:
            found = Kept(self.start(), is_common=True)
            self._common.append(found)
        return found or self._common[-1]

    # What the server's answers tell.

    def name(self, kept: Kept, key: str) -> Kept:
        """The session that is being opened has this key; returns its recording."""
        if kept not in self._new:  # another stream of it tells so, or it begins in the middle
            kept = self._begun()
        self._new.discard(kept)
        replaced = self._sessions.pop(key, None)
        self._sessions[key] = kept
        kept.key = key
        if replaced is not None:
            self.end(replaced)
        return kept

    def settle(self, kept: Kept) -> None:
        """A handshake has passed: one without an id is followed by requests without one."""
        if kept in self._new and kept.journal.is_negotiated:
            self._new.discard(kept)
            self._gives_no_ids = kept.is_common = True
            self._common.insert(0, kept)

    def end(self, kept: Kept) -> None:
        """The session is over; its recording is, as soon as nothing passes any more."""
        if kept.key is None:
            return
        if self._sessions.get(kept.key) is kept:
            del self._sessions[kept.key]
        kept.is_over = True
        self._close_if_over(kept)

    def _close_if_over(self, kept: Kept) -> None:
        """One that was never named has come to nothing."""
        if not kept.passages and (kept.is_over or kept in self._new):
            self._new.discard(kept)
            kept.journal.close()

    # The end.

    async def expire(self) -> None:
        """Ends sessions that nobody has used for `http_session_idle_seconds`."""
        seconds = self.limits.http_session_idle_seconds
        while True:
            await trio.sleep(seconds / _LOOKS_PER_EXPIRY)
            for kept in [*self._sessions.values()]:
                if kept.is_idle(seconds):
                    self.end(kept)

    def shut(self, cause: Cause) -> None:
        """Records why all sessions end."""
        for kept in self._all():
            kept.journal.shut(cause)

    def close(self) -> None:
        """Ends all recordings."""
        for kept in self._all():
            kept.journal.close()

    def _all(self) -> Iterable[Kept]:
        return (*self._sessions.values(), *self._common, *self._new)


def _names_of(messages: Sequence[Message]) -> Collection[_Name]:
    requests = [each for each in messages if isinstance(each, Request)]
    tokens = (token_of(each.params) for each in requests)
    ids: list[_Name] = [("id", each.id) for each in requests]
    return [*ids, *(("token", token) for token in tokens if token is not None)]
