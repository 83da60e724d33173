"""Comparison of the tools, prompts and resources that a server lists with those recorded.

The `open` record has a digest of the description of each. If an entry has changed since, a replay
may still be the same, because the recorded client did not ask for the list. So the lists are
compared separately.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, cast

from mcp_trio._journal.records import LISTED_KINDS, Record, body_bytes, messages_in
from mcp_trio._replay.trace import MessageFields, Trace, message_fields, request_data, seconds_of
from mcp_trio._server.registry import Registry
from mcp_trio._server.uri_templates import UriError
from mcp_trio.errors import ReplayDivergence

Entry: TypeAlias = tuple[str, str]
"""A kind of `LISTED_KINDS`, and a name or URI.

The name is empty if the list was too long: the record then has one digest for the whole list.
"""

Changes: TypeAlias = Mapping[Entry, Literal["changed", "added", "removed"]]
"""The entries that differ from the recorded ones."""

_SINGULARS: Final[Mapping[str, str]] = dict(
    zip(LISTED_KINDS, ("tool", "prompt", "resource", "resource template"), strict=True)
)


def list_changes(trace: Trace, registry: Registry) -> Changes:
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


def change_texts(changes: Changes) -> tuple[str, ...]:
    """Return a text for each change, such as `the tool "forecast" was changed`."""
    return tuple(f"{_entry_text(entry)} was {change}" for entry, change in changes.items())


def _entry_text(entry: Entry) -> str:
    kind, name = entry
    return f'the {_SINGULARS[kind]} "{name}"' if name else f"the list of {kind}"


def used_changes(trace: Trace, registry: Registry, changes: Changes) -> Iterator[ReplayDivergence]:
    """Yield a divergence for each changed entry that requests used, at the first such request."""
    seen = set[Entry]()
    for record in trace.journal if changes else ():
        messages = messages_in(body_bytes(record) or b"") if record.kind == "in" else ()
        for message in map(message_fields, messages):
            entry = _used_entry(message, registry) if message.is_request else None
            if entry is not None and entry in changes and entry not in seen:
                seen.add(entry)
                yield _divergence(trace, record, message, entry)


def used_change(trace: Trace, registry: Registry, changes: Changes, lane: str) -> str:
    """Return how the entry that a lane's request used was changed; empty if it was not."""
    if not changes:
        return ""
    entry = _used_entry(message_fields(request_data(trace.journal, lane)), registry)
    if entry is None or entry not in changes:
        return ""
    return f"{_entry_text(entry)} was {changes[entry]}"


def _divergence(
    trace: Trace, record: Record, message: MessageFields, entry: Entry
) -> ReplayDivergence:
    text, lane = _entry_text(entry), f"r{record.number}"
    hint = (
        f"{text} has another description, other parameters, defaults or schemas than recorded, and"
        " this request used it; all that its handler sent is as recorded"
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
    return ReplayDivergence(
        "\n".join([heading, *(f"  {label + ':':<11}{row}" for label, row in rows)]),
        record=record.number,
        lane=lane,
        kind="changed",
        offset_seconds=seconds_of(record),
        recorded=rows[0][1],
        replayed=rows[1][1],
        hint=hint,
    )


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
