"""`replay`: run a server's handlers against a recording of role `server`."""

import functools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import attrs
import trio

from mcp_trio._journal.redaction import redactor_for_replay
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.replayer import Abort, Baton, Replayer, unshield
from mcp_trio._replay.session_replay import OutboundReplay, SessionReplay, repertoire_of
from mcp_trio._replay.source_locations import site_of_error
from mcp_trio._replay.trace import Trace, is_of_request, load_trace, seconds_of
from mcp_trio._server.effects import ReplayLifespan
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.nondeterminism import UntrackedCall, UntrackedCallWatch
from mcp_trio._session.session import Session
from mcp_trio._transports.channel import Channel
from mcp_trio.limits import Limits

# --------------------
# The wire of a session that runs again without a peer.


class SilentChannel:
    """Takes all frames: the sequencer has seen them before. What arrives comes by hand."""

    transport = "replay"

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """All of them."""
        return len(frames)

    async def send(self, frames: Sequence[bytes]) -> None:  # noqa: ARG002  the protocol's
        """All of them."""
        await trio.lowlevel.checkpoint()

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Never anything."""
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Nothing to close."""
        await trio.lowlevel.checkpoint()


Mode: TypeAlias = Literal["strict", "outbound"]
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


class Replayable(Protocol):
    """What can be replayed: a server that makes sessions over channels."""

    @property
    def limits(self) -> Limits:
        """What a session may cost."""
        ...

    def open_session(
        self, channel: Channel, *, sequencer: Sequencer, lifespan: Any = None
    ) -> Session:
        """A session that nobody runs yet; `lifespan` is what its handlers see."""
        ...


@attrs.frozen(kw_only=True)
class ReplayReport:
    """A replay that did what was recorded: how many records were played, whether to the end.

    Attributes:
        records: How many records there were to play.
        requests: How many requests were handled.
        is_complete: Whether the recorded session came to its end; otherwise the recording was cut,
            and was played up to the cut.
        recorded_seconds: How long the session took when it was recorded.
        notes: Flaws of the file that did not matter, such as a torn tail.
        beyond: For each lane that wanted more than a cut recording holds, where it wanted it.
        strays: Calls that went past the context; their results are not recorded, so that they may
            make another replay differ.
    """

    records: int
    requests: int
    is_complete: bool
    recorded_seconds: float
    notes: tuple[str, ...]
    beyond: dict[str, str] = attrs.field(factory=dict[str, str])
    untracked_calls: tuple[UntrackedCall, ...] = ()


def replay(
    path: str | os.PathLike[str],
    server: Replayable,
    *,
    mode: Mode = "strict",
    lifespan: Lifespan | None = None,
    key: bytes | None = None,
    watches: bool = True,
) -> ReplayReport:
    """Run the handlers of `server` against a recording; returns when every record was matched.

    Starts a Trio run of its own, on a clock that only the recording moves. No effect is run: its
    recorded outcome is what the handler gets. A handler that reaches for sockets, threads or
    processes by itself gets `BlockedInReplay`. A recording that was cut replays up to the cut.
    Inside a Trio program, see `replay_async`.

    Args:
        path: The recording; of one in segments, the first.
        server: The server, as it was when recorded: what handlers have done to its tools, or to
            variables of their module, a replay does again.
        mode: "strict" compares every record. "outbound" compares what is sent: effects may come in
            another order, or no longer, and are matched by their name.
        lifespan: Gives the handlers a lifespan. Without it, `ctx.lifespan` of a server that had one
            is a stand-in, which may only be passed to an effect.
        key: What the recording was redacted with. Without it, what the server itself puts at the
            place of a secret becomes another token than in the recording.
        watches: False looks for no strays and blocks nothing, and is several times faster: for
            handlers that are known to go through their context.

    Raises:
        ReplayDivergence: The first record that the handlers did not do again.
        RecordingError: The file is unusable: not a recording, or of another role than `server`.
        ValueError: There is no such mode.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r}: one of {', '.join(get_args(Mode))}")
    trace = load_trace(path)
    clock = VirtualClock()
    baton = Baton(clock, server.limits.replay.thread_seconds)
    replayer, part = _MODES[mode](trace, clock, baton)
    if trace.opening.redaction is not None:
        replayer.redactor = redactor_for_replay(trace.opening.redaction, trace.journal, key)
    world = _stand_in(replayer) if lifespan is None else lifespan(server)
    watch = (
        UntrackedCallWatch(on_untracked_call=replayer.note_untracked_call, blocks=True)
        if watches
        else nullcontext()
    )
    trio.run(_run, replayer, functools.partial(_open, server, part), world, watch, clock=clock)
    if replayer.divergence is not None:
        raise replayer.divergence
    return _report(replayer)


async def replay_async(
    path: str | os.PathLike[str],
    server: Replayable,
    *,
    mode: Mode = "strict",
    lifespan: Lifespan | None = None,
    key: bytes | None = None,
    watches: bool = True,
) -> ReplayReport:
    """`replay` from inside a Trio program; it runs in a worker thread, in a Trio run of its own.

    Cancelled: waits for the replay to end, which is bounded by the length of the recording.

    Raises:
        ReplayDivergence, RecordingError, ValueError: As `replay`.
    """
    return await trio.to_thread.run_sync(
        functools.partial(
            replay, path, server, mode=mode, lifespan=lifespan, key=key, watches=watches
        )
    )


def _stand_in(replayer: Replayer) -> AbstractAsyncContextManager[Any]:
    has_lifespan = replayer.trace.opening.lifespan
    return nullcontext(ReplayLifespan(on_use=replayer.note_use) if has_lifespan else None)


def _open(
    server: Replayable, part: Callable[[int], SessionReplay], lifespan: Any, channel: int
) -> Session:
    return server.open_session(SilentChannel(), sequencer=part(channel), lifespan=lifespan)


def _report(replayer: Replayer) -> ReplayReport:
    journal = replayer.trace.journal
    return ReplayReport(
        records=replayer.cursor.place,
        requests=sum(map(is_of_request, replayer.trace.places)),
        is_complete=replayer.trace.is_complete,
        recorded_seconds=seconds_of(journal[-1]) if journal else 0.0,
        notes=replayer.trace.notes,
        beyond=replayer.beyond,
        untracked_calls=tuple(replayer.untracked_calls),
    )


# The modes.


def _strict(
    trace: Trace, clock: VirtualClock, baton: Baton
) -> tuple[Replayer, Callable[[int], SessionReplay]]:
    replayer = Replayer(trace, clock, baton)
    return replayer, functools.partial(SessionReplay, replayer)


def _outbound(
    trace: Trace, clock: VirtualClock, baton: Baton
) -> tuple[Replayer, Callable[[int], SessionReplay]]:
    repertoire = repertoire_of(trace)
    passes_by = repertoire.places.__contains__
    replayer = Replayer(trace, clock, baton, passes_by=passes_by, is_strict=False)
    return replayer, functools.partial(OutboundReplay, replayer, repertoire=repertoire)


_MODES: Final[
    dict[
        str, Callable[[Trace, VirtualClock, Baton], tuple[Replayer, Callable[[int], SessionReplay]]]
    ]
] = {"strict": _strict, "outbound": _outbound}


# One run of Trio.


class _Fault(Exception):  # noqa: N818  it carries an error, and is none itself
    """What the server or its lifespan raised, in a replay that cannot even begin."""


async def _run(
    replayer: Replayer,
    open_session: Callable[[Any, int], Session],
    lifespan: AbstractAsyncContextManager[Any],
    watch: AbstractContextManager[object],
) -> None:
    scope = trio.CancelScope()
    errors: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_what_does_not_end, replayer, scope)
        try:
            with scope, watch, _faults():
                async with lifespan as value:
                    errors += await _played(replayer, functools.partial(open_session, value))
        except _Fault as fault:
            errors.append(fault)
        await replayer.baton.wait_until_free()
        nursery.cancel_scope.cancel()
    _judge(replayer, errors)


@contextmanager
def _faults() -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise _Fault from error


async def _played(
    replayer: Replayer, open_session: Callable[[int], Session]
) -> list[BaseException]:
    """Play; returns what broke out of the sessions."""
    try:
        async with trio.open_nursery() as nursery:

            async def begin(channel: int) -> Session:
                with _faults():
                    session = open_session(channel)
                await nursery.start(session.run)
                return session

            await replayer.play(begin)
            nursery.cancel_scope.cancel()
    except BaseException as error:
        return list(_leaves(error))
    return []


async def _end_what_does_not_end(replayer: Replayer, scope: trio.CancelScope) -> None:
    """Whenever tasks spin, or do not end when they should, cancel them, shields or not."""
    main = trio.lowlevel.current_task().parent_nursery
    assert main is not None
    while True:
        await replayer.clock.trouble.wait()
        replayer.clock.trouble = trio.Event()
        if not replayer.is_over:
            replayer.fail(replayer.clock.reason)
        replayer.baton.give_up()
        scope.cancel()
        unshield(main.parent_task)


def _judge(replayer: Replayer, errors: Sequence[BaseException]) -> None:
    """What broke out of the session: our own `Abort`, a person at the keyboard, or a failure."""
    for error in errors:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, _Fault):
            assert error.__cause__ is not None
            raise error.__cause__
    for error in errors:
        if not isinstance(error, Abort | trio.Cancelled):
            replayer.fail(f"{type(error).__name__}: {error}  {site_of_error(error)}".rstrip())


def _leaves(error: BaseException) -> Iterator[BaseException]:
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    if not inner:
        yield error
    for each in inner:
        yield from _leaves(each)
