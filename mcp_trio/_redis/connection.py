"""The connection of one application to Redis or Valkey, by coredis.

Commands whose result is not awaited are *posted*: one task writes them in pipelines, in order. It
keeps them while Redis is unavailable, and writes them again when an error leaves it unknown whether
Redis has executed them. So posted commands have to be harmless when they are executed twice.
"""

import itertools
import logging
import math
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar, cast

import anyio
import attrs
import msgspec
import trio
from coredis import PureToken, Redis
from coredis.exceptions import ConnectionError as RedisConnectionError
from coredis.exceptions import ReadOnlyError, RedisError, ResponseError
from coredis.retry import NoRetryPolicy

from mcp_trio._server.instances import StoreUnavailableError
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio._transports.connections import backoff_seconds
from mcp_trio.limits import MIB

if TYPE_CHECKING:
    from coredis.patterns.pipeline import Pipeline

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")

Command: TypeAlias = "Callable[[Pipeline[bytes]], object]"
"""Adds one command to a pipeline."""


class _Posted(msgspec.Struct, frozen=True):
    """A posted command, its size in bytes, and the function that gets its result."""

    command: Command
    size: int
    on_result: Callable[[Any], None] | None


# The errors of an unavailable Redis; other errors of Redis are responses to a command. A Redis that
# has become a replica is unavailable: a new connection may reach the one that has replaced it.
UNAVAILABLE_ERRORS: Final = (
    RedisConnectionError,
    ReadOnlyError,
    OSError,
    TimeoutError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
)

# The beginnings of errors that end without a change of the command: the memory is full, or the last
# snapshot has failed, or there are too few replicas.
_NO_WRITES_NOW: Final = ("OOM ", "MISCONF ", "NOREPLICAS ")

_BATCH_MAX: Final = 256
# A larger batch may never arrive within `_RESPONSE_SECONDS`.
_BATCH_BYTES_MAX: Final = MIB
_POSTED_MAX: Final = 100_000
_POSTED_BYTES_MAX: Final = 256 * MIB
_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MAX: Final = 1.0
# Not less, because a busy instance may read the response of an available Redis late.
_SETTLE_SECONDS: Final = 3.0
_CALL_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 5.0
# A response that takes longer is not coming: the network may have lost the connection silently.
_RESPONSE_SECONDS: Final = 6.0
# The kernel drops what Redis's machine has not confirmed for so long. Otherwise it might arrive
# after another connection has repeated it, and replace a newer value.
_CONFIRM_SECONDS: Final = 5.0
# Redis waits so long for new entries of a stream.
_BLOCK_MS: Final = 2000
# Limits may be infinite, and Redis rejects an expiry beyond its range of times.
_EXPIRY_SECONDS_MAX: Final = 1e9


@attrs.define(eq=False, repr=False)
class RedisConnection:
    """A connection to Redis, with the commands that are posted.

    After a failed command, `keep_client` replaces the client. coredis would use a connection again
    whose response never came, and its pool loses a place whenever a connection breaks while a
    command waits.

    Attributes:
        url: Where Redis is.
        address: The host, port and database of Redis, for logs and error messages.
        prefix: The beginning of all keys.
        is_unavailable: True while Redis does not answer.
        is_closed: Whether the connection is closed, because the application ends.
    """

    url: str
    address: str
    prefix: str
    is_unavailable: bool = attrs.field(default=False, init=False)
    is_closed: bool = attrs.field(default=False, init=False)
    _available_callbacks: list[Callable[[], None]] = attrs.field(
        factory=list[Callable[[], None]], init=False
    )
    # A command is removed when it is written or dropped.
    _posted: deque[_Posted] = attrs.field(factory=deque[_Posted], init=False)
    _posted_bytes: int = attrs.field(default=0, init=False)
    _posted_count: int = attrs.field(default=0, init=False)
    _removed_count: int = attrs.field(default=0, init=False)
    _wakeup_posted: Wakeup = attrs.field(factory=Wakeup, init=False)
    _wakeup_removed: Wakeup = attrs.field(factory=Wakeup, init=False)
    # Set while `keep_client` runs.
    _client: "Redis[bytes]" = attrs.field(init=False)
    _wakeup_failed: Wakeup = attrs.field(factory=Wakeup, init=False)

    def key(self, *parts: str) -> str:
        """Return a key in Redis: the prefix and these parts."""
        return ":".join([self.prefix, *parts])

    def call_when_available(self, function: Callable[[], None]) -> None:
        """Call a function each time that Redis is available again."""
        self._available_callbacks.append(function)

    # The client of coredis.

    async def keep_client(self, task_status: "trio.TaskStatus[None]") -> NoReturn:
        """Open a client, and another one after each failed command, until cancelled."""
        async with trio.open_nursery() as nursery:
            closing = trio.Event()
            self._client = await nursery.start(self._open_client, closing)
            task_status.started()
            while True:
                await self._wakeup_failed.wait()
                previous_closing, closing = closing, trio.Event()
                self._client = await nursery.start(self._open_client, closing)
                previous_closing.set()

    async def _open_client(
        self, closing: trio.Event, task_status: "trio.TaskStatus[Redis[bytes]]"
    ) -> None:
        tcp_options: dict[str, Any] = {}
        user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it.
        if user_timeout is not None and not self.url.startswith("unix:"):
            milliseconds = {user_timeout: int(_CONFIRM_SECONDS * 1000)}
            tcp_options = {"socket_keepalive": True, "socket_keepalive_options": milliseconds}
        # The types of coredis do not know the options of TCP.
        open_client = cast("Callable[..., Redis[bytes]]", Redis.from_url)
        client = open_client(
            self.url,
            retry_policy=NoRetryPolicy(),
            connect_timeout=_CONNECT_SECONDS,
            verify_version=False,
            **tcp_options,
        )
        async with client:
            task_status.started(client)
            await closing.wait()

    async def _run(self, command: "Callable[[Redis[bytes]], Awaitable[T]]") -> T:
        """Return the result of a command; after one of UNAVAILABLE_ERRORS, replace the client."""
        client = self._client
        try:
            with trio.fail_after(_RESPONSE_SECONDS):
                return await command(client)
        except trio.TooSlowError:
            self._note_failed(client)
            raise RedisConnectionError(f"no response for {_RESPONSE_SECONDS:g} s") from None
        except UNAVAILABLE_ERRORS:
            self._note_failed(client)
            raise
        except RuntimeError as error:
            # The pool of a client that has been replaced meanwhile makes no connections.
            if client is self._client:
                raise
            raise RedisConnectionError("the client was replaced") from error

    def _note_failed(self, client: "Redis[bytes]") -> None:
        if client is self._client:
            self._wakeup_failed.wake()

    # Commands without a result.

    def post(
        self,
        *commands: Command,
        size: int = 0,
        on_result: Callable[[Any], None] | None = None,
    ) -> None:
        """Write commands later, in order; `size` is the number of bytes of each.

        `on_result` is called with the result of each command, before `settle` returns. While Redis
        is unavailable and too many commands wait, the oldest are dropped.
        """
        self._posted.extend(_Posted(command, size, on_result) for command in commands)
        self._posted_bytes += size * len(commands)
        self._posted_count += len(commands)
        while len(self._posted) > _POSTED_MAX or self._posted_bytes > _POSTED_BYTES_MAX:
            self._remove_oldest()
        self._wakeup_posted.wake()

    def post_expiry(self, key: str, seconds: float) -> None:
        """Let Redis forget a key after some seconds, counted from when the command is executed."""
        self.post(lambda pipeline: pipeline.expire(key, expiry_of(seconds)))

    def _remove_oldest(self) -> None:
        self._posted_bytes -= self._posted.popleft().size
        self._removed_count += 1

    async def settle(self) -> None:
        """Wait until all posted commands are written; return early when Redis is unavailable.

        `wait_until_written` raises then.
        """
        await trio.lowlevel.checkpoint()
        target = self._posted_count
        with trio.move_on_after(_SETTLE_SECONDS) as waiting:
            while self._removed_count < target and not self.is_unavailable:
                await self._wakeup_removed.wait()
        if waiting.cancelled_caught:
            self._note_unavailable(f"no response for {_SETTLE_SECONDS:g} s")

    async def wait_until_written(self) -> None:
        """Wait until all commands that were posted before are written.

        Raises:
            StoreUnavailableError: Redis has not answered for some seconds.
        """
        target = self._posted_count
        with trio.move_on_after(_CALL_SECONDS):
            while self._removed_count < target:
                await self._wakeup_removed.wait()
            return
        raise StoreUnavailableError(f"Redis at {self.address} does not answer")

    async def write_posted(self) -> NoReturn:
        """Write the posted commands until cancelled."""
        failures = 0
        while True:
            while not self._posted:
                await self._wakeup_posted.wait()
            batch, size = list[_Posted](), 0
            for posted in itertools.islice(self._posted, _BATCH_MAX):
                size += posted.size
                if batch and size > _BATCH_BYTES_MAX:
                    break
                batch.append(posted)
            end = self._removed_count + len(batch)
            try:
                await self._write(batch)
            # A rejected connection, for example because of the password, is a `ResponseError`, and
            # so is the rejection of all writes.
            except (*UNAVAILABLE_ERRORS, ResponseError) as error:
                self._note_unavailable(str(error))
                await _pause(failures)
                failures += 1
                continue
            failures = 0
            while self._removed_count < end:  # Some may have been dropped meanwhile.
                self._remove_oldest()
            self._wakeup_removed.wake()
            self._note_available()

    async def _write(self, batch: Sequence[_Posted]) -> None:
        async def write(client: "Redis[bytes]") -> list[Any]:
            async with client.pipeline(transaction=False, raise_on_error=False) as pipeline:
                for posted in batch:
                    posted.command(pipeline)
            results = list[Any](pipeline.results or ())
            for result in results:
                if isinstance(result, UNAVAILABLE_ERRORS) or (
                    isinstance(result, ResponseError) and str(result).startswith(_NO_WRITES_NOW)
                ):
                    raise result
            return results

        results = await self._run(write)
        for posted, result in zip(batch, results, strict=True):
            if isinstance(result, RedisError):
                logger.error("Redis at %s has rejected a command: %s", self.address, result)
            elif posted.on_result is not None:
                posted.on_result(result)

    def _note_unavailable(self, reason: str) -> None:
        if not self.is_unavailable:
            self.is_unavailable = True
            self._wakeup_removed.wake()
            logger.error("Redis at %s is unavailable: %s", self.address, reason)

    def _note_available(self) -> None:
        if self.is_unavailable:
            self.is_unavailable = False
            logger.warning("Redis at %s is available again", self.address)
            for function in self._available_callbacks:
                function()

    # Commands with a result.

    async def call(self, command: "Callable[[Redis[bytes]], Awaitable[T]]") -> T:
        """Return the result of a command, which may be executed twice if Redis was unavailable.

        Raises:
            StoreUnavailableError: Redis has not answered for some seconds, or has sent an error.
        """
        failures, last_error = 0, None
        with trio.move_on_after(_CALL_SECONDS):
            while not self.is_closed:
                try:
                    return await self._run(command)
                except UNAVAILABLE_ERRORS as error:
                    last_error = error
                except RedisError as error:
                    raise StoreUnavailableError(f"Redis at {self.address}: {error}") from error
                await _pause(failures)
                failures += 1
        raise StoreUnavailableError(f"Redis at {self.address} does not answer") from last_error

    async def evaluate(self, script: str, keys: Sequence[str], *args: str | bytes | int) -> Any:
        """Return the result of a Lua script, which may be executed twice if Redis was unavailable.

        Raises:
            StoreUnavailableError: Redis has not answered for some seconds, or has sent an error.
        """
        return await self.call(lambda redis: redis.eval(script, keys=keys, args=args))

    # Streams, whose entries have one field, `m`.

    def append(self, key: str, data: bytes, *, entries_max: int) -> None:
        """Post an entry of a stream, which keeps about the newest `entries_max` entries."""
        self.post(
            lambda pipeline: pipeline.xadd(
                key,
                {"m": data},
                trim_strategy=PureToken.MAXLEN,
                trim_operator=PureToken.APPROXIMATELY,
                threshold=entries_max,
            ),
            size=len(data),
        )

    async def entries(self, key: str) -> Sequence[tuple[str, bytes]]:
        """Return the ids and values of all entries of a stream.

        Raises:
            StoreUnavailableError: Redis has not answered for some seconds, or has sent an error.
        """
        return _decoded(await self.call(lambda redis: redis.xrange(key)))

    async def next_entries(self, key: str, after: str) -> Sequence[tuple[str, bytes]]:
        """Wait for entries of a stream after the id `after`; return their ids and values."""
        failures = 0
        while True:
            try:
                found = await self._run(
                    lambda redis: redis.xread({key: after}, count=_BATCH_MAX, block=_BLOCK_MS)
                )
            except (*UNAVAILABLE_ERRORS, RedisError):
                await _pause(failures)
                failures += 1
                continue
            if found:
                return _decoded(next(iter(found.values())))


async def _pause(failures: int) -> None:
    """Wait before the next attempt, longer after each failure."""
    await trio.sleep(backoff_seconds(failures, _RETRY_SECONDS, _RETRY_SECONDS_MAX))


def expiry_of(seconds: float) -> int:
    """Return the seconds after which Redis forgets a key: at least 1, and a whole number."""
    return math.ceil(min(max(seconds, 1), _EXPIRY_SECONDS_MAX))


def _decoded(entries: Iterable[Any]) -> list[tuple[str, bytes]]:
    return [(entry.identifier.decode(), entry.field_values[b"m"]) for entry in entries]


@asynccontextmanager
async def open_connection(url: str, prefix: str) -> AsyncGenerator[RedisConnection]:
    """Open a connection to Redis, which need not be available yet."""
    # Neither the user information nor the query is shown: both may have a password.
    address = url.partition("?")[0].rpartition("@")[2].rpartition("://")[2]
    connection = RedisConnection(url, address, prefix)
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.keep_client)
        nursery.start_soon(connection.write_posted)
        try:
            yield connection
        finally:
            connection.is_closed = True
        nursery.cancel_scope.cancel()
