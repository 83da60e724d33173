"""Instances of a server that serve together, on one machine or on many.

Each legacy session has an *owner*: the instance that runs its handlers. The instances share a table
of the sessions and their owners, and send messages to one another. `Instances` is the interface to
both; `MemoryInstances` connects the ASGI applications of one process, and
`mcp_trio.redis.RedisStores` those of several machines.

An instance has a *lease*, which it renews as long as it runs. When the lease is over, the instance
is lost: another one may take its sessions.

A *call* here is a kept call, which another instance can continue (`continuation.py`). Its *entries*
are its request, with the number 0, and its operations.
"""

from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Protocol

import attrs
import msgspec
import trio

from mcp_trio._transports.concurrency import Wakeup


class StoreUnavailableError(Exception):
    """The store that the instances share does not answer."""


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts from which another instance can open a legacy session again.

    Attributes:
        principal: The user who opened the session; None if the server does not verify users.
        opening: The client's messages that determine the state of the protocol, in order:
            `initialize`, `notifications/initialized`, the log level and the subscriptions.
        values: The values that handlers keep in the session; see `continuation.py`.
        is_movable: Whether these facts are the complete state of the session. Another instance ends
            a session that is not movable.
    """

    principal: str | None
    opening: tuple[bytes, ...]
    values: bytes = b""
    is_movable: bool = True


class StoredSession(msgspec.Struct, frozen=True):
    """A session that is known to all instances: its facts, and the name of its owner.

    A session without an owner was handed over, and waits for an instance that takes it.
    """

    facts: SessionFacts
    owner: str | None


class InstanceHandler(Protocol):
    """The part of a served application that an `Instance` calls. No method waits."""

    def receive(self, sender: str, message: bytes) -> None:
        """Handle a message of another instance."""
        ...

    def lose(self, name: str) -> None:
        """Note that the lease of another instance is over: it receives no more messages."""
        ...

    def lose_session(self, session_id: str, /) -> None:
        """End a session that another instance has taken, because the lease of this one was over.

        This may be called for a session that has ended already.
        """
        ...

    def peers(self) -> Collection[str]:
        """Return the names of the instances that this one waits for; `lose` reports their end."""
        ...


class Instance(Protocol):
    """An instance that has joined the others.

    Methods that are not `async` never wait. The others, except `settle`, raise
    `StoreUnavailableError` if the store does not answer.

    The messages of one instance to another arrive in their order, and each at most once; they all
    arrive unless one of the two is lost.

    If another instance owns the session, `keep`, `hand_over`, `post_call_entry` and
    `store_call_entry` store nothing; the handler's `lose_session` is then called, before `settle`
    returns.

    Attributes:
        name: The name of this instance, which no other one has or had.
    """

    name: str

    def keep(self, session_id: str, facts: SessionFacts) -> None:
        """Store the facts about a session of this instance, or those that have changed."""
        ...

    def hand_over(self, session_id: str, facts: SessionFacts) -> None:
        """Store a session of this instance without an owner, so that others may take it."""
        ...

    def forget(self, session_id: str) -> None:
        """Remove a session of this instance, which has ended, with its events."""
        ...

    def post_call_entry(self, session_id: str, call: str, number: int, entry: bytes) -> None:
        """Store an entry of a call in a session of this instance, soon."""
        ...

    async def store_call_entry(self, session_id: str, call: str, number: int, entry: bytes) -> None:
        """Store an entry of a call, and wait until the store has it.

        The facts and entries that were posted before are stored first.

        Raises:
            StoreUnavailableError: Also if another instance has taken the session.
        """
        ...

    def forget_call(self, session_id: str, call: str, entries: int) -> None:
        """Remove the entries of a call, which have the numbers from 0 to `entries` - 1."""
        ...

    async def calls(self, session_id: str) -> Mapping[str, Mapping[int, bytes]]:
        """Return the entries of each call of a session by their numbers."""
        ...

    async def settle(self) -> None:
        """Wait until all that was stored or sent so far has reached the store.

        If the store does not answer, this returns after a moment; the store gets the rest when it
        is available again.
        """
        ...

    async def wait_until_stored(self) -> None:
        """Wait until all that was stored or sent so far has reached the store.

        The store has some seconds to answer.
        """
        ...

    async def find(self, session_id: str) -> StoredSession | None:
        """Return a session, or None if there is none."""
        ...

    async def take(self, session_id: str, former_owner: str | None) -> bool:
        """Become the owner of a session; return whether this instance is its owner now.

        It is not if the owner is another one than `former_owner`, or `former_owner` has a lease
        again. `former_owner` is None for a session that was handed over. The owner of a session may
        call this again.
        """
        ...

    async def is_lost(self, name: str) -> bool:
        """Return whether the lease of an instance is over.

        An instance that is alive gets the time to renew its lease, if the store was unavailable
        before.
        """
        ...

    async def others(self) -> Sequence[str]:
        """Return the names of the other instances that are alive and have not begun to leave."""
        ...

    async def leave(self) -> None:
        """Begin to leave: `others` no longer names this instance. It still receives messages."""
        ...

    def send(self, to: str, message: bytes) -> None:
        """Send a message to another instance."""
        ...

    async def unread(self, name: str) -> Sequence[bytes]:
        """Return the messages from this instance that a lost one did not receive."""
        ...


class Instances(Protocol):
    """A registry that the instances of a server share: their sessions, leases and messages."""

    def joined(self, handler: InstanceHandler) -> AbstractAsyncContextManager[Instance]:
        """Return a context manager that joins the instances; the lease ends with the context."""
        ...


# In memory --------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class MemoryInstances:
    """`Instances` for the ASGI applications of one process, for example in a test."""

    sessions: dict[str, StoredSession] = attrs.field(factory=dict[str, StoredSession], init=False)
    calls: dict[str, dict[str, dict[int, bytes]]] = attrs.field(
        factory=dict[str, dict[str, dict[int, bytes]]], init=False
    )
    members: dict[str, "MemoryInstance"] = attrs.field(
        factory=dict[str, "MemoryInstance"], init=False
    )
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)

    @asynccontextmanager
    async def joined(self, handler: InstanceHandler) -> AsyncGenerator["MemoryInstance"]:
        """Join the instances of this process."""
        member = MemoryInstance(f"instance-{next(self._numbers)}", self, handler)
        self.members[member.name] = member
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(member.run)
                yield member
                nursery.cancel_scope.cancel()
        finally:
            self.lose(member.name)

    def lose(self, name: str) -> None:
        """End the lease of an instance, as when its machine is cut off from the others."""
        self.members.pop(name, None)
        for other in self.members.values():
            if name in other.handler.peers():
                other.handler.lose(name)


@attrs.define(eq=False, repr=False)
class MemoryInstance:
    """An `Instance` in the memory of this process."""

    name: str
    shared: MemoryInstances
    handler: InstanceHandler
    is_leaving: bool = attrs.field(default=False, init=False)
    _inbox: deque[tuple[str, bytes]] = attrs.field(factory=deque[tuple[str, bytes]], init=False)
    _changed: Wakeup = attrs.field(factory=Wakeup, init=False)
    _lost: dict[str, list[bytes]] = attrs.field(factory=dict[str, list[bytes]], init=False)

    async def run(self) -> None:
        """Pass the messages of other instances to the handler until cancelled."""
        while True:
            while self._inbox:
                self.handler.receive(*self._inbox.popleft())
            await self._changed.wait()

    def put(self, sender: str, message: bytes) -> None:
        """Queue a message of another instance for `run`."""
        self._inbox.append((sender, message))
        self._changed.wake()

    def keep(self, session_id: str, facts: SessionFacts) -> None:
        """Store the facts about a session, unless another instance owns it."""
        self._store(session_id, StoredSession(facts, self.name))

    def hand_over(self, session_id: str, facts: SessionFacts) -> None:
        """Store a session without an owner, unless another instance owns it."""
        self._store(session_id, StoredSession(facts, None))

    def _store(self, session_id: str, session: StoredSession) -> None:
        if session_id not in self.shared.sessions or self._owns(session_id):
            self.shared.sessions[session_id] = session
        else:
            self.handler.lose_session(session_id)

    def forget(self, session_id: str) -> None:
        """Remove a session, unless another instance owns it."""
        if self._owns(session_id):
            del self.shared.sessions[session_id]
            self.shared.calls.pop(session_id, None)

    def post_call_entry(self, session_id: str, call: str, number: int, entry: bytes) -> None:
        """Store an entry of a call, unless another instance owns the session."""
        if self._owns(session_id):
            calls = self.shared.calls.setdefault(session_id, {})
            calls.setdefault(call, {})[number] = entry
        elif session_id in self.shared.sessions:
            self.handler.lose_session(session_id)

    async def store_call_entry(self, session_id: str, call: str, number: int, entry: bytes) -> None:
        """Store an entry of a call."""
        await trio.lowlevel.checkpoint()
        if not self._owns(session_id) or self.name not in self.shared.members:
            self.handler.lose_session(session_id)
            raise StoreUnavailableError("another instance has taken the session")
        self.post_call_entry(session_id, call, number, entry)

    def forget_call(self, session_id: str, call: str, entries: int) -> None:  # noqa: ARG002
        """Remove the entries of a call, unless another instance owns the session."""
        if self._owns(session_id):
            self.shared.calls.get(session_id, {}).pop(call, None)

    def _owns(self, session_id: str) -> bool:
        stored = self.shared.sessions.get(session_id)
        return stored is not None and stored.owner == self.name

    async def calls(self, session_id: str) -> Mapping[str, Mapping[int, bytes]]:
        """Return the entries of each call of a session."""
        await trio.lowlevel.checkpoint()
        return self.shared.calls.get(session_id, {})

    async def settle(self) -> None:
        """Only execute a checkpoint: everything is stored at once."""
        await trio.lowlevel.checkpoint()

    wait_until_stored = settle

    async def find(self, session_id: str) -> StoredSession | None:
        """Return a session, or None if there is none."""
        await trio.lowlevel.checkpoint()
        return self.shared.sessions.get(session_id)

    async def take(self, session_id: str, former_owner: str | None) -> bool:
        """Become the owner of a session; return False if its owner is another one, or not lost."""
        await trio.lowlevel.checkpoint()
        stored = self.shared.sessions.get(session_id)
        if stored is None or stored.owner not in (former_owner, self.name):
            return False
        if stored.owner != self.name and stored.owner in self.shared.members:
            return False
        self.shared.sessions[session_id] = StoredSession(stored.facts, self.name)
        return True

    async def is_lost(self, name: str) -> bool:
        """Return whether an instance has left."""
        await trio.lowlevel.checkpoint()
        return name not in self.shared.members

    async def others(self) -> Sequence[str]:
        """Return the names of the other instances that have not begun to leave."""
        await trio.lowlevel.checkpoint()
        members = self.shared.members.values()
        return [each.name for each in members if each is not self and not each.is_leaving]

    async def leave(self) -> None:
        """Begin to leave."""
        await trio.lowlevel.checkpoint()
        self.is_leaving = True

    def send(self, to: str, message: bytes) -> None:
        """Send a message to another instance; if that one has left, the message stays unread."""
        member = self.shared.members.get(to)
        if member is None:
            self._lost.setdefault(to, []).append(message)
            self.handler.lose(to)
        else:
            member.put(self.name, message)

    async def unread(self, name: str) -> Sequence[bytes]:
        """Return the messages to an instance that were sent after it had left."""
        await trio.lowlevel.checkpoint()
        return self._lost.get(name, [])
