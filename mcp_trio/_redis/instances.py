"""Sessions, leases and messages of instances, in Redis.

Keys, each after the prefix:

- `session:ID`: a hash with the owner and the facts of a session.
- `calls:ID`: a hash of the entries of its calls, by `CALL:NUMBER`.
- `instance:NAME`: exists while the lease lasts; `instances` is the set of all names.
- `inbox:NAME`: a stream of the messages to an instance. The instance deletes a message before it
  acts on it, and acts only on those that it has deleted itself. An instance that takes another one
  for lost *withdraws* its messages, by deleting them first: they were never taken.
- `taken:NAME`: a hash with the number of the last message that it has taken from each sender. A
  message with such a number that is still in the inbox is a copy.
- `batch:NAME:ID`: the messages that were deleted together, for a while: Redis may have executed a
  command whose response is lost.

Redis may lose data when it is restarted. Each pair of instances numbers its messages, and keeps
them until the other one has confirmed them. When Redis is available again, each instance writes its
lease, its sessions and the unconfirmed messages again; a message whose number was seen is dropped.
After an instance was taken for lost, the numbers of the messages to it begin again in a new
*epoch*. An instance that was only slow takes the messages that follow, and breaks off what it had
in progress with the sender, because messages of the earlier epoch may be missing.
"""

import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Literal, NoReturn

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
_MILLISECONDS: Final = 1000
_POLL_SECONDS: Final = 0.01

# The number of times within one lease that an instance renews it, and checks those of the others.
# An instance is lost when so many checks in a row have found no lease of it.
_RENEWALS_PER_LEASE: Final = 3
_LOST_AFTER_MISSED_LEASES: Final = 2

# Redis deletes an inbox so many leases after its owner has last renewed it.
_INBOX_LEASES: Final = 20

# An instance confirms messages at once when they have this part of the bytes that another one may
# send without a confirmation. Otherwise it confirms them when it renews its lease.
_CONFIRMED_PART: Final = 4

# The number of times within `session_seconds` that an instance renews the keys of its sessions.
_RENEWALS_PER_SESSION: Final = 4

# The maximum time of each wait of a leaving instance for its requests, and that of the script by
# which an instance takes a batch of messages.
_LEAVE_SECONDS: Final = 1.0
_TAKE_SECONDS: Final = 2.0

# The pause before the next attempt to take a batch, after Redis has answered with an error.
_RETRY_SECONDS: Final = 0.1

# The values of the key `instance:NAME`.
_RUNNING, _LEAVING = b"runs", b"leaves"

# The results of scripts that have stored nothing: another instance owns the session, or Redis has
# no such session.
_OTHER_OWNER, _NO_SESSION = 0, -1

_SESSION_KEYS: Final = ("session", "events", "streams", "calls")

# The number of entries of a call that one script removes.
_ENTRIES_MAX: Final = 1000

# Lua scripts, which Redis executes atomically. These change a session and its calls only while the
# instance `ARGV[1]` owns the session; `_TAKE` makes it the owner in place of `ARGV[2]`. The owner
# of a session that was handed over is an empty string.
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
_STORE_CALL_ENTRY: Final = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then return -1 end
if owner ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 1
"""
_FORGET_CALL: Final = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('HDEL', KEYS[2], unpack(ARGV, 2))
"""
# An owner that was taken for lost may have renewed its lease meanwhile.
_TAKE: Final = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner == ARGV[1] then return 1 end
if owner ~= ARGV[2] then return 0 end
if owner ~= '' and redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return 1
"""

# Deletes messages from the inbox; returns for each whether this batch has deleted it, now or in an
# earlier execution of the same script.
_TAKE_MESSAGES: Final = """
local taken = {}
for i = 1, #ARGV, 3 do
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 then
    redis.call('SADD', KEYS[3], ARGV[i])
    if ARGV[i + 2] ~= '' then redis.call('HSET', KEYS[2], ARGV[i + 1], ARGV[i + 2]) end
  end
  taken[#taken + 1] = redis.call('SISMEMBER', KEYS[3], ARGV[i])
end
redis.call('EXPIRE', KEYS[3], 60)
return taken
"""
# Deletes a message from the inbox of a lost instance; returns 0 if the instance has taken it.
_WITHDRAW: Final = """
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
local position = redis.call('HGET', KEYS[2], ARGV[2])
if not position then return 1 end
local epoch, number = string.match(position, '(%d+):(%d+)')
if epoch == ARGV[3] and tonumber(number) >= tonumber(ARGV[4]) then return 0 end
return 1
"""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_facts: Final = msgspec.msgpack.Decoder(SessionFacts).decode


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of an inbox.

    Attributes:
        sender: The name of the instance that has sent it.
        epoch: The epoch of the number.
        number: The number of the message; 0 for a confirmation without a message.
        confirmed: The epoch and number of the last message that the sender has received.
    """

    sender: str
    epoch: int
    number: int
    confirmed: tuple[int, int]
    message: bytes = b""


_decode_entry: Final = msgspec.msgpack.Decoder(_Entry).decode


@attrs.define(eq=False, repr=False)
class _Link:
    """The messages to and from one other instance.

    Attributes:
        epoch: The epoch of the messages to the other instance.
        sent: The number of the last message that was sent in this epoch.
        received: The epoch and number of the last message that was received.
        confirmed: The epoch and number that were last confirmed to the other instance.
        received_bytes: The size of the messages that were received since then.
        unconfirmed: The messages that the other instance has not confirmed, with their numbers.
        unconfirmed_bytes: The size of these messages.
        missed_leases: The number of checks in a row that have found no lease of the other instance.
        unread: The withdrawn messages, as long as requests to the other instance are unfinished.
    """

    epoch: int = 1
    sent: int = 0
    received: tuple[int, int] = (0, 0)
    confirmed: tuple[int, int] = (0, 0)
    received_bytes: int = 0
    unconfirmed: deque[tuple[int, bytes]] = attrs.field(factory=deque[tuple[int, bytes]])
    unconfirmed_bytes: int = 0
    missed_leases: int = 0
    unread: list[bytes] = attrs.field(factory=list[bytes])

    def begin_epoch(self) -> None:
        """Number the messages from the beginning, because the other instance was lost."""
        self.epoch, self.sent = self.epoch + 1, 0
        self.unconfirmed.clear()
        self.unconfirmed_bytes = 0


@attrs.define(eq=False, repr=False)
class RedisInstances:
    """`Instances` whose sessions, leases and messages are in Redis.

    Attributes:
        connection: The connection.
        lease_seconds: The seconds after which an instance that renews its lease no more is lost.
        session_seconds: The seconds after which a session without an owner is forgotten.
        unconfirmed_bytes_max: The bytes of the messages that one other instance has not confirmed.
    """

    connection: RedisConnection
    lease_seconds: float
    session_seconds: float
    unconfirmed_bytes_max: int

    @asynccontextmanager
    async def joined(self, handler: InstanceHandler) -> AsyncGenerator["RedisInstance"]:
        """Join the other instances, as soon as Redis answers."""
        instance = RedisInstance(secrets.token_hex(_NAME_BYTES), self.connection, handler, self)
        async with trio.open_nursery() as nursery:
            self.connection.call_when_available(instance.mark_stale)
            nursery.start_soon(instance.renew_lease)
            reading, has_stopped = trio.CancelScope(), trio.Event()

            async def take_messages() -> None:
                with reading:
                    await instance.take_messages()
                has_stopped.set()

            nursery.start_soon(take_messages)

            async def wait_for_requests() -> None:
                with trio.move_on_after(_LEAVE_SECONDS):
                    while handler.peers():  # noqa: ASYNC110
                        await trio.sleep(_POLL_SECONDS)

            await self.connection.settle()
            yield instance
            # Forwarded requests get the time to finish, also those that are taken meanwhile.
            await wait_for_requests()
            reading.cancel()  # Later messages stay unread, for another instance to act upon.
            await has_stopped.wait()
            await wait_for_requests()
            instance.end_lease()
            await self.connection.settle()
            nursery.cancel_scope.cancel()


@attrs.define(eq=False, repr=False)
class RedisInstance:
    """An `Instance` whose sessions, lease and messages are in Redis."""

    name: str
    _connection: RedisConnection
    _handler: InstanceHandler
    _settings: RedisInstances
    _sessions: dict[str, SessionFacts] = attrs.field(factory=dict[str, SessionFacts], init=False)
    # A link stays for as long as this process, in about 1 KiB: an instance that was only suspended
    # goes on with its numbers, and without them its messages would be dropped.
    _links: dict[str, _Link] = attrs.field(factory=dict[str, _Link], init=False)
    _state: bytes = attrs.field(default=_RUNNING, init=False)
    _is_stale: bool = attrs.field(default=True, init=False)
    _withdrawing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _next_session_renewal: float = attrs.field(default=0.0, init=False)

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
        args = (self.name, owner, _encode(facts), expiry_of(self._settings.session_seconds))
        on_result = partial(self._check_owner, session_id)
        self._post_script(_KEEP, [self._session_key(session_id)], args, on_result)

    def forget(self, session_id: str) -> None:
        """Remove a session of this instance, with its events."""
        self._sessions.pop(session_id, None)
        keys = [self._connection.key(kind, session_id) for kind in _SESSION_KEYS]
        self._post_script(_FORGET, keys, [self.name])

    def _post_script(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[str | bytes | int],
        on_result: Callable[[Any], None] | None = None,
    ) -> None:
        size = sum(len(each) for each in args if not isinstance(each, int))
        self._connection.post(
            lambda pipeline: pipeline.eval(script, keys=keys, args=args),
            size=size,
            on_result=on_result,
        )

    def _check_owner(self, session_id: str, result: int) -> None:
        """Lose a session if the result of a script says that another instance has taken it."""
        if result == _OTHER_OWNER:
            self._lose_session(session_id)

    def _lose_session(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)
        self._handler.lose_session(session_id)

    async def settle(self) -> None:
        """Wait until Redis has all that was stored or sent, or does not answer."""
        await self._connection.settle()

    async def wait_until_stored(self) -> None:
        """Wait until Redis has all that was stored or sent."""
        await trio.lowlevel.checkpoint()
        await self._connection.wait_until_written()

    async def find(self, session_id: str) -> StoredSession | None:
        """Return a session, or None if there is none."""
        key = self._session_key(session_id)
        owner, facts = await self._connection.call(
            lambda redis: redis.hmget(key, ["owner", "facts"])
        )
        if owner is None or facts is None:
            return None
        return StoredSession(_decode_facts(facts), owner.decode() or None)

    async def take(self, session_id: str, former_owner: str | None) -> bool:
        """Become the owner of a session; return False if its owner is another one, or not lost."""
        keys = [self._session_key(session_id), self._lease_key(former_owner or "")]
        return bool(await self._connection.evaluate(_TAKE, keys, self.name, former_owner or ""))

    # Calls.

    def _call_keys(self, session_id: str) -> list[str]:
        return [self._connection.key(kind, session_id) for kind in ("session", "calls")]

    def _call_args(self, call: str, number: int, entry: bytes) -> tuple[str | bytes | int, ...]:
        return self.name, f"{call}:{number}", entry, expiry_of(self._settings.session_seconds)

    def post_call_entry(self, session_id: str, call: str, number: int, entry: bytes) -> None:
        """Store an entry of a call."""
        args = self._call_args(call, number, entry)
        on_result = partial(self._check_owner, session_id)
        self._post_script(_STORE_CALL_ENTRY, self._call_keys(session_id), args, on_result)

    async def store_call_entry(self, session_id: str, call: str, number: int, entry: bytes) -> None:
        """Store an entry of a call, and wait until Redis has it."""
        keys, args = self._call_keys(session_id), self._call_args(call, number, entry)
        # The session itself may still wait to be written, and so may earlier entries.
        await self._connection.wait_until_written()
        result = await self._connection.evaluate(_STORE_CALL_ENTRY, keys, *args)
        if result == _NO_SESSION and session_id in self._sessions:  # Redis has lost it.
            self.keep(session_id, self._sessions[session_id])
            await self._connection.wait_until_written()
            result = await self._connection.evaluate(_STORE_CALL_ENTRY, keys, *args)
        self._check_owner(session_id, result)
        if result == _OTHER_OWNER:
            raise StoreUnavailableError("another instance has taken the session")
        if result == _NO_SESSION:
            raise StoreUnavailableError("the session has ended")

    def forget_call(self, session_id: str, call: str, entries: int) -> None:
        """Remove the entries of a call."""
        keys = self._call_keys(session_id)
        for first in range(0, entries, _ENTRIES_MAX):
            numbers = range(first, min(first + _ENTRIES_MAX, entries))
            fields = [f"{call}:{number}" for number in numbers]
            self._post_script(_FORGET_CALL, keys, [self.name, *fields])

    async def calls(self, session_id: str) -> Mapping[str, Mapping[int, bytes]]:
        """Return the entries of each call of a session."""
        key, found = self._connection.key("calls", session_id), dict[str, dict[int, bytes]]()
        stored = await self._connection.call(lambda redis: redis.hgetall(key))
        for field, entry in stored.items():
            call, _, number = field.decode().rpartition(":")
            found.setdefault(call, {})[int(number)] = entry
        return found

    # Leases.

    def mark_stale(self) -> None:
        """Note that Redis was unavailable, and may have lost what it knew of this instance."""
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
        self._state = _LEAVING
        await self._set_lease(may_be_new=True)

    async def _set_lease(self, *, may_be_new: bool) -> bool:
        """Set the lease; return False if there is none to renew and it may not be a new one."""
        key, milliseconds = (
            self._lease_key(self.name),
            int(self._settings.lease_seconds * _MILLISECONDS),
        )
        condition: Literal[PureToken.XX] | None = None if may_be_new else PureToken.XX
        return bool(
            await self._connection.call(
                lambda redis: redis.set(key, self._state, px=milliseconds, condition=condition)
            )
        )

    def _lease_key(self, name: str) -> str:
        return self._connection.key("instance", name)

    async def renew_lease(self) -> NoReturn:
        """Renew the lease, and watch those of other instances, until cancelled."""
        while True:
            try:
                await self._renew_once()
            except StoreUnavailableError as error:
                logger.debug("the lease cannot be renewed: %s", error)
            await trio.sleep(self._settings.lease_seconds / _RENEWALS_PER_LEASE)

    async def _renew_once(self) -> None:
        if not await self._set_lease(may_be_new=self._is_stale):
            self._is_stale = True
            await self._set_lease(may_be_new=True)
        if self._is_stale:
            self._is_stale = False
            self._restore()
        instances = self._connection.key("instances")
        self._connection.post(lambda pipeline: pipeline.sadd(instances, [self.name]))
        for kind in ("inbox", "taken"):
            self._post_inbox_expiry(self._connection.key(kind, self.name))
        if trio.current_time() >= self._next_session_renewal:
            pause_seconds = self._settings.session_seconds / _RENEWALS_PER_SESSION
            self._next_session_renewal = trio.current_time() + pause_seconds
            for session_id in self._sessions:
                for kind in _SESSION_KEYS:
                    key = self._connection.key(kind, session_id)
                    self._connection.post_expiry(key, self._settings.session_seconds)
        for name, link in self._links.items():
            if link.received > link.confirmed:
                self._post_message(name, link, 0, b"")
        await self._watch_peers()

    def _post_inbox_expiry(self, key: str) -> None:
        self._connection.post_expiry(key, self._settings.lease_seconds * _INBOX_LEASES)

    def _restore(self) -> None:
        """Write again what Redis may have lost; lose the sessions that others have taken.

        This does not wait for Redis: the lease could end meanwhile.
        """
        for session_id, facts in self._sessions.items():
            self._post_session(session_id, self.name, facts)
        taken, received = self._connection.key("taken", self.name), dict[str, str]()
        for name, link in self._links.items():
            received[name] = _position(link.received)
            for number, message in link.unconfirmed:
                self._post_message(name, link, number, message)
        if received:
            self._connection.post(lambda pipeline: pipeline.hset(taken, received))

    async def _watch_peers(self) -> None:
        peers = self._handler.peers()
        for name, link in self._links.items():
            if name not in peers:
                link.unread.clear()
        for name in peers:
            link = self._links.setdefault(name, _Link())
            if await self._has_lease(name):
                link.missed_leases = 0
                continue
            link.missed_leases += 1
            if link.missed_leases >= _LOST_AFTER_MISSED_LEASES:
                self._lose(name, link)

    def _lose(self, name: str, link: _Link) -> None:
        link.begin_epoch()
        self._handler.lose(name)
        # If the other instance is only slow, it learns of the new epoch.
        self._post_message(name, link, 0, b"")

    async def _has_lease(self, name: str) -> bool:
        key = self._lease_key(name)
        return bool(await self._connection.call(lambda redis: redis.exists([key])))

    async def is_lost(self, name: str) -> bool:
        """Return whether an instance has no lease, now and after the time between two renewals."""
        if await self._has_lease(name):
            return False
        await trio.sleep(self._settings.lease_seconds / _RENEWALS_PER_LEASE)
        return not await self._has_lease(name)

    async def others(self) -> Sequence[str]:
        """Return the names of the other instances that are alive and have not begun to leave."""
        instances = self._connection.key("instances")
        members = await self._connection.call(lambda redis: redis.smembers(instances))
        names = sorted({member.decode() for member in members} - {self.name})
        if not names:
            return []
        keys = [self._lease_key(name) for name in names]
        states = await self._connection.call(lambda redis: redis.mget(keys))
        by_name = dict(zip(names, states, strict=True))
        # An instance that is only slow adds its name again when it renews its lease.
        if lost := [name for name, state in by_name.items() if state is None]:
            self._connection.post(lambda pipeline: pipeline.srem(instances, lost))
        return [name for name, state in by_name.items() if state == _RUNNING]

    # Messages.

    def send(self, to: str, message: bytes) -> None:
        """Send a message to another instance.

        If that has confirmed too little, it is taken for lost, and the message is dropped: it
        belongs to a request that breaks off.
        """
        link = self._links.setdefault(to, _Link())
        if link.unconfirmed_bytes + len(message) > self._settings.unconfirmed_bytes_max:
            text = "instance %s is taken for lost: it has not confirmed %d bytes of messages"
            text += " (limits.http.unconfirmed_bytes_max=%d)"
            sizes = (link.unconfirmed_bytes, self._settings.unconfirmed_bytes_max)
            logger.error(text, to, *sizes)
            self._lose(to, link)
            return
        link.unconfirmed_bytes += len(message)
        link.sent += 1
        link.unconfirmed.append((link.sent, message))
        self._post_message(to, link, link.sent, message)

    def _post_message(self, to: str, link: _Link, number: int, message: bytes) -> None:
        key = self._connection.key("inbox", to)
        link.confirmed, link.received_bytes = link.received, 0
        entry = _encode(_Entry(self.name, link.epoch, number, link.received, message))
        self._connection.post(lambda pipeline: pipeline.xadd(key, {"m": entry}), size=len(entry))
        if number <= 1:  # The inbox of an instance that is lost must not stay for ever.
            self._post_inbox_expiry(key)

    async def take_messages(self) -> NoReturn:
        """Take the messages of other instances until cancelled."""
        key = self._connection.key("inbox", self.name)
        while True:
            entries = await self._connection.next_entries(key, "0-0")
            while not await self._take_batch(key, entries):  # noqa: ASYNC110
                await trio.sleep(_RETRY_SECONDS)

    async def _take_batch(self, key: str, entries: Sequence[tuple[str, bytes]]) -> bool:
        """Delete messages and act on them; return False if Redis is unavailable.

        Cancellation between the two would lose the messages: for the sender, a deleted message has
        been executed. So both run in a shield.
        """
        decoded, args = [_decode_entry(data) for _, data in entries], list[str]()
        received: dict[str, tuple[int, int]] = {}
        for (entry_id, _), entry in zip(entries, decoded, strict=True):
            link = self._links.setdefault(entry.sender, _Link())
            position = ""
            if _follows(entry, received.get(entry.sender, link.received)):
                received[entry.sender] = (entry.epoch, entry.number)
                position = _position(received[entry.sender])
            args += [entry_id, entry.sender, position]
        keys = [key, self._connection.key("taken", self.name)]
        keys.append(self._connection.key("batch", self.name, entries[0][0]))
        with trio.move_on_after(_TAKE_SECONDS, shield=True), suppress(StoreUnavailableError):
            taken = await self._connection.evaluate(_TAKE_MESSAGES, keys, *args)
            for entry, is_taken in zip(decoded, taken, strict=True):
                if is_taken:
                    self._receive(entry)
            return True
        return False

    def _receive(self, entry: _Entry) -> None:
        """Take note of what a message confirms, and pass it on if it is the next of its sender."""
        link = self._links.setdefault(entry.sender, _Link())
        epoch, confirmed = entry.confirmed
        while epoch == link.epoch and link.unconfirmed and link.unconfirmed[0][0] <= confirmed:
            link.unconfirmed_bytes -= len(link.unconfirmed.popleft()[1])
        if 0 < link.received[0] < entry.epoch:
            link.received = entry.epoch, 0
            self._handler.lose(entry.sender)
        # After a gap, the sender writes all unconfirmed messages again.
        if _follows(entry, link.received):
            link.received = entry.epoch, entry.number
            link.received_bytes += len(entry.message)
            self._handler.receive(entry.sender, entry.message)
        if link.received_bytes > self._settings.unconfirmed_bytes_max // _CONFIRMED_PART:
            self._post_message(entry.sender, link, 0, b"")

    async def unread(self, name: str) -> Sequence[bytes]:
        """Return the messages to a lost instance that it has never taken, and withdraw them."""
        keys = [self._connection.key(kind, name) for kind in ("inbox", "taken")]
        link = self._links.setdefault(name, _Link())
        async with self._withdrawing:  # Several requests may ask at once.
            if not await self._has_lease(name):
                self._lose(name, link)
            for entry_id, data in await self._connection.entries(keys[0]):
                entry = _decode_entry(data)
                if entry.sender == self.name and entry.number and entry.epoch < link.epoch:
                    args = (entry_id, self.name, entry.epoch, entry.number)
                    if await self._connection.evaluate(_WITHDRAW, keys, *args):
                        link.unread.append(entry.message)
        return link.unread


def _follows(entry: _Entry, received: tuple[int, int]) -> bool:
    """Return whether a message is the next one after the epoch and number `received`."""
    epoch, number = received
    if entry.epoch == epoch:
        return entry.number == number + 1
    return entry.epoch > epoch and entry.number == 1


def _position(received: tuple[int, int]) -> str:
    return "{}:{}".format(*received)
