"""`replay`: run a server's handlers against a recording of role `server`, strictly."""

import os
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import attrs
import trio

from mcp_trio._engine import Sequencer, Session
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.player import Abort, Player
from mcp_trio._replay.score import Score, is_of_request, load_score
from mcp_trio._replay.shields import unshield
from mcp_trio._replay.sites import site_of_error
from mcp_trio._transports.channel import Channel
from mcp_trio._wire import Oversized

_SPINS: Final = "a handler spins: let it wait for an event or a time"


class Replayable(Protocol):
    """What can be replayed: a server that makes a session over a channel."""

    def open_session(self, channel: Channel, *, sequencer: Sequencer) -> Session:
        """A session that nobody runs yet."""
        ...


@attrs.frozen(kw_only=True)
class ReplayReport:
    """A replay that did what was recorded: how many records were played, whether to the end.

    `notes` are flaws of the file that did not matter, such as a torn tail.
    """

    records: int
    requests: int
    is_complete: bool
    recorded_seconds: float
    notes: tuple[str, ...]


def replay(path: str | os.PathLike[str], server: Replayable) -> ReplayReport:
    """Run the handlers of `server` against a recording; returns when every record was matched.

    Starts a Trio run of its own, on a clock that only the recording moves: no sockets, no waiting.
    A recording that was cut replays up to the cut. Inside a Trio program, see `replay_async`.

    Raises:
        ReplayDivergence: The first record that the handlers did not do again.
        RecordingError: The file is unusable: not a recording, of another role than `server`, or
            with effects that this version cannot replay.
    """
    score = load_score(path)
    player = Player(score, VirtualClock())
    trio.run(_run, player, server, clock=player.clock)
    if player.divergence is not None:
        raise player.divergence
    return _report(score, player.cursor)


async def replay_async(path: str | os.PathLike[str], server: Replayable) -> ReplayReport:
    """`replay` from inside a Trio program; it runs in a worker thread, in a Trio run of its own.

    Cancelled: waits for the replay to end, which is bounded by the length of the recording.
    """
    return await trio.to_thread.run_sync(replay, path, server)


def _report(score: Score, records: int) -> ReplayReport:
    journal = score.journal
    return ReplayReport(
        records=records,
        requests=sum(map(is_of_request, score.last_places)),
        is_complete=score.is_complete,
        recorded_seconds=journal[-1].time_ns / 1e9 if journal else 0.0,
        notes=score.notes,
    )


# One run of Trio.


async def _run(player: Player, server: Replayable) -> None:
    session = server.open_session(_SilentChannel(), sequencer=player)
    scope = trio.CancelScope()
    errors: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_what_does_not_end, player, scope)
        try:
            with scope:
                await _play(player, session)
        except BaseException as error:
            errors += _leaves(error)
        nursery.cancel_scope.cancel()
    _judge(player, errors)


async def _play(player: Player, session: Session) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(session.run)
        await player.play(session)
        nursery.cancel_scope.cancel()


async def _end_what_does_not_end(player: Player, scope: trio.CancelScope) -> None:
    """Whenever tasks spin, or do not end when they should, cancel them, shields or not."""
    main = trio.lowlevel.current_task().parent_nursery
    assert main is not None
    while True:
        await player.clock.trouble.wait()
        player.clock.trouble = trio.Event()
        if not player.is_over:
            player.fail(_SPINS)
        scope.cancel()
        unshield(main.parent_task)


def _judge(player: Player, errors: Sequence[BaseException]) -> None:
    """What broke out of the session: our own `Abort`, a person at the keyboard, or a failure."""
    for error in errors:
        if isinstance(error, KeyboardInterrupt):
            raise error
    for error in errors:
        if not isinstance(error, Abort | trio.Cancelled):
            player.fail(f"{type(error).__name__}: {error}  {site_of_error(error)}".rstrip())


def _leaves(error: BaseException) -> Iterator[BaseException]:
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    if not inner:
        yield error
    for each in inner:
        yield from _leaves(each)


class _SilentChannel:
    """The wire of a replay: what leaves was compared already, what arrives comes by hand."""

    transport = "replay"

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        return len(frames)

    async def send(self, frames: Sequence[bytes]) -> None:  # noqa: ARG002  the protocol's
        await trio.lowlevel.checkpoint()

    async def receive(self) -> Sequence[bytes | Oversized]:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
