"""Summaries of recordings for the catalogue, made of their records."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from mcp_trio._journal.calls import Call, CallTracker
from mcp_trio._journal.reader import Damage, first_loss, read_recording
from mcp_trio._journal.records import (
    KEPT_PREFIX,
    MASKED_PREFIX,
    CommandBody,
    EndBody,
    OpenBody,
    Record,
    body_bytes,
    decode_body,
)
from mcp_trio._recorder.clock import NS_PER_SECOND
from mcp_trio.errors import RecordingError


class Summary(msgspec.Struct, kw_only=True):
    """The facts about a recording.

    Attributes:
        opening: The body of its `open` record.
        seconds: The seconds from its first record to its last.
        records: The number of records.
        client: The name of the client of the session; empty if it is unknown.
        client_version: The version of that client.
        protocol_version: The protocol version of the session.
        calls: The requests of the client.
        arguments: The arguments of the calls as JSON, by the number of the request's record; empty
            unless they were asked for.
        effects: The number of effects by name.
        kept: The reasons for which a policy or a handler has kept the recording.
        masked: The number of secrets that were replaced, by the name of their member.
        complete: Whether the recording was closed.
        loss: Whether records were lost.
        damaged: Whether the file is damaged.
    """

    opening: OpenBody
    seconds: float = 0.0
    records: int = 0
    client: str = ""
    client_version: str = ""
    protocol_version: str = ""
    calls: list[Call] = []
    arguments: dict[int, str] = {}
    effects: Counter[str] = msgspec.field(default_factory=Counter[str])
    kept: list[str] = []
    masked: dict[str, int] = {}
    complete: bool = False
    loss: bool = False
    damaged: bool = False


class _Client(msgspec.Struct):
    name: str = ""
    version: str = ""


class _Meta(msgspec.Struct):
    client: _Client | None = msgspec.field(name="io.modelcontextprotocol/clientInfo", default=None)
    version: str = msgspec.field(name="io.modelcontextprotocol/protocolVersion", default="")


class _Params(msgspec.Struct):
    client: _Client | None = msgspec.field(name="clientInfo", default=None)
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _Result(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default="")


class _Message(msgspec.Struct):
    params: _Params | None = None
    result: _Result | None = None


# A file that was changed may count more; the sums of these counts fit in the 64 bits of SQLite.
_MASKED_MAX: Final = 2**40

_DECODE = msgspec.json.Decoder(_Message).decode


def summarize(lines: Iterable[bytes], *, arguments: bool = False) -> Summary:
    """Return the facts about the recording with these lines.

    `arguments`: whether the facts include the arguments of calls, which takes longer.

    Raises:
        RecordingError: The lines are no recording.
    """
    summary: Summary | None = None
    tracker = CallTracker("server")  # replaced when the `open` record has named the role
    gaps: list[Record] = []
    calls: list[Call] = []
    begin_ns = end_ns = 0
    for item in read_recording(lines):
        if isinstance(item, Damage):
            # A last line that is cut off is no damage: it is still being written, or the process
            # ended. The recording is not `complete` then.
            if summary is not None and item.kind != "torn":
                summary.damaged = True
            continue
        end_ns = item.time_ns
        if summary is None:
            summary = Summary(opening=decode_body(item, OpenBody))
            tracker, begin_ns = CallTracker(summary.opening.role), item.time_ns
        summary.records += 1
        if item.kind == "cmd":
            name = ""
            with suppress(RecordingError):
                name = decode_body(item, CommandBody).name
            summary.effects[name] += 1
        elif item.kind == "gap":
            gaps.append(item)
        elif item.kind == "end":
            summary.complete = True
            for name, number in decode_body(item, EndBody).counts.items():
                if name.startswith(KEPT_PREFIX):
                    summary.kept.append(name.removeprefix(KEPT_PREFIX))
                elif name.startswith(MASKED_PREFIX):
                    summary.masked[name.removeprefix(MASKED_PREFIX)] = min(number, _MASKED_MAX)
        else:
            # The first messages tell the client and the protocol version.
            if item.kind in ("in", "out") and (arguments or not summary.protocol_version):
                _add_message(summary, item, arguments=arguments)
            calls += tracker.add(item)
    if summary is None:
        raise RecordingError("not a recording: it has no complete `open` record")
    summary.calls = sorted([*calls, *tracker.unanswered(end_ns)], key=lambda call: call.record)
    summary.seconds = (end_ns - begin_ns) / NS_PER_SECOND
    # Only all gaps together show whether records were lost, since a gap may close without a loss.
    summary.loss = first_loss(gaps) is not None
    return summary


def _add_message(summary: Summary, record: Record, *, arguments: bool) -> None:
    """Add the client, the protocol version and, on request, the arguments of a message."""
    try:
        message = _DECODE(body_bytes(record) or b"")
    except (ValueError, RecursionError):
        return
    params = message.params
    if params is not None:
        client = params.client or (params.meta.client if params.meta is not None else None)
        if client is not None and not summary.client:
            summary.client, summary.client_version = client.name, client.version
        if params.meta is not None and params.meta.version and not summary.protocol_version:
            summary.protocol_version = params.meta.version
        if arguments and params.arguments:
            text = bytes(params.arguments).decode(errors="replace")
            summary.arguments[record.number] = text
    elif message.result is not None and not summary.protocol_version:
        summary.protocol_version = message.result.version
