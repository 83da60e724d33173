"""The stores of a server with several instances: events, change notices and used states in Redis.

Keys, each after the prefix:

- `events:ID`: a stream of the events of a session.
- `streams:ID`: a hash of its open streams, with the ids of their requests.
- `changes`: a stream of change notices.
- `state:KEY` and `reply:KEY`: a used state, and its result.
- `bucket:KEY` and `places:KEY`: the tokens of a rate, and the holders of places.
"""

import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import msgspec
import trio
from coredis import PureToken, Redis

from mcp_trio._protocol.shares import Rate
from mcp_trio._protocol.stores import MemoryEventStore
from mcp_trio._redis.connection import RedisConnection, expiry_of, open_connection
from mcp_trio._redis.instances import RedisInstances
from mcp_trio._server.http_sessions import HttpStores
from mcp_trio._server.instances import StoreUnavailableError
from mcp_trio._server.subscriptions import Change, NotifyChange
from mcp_trio.errors import SERVER_BUSY, RequestError
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

T = TypeVar("T")

_LEASE_SECONDS_MIN: Final = 0.3
_SCHEMES: Final = ("redis://", "rediss://", "unix://")

_CHANGES_MAX: Final = 1000
_NAME_BYTES: Final = 8
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_decode_ids: Final = msgspec.msgpack.Decoder(list[RequestId]).decode


# Events -----------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class RedisEvents:
    """An `EventStore` in memory, with a copy in Redis for the instance that takes the session.

    The copy has the newest events, as many as the memory and sometimes more, because Redis removes
    them in groups. It is forgotten `limits.http.session_idle_seconds` after the last one.
    """

    _connection: RedisConnection
    _limits: Limits
    _session_id: str
    _buffer: MemoryEventStore = attrs.field(init=False)
    # The bytes of the newest entries in Redis, within the limits.
    _sizes: deque[int] = attrs.field(factory=deque[int], init=False)
    _size: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        http = self._limits.http
        self._buffer = MemoryEventStore(
            events_max=http.events_kept_max, bytes_max=http.events_kept_bytes_max
        )

    def open_stream(self, request_ids: Sequence[RequestId] = ()) -> int:
        """Return the number of a new stream, which will have the responses to these requests."""
        stream = self._buffer.open_stream()
        key, ids = self._connection.key("streams", self._session_id), _encode(list(request_ids))
        self._connection.post(lambda pipeline: pipeline.hset(key, {str(stream): ids}))
        self._connection.post_expiry(key, self._limits.http.session_idle_seconds)
        return stream

    def keep(self, stream: int, data: bytes) -> str:
        """Store the next event of a stream; return its id.

        Raises:
            KeyError: The stream is not open.
        """
        event_id = self._buffer.keep(stream, data)
        self._post_events([(event_id, bytes(data))])
        return event_id

    def append_ended_stream(self, events: Sequence[bytes]) -> Sequence[str]:
        """Store a new stream that has ended; return the ids of an empty event and of the others."""
        ids = self._buffer.append_ended_stream(events)
        self._post_events(list(zip(ids, [b"", *map(bytes, events)], strict=True)))
        return ids

    def _post_events(self, events: Sequence[tuple[str, bytes]]) -> None:
        key, encoded = self._connection.key("events", self._session_id), _encode(events)
        self._count(encoded)
        self._connection.append(key, encoded, entries_max=len(self._sizes))
        self._connection.post_expiry(key, self._limits.http.session_idle_seconds)

    def _count(self, encoded: bytes) -> None:
        """Note the size of the newest entry, and leave out the oldest that exceed the limits."""
        http = self._limits.http
        self._sizes.append(len(encoded))
        self._size += len(encoded)
        while len(self._sizes) > 1 and (
            len(self._sizes) > http.events_kept_max or self._size > http.events_kept_bytes_max
        ):
            self._size -= self._sizes.popleft()

    def after(self, event_id: str) -> tuple[int, Sequence[tuple[str, bytes]]]:
        """Return the number of an event's stream, and the ids and data of all events after it.

        Raises:
            LookupError: The id was not given, or not all events after it are still stored.
        """
        return self._buffer.after(event_id)

    def close_stream(self, stream: int) -> None:
        """End a stream.

        Raises:
            KeyError: The stream is not open.
        """
        self._buffer.close_stream(stream)
        key = self._connection.key("streams", self._session_id)
        self._connection.post(lambda pipeline: pipeline.hdel(key, [str(stream)]))

    async def settle(self) -> None:
        """Wait until the events are in Redis, or it does not answer."""
        await self._connection.settle()

    async def load(self) -> Mapping[int, Sequence[RequestId]]:
        """Load the events that another instance has stored; return the open streams.

        Raises:
            StoreUnavailableError: Redis does not answer.
        """
        keys = [self._connection.key(kind, self._session_id) for kind in ("streams", "events")]
        opened = await self._connection.call(lambda redis: redis.hgetall(keys[0]))
        entries = await self._connection.entries(keys[1])
        streams: dict[int, dict[int, bytes]] = {}
        for _, encoded in entries:
            self._count(encoded)
            for event_id, data in _decode(encoded):
                stream, _, number = event_id.partition("-")
                streams.setdefault(int(stream), {})[int(number)] = data
        unanswered = {int(stream): _decode_ids(ids) for stream, ids in opened.items()}
        for stream, events in streams.items():
            # An event whose predecessor is missing is the first one that can be resumed from.
            first = last = max(events)
            while first - 1 in events:
                first -= 1
            data = [events[number] for number in range(first, last + 1)]
            self._buffer.restore(stream, first, data, is_open=stream in unanswered)
        answered = {
            each.id
            for events in streams.values()
            for each in map(_response_in, events.values())
            if each is not None
        }
        return {
            stream: [each for each in ids if each not in answered]
            for stream, ids in unanswered.items()
            if stream in streams
        }


class _Response(msgspec.Struct):
    id: RequestId | None = None
    method: str | None = None


def _response_in(data: bytes) -> _Response | None:
    if not data:
        return None
    message = msgspec.json.decode(data, type=_Response)
    return message if message.method is None else None


# Change notices ---------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class RedisChanges:
    """`Changes` between the instances of a server, over a stream in Redis.

    Notices that are sent while Redis is unavailable arrive when it is available again.
    """

    _connection: RedisConnection

    async def check(self) -> None:
        """Check that Redis answers; while it does not, `/ready` says so.

        Raises:
            StoreUnavailableError: Redis is unavailable.
        """
        await self._connection.call(lambda redis: redis.ping())

    @asynccontextmanager
    async def joined(self, on_change: NotifyChange) -> AsyncGenerator[NotifyChange]:
        """Join the broadcast, and give a function that sends a change to the other members."""
        key, member = self._connection.key("changes"), secrets.token_hex(_NAME_BYTES)
        token, position = trio.lowlevel.current_trio_token(), await self._newest_id(key)

        async def receive() -> None:
            nonlocal position
            while True:
                for entry_id, data in await self._connection.next_entries(key, position):
                    position = entry_id
                    sender, method, uri = _decode(data)
                    if sender != member:
                        on_change((method, uri))

        def post(change: Change) -> None:
            encoded = _encode([member, *change])
            self._connection.append(key, encoded, entries_max=_CHANGES_MAX)

        def send(change: Change) -> None:
            try:
                is_in_own_thread = trio.lowlevel.current_trio_token() is token
            except RuntimeError:  # The calling thread runs no Trio.
                is_in_own_thread = False
            if is_in_own_thread:
                post(change)
            else:
                token.run_sync_soon(post, change)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            yield send
            nursery.cancel_scope.cancel()

    async def _newest_id(self, key: str) -> str:
        """Return the id of the newest notice, which was sent before this member joined."""
        try:
            entries = await self._connection.entries(key)
        except StoreUnavailableError:
            return "0-0"
        return entries[-1][0] if entries else "0-0"


# Used states ------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class RedisStates:
    """A `StateStore` in Redis: each sealed state is used once, on whichever instance.

    It is also the store of used proofs and looked-up tokens of clients. A retry with a state is
    rejected (server busy) while Redis is unavailable.
    """

    _stores: "RedisStores"

    async def take(self, key: str, *, seconds: float, client: str | int) -> bool:  # noqa: ARG002
        """Mark a state as used; return False if it was used before.

        Raises:
            RequestError: Redis does not answer (server busy).
        """
        redis_key = self._stores.connection.key("state", key)
        mark, expiry = secrets.token_bytes(_NAME_BYTES), expiry_of(seconds)

        async def take(redis: Redis[bytes]) -> bool:
            # If the command is sent twice, the mark shows that this call has set it the first time.
            is_new = await redis.set(redis_key, mark, condition=PureToken.NX, ex=expiry)
            return bool(is_new) or await redis.get(redis_key) == mark

        return await self._call(take)

    async def keep(self, key: str, reply: bytes, *, seconds: float) -> None:
        """Keep the result of the retry that used a state; unless Redis is unavailable."""
        redis_key = self._stores.connection.key("reply", key)
        self._stores.connection.post(
            lambda pipeline: pipeline.set(redis_key, reply, ex=expiry_of(seconds)), size=len(reply)
        )
        await self._stores.connection.settle()

    async def kept(self, key: str) -> bytes | None:
        """Return the kept result; None if there is none.

        Raises:
            RequestError: Redis does not answer (server busy).
        """
        redis_key = self._stores.connection.key("reply", key)
        return await self._call(lambda redis: redis.get(redis_key))

    async def _call(self, run: Callable[[Redis[bytes]], Awaitable[T]]) -> T:
        try:
            return await self._stores.connection.call(run)
        except StoreUnavailableError as error:
            raise RequestError(SERVER_BUSY, "the store of used states does not answer") from error


# Limits per caller ------------------------------------------------------------------------------

# Buckets are hashes with their tokens and the time at which they had them, by the clock of Redis.
# The mode `take` takes no tokens if there are too few; the mode `charge` takes them in any case.
_TAKE_TOKENS: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local rate, burst, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local mode = ARGV[4]
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(bucket[1] or burst)
tokens = math.min(burst, tokens + math.max(0, now - tonumber(bucket[2] or now)) * rate)
if mode == 'take' and tokens < wanted then return tostring((wanted - tokens) / rate) end
tokens = math.min(burst, tokens - wanted)
local function exact(number) return string.format('%.17g', number) end
redis.call('HSET', KEYS[1], 'tokens', exact(tokens), 'at', exact(now))
redis.call('EXPIRE', KEYS[1], math.ceil((burst - tokens) / rate) + 1)
return '0'
"""
# Places are a sorted set of their holders, by the time at which they are given back.
_TAKE_PLACE: Final = """
local now = tonumber(redis.call('TIME')[1])
local places, holder, seconds = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZSCORE', KEYS[1], holder) then return 1 end
if redis.call('ZCARD', KEYS[1]) >= places then return 0 end
redis.call('ZADD', KEYS[1], now + seconds, holder)
redis.call('EXPIRE', KEYS[1], seconds)
return 1
"""
_PLACE_SECONDS: Final = 3600
_SECONDS_PER_MINUTE: Final = 60


def _rate_args(rate: Rate) -> tuple[str, str]:
    return repr(rate.per_minute / _SECONDS_PER_MINUTE), str(rate.burst)


@attrs.define(eq=False, repr=False)
class RedisLimits:
    """A `LimitStore` in Redis: the limits of a caller are common to all instances.

    A place whose holder's process has ended is given back after an hour. While Redis is
    unavailable, requests are rejected (server busy), but not those that have run.
    """

    _stores: "RedisStores"

    async def take(self, key: str, rate: Rate, tokens: float) -> float:
        """Take tokens from a bucket; return the seconds to wait, or 0.

        Raises:
            RequestError: Redis does not answer (server busy).
        """
        args = *_rate_args(rate), repr(tokens), "take"
        return float(await self._evaluate(_TAKE_TOKENS, "bucket", key, *args))

    async def charge(self, key: str, rate: Rate, tokens: float) -> None:
        """Take tokens even if the bucket has fewer; while Redis is unavailable, later.

        The request has run already, and must be answered. If a response of Redis is lost, the
        tokens may be taken twice.
        """
        connection, args = self._stores.connection, (*_rate_args(rate), repr(tokens), "charge")
        bucket = connection.key("bucket", key)
        connection.post(lambda pipeline: pipeline.eval(_TAKE_TOKENS, keys=[bucket], args=args))
        await connection.settle()

    async def enter(self, key: str, places: int) -> str | None:
        """Take one of the places of a key; return its holder, or None if all are taken.

        If this is cancelled, no place is taken.

        Raises:
            RequestError: Redis does not answer (server busy).
        """
        holder = secrets.token_hex(_NAME_BYTES)
        args = places, holder, _PLACE_SECONDS
        try:
            has_entered = await self._evaluate(_TAKE_PLACE, "places", key, *args)
        except BaseException:  # Redis may have given the place nevertheless.
            self._post_return_of_place(key, holder)
            raise
        return holder if has_entered else None

    async def leave(self, key: str, holder: str) -> None:
        """Give a place back; while Redis is unavailable, later."""
        self._post_return_of_place(key, holder)
        await self._stores.connection.settle()

    def _post_return_of_place(self, key: str, holder: str) -> None:
        redis_key = self._stores.connection.key("places", key)
        self._stores.connection.post(lambda pipeline: pipeline.zrem(redis_key, [holder]))

    async def _evaluate(self, script: str, kind: str, key: str, *args: str | int) -> Any:
        connection = self._stores.connection
        try:
            return await connection.evaluate(script, [connection.key(kind, key)], *args)
        except StoreUnavailableError as error:
            raise RequestError(SERVER_BUSY, "the store of limits does not answer") from error


# All stores -------------------------------------------------------------------------------------


def _check_url(_owner: object, _attribute: object, url: str) -> None:
    if not url.startswith(_SCHEMES):
        raise ValueError(f"the URL of Redis has to begin with one of {', '.join(_SCHEMES)}")


@attrs.define(eq=False)
class RedisStores:
    """The stores of a server with several instances, in Redis 7 or newer, or Valkey.

        server.run("http", stores=RedisStores("redis://localhost:6379/0", prefix="weather"))

    All instances of a server have the same URL and prefix, and no other server has them. A program
    that can write to this Redis can act as any client: protect it with a password and, over a
    network, with TLS (`rediss://`).

    Args:
        url: The URL of Redis, with user, password and number of the database if need be.
        prefix: The beginning of all keys.
        lease_seconds: The seconds after which other instances take the sessions of an instance that
            has died. A pause of Redis, or of an instance, should be shorter.

    Raises:
        ValueError: The URL has another scheme, or a lease is shorter than 0.3 seconds.
    """

    url: str = attrs.field(repr=False, validator=_check_url)
    prefix: str = attrs.field(default="mcp_trio", kw_only=True)
    lease_seconds: float = attrs.field(
        default=9.0, kw_only=True, validator=attrs.validators.ge(_LEASE_SECONDS_MIN)
    )
    _connection: RedisConnection | None = attrs.field(default=None, init=False, repr=False)

    @property
    def connection(self) -> RedisConnection:
        """The connection that is open.

        Raises:
            RuntimeError: The stores are not open.
        """
        if self._connection is None:
            raise RuntimeError("RedisStores is not open: pass it as stores= of the HTTP server")
        return self._connection

    @property
    def states(self) -> RedisStates:
        """A store of used states, for `Server(states=…)`."""
        return RedisStates(self)

    @property
    def limits(self) -> RedisLimits:
        """The store of limits per caller.

        A server with `stores=` uses it for all limits that have no other store.
        """
        return RedisLimits(self)

    @asynccontextmanager
    async def opened(self, limits: Limits) -> AsyncGenerator[HttpStores]:
        """Open the stores for one application, whether or not Redis answers now.

        Raises:
            RuntimeError: Another application has opened them.
        """
        if self._connection is not None:
            raise RuntimeError("another application uses these RedisStores: make one for each")
        async with open_connection(self.url, self.prefix) as connection:
            self._connection = connection
            try:
                yield HttpStores(
                    events=partial(RedisEvents, connection, limits),
                    changes=RedisChanges(connection),
                    instances=RedisInstances(
                        connection,
                        self.lease_seconds,
                        limits.http.session_idle_seconds,
                        limits.http.unconfirmed_bytes_max,
                    ),
                    limits=self.limits,
                    states=self.states,
                )
            finally:
                self._connection = None
