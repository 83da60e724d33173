"""Changes since the recording to the tools, prompts, resources and templates that a server lists.

The `open` record has a digest of each entry. An entry may have changed although a replay is the
same, because the recorded client did not ask for the list. So the entries are compared separately.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from mcp_trio._journal.conversation import members_of
from mcp_trio._journal.records import LISTED_KINDS, body_bytes, messages_in
from mcp_trio._protocol.uri_templates import UriError
from mcp_trio._recorder.clock import seconds_of
from mcp_trio._replay.divergence import report_text
from mcp_trio._replay.trace import MessageFields, Trace, message_fields, request_data
from mcp_trio._server.registry import Registry
from mcp_trio.errors import ReplayDivergence

EntryKey: TypeAlias = tuple[str, str]
"""The kind of an entry, one of `LISTED_KINDS`, and its name or URI.

The name is empty if the list was too long: the record then has one digest for the whole list.
"""

_SINGULARS: Final[Mapping[str, str]] = dict(
    zip(LISTED_KINDS, ("tool", "prompt", "resource", "resource template"), strict=True)
)


class ListedChanges:
    """The entries that a server lists differently now than in the recording.

    A recording without digests, made by an early version of this package, has no changes.
    """

    def __init__(self, trace: Trace, registry: Registry) -> None:
        self._trace = trace
        self._registry = registry
        # A text for each change, such as `the tool "sell" was changed`.
        self._changes: dict[EntryKey, str] = {}
        if not trace.opening.listed:
            return
        recorded, now = _digests(trace.opening.listed), _digests(registry.list_digests())
        for entry in dict.fromkeys([*recorded, *now]):
            if entry not in now:
                self._changes[entry] = f"{_entry_text(entry)} was removed"
            elif entry not in recorded:
                self._changes[entry] = f"{_entry_text(entry)} was added"
            elif recorded[entry] != now[entry]:
                self._changes[entry] = f"{_entry_text(entry)} was changed"

    def texts(self) -> tuple[str, ...]:
        """Return a text for each change."""
        return tuple(self._changes.values())

    def of_request(self, lane: str) -> str:
        """Return the text of the change to the entry that a request used; empty without a change.

        `lane` is the lane of the request.
        """
        if not self._changes:
            return ""
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
                headline = (
                    f"replay diverged at record {record.number} of"
                    f" {self._trace.journal[-1].number + 1}"
                    f" (+{seconds_of(record.time_ns) * 1000:.1f} ms), {message.method}, lane {lane}"
                )
                choices = 'undo the change | record the session again | replay(mode="outbound")'
                yield ReplayDivergence(
                    report_text(
                        headline,
                        [
                            ("recorded", recorded),
                            ("replay", replayed),
                            ("meaning", hint),
                            ("choose", choices),
                        ],
                    ),
                    record=record.number,
                    lane=lane,
                    kind="changed",
                    offset_seconds=seconds_of(record.time_ns),
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
