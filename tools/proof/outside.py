"""Record each source of `tests/replay/sources.py` in one process, and replay it in another.

    python tools/proof/outside.py
    python tools/proof/outside.py --sources remove open time

Each source is the only call of a tool. The recorded session must not block it. The process that
replays has another hash seed and makes the files anew. The outcomes of a replay:

- captured: it sent the recorded bytes, from recorded values or the recorded seed
- named: it listed the call with its path or name, also in the text of a divergence; for what
  Python does not let it see, the text of the divergence names the likely cause
- blocked: it stopped the call before it happened; files, sockets, signals, variables are unchanged
- SILENT: none of these, or something outside has changed

Without a session the source is called once more in that process. Where that has another result, a
source that was neither captured nor named could not have replayed by chance. Exits with 1 if an
outcome is not that of the source's table, or if a live session blocked a source.
"""

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec
import trio

HOME: Final = Path(__file__).resolve().parent.parent.parent
sys.path += [str(HOME), str(HOME / "tools")]

from memory_sessions import client_session  # noqa: E402

from mcp_trio import Server  # noqa: E402
from mcp_trio.errors import ReplayDivergence, RequestError  # noqa: E402
from mcp_trio.recording import Record, UntrackedCall, open_recording, read_recording, replay  # noqa: E402
from mcp_trio.types import CallToolResult, TextContent  # noqa: E402
from tests.replay import sources  # noqa: E402  found by the lines above

Source: TypeAlias = Callable[[Path], Any]

SAME: Final = "the same"
SOURCE_SECONDS_MAX: Final = 60
TABLES: Final[dict[str, dict[str, Any]]] = {
    "captured": sources.CAPTURED,
    "named": sources.NAMED,
    "unseen": sources.UNSEEN,
    "blocked": sources.BLOCKED,
}


class Live(msgspec.Struct):
    """The result of a source in the recorded session; `error` if the session blocked it."""

    text: str
    error: str = ""


class Replayed(msgspec.Struct):
    """The outcome of a replay, the text that tells, and the result outside of a session."""

    outcome: str
    text: str
    control: str


def source_of(key: str) -> tuple[Source, str]:
    """Return a source by its table and name, and the path or name that a replay has to list."""
    kind, _, name = key.partition(" ")
    found: Any = TABLES[kind][name]
    return found if isinstance(found, tuple) else (found, "")


async def result_of(source: Source, folder: Path) -> str:
    try:
        value = source(folder)
        return str(await value if isinstance(value, Awaitable) else value)
    except OSError as error:
        return type(error).__name__


def server_of(source: Source, folder: Path) -> Server:
    server = Server("sources")

    @server.tool
    async def run() -> str:
        return await result_of(source, folder)

    return server


# Recording.


def record(home: Path, key: str) -> Live:
    """Record a source; return its result."""
    source, _ = source_of(key)
    folder = sources.folder_with_files(home / "folder")
    try:
        result = trio.run(_serve_and_call, server_of(source, folder), path_of(home))
    except RequestError as error:
        return Live("", str(error))
    finally:
        sources.close_files()
    content = result.content[0]
    return Live(content.text if isinstance(content, TextContent) else "")


async def _serve_and_call(server: Server, path: Path) -> CallToolResult:
    with trio.fail_after(SOURCE_SECONDS_MAX):
        async with client_session(server, path) as client:
            try:
                return await client.call_tool("run", {})
            except RequestError as error:
                refused = error
    raise refused


def path_of(home: Path) -> Path:
    return home / "recorded.mcprec.jsonl"


# Replay.


def replayed(home: Path, key: str) -> Replayed:
    """Replay a source; return the outcome, and the result of a call outside of sessions."""
    source, target = source_of(key)
    folder = sources.folder_with_files(home / "folder")
    before = sources.snapshot(folder)
    calls: Sequence[UntrackedCall] = ()
    text = SAME
    try:
        calls = replay(path_of(home), server_of(source, folder)).untracked_calls
    except ReplayDivergence as divergence:
        calls = cast("Sequence[UntrackedCall]", divergence.untracked_calls)
        text = str(divergence)
    is_changed = sources.snapshot(folder) != before
    named = [call for call in calls if not call.changes_outside and _has_target(call, target)]
    is_blocked = any(call.changes_outside for call in calls)
    control = "" if key.startswith("blocked") else trio.run(result_of, source, folder)
    sources.close_files()
    outcome = "SILENT"
    if is_changed:
        text = f"something outside has changed; {text}"
    elif is_blocked and text != SAME:
        outcome = "blocked"
    elif (named and (text == SAME or named[-1].text in text)) or (
        key.startswith("unseen") and text != SAME and target in text
    ):
        outcome = "named"
    elif text == SAME and not calls:
        # Otherwise it may be the same by chance.
        is_other = control not in {"", _recorded_text(home)}
        outcome = "captured" if is_other or _has_values(home) else "SILENT"
    return Replayed(outcome, text, control)


def _has_target(call: UntrackedCall, target: str) -> bool:
    return Path(call.target).name.startswith(target)


def _has_values(home: Path) -> bool:
    records = read_recording(open_recording(path_of(home)))
    return any(isinstance(each, Record) and each.kind == "val" for each in records)


def _recorded_text(home: Path) -> str:
    return msgspec.json.decode((home / "live.json").read_bytes(), type=Live).text


# Processes.


def run_in_process(phase: str, home: Path, keys: Sequence[str], hash_seed: int) -> None:
    """Run a phase for all sources in a process of its own."""
    command = [sys.executable, __file__, phase, str(home), *keys]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "MCP_TRIO_SEED": "1"}
    subprocess.run(command, check=True, env=environment)


def run_phase(phase: str, home: Path, keys: Sequence[str]) -> None:
    logging.getLogger("mcp_trio").setLevel(logging.CRITICAL + 1)
    for key in keys:
        folder = home / key.replace(" ", "-").replace("/", "-")
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        if phase == "--record":
            (folder / "live.json").write_bytes(msgspec.json.encode(record(folder, key)))
            (folder / "folder").rename(folder / "recorded-folder")
        else:
            (folder / "replayed.json").write_bytes(msgspec.json.encode(replayed(folder, key)))


def print_outcomes(home: Path, keys: Sequence[str]) -> bool:
    """Print a line for each source, and the counts; return whether all are right."""
    counts: Counter[str] = Counter()
    is_right = True
    for key in keys:
        kind, _, name = key.partition(" ")
        folder = home / key.replace(" ", "-").replace("/", "-")
        live = msgspec.json.decode((folder / "live.json").read_bytes(), type=Live)
        found = msgspec.json.decode((folder / "replayed.json").read_bytes(), type=Replayed)
        outcome = "REFUSED live" if live.error else found.outcome
        counts[outcome] += 1
        differs = "another value outside" if found.control != live.text and found.control else ""
        print(f"{outcome:14}{name:32}{differs}")
        if outcome != kind.replace("unseen", "named"):
            is_right = False
            print(f"    expected {kind}: {live.error or found.text}")
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return is_right


def main() -> None:
    if sys.argv[1:2] in (["--record"], ["--replay"]):
        run_phase(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", nargs="+", metavar="NAME", help="only those of these names")
    chosen = parser.parse_args().sources
    keys = [
        f"{kind} {name}"
        for kind, table in TABLES.items()
        for name in table
        if not chosen or name in chosen
    ]
    with tempfile.TemporaryDirectory() as folder:
        run_in_process("--record", Path(folder), keys, hash_seed=1)
        run_in_process("--replay", Path(folder), keys, hash_seed=2)
        sys.exit(not print_outcomes(Path(folder), keys))


if __name__ == "__main__":
    main()
