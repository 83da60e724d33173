"""`replay`: run a server's handlers against a recording of role `server`."""

import functools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

import msgspec
import trio

from mcp_trio._journal.records import LISTED_KINDS, Record, body_bytes, messages_in
from mcp_trio._journal.redaction import redactor_for_replay
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE
from mcp_trio._protocol.uri_templates import UriError
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.replayer import Abort, Player, Replayer, ThreadToken, unshield
from mcp_trio._replay.session_replay import (
    OutboundReplay,
    OutboundReplayer,
    SessionReplay,
    find_uncompared,
)
from mcp_trio._replay.source_locations import error_location
from mcp_trio._replay.stops import Stop, reject_stop
from mcp_trio._replay.trace import (
    MessageFields,
    Trace,
    is_request_lane,
    load_trace,
    message_fields,
    request_data,
    seconds_of,
)
from mcp_trio._server.effects import ReplayLifespan
from mcp_trio._server.lifespan import LifespanRun
from mcp_trio._server.registry import Registry
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.nondeterminism import UntrackedCall, UntrackedCallWatch
from mcp_trio._session.session import Session
from mcp_trio.errors import NothingCompared, ReplayDivergence

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

Mode: TypeAlias = Literal["strict", "outbound"]
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


Entry: TypeAlias = tuple[str, str]
"""A kind of `LISTED_KINDS`, and a name or URI.

The name is empty if the list was too long: the record then has one digest for the whole list.
"""

Changes: TypeAlias = Mapping[Entry, Literal["changed", "added", "removed"]]
"""The entries that differ from the recorded ones."""

_SINGULARS: Final[Mapping[str, str]] = dict(
    zip(LISTED_KINDS, ("tool", "prompt", "resource", "resource template"), strict=True)
)


class SilentChannel:
    """A channel without a peer: the sequencer compares what is sent and delivers what arrives."""

    transport = "replay"

    def send_nowait(self, messages: Sequence[bytes]) -> int:
        """Discard the messages; return their number."""
        return len(messages)

    async def send(self, messages: Sequence[bytes]) -> None:  # noqa: ARG002  of `Channel`
        """Discard the messages."""
        await trio.lowlevel.checkpoint()

    def deliver_to(self, take: Callable[[Sequence[bytes | Oversized]], None]) -> None:
        """Do nothing: the replayer gives each message to the session itself."""

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Wait for ever; no session that `deliver_to` delivers to calls this."""
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Do nothing but let other tasks run."""
        await trio.lowlevel.checkpoint()


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay without a divergence.

    Attributes:
        records: The number of records that were replayed.
        requests: The number of requests that were handled.
        is_complete: Whether the recorded session came to its end. Otherwise the recording was cut,
            and was replayed up to the cut.
        recorded_seconds: The duration of the recorded session.
        notes: Damage of the file that the replay was allowed to ignore, such as an incomplete last
            line.
        continuing: For each lane that would continue after the cut of a recording, the location at
            which it waits.
        untracked_calls: The calls that bypassed the context. Their results are not recorded, so
            that they can make another replay diverge.
        list_changes: A text for each tool, prompt, resource and template that was added, removed or
            changed since. No recorded request used it, or the mode is "outbound".
        lifespan: A sentence that reports whether the server's lifespan ran again, or was replaced;
            empty if the server had none.
    """

    records: int
    requests: int
    is_complete: bool
    recorded_seconds: float
    notes: tuple[str, ...]
    continuing: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    untracked_calls: tuple[UntrackedCall, ...] = ()
    list_changes: tuple[str, ...] = ()
    lifespan: str = ""


def replay(
    path: str | os.PathLike[str],
    server: "Server",
    *,
    mode: Mode = "strict",
    lifespan: Lifespan | None = None,
    key: bytes | None = None,
    allow_damaged: bool = False,
    all_divergences: bool = False,
) -> ReplayReport:
    """Run the handlers of `server` against a recording, and compare what they do.

    Effects are not performed: handlers get the recorded outcomes, clocks and random numbers. A
    handler that changes the outside by itself, such as a file, a process or a database, gets
    `BlockedInReplay` before that happens; what it only reads is reported. A recording that was cut
    at its end, as by a crash, is replayed up to the cut. This function calls `trio.run`, with a
    clock that only the recording moves; inside a Trio program, use `replay_async`.

    Args:
        path: The recording; the first file of one in segments.
        server: The server as it was when recorded. A replay repeats what handlers do to the
            server's tools and to variables of their modules.
        mode: "strict" compares every record, and the tools, prompts and resources that recorded
            requests used, as they are listed. "outbound" compares what is sent: effects may be
            performed in another order, or no longer, and are matched by their names.
        lifespan: A function that returns the lifespan for the handlers, in place of the recorded
            one. Without it, the lifespan of the server runs again if the recording holds it and it
            opened nothing by itself; otherwise `ctx.lifespan` is a stand-in, which can only be
            passed to effects.
        key: The key with which the recording was redacted. Without it, the replay replaces values
            that the server itself redacts by other tokens than those in the recording.
        allow_damaged: True replays a recording in which lines were changed or lost, as far as it
            can be read, and up to a gap. Its report, or divergence, lists the damage.
        all_divergences: True goes on after the first divergence. A message with other content and
            an effect with other arguments get the recorded outcome; a request that differs in any
            other way ends there, and the others go on. The first divergence is the same as
            without; a later one that may follow from an earlier one has its record in `follows`.

    Raises:
        ReplayDivergence: The handlers did something else; the error names the first such record,
            and has the later ones in `later` with `all_divergences`.
        NothingCompared: The recording holds no request that was answered, except handshakes.
        RecordingError: The file is no recording of a server, or is damaged.
        ValueError: There is no such mode.
    """
    report = run_replay(
        path,
        server,
        mode=mode,
        lifespan=lifespan,
        key=key,
        allow_damaged=allow_damaged,
        all_divergences=all_divergences,
    )
    assert report is not None  # Only a stop ends a replay without one.
    return report


def run_replay(
    path: str | os.PathLike[str],
    server: "Server",
    *,
    mode: Mode = "strict",
    lifespan: Lifespan | None = None,
    key: bytes | None = None,
    allow_damaged: bool = False,
    all_divergences: bool = False,
    stop: Stop | None = None,
) -> ReplayReport | None:
    """Replay as `replay` does, and stop at a record; return None if the replay was ended there.

    Raises:
        RecordingError: The replay cannot stop at that record; or as for `replay`.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r}: one of {', '.join(get_args(Mode))}")
    trace = load_trace(path, runs_lifespans=lifespan is None, rejects_damage=not allow_damaged)
    if stop is not None:
        reject_stop(trace, stop)
    registry = sessions_of(server).registry
    changes = _list_changes(trace, registry)
    tools = set(registry.tools)  # The lifespan may register more.
    clock = VirtualClock(trace.opening.clock_ns, trace.opening.clock)
    thread_token = ThreadToken(clock, server.limits.replay.thread_seconds)
    make_sequencer: Callable[[int], SessionReplay]
    if mode == "strict":
        replayer = Replayer(trace, clock, thread_token, finds_all=all_divergences)
        make_sequencer = functools.partial(SessionReplay, replayer)
    else:
        uncompared = find_uncompared(trace)
        replayer = OutboundReplayer(
            trace,
            clock,
            thread_token,
            is_strict=False,
            finds_all=all_divergences,
            uncompared=uncompared,
        )
        make_sequencer = functools.partial(OutboundReplay, replayer, uncompared=uncompared)
    replayer.stop = stop
    replayer.list_change = functools.partial(_used_change, trace, registry, changes)
    if trace.opening.redaction is not None:
        replayer.redactor = redactor_for_replay(trace.opening.redaction, trace.journal, key)

    def open_session(value: Any, channel: int) -> Session:
        sequencer = make_sequencer(channel)
        if replayer.redactor is not None:
            schemas = registry.tool_schemas().items()
            replayer.redactor.add_schemas({name: it for name, it in schemas if name not in tools})
        return sessions_of(server).open_session(
            SilentChannel(), sequencer=sequencer, lifespan=value
        )

    def make_lifespan(channel: int) -> LifespanRun:
        if not sessions_of(server).has_lifespan:
            replayer.fail("the recorded server had a lifespan, and this one has none")
            raise Abort
        return sessions_of(server).lifespan_run(make_sequencer(channel))

    replayer.make_lifespan = make_lifespan
    entered: AbstractAsyncContextManager[Any]
    if lifespan is not None:
        entered = lifespan(server)
    elif trace.opening.lifespan:
        entered = nullcontext(ReplayLifespan(on_use=replayer.note_lifespan_use))
    else:
        entered = nullcontext()
    watch = UntrackedCallWatch(on_untracked_call=replayer.note_untracked_call, blocks=True)
    trio.run(run_player, replayer, open_session, entered, watch, clock=clock)
    divergence = replayer.divergence
    if divergence is not None and not all_divergences:
        raise divergence
    if stop is not None and stop.has_ended:
        return None
    requests = sum(map(is_request_lane, trace.indexes))
    if divergence is None and not (requests or answers_requests(trace.journal)):
        raise NothingCompared(
            "nothing was compared: the recording holds no request that was answered, except"
            " handshakes; record a session that makes requests"
        )
    divergences = [] if divergence is None else [divergence]
    if mode == "strict":
        divergences += _used_changes(trace, registry, changes)
    if divergences:
        first, *others = divergences
        if all_divergences:
            first.args = ("\n\n".join(map(str, divergences)),)
            first.later += others
        raise first
    lifespan_text = ""
    if trace.opening.lifespan and lifespan is not None:
        lifespan_text = "the lifespan that was passed to the replay was entered"
    elif trace.opening.lifespan and trace.lifespans:
        lifespan_text = "the lifespan ran again"
    elif trace.opening.lifespan:
        calls = ", ".join(dict.fromkeys(trace.opened.values()))
        opened = f"it opened something by itself, {calls}"
        reason = opened if calls else "this recording does not hold it"
        lifespan_text = f"the lifespan was replaced by a stand-in: {reason}"
    return ReplayReport(
        records=len({record.number for record in trace.journal[: replayer.position.index]}),
        requests=requests,
        is_complete=trace.is_complete,
        recorded_seconds=seconds_of(trace.journal[-1]) if trace.journal else 0.0,
        notes=trace.notes,
        continuing=replayer.continuing,
        untracked_calls=tuple(replayer.untracked_calls),
        list_changes=tuple(f"{_entry_text(entry)} was {it}" for entry, it in changes.items()),
        lifespan=lifespan_text,
    )


# The dispatcher answers these alike for all handlers.
_HANDSHAKES: Final = frozenset({INITIALIZE, DISCOVER})


def answers_requests(journal: Sequence[Record]) -> bool:
    """Return whether a recording has an answer to a request that is no handshake."""
    handshakes = set[tuple[int, object]]()
    for record in journal:
        if record.kind not in {"in", "out"}:
            continue
        for message in map(message_fields, messages_in(body_bytes(record) or b"")):
            request = (record.channel, message.id)
            if record.kind == "in" and message.method in _HANDSHAKES:
                handshakes.add(request)
            elif record.kind == "in" and message.is_request:
                handshakes.discard(request)  # A client that initializes again may reuse ids.
            elif record.kind == "out" and message.is_response and request not in handshakes:
                return True
    return False


async def replay_async(
    path: str | os.PathLike[str],
    server: "Server",
    *,
    mode: Mode = "strict",
    lifespan: Lifespan | None = None,
    key: bytes | None = None,
    allow_damaged: bool = False,
    all_divergences: bool = False,
) -> ReplayReport:
    """Call `replay` from inside a Trio program, in a worker thread.

    If this call is cancelled, it first waits for the replay to end. The replay cannot be
    interrupted, but takes no longer than the recording has records.

    Raises:
        ReplayDivergence, NothingCompared, RecordingError, ValueError: As for `replay`.
    """
    return await trio.to_thread.run_sync(
        functools.partial(
            replay,
            path,
            server,
            mode=mode,
            lifespan=lifespan,
            key=key,
            allow_damaged=allow_damaged,
            all_divergences=all_divergences,
        )
    )


# The Trio run -------------------------------------------------------------------------------------


class _SetupFailed(Exception):  # noqa: N818  it carries an error, and is none itself
    """The cause is an error of the server or its lifespan, by which the replay could not begin."""


@contextmanager
def _marking_setup_errors() -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise _SetupFailed from error


async def run_player(
    player: Player,
    open_session: Callable[[Any, int], Session],
    lifespan: AbstractAsyncContextManager[Any],
    watch: UntrackedCallWatch,
) -> None:
    """Run a player in a Trio run of its own, until all tasks have ended.

    Raises:
        Exception: The server or its lifespan failed before the first session.
    """
    scope = trio.CancelScope()
    errors: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_stalled, player, scope)
        try:
            with scope, watch, _marking_setup_errors():
                async with lifespan as value:
                    errors += await _play(player, open_session, value)
        except _SetupFailed as failed:
            errors.append(failed)
        await player.thread_token.wait_all_released()
        nursery.cancel_scope.cancel()
    for error in errors:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, _SetupFailed):
            assert error.__cause__ is not None
            raise error.__cause__
    for error in errors:
        if not isinstance(error, Abort | trio.Cancelled):
            text = f"{type(error).__name__}: {error}  {error_location(error)}"
            player.fail(text.rstrip())


async def _play(
    player: Player, open_session: Callable[[Any, int], Session], stand_in: Any
) -> list[BaseException]:
    """Replay all sessions and lifespans; return the errors that left them.

    Sessions without a lifespan in the journal get the `stand_in` for its value.
    """

    async def run_lifespan(run: LifespanRun) -> None:
        try:
            async with run.enter():
                await run.wait_for_sessions()
        except BaseException as error:
            # Its end is compared with the recording. What happens after the replay does not count.
            if any(isinstance(each, KeyboardInterrupt) for each in _leaves(error)):
                raise

    try:
        async with trio.open_nursery() as nursery:

            async def begin(channel: int, lifespan: LifespanRun | None) -> Session:
                context, value = copy_context(), stand_in
                if lifespan is not None:
                    assert lifespan.variables is not None  # The player has checked it.
                    context, value = lifespan.variables.copy(), lifespan.value
                with _marking_setup_errors():
                    session = open_session(value, channel)
                started = trio.Event()

                async def run_session() -> None:
                    async with trio.open_nursery() as own:
                        await own.start(session.run)
                        started.set()

                context.run(nursery.start_soon, run_session)
                await started.wait()
                return session

            await player.play(begin, lambda run: nursery.start_soon(run_lifespan, run))
            nursery.cancel_scope.cancel()
    except BaseException as error:
        return list(_leaves(error))
    return []


async def _cancel_stalled(player: Player, scope: trio.CancelScope) -> None:
    """Whenever the clock stalls, cancel all tasks, shielded or not."""
    main = trio.lowlevel.current_task().parent_nursery
    assert main is not None
    while True:
        await player.clock.stalled.wait()
        player.clock.stalled = trio.Event()
        if not player.is_over:
            player.fail(player.clock.reason)
        player.thread_token.abandon()
        scope.cancel()
        unshield(main.parent_task)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in an exception group, or the error itself."""
    inner: Sequence[BaseException] = getattr(error, "exceptions", ())
    if not inner:
        yield error
    for each in inner:
        yield from _leaves(each)


# Listed entries -----------------------------------------------------------------------------------

# The `open` record has a digest of each entry that the server lists: of a tool, prompt or resource.
# An entry may have changed although a replay is the same, because the recorded client did not ask
# for the list. So the entries are compared separately.


def _list_changes(trace: Trace, registry: Registry) -> Changes:
    """Return the entries that the server lists differently now than in the recording.

    A recording without digests, made by an early version of this package, has no changes.
    """
    if not trace.opening.listed:
        return {}
    recorded, now = _digests(trace.opening.listed), _digests(registry.listed())
    changes: dict[Entry, Literal["changed", "added", "removed"]] = {}
    for entry in dict.fromkeys([*recorded, *now]):
        if entry not in now:
            changes[entry] = "removed"
        elif entry not in recorded:
            changes[entry] = "added"
        elif recorded[entry] != now[entry]:
            changes[entry] = "changed"
    return changes


def _digests(listed: Mapping[str, Sequence[str]]) -> dict[Entry, str]:
    lines = [(kind, line.partition(" ")) for kind in LISTED_KINDS for line in listed.get(kind, ())]
    return {(kind, name): digest for kind, (digest, _, name) in lines}


def _entry_text(entry: Entry) -> str:
    kind, name = entry
    return f'the {_SINGULARS[kind]} "{name}"' if name else f"the list of {kind}"


def _used_changes(trace: Trace, registry: Registry, changes: Changes) -> Iterator[ReplayDivergence]:
    """Yield a divergence for each changed entry that requests used, at the first such request."""
    seen = set[Entry]()
    for record in trace.journal if changes else ():
        messages = messages_in(body_bytes(record) or b"") if record.kind == "in" else ()
        for message in map(message_fields, messages):
            entry = _used_entry(message, registry) if message.is_request else None
            if entry is None or entry not in changes or entry in seen:
                continue
            seen.add(entry)
            text, lane = _entry_text(entry), f"r{record.number}"
            hint = (
                f"{text} has another description, other parameters, defaults or schemas than"
                " recorded, and this request used it; all that its handler sent is as recorded"
            )
            rows = [
                ("recorded", f"{text} as it was listed then"),
                ("replay", f"{text} as it is listed now"),
                ("meaning", hint),
                ("choose", 'undo the change | record the session again | replay(mode="outbound")'),
            ]
            total = trace.journal[-1].number + 1
            heading = (
                f"replay diverged at record {record.number} of {total}"
                f" (+{seconds_of(record) * 1000:.1f} ms), {message.method}, lane {lane}"
            )
            yield ReplayDivergence(
                "\n".join([heading, *(f"  {label + ':':<11}{row}" for label, row in rows)]),
                record=record.number,
                lane=lane,
                kind="changed",
                offset_seconds=seconds_of(record),
                recorded=rows[0][1],
                replayed=rows[1][1],
                hint=hint,
            )


def _used_change(trace: Trace, registry: Registry, changes: Changes, lane: str) -> str:
    """Return how the entry that a lane's request used was changed; empty if it was not."""
    if not changes:
        return ""
    entry = _used_entry(message_fields(request_data(trace.journal, lane)), registry)
    if entry is None or entry not in changes:
        return ""
    return f"{_entry_text(entry)} was {changes[entry]}"


def _used_entry(message: MessageFields, registry: Registry) -> Entry | None:
    """Return the entry that a request calls, gets, reads or completes; None if there is none."""
    params = message.params
    match message.method:
        case "tools/call":
            return "tools", str(params.get("name"))
        case "prompts/get":
            return "prompts", str(params.get("name"))
        case "resources/read":
            with suppress(UriError):
                found = registry.find_resource(str(params.get("uri")))
                if found is not None:
                    return "resources" if found[0].is_static else "templates", found[0].key
        case "completion/complete":
            reference: Any = params.get("ref")
            if isinstance(reference, dict):
                target = cast("dict[str, Any]", reference)
                is_prompt = "name" in target
                name = target.get("name" if is_prompt else "uri")
                return "prompts" if is_prompt else "templates", str(name)
        case _:
            pass
    return None
