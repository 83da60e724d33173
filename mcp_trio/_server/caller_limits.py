"""Limits per caller, as middleware: rates, requests at once, quotas, and log messages.

A rejection is a JSON-RPC error, also for a tool: the client program has to wait, and the error says
how long. A result with `isError` would go to the model, which cannot wait and would call again.

Each decision is an effect of the request, whose arguments are the settings of the limit. So a
replay repeats the recorded decision, and a changed limit is a divergence at the request concerned.
The caller and the amounts are not recorded: redaction could change them.

https://modelcontextprotocol.io/specification/2025-11-25/server/tools#security-considerations
"""

import math
import uuid
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast, get_args
from weakref import WeakKeyDictionary

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    CommandBody,
    Record,
    body_bytes,
    decode_body,
    encode_body,
)
from mcp_trio._protocol.shares import Rate, TokenBuckets
from mcp_trio._protocol.uri_templates import UriError
from mcp_trio._server.context import Context
from mcp_trio._server.effects import NO_RESULT, JsonCodec
from mcp_trio._server.middleware import CallNext, Middleware, MiddlewareRequest
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.effects import Codec, Effect, perform, perform_without_waiting
from mcp_trio._session.handlers import Handling
from mcp_trio._session.session import Session
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio.errors import RateLimited, RecordingError

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

T = TypeVar("T")

Per: TypeAlias = Literal["user", "client", "session", "tool"]
"""The callers that a limit counts separately.

- "user": the principal; without authentication the network of the client, or else the session.
- "client": the OAuth client of the token; without one as "user".
- "session": the session; for stateless requests over HTTP, which have none, as "user".
- "tool": the tool, prompt or resource.
"""

LIMITED_METHODS: Final = ("tools/call", "resources/read", "prompts/get", "completion/complete")
"""The methods that run users' handlers, and are limited by default."""


# Stores -----------------------------------------------------------------------------------------


class LimitStore(Protocol):
    """The state of limits, by key. `mcp_trio.testing.check_limit_store` checks an implementation.

    Servers that share a store have common limits. Keys are texts, up to a few hundred characters.
    A key has a bucket of tokens (`take`, `charge`) or places with holders (`enter`, `leave`). A
    store forgets a key whose bucket is full, or that has no holder.
    """

    async def take(self, key: str, rate: Rate, tokens: float) -> float:
        """Take tokens from a bucket that holds `rate.burst`; return the seconds to wait, or 0.

        If there are not so many, nothing is taken, and they are there after these seconds.
        """
        ...

    async def charge(self, key: str, rate: Rate, tokens: float) -> None:
        """Take tokens even if the bucket has fewer; a negative number is returned to it.

        The request has run: an error here would hide its result, and let the client repeat it.
        """
        ...

    async def enter(self, key: str, places: int) -> str | None:
        """Take one of the places of a key; return its holder, or None if all are taken.

        If this is cancelled, no place may stay taken. The store may give the place back when its
        holder has not left after a long time, because the holder's process has ended.
        """
        ...

    async def leave(self, key: str, holder: str) -> None:
        """Give a place back. A holder that has no place any more changes nothing."""
        ...


@attrs.define(eq=False, repr=False)
class MemoryLimitStore:
    """A `LimitStore` of one process; at most 10,000 buckets, of which full ones are forgotten."""

    _buckets: TokenBuckets = attrs.field(factory=TokenBuckets, init=False)
    _holders: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]], init=False)
    _entered: int = attrs.field(default=0, init=False)

    async def take(self, key: str, rate: Rate, tokens: float) -> float:
        """Take tokens from a bucket; return the seconds to wait, or 0."""
        return self._buckets.take(key, rate, trio.current_time(), tokens)

    async def charge(self, key: str, rate: Rate, tokens: float) -> None:
        """Take tokens even if the bucket has fewer; a negative number is returned to it."""
        self._buckets.charge(key, rate, trio.current_time(), tokens)

    async def enter(self, key: str, places: int) -> str | None:
        """Take one of the places of a key; return its holder, or None if all are taken."""
        holders = self._holders.get(key, set())
        if len(holders) >= places:
            return None
        self._entered += 1
        holder = str(self._entered)
        holders.add(holder)
        self._holders[key] = holders
        return holder

    async def leave(self, key: str, holder: str) -> None:
        """Give a place back."""
        holders = self._holders.get(key, set())
        holders.discard(holder)
        if not holders:
            self._holders.pop(key, None)


# Callers ----------------------------------------------------------------------------------------


def _checked_per(per: str | Collection[str]) -> tuple[str, ...]:
    """Return the kinds of callers that `per=` names, which together are counted separately."""
    kinds = (per,) if isinstance(per, str) else tuple(per)
    unknown = [each for each in kinds if each not in get_args(Per)]
    if unknown or not kinds:
        known = ", ".join(get_args(Per))
        raise ValueError(f"per={per!r} is not a caller: write one or more of {known}")
    return kinds


# The ids of sessions in the keys of stores; they are random, so that servers can share a store.
_SESSION_IDS: Final = WeakKeyDictionary[Session, str]()


def _caller(per: str, context: Context) -> str:
    """Return the caller of a request: its "user", "client" or "session", as `Per` says."""
    auth, handling = context.auth, _handling(context)
    session, channel = handling.session, cast("Any", handling.session.channel)
    if per == "client" and auth is not None and auth.client is not None:
        return f"client {auth.client}"
    # Stateless requests of all clients share one channel, which has the networks of its clients.
    is_shared = hasattr(channel, "networks")
    if per != "session" or is_shared:
        if context.principal:
            return f"user {context.principal}"
        if is_shared:
            return f"network {channel.networks.get(handling.request.client_key)}"
        network = getattr(channel, "network", None)
        if network is not None:
            return f"network {network}"
    # A client without a network, as over stdio, is identified by its session.
    if session not in _SESSION_IDS:
        _SESSION_IDS[session] = uuid.uuid4().hex
    return f"session {_SESSION_IDS[session]}"


def _handling(context: Context) -> Handling:
    return context._handling  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _entry(request: MiddlewareRequest, context: Context) -> str:
    """Return the name of the registered tool or prompt, or the URI or template of the resource.

    The name of the method if there is none: clients may invent any number of names.
    """
    served = context._served  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    registry, name = served.registry, request.name or ""
    found: Any = None
    if request.method == "tools/call":
        found = registry.tools.get(name)
    elif request.method == "prompts/get":
        found = registry.prompts.get(name)
    elif request.method == "resources/read":
        with suppress(UriError):
            found = (registry.find_resource(name) or (None,))[0]
    return request.method if found is None else found.key


# Limits -----------------------------------------------------------------------------------------


def _check_methods(_: object, _attribute: object, methods: Collection[str]) -> None:
    if isinstance(methods, str):
        raise TypeError(f"methods= takes a collection of methods: write methods={[methods]!r}")


def _checked_rate(rate: str | Rate, burst: int | None = None) -> Rate:
    """Return the rate; `burst`, if given, replaces the amount that may come at once."""
    parsed = Rate.parse(rate) if isinstance(rate, str) else rate
    return parsed if burst is None else attrs.evolve(parsed, burst=burst)


def _rate_text(rate: str | Rate) -> str:
    """Return a rate for errors and records: as it was given, or a `Rate` in requests per minute."""
    return rate if isinstance(rate, str) else f"{rate.per_minute:g}/minute"


@attrs.define(eq=False, repr=False)
class _Limit:
    """The definition of a limit: its requests, the callers that it counts separately, its store.

    Attributes:
        per: The kinds of callers that it counts separately, as `Per` says.
        given_store: The store of the limit; None for that of the application, or one in memory.
        settings: The settings of the limit in records; a replay with other settings diverges.
    """

    title: str
    per: tuple[str, ...] = attrs.field(converter=_checked_per)
    methods: Collection[str] = attrs.field(validator=_check_methods)
    given_store: LimitStore | None
    settings: Mapping[str, Any]
    _memory: MemoryLimitStore = attrs.field(factory=MemoryLimitStore, init=False)

    def store(self, context: Context) -> LimitStore:
        """Return the store for a request."""
        if self.given_store is not None:
            return self.given_store
        # The application of a session is the outer server's, also for a mounted server.
        application: Any = _handling(context).session.application
        return application.shared.limit_store or self._memory

    def is_shared(self, context: Context) -> bool:
        """Return whether the store for a request is that of all instances of the server."""
        return self.given_store is None and self.store(context) is not self._memory

    def context_of(self, request: MiddlewareRequest) -> Context | None:
        """Return the context of a request; None if the limit does not apply to the request."""
        return request.context if request.method in self.methods else None

    def key(self, request: MiddlewareRequest, context: Context) -> str:
        """Return the key of a request in the store: of the server, the limit and the caller."""
        parts = [
            f"{request.method} {_entry(request, context)}"
            if each == "tool"
            else _caller(each, context)
            for each in self.per
        ]
        settings = [*self.settings.values()]
        # Limits of other methods in the same store are other limits.
        if tuple(self.methods) != LIMITED_METHODS:
            settings.append(sorted(self.methods))
        return encode_body([context.server.name, self.title, *settings, *parts]).decode()

    def effect(
        self,
        run: Callable[[], Awaitable[T] | T],
        codec: Codec[T],
        *,
        suffix: str = "",
        run_in_replay: Callable[[], Awaitable[object]] | None = None,
        **more: Any,
    ) -> Effect[T]:
        """Return an operation on the store as an effect of the request."""
        return Effect(
            name=f"{self.title}{suffix}",
            arguments=partial(encode_body, {**self.settings, "per": self.per, **more}),
            run=run,
            codec=codec,
            run_in_replay=run_in_replay,
        )

    @property
    def callers(self) -> str:
        """The kinds of callers, for errors."""
        return " and ".join(self.per)


_SECONDS: Final = JsonCodec[float](float)
_HOLDER: Final = JsonCodec[str | None](str | None)


def _rejection(text: str, seconds: float) -> RateLimited:
    # Not `:g`, which rounds to six digits: after a day, the time would be too short.
    return RateLimited(f"{text}: try again in {seconds:.12g} s", retry_after=seconds)


def _rounded_up(seconds: float) -> float:
    """Return a time to wait in whole milliseconds, which is never too short."""
    return math.ceil(seconds * 1000) / 1000


@attrs.define(eq=False, repr=False)
class RateLimit:
    """A middleware that rejects requests beyond a rate: a token bucket for each caller.

    Args:
        rate: The rate in the long run, such as "100/minute"; or a `Rate`.
        per: What is limited separately: "user", "client", "session" or "tool", or several of them
            together, such as `("user", "tool")`; see `Per`.
        burst: The requests that may come at once; by default the amount in `rate`.
        cost: The tokens that a request takes, by name of the tool or prompt, URI or template of the
            resource, or method; 1 by default. Requests that cost 0 are not limited.
        methods: The methods that are limited.
        store: The state. By default it is in the store that the instances of the server share, such
            as `RedisStores`, else in memory, for this limit in this process.
        title: The name of the limit in recordings, and in the keys of the store.

    Raises:
        TypeError: A single text stands for the methods.
        ValueError: The rate, `per` or `burst` is invalid, or a cost is more than `burst`, so that
            the request could never be made.
    """

    rate: str | Rate
    per: str | Collection[str] = attrs.field(default="user", kw_only=True)
    burst: int | None = attrs.field(default=None, kw_only=True)
    cost: Mapping[str, float] = attrs.field(factory=dict[str, float], kw_only=True)
    methods: Collection[str] = attrs.field(default=LIMITED_METHODS, kw_only=True)
    store: LimitStore | None = attrs.field(default=None, kw_only=True)
    title: str = attrs.field(default="RateLimit", kw_only=True)
    _rate: Rate = attrs.field(init=False)
    _limit: _Limit = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Check the options."""
        self._rate = rate = _checked_rate(self.rate, self.burst)
        for name, cost in self.cost.items():
            if not 0 <= cost <= rate.burst:
                raise ValueError(
                    f"{name!r} costs {cost:g}: it has to be from 0 to the burst, {rate.burst}"
                )
        settings = {"rate": _rate_text(self.rate), "burst": rate.burst}
        self._limit = _Limit(self.title, self.per, self.methods, self.store, settings)

    async def __call__(self, request: MiddlewareRequest, call_next: CallNext) -> Any:
        """Run the request, or reject it.

        Raises:
            RateLimited: The caller has too few tokens left; the error says when to try again.
        """
        context, limit, cost = self._limit.context_of(request), self._limit, 1.0
        if context is not None and self.cost:
            of_method = self.cost.get(request.method, 1.0)
            cost = self.cost.get(_entry(request, context), of_method)
        if context is None or not cost:
            return await call_next(request)

        async def take() -> float:
            key = limit.key(request, context)
            return _rounded_up(await limit.store(context).take(key, self._rate, cost))

        seconds = await perform(_handling(context), limit.effect(take, _SECONDS, cost=cost))
        if seconds > 0:
            text = f"too many requests ({_rate_text(self.rate)} per {limit.callers})"
            raise _rejection(text, seconds)
        return await call_next(request)


async def _nothing() -> None:
    pass


@attrs.define(eq=False, repr=False)
class ConcurrencyLimit:
    """A middleware that rejects requests of a caller while others of it run.

    `limits.requests.in_flight_max` limits the handlers of a session too; further requests wait
    there. This limit counts over all sessions, and rejects at once.

    Args:
        places: The requests of one caller that may run at once.
        per: See `RateLimit`.
        methods: The methods that are limited.
        store: See `RateLimit`.
        title: See `RateLimit`.

    Raises:
        ValueError: `places` is less than 1, or `per` is invalid.
    """

    places: int = attrs.field(validator=attrs.validators.ge(1))
    per: str | Collection[str] = attrs.field(default="user", kw_only=True)
    methods: Collection[str] = attrs.field(default=LIMITED_METHODS, kw_only=True)
    store: LimitStore | None = attrs.field(default=None, kw_only=True)
    title: str = attrs.field(default="ConcurrencyLimit", kw_only=True)
    _limit: _Limit = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Check the options."""
        settings = {"places": self.places}
        self._limit = _Limit(self.title, self.per, self.methods, self.store, settings)

    async def __call__(self, request: MiddlewareRequest, call_next: CallNext) -> Any:
        """Run the request, or reject it.

        Raises:
            RateLimited: As many requests of the caller are running. The error names no time to
                wait, because that depends on those requests.
        """
        context, limit = self._limit.context_of(request), self._limit
        if context is None:
            return await call_next(request)

        key = ""

        async def enter() -> str | None:
            nonlocal key
            key = limit.key(request, context)
            return await limit.store(context).enter(key, self.places)

        # A resumable handler leaves at the end of each round, so it has to enter in each. A call of
        # a lost instance still has its place in a store that the instances share.
        journal = _handling(context).handler_journal
        has_place = journal is not None and journal.is_kept and limit.is_shared(context)
        run_in_replay = None if has_place else _nothing
        holder = await perform(
            _handling(context), limit.effect(enter, _HOLDER, run_in_replay=run_in_replay)
        )
        if holder is None:
            raise RateLimited(
                f"too many requests at once ({self.places} per {limit.callers}): try again when one"
                " of them has finished"
            )

        async def leave() -> None:
            # The key is that of `enter`: a retry from another network would have another one.
            await limit.store(context).leave(key or limit.key(request, context), holder)

        try:
            return await call_next(request)
        finally:
            with trio.CancelScope(shield=True):
                await perform(_handling(context), limit.effect(leave, NO_RESULT, suffix=".leave"))


@attrs.define(eq=False, repr=False)
class Quota:
    """A middleware that rejects requests of a caller that has used up its bytes or effects.

    The amounts of a request are known at its end. So a request begins if the caller has anything
    left, and may use more than that; later ones are rejected until the difference is made up for.

    Args:
        rate: The amount, and the time in which it is there again: "10 MB/day" or "1000/hour".
        of: "bytes", of the message of the request and of the result as JSON; or "effects": the
            calls of `ctx.effect`, `ctx.to_thread`, `ctx.http` and functions with `@effect`.
        per: See `RateLimit`.
        methods: The methods that are limited.
        store: See `RateLimit`.
        title: See `RateLimit`.

    Raises:
        ValueError: An option is invalid.
    """

    rate: str | Rate
    of: Literal["bytes", "effects"] = attrs.field(
        kw_only=True, validator=attrs.validators.in_(("bytes", "effects"))
    )
    per: str | Collection[str] = attrs.field(default="user", kw_only=True)
    methods: Collection[str] = attrs.field(default=LIMITED_METHODS, kw_only=True)
    store: LimitStore | None = attrs.field(default=None, kw_only=True)
    title: str = attrs.field(default="Quota", kw_only=True)
    _rate: Rate = attrs.field(init=False)
    _limit: _Limit = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Check the options."""
        self._rate = _checked_rate(self.rate)
        settings: dict[str, Any] = {"of": self.of, "rate": _rate_text(self.rate)}
        if isinstance(self.rate, Rate):  # The burst of a text is the amount in it.
            settings["burst"] = self.rate.burst
        self._limit = _Limit(self.title, self.per, self.methods, self.store, settings)

    async def __call__(self, request: MiddlewareRequest, call_next: CallNext) -> Any:
        """Run the request and count what it uses, or reject it.

        Raises:
            RateLimited: The caller has nothing left; the error says when to try again.
        """
        context, limit = self._limit.context_of(request), self._limit
        if context is None:
            return await call_next(request)
        handling, taken = _handling(context), 0

        async def take() -> float:
            nonlocal taken
            key = limit.key(request, context)
            seconds = await limit.store(context).take(key, self._rate, 1)
            taken = 0 if seconds else 1
            return _rounded_up(seconds)

        seconds = await perform(handling, limit.effect(take, _SECONDS))
        if seconds > 0:
            text = (
                f"the quota is used up ({_rate_text(self.rate)} of {self.of} per {limit.callers})"
            )
            raise _rejection(text, seconds)
        effects = handling.effects
        result: Any = None

        async def charge() -> None:
            amount = handling.effects - effects
            if self.of == "bytes":
                sent = 0 if result is None else len(msgspec.json.encode(result))
                amount = handling.request.size_bytes + sent
            # In a later round of a resumable handler, nothing was taken at its beginning.
            key = limit.key(request, context)
            await limit.store(context).charge(key, self._rate, amount - taken)

        try:
            result = await call_next(request)
        finally:
            with trio.CancelScope(shield=True):
                await perform(handling, limit.effect(charge, NO_RESULT, suffix=".charge"))
        return result


_IS_LOGGED: Final = JsonCodec[bool](bool)


@attrs.define(eq=False, repr=False)
class LogLimit:
    """A middleware that drops the log messages to a client beyond a rate.

    `ctx.log`, and the methods for each level, return as if the message were sent. The server's own
    log has a line about dropped messages, at most one a second.

    Args:
        rate: The rate in the long run, such as "50/second"; or a `Rate`.
        per: See `RateLimit`.
        burst: The messages that may come at once; by default the amount in `rate`.

    Raises:
        ValueError: An option is invalid.
    """

    rate: str | Rate
    per: str | Collection[str] = attrs.field(default="session", kw_only=True)
    burst: int | None = attrs.field(default=None, kw_only=True)
    _rate: Rate = attrs.field(init=False)
    _limit: _Limit = attrs.field(init=False)
    _buckets: TokenBuckets = attrs.field(factory=TokenBuckets, init=False)
    _log: PeerLog = attrs.field(factory=PeerLog, init=False)

    def __attrs_post_init__(self) -> None:
        """Check the options."""
        self._rate = rate = _checked_rate(self.rate, self.burst)
        settings = {"rate": _rate_text(self.rate), "burst": rate.burst}
        self._limit = _Limit("LogLimit", self.per, (), None, settings)

    async def __call__(self, request: MiddlewareRequest, call_next: CallNext) -> Any:
        """Run the request, with the limit on its log messages."""
        context = request.context
        if context is None:
            return await call_next(request)
        outer_limit = _handling(context).may_log

        def take() -> bool:
            key = self._limit.key(request, context)
            if not self._buckets.take(key, self._rate, trio.current_time()):
                return True
            self._log.report(
                "log messages", f"dropped a log message of {request.name!r} (LogLimit)"
            )
            return False

        def may_log(handling: Handling) -> bool:
            if outer_limit is not None and not outer_limit(handling):
                return False
            return perform_without_waiting(handling, self._limit.effect(take, _IS_LOGGED))

        _handling(context).may_log = may_log
        return await call_next(request)


# The limits of `mcp-trio run` -------------------------------------------------------------------
#
# The server in a file does not have the limits of the command, so a replay of it has to add them.
# It finds their settings in the recording: each decision of a limit is an effect, of which the
# arguments are the settings. If no request reached a limit, the recording has no settings of it and
# needs none.

_RUN_RATE: Final = "run --rate-limit"
_RUN_CONCURRENCY: Final = "run --concurrency-limit"
_RUN_QUOTA: Final = "run --quota"
# The beginning of these names in the JSON of a record.
_RUN_PREFIX: Final = b'"run --'


def add_limits(server: "Server", limits: Iterable[Middleware]) -> None:
    """Add limits outside of all middleware of a server, so none runs for a rejected request."""
    sessions_of(server).middleware[:0] = limits


def limits_of_command(
    rates: Sequence[str], places: int | None, quotas: Sequence[str]
) -> list[Middleware]:
    """Return the limits of the options of `mcp-trio run`, the outermost first.

    Each limits every user: the rates of requests, the number of requests that run at once, and the
    bytes of requests and results.

    Raises:
        ValueError: A rate, the number of places or a quota is invalid.
    """
    limits: list[Middleware] = [RateLimit(rate, title=_RUN_RATE) for rate in rates]
    if places is not None:
        limits.append(ConcurrencyLimit(places, title=_RUN_CONCURRENCY))
    return [*limits, *(Quota(quota, of="bytes", title=_RUN_QUOTA) for quota in quotas)]


_LIMIT_BY_NAME: Final[Mapping[str, Callable[[Any], Middleware]]] = {
    _RUN_RATE: lambda settings: RateLimit(settings["rate"], title=_RUN_RATE),
    _RUN_CONCURRENCY: lambda settings: ConcurrencyLimit(settings["places"], title=_RUN_CONCURRENCY),
    _RUN_QUOTA: lambda settings: Quota(settings["rate"], of="bytes", title=_RUN_QUOTA),
}


def recorded_limits(journal: Iterable[Record]) -> list[Middleware]:
    """Return the limits of the command that has recorded a session, the outermost first.

    Raises:
        RecordingError: A record of a limit has other settings than the command writes.
    """
    found: dict[tuple[str, str], Middleware] = {}
    for record in journal:
        if record.kind != "cmd" or _RUN_PREFIX not in (body_bytes(record) or b""):
            continue
        command = decode_body(record, CommandBody)
        key = command.name, str(command.arguments)
        if command.name in _LIMIT_BY_NAME and key not in found:
            try:
                found[key] = _LIMIT_BY_NAME[command.name](command.arguments)
            except (LookupError, TypeError, ValueError) as error:
                raise RecordingError(
                    f"record {record.number}: the settings of {command.name} are damaged"
                ) from error
    return list(found.values())


@contextmanager
def with_added_limits(server: "Server", limits: Sequence[Middleware]) -> Generator[None]:
    """Add limits outside of all middleware of a server until the block ends."""
    if not limits:  # Other sources of sessions than a `Server` have no middleware.
        yield
        return
    add_limits(server, limits)
    try:
        yield
    finally:
        del sessions_of(server).middleware[: len(limits)]
