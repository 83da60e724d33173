"""Sessions, leases and messages of instances, in Redis.

Keys, each after the prefix:

- `session:ID`: a hash with the owner and the facts of a session.
- `instance:NAME`: exists while the lease lasts; `instances` is the set of all names.
- `inbox:NAME`: a stream of the messages to an instance. The instance deletes a message before it
  acts on it, so a message that is still there was never taken.

Redis may lose data when it is restarted. Each pair of instances numbers its messages, and keeps
them until the other one has confirmed them. When Redis is back, each instance writes its lease, its
sessions and the unconfirmed messages again; a message with a number that was seen is dropped.
"""

import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NoReturn

import attrs
import msgspec
import trio
from coredis import PureToken

from mcp_trio._redis.connection import RedisConnection, expiry_of
from mcp_trio._server.instances import (
    InstanceHandler,
    SessionFacts,
    StoredSession,
    StoreUnavailableError,
)

logger = logging.getLogger("mcp_trio")

_NAME_BYTES: Final = 8
_RENEWALS_PER_LEASE: Final = 3
_ROUNDS_TO_LOSE: Final = 2
_INBOX_LEASES: Final = 20  # An inbox is deleted so many leases after its last renewal.
_MILLISECONDS: Final = 1000
_LEAVE_SECONDS: Final = 1.0
_TAKE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.01
_EXPIRIES: Final = 4  # within the time after which a session is forgotten
_RUNS, _LEAVES = b"runs", b"leaves"

# The owner of a session that was handed over is an empty string.
_KEEP: Final = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'facts', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""
_FORGET: Final = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('DEL', unpack(KEYS))
"""
_TAKE: Final = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner == ARGV[1] then return 1 end
if owner ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return 1
"""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_facts: Final = msgspec.msgpack.Decoder(SessionFacts).decode


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of an inbox.

    Attributes:
        sender: The name of the instance that has sent it.
        number: The number of the message; 0 for a confirmation without a message.
        confirmed: The number of the last message that the sender has received.
    """

    sender: str
    number: int
    confirmed: int
    message: bytes = b""


_decode_entry: Final = msgspec.msgpack.Decoder(_Entry).decode


@attrs.define(eq=False, repr=False)
class _Link:
    """The messages to and from one other instance."""

    sent: int = 0
    received: int = 0
    confirmed: int = 0  # the number that was last confirmed to the other instance
    unconfirmed: deque[tuple[int, bytes]] = attrs.field(factory=deque[tuple[int, bytes]])
    missed_leases: int = 0
    unread: list[bytes] = attrs.field(factory=list[bytes])  # withdrawn from a lost instance


@attrs.define(eq=False, repr=False)
class RedisInstances:
    """`Instances` whose sessions, leases and messages are in Redis.

    Attributes:
        connection: The connection.
        lease_seconds: The seconds after which an instance that renews its lease no more is lost.
        session_seconds: The seconds after which a session without an owner is forgotten.
    """

    connection: RedisConnection
    lease_seconds: float
    session_seconds: float

    @asynccontextmanager
    async def joined(self, handler: InstanceHandler) -> AsyncGenerator["RedisInstance"]:
        """Join the other instances, as soon as Redis answers."""
        instance = RedisInstance(
            secrets.token_hex(_NAME_BYTES),
            self.connection,
            handler,
            self.lease_seconds,
            self.session_seconds,
        )
        async with trio.open_nursery() as nursery:
            self.connection.when_back(instance.mark_stale)
            nursery.start_soon(instance.renew_lease)
            reading, has_stopped = trio.CancelScope(), trio.Event()

            async def take_messages() -> None:
                with reading:
                    await instance.take_messages()
                has_stopped.set()

            nursery.start_soon(take_messages)
            await self.connection.settle()
            yield instance
            with trio.move_on_after(_LEAVE_SECONDS):
                while handler.peers():  # noqa: ASYNC110  Forwarded requests are answered.
                    await trio.sleep(_POLL_SECONDS)
            reading.cancel()  # Later messages stay unread, for another instance to act upon.
            await has_stopped.wait()
            with trio.move_on_after(_LEAVE_SECONDS):
                while handler.peers():  # noqa: ASYNC110  Requests that were taken are answered.
                    await trio.sleep(_POLL_SECONDS)
            instance.end_lease()
            await self.connection.settle()
            nursery.cancel_scope.cancel()


@attrs.define(eq=False, repr=False)
class RedisInstance:
    """An `Instance` whose sessions, lease and messages are in Redis."""

    name: str
    _connection: RedisConnection
    _handler: InstanceHandler
    _lease_seconds: float
    _session_seconds: float
    _sessions: dict[str, SessionFacts] = attrs.field(factory=dict[str, SessionFacts], init=False)
    _links: dict[str, _Link] = attrs.field(factory=dict[str, _Link], init=False)
    _state: bytes = attrs.field(default=_RUNS, init=False)
    _is_stale: bool = attrs.field(default=True, init=False)
    _withdrawing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _expiries_due: float = attrs.field(default=0.0, init=False)

    # Sessions.

    def _session_key(self, session_id: str) -> str:
        return self._connection.key("session", session_id)

    def keep(self, session_id: str, facts: SessionFacts) -> None:
        """Store the facts about a session of this instance."""
        self._sessions[session_id] = facts
        self._post_session(session_id, self.name, facts)

    def hand_over(self, session_id: str, facts: SessionFacts) -> None:
        """Store a session of this instance without an owner."""
        self._sessions.pop(session_id, None)
        self._post_session(session_id, "", facts)

    def _post_session(self, session_id: str, owner: str, facts: SessionFacts) -> None:
        args = (self.name, owner, _encode(facts), expiry_of(self._session_seconds))
        self._post_script(_KEEP, [self._session_key(session_id)], args)

    def forget(self, session_id: str) -> None:
        """Remove a session of this instance, with its events."""
        self._sessions.pop(session_id, None)
        keys = [self._connection.key(kind, session_id) for kind in ("session", "events", "streams")]
        self._post_script(_FORGET, keys, [self.name])

    def _post_script(
        self, script: str, keys: Sequence[str], args: Sequence[str | bytes | int]
    ) -> None:
        self._connection.post(lambda pipeline: pipeline.eval(script, keys=keys, args=args))

    async def settle(self) -> None:
        """Wait until Redis has all that was stored or sent, or does not answer."""
        await self._connection.settle()

    async def find(self, session_id: str) -> StoredSession | None:
        """Return a session, or None if there is none."""
        key = self._session_key(session_id)
        owner, facts = await self._connection.call(
            lambda redis: redis.hmget(key, ["owner", "facts"])
        )
        if owner is None or facts is None:
            return None
        return StoredSession(_decode_facts(facts), owner.decode() or None)

    async def take(self, session_id: str, before: str | None) -> bool:
        """Become the owner of a session; return False if its owner is not `before` any more."""
        keys = [self._session_key(session_id)]
        return bool(await self._connection.evaluate(_TAKE, keys, self.name, before or ""))

    # Leases.

    def mark_stale(self) -> None:
        """Note that Redis was away, and may have lost what it knew of this instance."""
        self._is_stale = True

    def end_lease(self) -> None:
        """End the lease at once."""
        key = self._lease_key(self.name)
        self._connection.post(
            lambda pipeline: pipeline.delete([key]),
            lambda pipeline: pipeline.srem(self._connection.key("instances"), [self.name]),
        )

    async def leave(self) -> None:
        """Begin to leave: `others` of other instances no longer names this one."""
        self._state = _LEAVES
        await self._connection.call(partial(self._set_lease, is_new=True))

    async def _set_lease(self, redis: Any, *, is_new: bool) -> bool:
        key, milliseconds = self._lease_key(self.name), int(self._lease_seconds * _MILLISECONDS)
        condition = None if is_new else PureToken.XX
        return bool(await redis.set(key, self._state, px=milliseconds, condition=condition))

    def _lease_key(self, name: str) -> str:
        return self._connection.key("instance", name)

    async def renew_lease(self) -> NoReturn:
        """Renew the lease, and watch those of other instances, until cancelled."""
        while True:
            try:
                await self._renew_once()
            except StoreUnavailableError as error:
                logger.debug("the lease cannot be renewed: %s", error)
            await trio.sleep(self._lease_seconds / _RENEWALS_PER_LEASE)

    async def _renew_once(self) -> None:
        if not await self._connection.call(partial(self._set_lease, is_new=self._is_stale)):
            self._is_stale = True
            await self._connection.call(partial(self._set_lease, is_new=True))
        if self._is_stale:
            self._is_stale = False
            await self._restore()
        inbox, seconds = self._connection.key("inbox", self.name), self._lease_seconds
        self._connection.post(
            lambda pipeline: pipeline.sadd(self._connection.key("instances"), [self.name]),
            lambda pipeline: pipeline.expire(inbox, expiry_of(seconds * _INBOX_LEASES)),
        )
        if trio.current_time() >= self._expiries_due:
            self._expiries_due = trio.current_time() + self._session_seconds / _EXPIRIES
            for session_id in self._sessions:
                for kind in ("session", "events", "streams"):
                    self._post_expiry(self._connection.key(kind, session_id))
        for name, link in self._links.items():
            if link.received > link.confirmed:
                self._post_message(name, link, 0, b"")
        await self._watch_peers()

    def _post_expiry(self, key: str) -> None:
        seconds = expiry_of(self._session_seconds)
        self._connection.post(lambda pipeline: pipeline.expire(key, seconds))

    async def _restore(self) -> None:
        """Write again what Redis may have lost; lose the sessions that others have taken."""
        for session_id, facts in tuple(self._sessions.items()):
            stored = await self.find(session_id)
            if stored is not None and stored.owner != self.name:
                self._sessions.pop(session_id, None)
                self._handler.lose_session(session_id)
            elif session_id in self._sessions:
                self._post_session(session_id, self.name, facts)
        for name, link in self._links.items():
            for number, message in link.unconfirmed:
                self._post_message(name, link, number, message)

    async def _watch_peers(self) -> None:
        for name in self._handler.peers():
            link = self._links.setdefault(name, _Link())
            if await self._connection.call(partial(self._has_lease, name)):
                link.missed_leases = 0
                continue
            link.missed_leases += 1
            if link.missed_leases >= _ROUNDS_TO_LOSE:
                link.unconfirmed.clear()
                self._handler.lose(name)

    async def _has_lease(self, name: str, redis: Any) -> bool:
        return bool(await redis.exists([self._lease_key(name)]))

    async def is_lost(self, name: str) -> bool:
        """Return whether the lease of an instance is over, also after the time of one renewal."""
        if await self._connection.call(partial(self._has_lease, name)):
            return False
        await trio.sleep(self._lease_seconds / _RENEWALS_PER_LEASE)
        return not await self._connection.call(partial(self._has_lease, name))

    async def others(self) -> Sequence[str]:
        """Return the names of the other instances that are alive and have not begun to leave."""
        members = await self._connection.call(
            lambda redis: redis.smembers(self._connection.key("instances"))
        )
        names = sorted({member.decode() for member in members} - {self.name})
        if not names:
            return []
        keys = [self._lease_key(name) for name in names]
        states = await self._connection.call(lambda redis: redis.mget(keys))
        return [name for name, state in zip(names, states, strict=True) if state == _RUNS]

    # Messages.

    def send(self, to: str, message: bytes) -> None:
        """Send a message to another instance."""
        link = self._links.setdefault(to, _Link())
        link.sent += 1
        link.unconfirmed.append((link.sent, message))
        self._post_message(to, link, link.sent, message)

    def _post_message(self, to: str, link: _Link, number: int, message: bytes) -> None:
        key, seconds = self._connection.key("inbox", to), self._lease_seconds
        link.confirmed = link.received
        entry = _encode(_Entry(self.name, number, link.received, message))
        self._connection.post(lambda pipeline: pipeline.xadd(key, {"m": entry}), size=len(entry))
        if number <= 1:  # The inbox of an instance that is lost must not stay for ever.
            expire = expiry_of(seconds * _INBOX_LEASES)
            self._connection.post(lambda pipeline: pipeline.expire(key, expire))

    async def take_messages(self) -> NoReturn:
        """Take the messages of other instances until cancelled."""
        key = self._connection.key("inbox", self.name)
        while True:
            entries = await self._connection.next_entries(key, "0-0")
            while not await self._take_once(key, entries):
                await trio.lowlevel.checkpoint()

    async def _take_once(self, key: str, entries: Sequence[tuple[str, bytes]]) -> bool:
        """Delete messages and act on them; return False if Redis is away.

        If this is cancelled in between, the sender would take the messages for executed.
        """
        ids = [entry_id for entry_id, _ in entries]
        with trio.move_on_after(_TAKE_SECONDS, shield=True), suppress(StoreUnavailableError):
            await self._connection.call(lambda redis: redis.xdel(key, ids))
            for _, data in entries:
                self._take(_decode_entry(data))
            return True
        return False

    def _take(self, entry: _Entry) -> None:
        link = self._links.setdefault(entry.sender, _Link())
        while link.unconfirmed and link.unconfirmed[0][0] <= entry.confirmed:
            link.unconfirmed.popleft()
        # After a gap, the sender writes all unconfirmed messages again.
        if entry.number == link.received + 1:
            link.received = entry.number
            self._handler.receive(entry.sender, entry.message)

    async def unread(self, name: str) -> Sequence[bytes]:
        """Return the messages to a lost instance that it has never taken, and withdraw them."""
        key, link = self._connection.key("inbox", name), self._links.setdefault(name, _Link())
        async with self._withdrawing:  # Several requests may ask at once.
            for entry_id, data in await self._connection.entries(key):
                entry = _decode_entry(data)
                if entry.sender == self.name and entry.number:
                    delete = partial(_delete_entry, key, entry_id)
                    if await self._connection.call(delete):
                        link.unread.append(entry.message)
        return link.unread


async def _delete_entry(key: str, entry_id: str, redis: Any) -> int:
    deleted: int = await redis.xdel(key, [entry_id])
    return deleted
