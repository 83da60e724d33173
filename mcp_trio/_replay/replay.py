"""`replay`: run a server's handlers against a recording of role `server`.

`run_replay` loads the trace, makes a `Replayer` for the mode, and runs the sessions of the
recording in a Trio run of their own (`run_controlled`). `replay` and `replay_async` are what users
call.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec
import trio

from mcp_trio._journal.conversation import members_of
from mcp_trio._journal.records import LISTED_KINDS, Record, body_bytes, messages_in
from mcp_trio._journal.redaction import redactor_for_replay
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE
from mcp_trio._protocol.uri_templates import UriError
from mcp_trio._recorder.clock import seconds_of
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.controlled_run import ThreadToken, run_controlled
from mcp_trio._replay.divergence import report_text
from mcp_trio._replay.replayer import Replayer, Stop, check_stop
from mcp_trio._replay.session_replay import OutboundReplay, OutboundReplayer, SessionReplay
from mcp_trio._replay.trace import (
    MessageFields,
    Trace,
    is_request_lane,
    load_trace,
    message_fields,
    request_data,
)
from mcp_trio._server.caller_limits import recorded_limits
from mcp_trio._server.lifespan import LifespanRun
from mcp_trio._server.registry import Registry
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.lanes import Abort
from mcp_trio._session.untracked_calls import UntrackedCall
from mcp_trio.errors import NothingCompared, ReplayDivergence

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

Mode: TypeAlias = Literal["strict", "outbound"]
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


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
        untracked_calls: The calls that handlers made without their context. Their results are not
            recorded, so that they can make another replay diverge.
        list_changes: A text for each tool, prompt, resource and template that was added, removed or
            changed since. No recorded request used it, or the mode is "outbound".
        lifespan: A sentence that reports whether the server's lifespan ran again, or was replaced;
            empty if the server had none.
        exit: The `SystemExit` or `KeyboardInterrupt` with which a handler ended the session, as
            when it was recorded, with its location; empty if there was none.
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
    exit: str = ""


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
        TypeError: `server` is no server object.
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
        TypeError: `server` is no server object.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r}: one of {', '.join(get_args(Mode))}")
    trace = load_trace(path, runs_lifespans=lifespan is None, rejects_damage=not allow_damaged)
    if stop is not None:
        check_stop(trace, stop)
    try:
        registry = sessions_of(server).registry
    except AttributeError:
        kind = type(server).__name__
        text = f"replay() takes a Server object, not one of type {kind}: {server!r}"
        raise TypeError(text) from None
    changes = ListedChanges(trace, registry)
    tools = set(registry.tools)  # The lifespan may register more.
    clock = VirtualClock(trace.opening.clock_ns, trace.opening.clock)
    thread_token = ThreadToken(clock, server.limits.replay.thread_seconds)
    replayer_class, sequencer_class = Replayer, SessionReplay
    if mode == "outbound":
        replayer_class, sequencer_class = OutboundReplayer, OutboundReplay
    replayer = replayer_class(trace, clock, thread_token, finds_all=all_divergences)
    replayer.stop = stop
    replayer.list_change = changes.of_request
    if trace.opening.redaction is not None:
        replayer.redactor = redactor_for_replay(trace.opening.redaction, trace.journal, key)

    def make_sequencer(channel: int) -> SessionReplay:
        if replayer.redactor is not None:
            schemas = registry.tool_schemas().items()
            replayer.redactor.add_schemas({name: it for name, it in schemas if name not in tools})
        return sequencer_class(replayer, channel)

    def make_lifespan(channel: int) -> LifespanRun:
        if not sessions_of(server).has_lifespan:
            replayer.fail("the recorded server had a lifespan, and this one has none")
            raise Abort
        return sessions_of(server).lifespan_run(sequencer_class(replayer, channel))

    replayer.make_lifespan = make_lifespan
    run_controlled(
        replayer,
        server,
        trace.opening,
        recorded_limits(trace.journal),
        make_sequencer,
        None if lifespan is None else lifespan(server),
    )
    error = replayer.error
    if error is not None and not all_divergences:
        raise error
    if stop is not None and stop.has_ended:
        return None
    requests = sum(map(is_request_lane, trace.indexes))
    if error is None and not (requests or answers_requests(trace.journal)):
        raise NothingCompared(
            "nothing was compared: the recording holds no request that was answered, except"
            " handshakes; record a session that makes requests"
        )
    errors = [] if error is None else [error]
    if replayer.is_strict:
        errors += changes.divergences()
    if errors:
        first, *others = errors
        if all_divergences:
            first.args = ("\n\n".join(map(str, errors)),)
            first.later += others
        raise first
    return ReplayReport(
        records=len({record.number for record in trace.journal[: replayer.position.index]}),
        requests=requests,
        is_complete=trace.is_complete,
        recorded_seconds=seconds_of(trace.journal[-1].time_ns) if trace.journal else 0.0,
        notes=trace.notes,
        continuing=replayer.continuing,
        untracked_calls=tuple(replayer.untracked_calls),
        list_changes=changes.texts(),
        lifespan=_lifespan_text(trace, is_passed=lifespan is not None),
        exit=replayer.exit,
    )


def _lifespan_text(trace: Trace, *, is_passed: bool) -> str:
    """Return `ReplayReport.lifespan`; `is_passed` is True if the replay got a lifespan to enter."""
    if not trace.opening.lifespan:
        return ""
    if is_passed:
        return "the lifespan that was passed to the replay was entered"
    if trace.lifespans:
        return "the lifespan ran again"
    calls = ", ".join(dict.fromkeys(trace.opened.values()))
    opened = f"it opened something by itself, {calls}"
    reason = opened if calls else "this recording does not hold it"
    return f"the lifespan was replaced by a stand-in: {reason}"


# The dispatcher answers these alike for all handlers.
_HANDSHAKES: Final = frozenset({INITIALIZE, DISCOVER})


def answers_requests(journal: Sequence[Record]) -> bool:
    """Return whether a recording has a response to a request that is no handshake."""
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
        ReplayDivergence, NothingCompared, RecordingError, TypeError, ValueError: As for `replay`.
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


# Listed entries -----------------------------------------------------------------------------------

EntryKey: TypeAlias = tuple[str, str]
"""The kind of an entry, one of `LISTED_KINDS`, and its name or URI.

The name is empty if the list was too long: the record then has one digest for the whole list.
"""

_SINGULARS: Final[Mapping[str, str]] = dict(
    zip(LISTED_KINDS, ("tool", "prompt", "resource", "resource template"), strict=True)
)


class ListedChanges:
    """The entries that a server lists differently now than in the recording.

    The `open` record has a digest of each entry. An entry may have changed although a replay is the
    same, because the recorded client did not ask for the list. So the entries are compared
    separately. A recording without digests has no changes.
    """

    def __init__(self, trace: Trace, registry: Registry) -> None:
        self._trace = trace
        self._registry = registry
        # A text for each change, such as `the tool "sell" was changed`.
        self._changes: dict[EntryKey, str] = {}
        if not trace.opening.listed:
            return
        recorded, now = _digests(trace.opening.listed), _digests(registry.list_digests())
        for entry in recorded | now:
            if recorded.get(entry) != now.get(entry):
                was = "added" if entry not in recorded else "changed" if entry in now else "removed"
                self._changes[entry] = f"{_entry_text(entry)} was {was}"

    def texts(self) -> tuple[str, ...]:
        """Return a text for each change."""
        return tuple(self._changes.values())

    def of_request(self, lane: str) -> str:
        """Return the text of the change to the entry that a lane's request used, if it changed."""
        entry = self._used_entry(message_fields(request_data(self._trace.journal, lane)))
        return "" if entry is None else self._changes.get(entry, "")

    def divergences(self) -> Iterator[ReplayDivergence]:
        """Yield a divergence for each changed entry that a request used, at the first of them."""
        seen = set[EntryKey]()
        for record in self._trace.journal if self._changes else ():
            messages = messages_in(body_bytes(record) or b"") if record.kind == "in" else ()
            for message in map(message_fields, messages):
                entry = self._used_entry(message) if message.is_request else None
                if entry is None or entry not in self._changes or entry in seen:
                    continue
                seen.add(entry)
                text, lane = _entry_text(entry), f"r{record.number}"
                recorded, replayed = f"{text} as it was listed then", f"{text} as it is listed now"
                hint = (
                    f"{text} has another description, other parameters, defaults or schemas than"
                    " recorded, and this request used it; all that its handler sent is as recorded"
                )
                total, seconds = self._trace.journal[-1].number + 1, seconds_of(record.time_ns)
                headline = (
                    f"replay diverged at record {record.number} of {total}"
                    f" (+{seconds * 1000:.1f} ms), {message.method}, lane {lane}"
                )
                choices = 'undo the change | record the session again | replay(mode="outbound")'
                rows = [("recorded", recorded), ("replay", replayed)]
                rows += [("meaning", hint), ("choose", choices)]
                yield ReplayDivergence(
                    report_text(headline, rows),
                    record=record.number,
                    lane=lane,
                    kind="changed",
                    offset_seconds=seconds,
                    recorded=recorded,
                    replayed=replayed,
                    hint=hint,
                )

    def _used_entry(self, message: MessageFields) -> EntryKey | None:
        """Return the entry that a request calls, gets, reads or completes.

        None: the request has another method, or names no entry.
        """
        params = message.params
        match message.method:
            case "tools/call":
                return "tools", str(params.get("name"))
            case "prompts/get":
                return "prompts", str(params.get("name"))
            case "resources/read":
                with suppress(UriError):
                    found = self._registry.find_resource(str(params.get("uri")))
                    if found is not None:
                        return "resources" if found[0].is_static else "templates", found[0].key
            case "completion/complete":
                if reference := members_of(params.get("ref")):
                    if "name" in reference:
                        return "prompts", str(reference["name"])
                    return "templates", str(reference.get("uri"))
            case _:
                pass
        return None


def _digests(listed: Mapping[str, Sequence[str]]) -> dict[EntryKey, str]:
    """Return the digest of each entry from lines of `OpenBody.listed`, such as `1f0c9a2e sell`."""
    lines = [(kind, line.partition(" ")) for kind in LISTED_KINDS for line in listed.get(kind, ())]
    return {(kind, name): digest for kind, (digest, _, name) in lines}


def _entry_text(entry: EntryKey) -> str:
    kind, name = entry
    return f'the {_SINGULARS[kind]} "{name}"' if name else f"the list of {kind}"
