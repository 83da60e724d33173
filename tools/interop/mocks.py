"""Mock servers from recordings, tried by their original clients: `python tools/interop/mocks.py`.

Sessions of the official Python SDK with published servers are recorded by the proxy, and
`mcp-trio mock` plays the servers: clients of all the official SDKs, each in a process of its own,
repeat the sessions, and tell the scenario to recordings that another SDK has left. Then the
recorded inputs are driven at the published servers, and at an example of ours that was changed.
What a client is told has to be what was recorded, and exactly what was changed may differ. Printed
is what was compared; the exit status is 1 if something is otherwise, or a peer is missing.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import attrs
from environments import arguments_of, in_environment, prepare
from facts import FACTS
from golden_sessions import SUFFIX
from golden_sessions import hold as record
from interop_command import empty_table, parse, peer_parser, sdks, show, sit
from peers import HERE, HOME, PEERS, Command, Peer
from rich.table import Table
from session_script import differences, script_of, telling_of, things_in, unexpected

from mcp_trio._replay.trace import load_conversation
from mcp_trio.recording import InputsReport, drive

AT_ONCE: Final = 2
SESSION_SECONDS: Final = 60.0
LAST_LINES: Final = 12

MCP_TRIO: Final = (sys.executable, "-m", "mcp_trio")
GOLDEN: Final = HOME / "recordings"

# Who was recorded, and what these servers never say twice: the time of day.
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

# The scenario as it was told by another SDK; each says some of it in its own way.
SCENARIOS: Final[Mapping[str, str]] = {
    "Python 1": "conformance-typescript-sdk",
    "Python 2": "conformance-typescript-sdk",
    "TypeScript 1": "conformance-python-sdk",
}

# What is changed in an example, and what has to come of it.
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
    """How a session went: how much was compared, and what was wrong, in sentences."""

    mode: str
    recording: str
    other: str
    compared: int
    complaints: list[str]
    report: InputsReport | None = None


Hold = Callable[[], Outcome]


# A mocked server, and clients of the SDKs.


def mock(recording: Path, *options: str) -> Command:
    """The command that stands in for a recorded server."""
    return [*MCP_TRIO, "mock", "--strict", *options, str(recording)]


def repeat(recording: Path, peer: Peer) -> Outcome:
    """Let a client repeat a session; it has to be told all that was recorded, and nothing else."""
    recorded = load_conversation(recording)
    script = recording.with_name(f"{recording.name}.{peer.name}.json")
    script.write_text(json.dumps(script_of(recorded)), encoding="utf-8")
    repeater = attrs.evolve(peer, client=REPEATERS[peer.name])
    output, complaints = printed(repeater.client_command(str(script), *mock(recording)))
    telling = telling_of(recorded)
    found = complaints or differences(telling, json.loads(output))
    return _outcome("mock, repeated", recording, peer, things_in(telling), found)


def tell_scenario(peer: Peer) -> Outcome:
    """Let a client tell the scenario to a mocked server, and check what that answers."""
    recording = GOLDEN / f"{SCENARIOS[peer.name]}{SUFFIX}"
    # At once, this SDK loses all reports of progress (typescript-sdk#2580).
    options = ["--pace"] if peer.name == "TypeScript 1" else []
    output, complaints = printed(
        peer.client_command(FACTS.protocol_version, *mock(recording, *options))
    )
    checks = re.search(r"^([0-9]+) checks$", output, re.MULTILINE)
    compared = int(checks[1]) if checks else 0
    return _outcome("mock, scenario", recording, peer, compared, complaints)


def _outcome(
    mode: str, recording: Path, peer: Peer, compared: int, complaints: list[str]
) -> Outcome:
    return Outcome(
        mode=mode,
        recording=recording.name.removesuffix(SUFFIX),
        other=f"{peer.name} {peer.version}",
        compared=compared,
        complaints=complaints,
    )


def printed(command: Command) -> tuple[str, list[str]]:
    """What a client prints, and what there is to complain of: its status, and what is on stderr."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SESSION_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "", [f"no end after {SESSION_SECONDS:g} s"]
    status = [f"the client exited with {done.returncode}"] if done.returncode else []
    return done.stdout, [*status, *done.stderr.splitlines()[-LAST_LINES:]]


# Recorded inputs, and live servers.


def drive_again(recording: Path, name: str, folder: Path) -> Outcome:
    """Say to a published server once more what it was told; it has to answer the same."""
    prepare(name, folder)
    server = [*PEERS[name].server_command(), *arguments_of(name, folder)]
    report = drive(recording, in_environment(folder, server), ignore=DRIVEN[name])
    return judged(recording, f"{name} {PEERS[name].version}", report, expected=())


def drive_changed(folder: Path) -> Outcome:
    """Say to a changed example what the unchanged one was told; the changes have to be seen."""
    recording, changed = GOLDEN / f"{EXAMPLE_RECORDING}{SUFFIX}", folder / EXAMPLE.name
    changed.write_text(with_changes(EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
    report = drive(recording, [*MCP_TRIO, "run", str(changed)])
    return judged(recording, "weather, changed", report, expected=EXPECTED)


def with_changes(source: str) -> str:
    """The source of the example with all changes.

    Raises:
        SystemExit: A place to change is not there, or not the only one.
    """
    for old, new in CHANGES.items():
        if source.count(old) != 1:
            raise SystemExit(f"{EXAMPLE.name} does not hold {old!r} once: change CHANGES as well")
        source = source.replace(old, new)
    return source


def judged(
    recording: Path, other: str, report: InputsReport, *, expected: Sequence[str]
) -> Outcome:
    """The outcome of recorded inputs: all is answered, and exactly what is expected differs."""
    found = [f"{each.kind} {each.subject}: {each.path}" for each in report.differences]
    unanswered = report.requests - report.answered
    silence = [f"{unanswered} requests were not answered"] if unanswered else []
    return Outcome(
        mode="inputs",
        recording=recording.name.removesuffix(SUFFIX),
        other=other,
        compared=report.answered,
        complaints=[*unexpected(found, expected), *silence],
        report=report,
    )


# All of it.


def hold_all(peers: Sequence[Peer], folder: Path) -> list[Outcome]:
    """Record, then hold all other sessions, a few at once.

    Raises:
        MissingPeer: A peer is not installed.
    """
    for peer in peers:
        peer.require()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        recordings = dict(zip(RECORDED, pool.map(partial(made, folder), RECORDED), strict=True))
        sessions = [pool.submit(hold) for hold in _holds(peers, recordings, folder)]
        return [session.result() for session in sessions]


def made(folder: Path, name: str) -> Path:
    """A recording of the official Python SDK's session with a published server."""
    session = f"{name}-python-sdk"
    record(session, folder, world=folder / session)
    return folder / f"{session}{SUFFIX}"


def _holds(peers: Sequence[Peer], recordings: Mapping[str, Path], folder: Path) -> Iterator[Hold]:
    for peer in peers:
        yield partial(tell_scenario, peer)
    for recording in recordings.values():
        for peer in peers:
            yield partial(repeat, recording, peer)
    for name in DRIVEN:
        yield partial(drive_again, recordings[name], name, folder / name)
    yield partial(drive_changed, folder)


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """What was compared in each session."""
    table = empty_table()
    for heading in ("mode", "recording", "with"):
        table.add_column(heading)
    for heading in ("compared", "as it should be?"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        verdict = "[bold red]no[/]" if outcome.complaints else "yes"
        cells = outcome.mode, outcome.recording, outcome.other, str(outcome.compared), verdict
        table.add_row(*cells)
    return table


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    complaints = [
        f"{outcome.mode}, {outcome.recording} with {outcome.other}: {text}"
        for outcome in outcomes
        for text in outcome.complaints
    ]
    for outcome in outcomes:
        if outcome.report is not None:
            print(f"{outcome.recording} driven at {outcome.other}:\n{outcome.report}\n")
    show(table_of(outcomes), complaints)
    compared = sum(outcome.compared for outcome in outcomes)
    print(
        f"{len(outcomes)} sessions, {compared} comparisons, {len(complaints)} complaints,"
        f" {seconds:.0f} s"
    )
    return not complaints


def main(arguments: list[str]) -> int:
    """Hold the sessions and report."""
    parser = peer_parser("Let recordings stand in for what was recorded.", such_as="Python 2")
    options = parse(parser, arguments, REPEATERS)
    peers = [peer for peer in sdks(options.peers) if peer.name in REPEATERS]
    return sit(partial(hold_all, peers), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
