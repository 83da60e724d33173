"""Use recordings as mock servers, with the recorded clients: `python tools/interop/mocks.py`.

The proxy records sessions of the Python SDK with published servers. Clients of the official SDKs
repeat them with `mcp-trio mock` in place of the server, and run the scenario with recordings that
another SDK made. Then the recorded inputs are sent to the published servers, and to a changed
example of ours. Clients have to receive exactly what was recorded, and only what was changed may
differ. Prints what was compared; the exit status is 1 if there is another difference, or if a peer
is not installed.

A repeater (`python_repeater.py`, `typescript/repeater.mjs`) gets a script: the requests in order,
and a result for each method that the server requests. It prints a transcript: the answers, with
that to `initialize` first, the server's requests, the notifications, and the SDK's errors.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
from environments import arguments_of, in_environment, prepare
from facts import FACTS
from golden_sessions import SUFFIX, record_session
from interop_command import (
    Finished,
    new_table,
    parse,
    peer_parser,
    run_command,
    run_to_end,
    sdks,
    show,
    wrong,
)
from peers import HERE, HOME, PEERS, Command, Peer
from rich.table import Table
from sdk_adapter import Json

from mcp_trio._journal.conversation import (
    Conversation,
    RecordedMessage,
    members_of,
    progress_token_of,
    without_meta,
)
from mcp_trio._journal.diff import json_differences
from mcp_trio._replay.trace import load_conversation
from mcp_trio.recording import InputsReport, replay_live

_HANDSHAKE: Final = "initialize"
_TOKEN: Final = "progressToken"


def script_of(recorded: Conversation) -> Json:
    """Return the script of a recording: `requests`, and `replies` by method."""
    requests = recorded.of("client", "request")
    replies = recorded.of("client", "result")
    return {
        "requests": [_request(message) for message in requests if message.method != _HANDSHAKE],
        "replies": {message.method: members_of(message.body) for message in replies},
    }


def _request(message: RecordedMessage) -> Json:
    params = {} if message.body is None else {"params": without_meta(message.body)}
    return {
        "method": message.method,
        **params,
        "wantsProgress": progress_token_of(message.body) is not None,
    }


def transcript_of(recorded: Conversation) -> Json:
    """Return the transcript that a repeater of this recording should print."""
    answers = [recorded.responses[message.index] for message in recorded.of("client", "request")]
    return {
        "answers": [{message.kind: members_of(message.body)} for message in answers],
        "serverRequests": [_message(message) for message in recorded.of("server", "request")],
        "notifications": [_message(message) for message in recorded.of("server", "notification")],
        "errors": [],
    }


def _message(message: RecordedMessage) -> Json:
    return {"method": message.method, "params": members_of(message.body)}


def item_count(transcript: Json) -> int:
    """Return how many items are compared."""
    return sum(map(len, transcript.values()))


def differences(recorded: Json, received: Json) -> list[str]:
    """Return sentences about the differences of two transcripts.

    The order of notifications and of server requests may differ: the SDKs handle them concurrently.
    """
    found = json_differences(_comparable(recorded), _comparable(received))
    return [f"{path}: {_text(old)} became {_text(new)}" for path, old, new in found]


def _comparable(transcript: Json) -> bytes:
    """Return a transcript without progress tokens, and with sorted server messages."""
    # The Python SDKs make a float of each number of a progress report.
    plain = json.loads(json.dumps(transcript), parse_float=_number)
    for kind in ("serverRequests", "notifications"):
        plain[kind] = sorted(map(_without_tokens, plain[kind]))
    return json.dumps(plain).encode()


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _without_tokens(message: Mapping[str, Any]) -> str:
    params = message.get("params") or {}
    rest = {name: value for name, value in params.items() if name not in {_TOKEN, "_meta"}}
    return json.dumps([message["method"], rest], sort_keys=True)


def _text(value: Any) -> str:
    return "nothing" if value is msgspec.UNSET else repr(value)


def unexpected(found: Iterable[object], expected: Iterable[str]) -> list[str]:
    """Return sentences about unexpected and missing lines."""
    came, due = set(map(str, found)), set(expected)
    return [
        *(f"not expected: {line}" for line in sorted(came - due)),
        *(f"missing: {line}" for line in sorted(due - came)),
    ]


AT_ONCE: Final = 2
SESSION_SECONDS: Final = 60.0

MCP_TRIO: Final = (sys.executable, "-m", "mcp_trio")
GOLDEN: Final = HOME / "recordings"

# The recorded servers, and the paths in which they send the time of day.
RECORDED: Final[Sequence[str]] = ("everything", "memory", "filesystem")
DRIVEN: Final[Mapping[str, Sequence[str]]] = {
    "everything": (
        "$.result.content[*].resource.text",
        "$.result.contents[*].text",
        "$.result.contents[*].blob",
        "$.result.messages[*].content.resource.text",
    ),
    "memory": (),
}

REPEATERS: Final[Mapping[str, str]] = {
    "Python 1": str(HERE / "python_repeater.py"),
    "Python 2": str(HERE / "python_repeater.py"),
    "TypeScript 1": "repeater.mjs",
}

# The scenario's recording by another SDK, as SDKs differ in details.
SCENARIOS: Final[Mapping[str, str]] = {
    "Python 1": "conformance-typescript-sdk",
    "Python 2": "conformance-typescript-sdk",
    "TypeScript 1": "conformance-python-sdk",
}

# The changes in examples, and the differences that they have to cause.
EXAMPLE: Final = HOME / "mcp_trio" / "examples" / "weather.py"
EXAMPLE_RECORDING: Final = "weather-python-sdk"
CHANGES: Final[Mapping[str, str]] = {
    "asks all stations at once": "asks every station",
    '"Lima": 19': '"Lima": 18',
    'f"asked {len(best)} stations"': 'f"heard {len(best)} stations"',
}
EXPECTED: Final = (
    "changed answer to tools/list: $.result.tools[1].description",
    "changed answer to resources/read weather://Lima/now: $.result.contents[0].text",
    "changed notifications/message: $.params.data",
)


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of a session: how much was compared, and all problems, in sentences."""

    mode: str
    recording: str
    other: str
    compared: int
    problems: list[str]
    report: InputsReport | None = None


Start = Callable[[], Outcome]


# A mocked server, and clients of the SDKs.


def mock(recording: Path, *options: str) -> Command:
    """Return the command of a mock server."""
    return [*MCP_TRIO, "mock", "--strict", *options, str(recording)]


def repeat(recording: Path, peer: Peer) -> Outcome:
    """Let a client repeat a session with a mock server, and compare what it received."""
    recorded = load_conversation(recording)
    script = recording.with_name(f"{recording.name}.{peer.name}.json")
    script.write_text(json.dumps(script_of(recorded)), encoding="utf-8")
    repeater = attrs.evolve(peer, client=REPEATERS[peer.name])
    done = run_client(repeater.client_command(str(script), *mock(recording)))
    transcript = transcript_of(recorded)
    found = problems_of(done) or differences(transcript, json.loads(done.stdout))
    return _outcome("mock, repeated", recording, peer, item_count(transcript), found)


def run_scenario(peer: Peer) -> Outcome:
    """Let a client run the scenario with a mock server."""
    (recording,) = GOLDEN.glob(f"{SCENARIOS[peer.name]}{SUFFIX}*")
    # At once, this SDK loses all reports of progress (typescript-sdk#2580).
    options = ["--pace"] if peer.name == "TypeScript 1" else []
    done = run_client(peer.client_command(FACTS.protocol_version, *mock(recording, *options)))
    return _outcome("mock, scenario", recording, peer, done.checks or 0, problems_of(done))


def _outcome(mode: str, recording: Path, peer: Peer, compared: int, problems: list[str]) -> Outcome:
    return Outcome(
        mode=mode,
        recording=recording.name.removesuffix(SUFFIX),
        other=f"{peer.name} {peer.version}",
        compared=compared,
        problems=problems,
    )


def run_client(command: Command) -> Finished:
    return run_to_end(command, SESSION_SECONDS)


def problems_of(done: Finished) -> list[str]:
    """Return the problems of a client: its failure, or what it printed to stderr."""
    return [done.failure] if done.failure else done.stderr.splitlines()


# Recorded inputs, and live servers.


def drive_again(recording: Path, name: str, folder: Path) -> Outcome:
    """Send the recorded inputs to the published server again; its answers must be the same."""
    prepare(name, folder)
    server = [*PEERS[name].server_command(), *arguments_of(name, folder)]
    report = replay_live(recording, in_environment(folder, server), ignore=DRIVEN[name])
    return inputs_outcome(recording, f"{name} {PEERS[name].version}", report, expected=())


def drive_changed(folder: Path) -> Outcome:
    """Send the recorded inputs to a changed example; exactly the changes must be found."""
    recording, changed = GOLDEN / f"{EXAMPLE_RECORDING}{SUFFIX}", folder / EXAMPLE.name
    changed.write_text(with_changes(EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
    report = replay_live(recording, [*MCP_TRIO, "run", str(changed)])
    return inputs_outcome(recording, "weather, changed", report, expected=EXPECTED)


def with_changes(source: str) -> str:
    """Return the example's source with all changes."""
    for old, new in CHANGES.items():
        if source.count(old) != 1:
            raise SystemExit(f"{EXAMPLE.name} does not hold {old!r} once: change CHANGES as well")
        source = source.replace(old, new)
    return source


def inputs_outcome(
    recording: Path, other: str, report: InputsReport, *, expected: Sequence[str]
) -> Outcome:
    """Return the outcome of driven inputs: all answered, and only the expected differences."""
    found = [f"{each.kind} {each.subject}: {each.path}" for each in report.differences]
    unanswered = report.requests - report.answered
    unanswered_problem = [f"{unanswered} requests were not answered"] if unanswered else []
    return Outcome(
        mode="inputs",
        recording=recording.name.removesuffix(SUFFIX),
        other=other,
        compared=report.answered,
        problems=[*unexpected(found, expected), *unanswered_problem],
        report=report,
    )


# All of it.


def run_all(peers: Sequence[Peer], folder: Path) -> list[Outcome]:
    """Record the sessions, then run all others, two at a time."""
    for peer in peers:
        peer.require()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        recordings = dict(
            zip(RECORDED, pool.map(partial(make_recording, folder), RECORDED), strict=True)
        )
        sessions = [pool.submit(start) for start in _sessions(peers, recordings, folder)]
        return [session.result() for session in sessions]


def make_recording(folder: Path, name: str) -> Path:
    """Record the Python SDK's session with a published server."""
    session = f"{name}-python-sdk"
    record_session(session, folder, root=folder / session)
    return folder / f"{session}{SUFFIX}"


def _sessions(
    peers: Sequence[Peer], recordings: Mapping[str, Path], folder: Path
) -> Iterator[Start]:
    for peer in peers:
        yield partial(run_scenario, peer)
    for recording in recordings.values():
        for peer in peers:
            yield partial(repeat, recording, peer)
    for name in DRIVEN:
        yield partial(drive_again, recordings[name], name, folder / name)
    yield partial(drive_changed, folder)


def table_of(outcomes: Sequence[Outcome]) -> Table:
    table = new_table("mode", "recording", "with", right=("compared", "as expected?"))
    for outcome in outcomes:
        is_right = wrong("no") if outcome.problems else "yes"
        cells = outcome.mode, outcome.recording, outcome.other, str(outcome.compared), is_right
        table.add_row(*cells)
    return table


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print the table and the problems; return whether there are no problems."""
    problems = [
        f"{outcome.mode}, {outcome.recording} with {outcome.other}: {text}"
        for outcome in outcomes
        for text in outcome.problems
    ]
    for outcome in outcomes:
        if outcome.report is not None:
            print(f"{outcome.recording} driven at {outcome.other}:\n{outcome.report}\n")
    compared = sum(outcome.compared for outcome in outcomes)
    summary = f"{len(outcomes)} sessions, {compared} comparisons, {{}}, {seconds:.0f} s"
    return show(table_of(outcomes), problems, summary)


def main(arguments: list[str]) -> int:
    parser = peer_parser("Let recordings stand in for what was recorded.", such_as="Python 2")
    options = parse(parser, arguments, REPEATERS)
    peers = [peer for peer in sdks(options.peers) if peer.name in REPEATERS]
    return run_command(partial(run_all, peers), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
