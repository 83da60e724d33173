"""Record generated programs at each protocol version, and replay them to the same bytes.

    python tools/proof/replays.py --recordings 200 --processes 20
    python tools/proof/replays.py --recordings 10 --processes 3
    python tools/proof/replays.py --recordings 200 --protocol-version 2026-07-28
    python tools/proof/replays.py --recordings 200 --raw
    python tools/proof/replays.py --again FOLDER --seed 17 --process 3

The recordings are replayed in many processes with different hash seeds, heap layouts and scheduler
seeds. Every replay is compared with the file, by the replayer and by a noting sequencer: messages,
order, and the final state of the server's memory. The control replays without the sequencer, and
has to differ. With `--raw`, handlers also wait in ways that are not recorded: such a replay may
diverge, but never differ silently. `--keep FOLDER` keeps failed recordings, and the last form
replays one of them. Exits with 1 if a replay differs that may not, or if the sequencer makes no
difference.
"""

import argparse
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

import attrs
import msgspec
from generated_server import server_of
from observed_replay import Actions, NotingServer, outcomes_of, recorded_actions, records_of
from programs import program_of
from recorded_programs import recording_of, state_of

from mcp_trio import Server
from mcp_trio._journal.records import decode_body
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import RecordingError, ReplayDivergence
from mcp_trio.recording import replay

HERE: Final = Path(__file__).resolve().parent
PROCESSES_AT_ONCE: Final = 2
RECORDINGS_PER_PROCESS: Final = 250
HEAP_PIECES: Final = 20_000
GATELESS_SHARE_MIN: Final = 0.5
TEXTS_SHOWN_MAX: Final = 5


Item = TypeVar("Item")


class Failure(msgspec.Struct):
    """A replay that differs; `is_loud`: it raised the divergence itself."""

    seed: int
    process: int
    is_loud: bool
    text: str


class Replays(msgspec.Struct):
    """The results of one process."""

    process: int
    replayed: int
    failures: list[Failure]
    seconds: float


class NamedBody(msgspec.Struct):
    """The name in the body of an effect, a value or a mark."""

    name: str


# One process.


@attrs.frozen(kw_only=True)
class Replayer:
    """Replays the recordings of a folder, as the process of that number."""

    folder: Path
    process: int
    raw: bool = False
    has_gate: bool = True

    def replay_all(self, seeds: Sequence[int]) -> Replays:
        begun = time.perf_counter()
        kept = fragment_heap(random.Random(self.process))
        failures = [failure for seed in seeds if (failure := self.failure(seed)) is not None]
        del kept
        seconds = time.perf_counter() - begun
        return Replays(
            process=self.process, replayed=len(seeds), failures=failures, seconds=seconds
        )

    def failure(self, seed: int) -> Failure | None:
        """Return how the replay of a seed's recording differs, or None."""
        path = recording_of(self.folder, seed)
        served = server_of(program_of(seed, raw=self.raw))
        noting_server = NotingServer(
            served.server, outcomes=None if self.has_gate else outcomes_of(path)
        )
        try:
            with seeded_schedule(f"{self.process} {seed}"):
                replay(path, cast("Server", noting_server))
        except (ReplayDivergence, RecordingError) as error:
            text = f"{type(error).__name__}: {error}"
            return Failure(seed=seed, process=self.process, is_loud=True, text=text)
        silent = self._difference(seed, noting_server.actions, served.shared.state())
        if silent is None:
            return None
        return Failure(seed=seed, process=self.process, is_loud=False, text=silent)

    def _difference(self, seed: int, actions: Actions, state: object) -> str | None:
        """Return a difference that the replayer did not notice: order, bytes, or memory."""
        recorded_state = msgspec.json.decode(state_of(self.folder, seed).read_bytes())
        if state != recorded_state:
            return f"the server's memory: {recorded_state!r} became {state!r}"
        return recorded_actions(recording_of(self.folder, seed)).difference(actions)


def fragment_heap(random_source: random.Random) -> list[bytearray]:
    """Leave holes in the heap, so that addresses differ from those of other processes."""
    pieces = [bytearray(random_source.randrange(1, 2000)) for _ in range(HEAP_PIECES)]
    random_source.shuffle(pieces)
    return pieces[: HEAP_PIECES // 3]


# Many processes.


@attrs.frozen(kw_only=True)
class Proof:
    """The recordings of one protocol version, and the processes that replay them."""

    folder: Path
    protocol_version: str
    first: int
    recordings: int
    processes: int
    raw: bool

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.recordings)

    def record(self) -> None:
        """Record every seed, in one process after the other, to keep the timing."""
        for seeds in self._pieces():
            subprocess.run(self._recorder(seeds), check=True)

    def replay(self, *, has_gate: bool) -> Iterator[Replays]:
        """Yield the results of each process as it ends."""
        for numbers in _at_once(range(self.processes if has_gate else 1)):
            for process in [self._start(number, has_gate=has_gate) for number in numbers]:
                output, _ = process.communicate()
                if process.returncode:
                    raise SystemExit(f"a process that replays ended with {process.returncode}")
                yield msgspec.json.decode(output, type=Replays)

    def _pieces(self) -> Iterator[range]:
        for start in range(0, self.recordings, RECORDINGS_PER_PROCESS):
            yield self.seeds[start : start + RECORDINGS_PER_PROCESS]

    def _recorder(self, seeds: range) -> list[str]:
        script = str(HERE / "recorded_programs.py")
        options = [
            str(self.folder),
            self.protocol_version,
            str(seeds[0]),
            str(len(seeds)),
            *self._raw,
        ]
        return [sys.executable, script, *options]

    @property
    def _raw(self) -> list[str]:
        return ["--raw"] if self.raw else []

    def _start(self, number: int, *, has_gate: bool) -> "subprocess.Popen[bytes]":
        options = ["--worker", str(self.folder), "--process", str(number)]
        options += ["--first", str(self.first), "--recordings", str(self.recordings)]
        options += [*self._raw, *([] if has_gate else ["--ungated"])]
        return subprocess.Popen(
            [sys.executable, str(HERE / "replays.py"), *options],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(number)},
        )


def _at_once(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), PROCESSES_AT_ONCE):
        yield items[start : start + PROCESSES_AT_ONCE]


# Results.


@attrs.define
class Contents:
    """Counts of the recordings' contents: record kinds, names, child tasks."""

    kinds: Counter[str] = attrs.field(factory=Counter[str])
    names: Counter[str] = attrs.field(factory=Counter[str])
    children: int = 0
    recordings: int = 0

    def add(self, path: Path) -> None:
        self.recordings += 1
        lanes: set[str] = set()
        for record in records_of(path):
            self.kinds[record.kind] += 1
            lanes.add(record.lane or "")
            if record.kind in {"cmd", "val", "mark"}:
                self.names[f"{record.kind} {decode_body(record, NamedBody).name}"] += 1
        self.children += sum("." in lane for lane in lanes)

    def show(self) -> None:
        print(f"{self.recordings} recordings, {self.kinds.total()} records,", end=" ")
        print(f"{self.children} child tasks with records")
        for counter in (self.kinds, self.names):
            print("   " + "  ".join(f"{name} {count}" for name, count in counter.most_common()))


COLUMNS: Final = (
    *("recordings", "records", "replays", "identical", "diverged", "silent"),
    *("without gate", "seconds"),
)
HEADING: Final = f"{'version':14}{''.join(f'{column:>13}' for column in COLUMNS)}"


@attrs.define(kw_only=True)
class Row:
    """The results of one protocol version."""

    proof: Proof
    records: int
    replays: int
    failures: list[Failure]
    differing_without_gate: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Return whether all replays are right, and enough differ without the sequencer."""
        is_allowed = all(self.proof.raw and failure.is_loud for failure in self.failures)
        return (
            is_allowed and self.differing_without_gate > self.proof.recordings * GATELESS_SHARE_MIN
        )

    def show(self) -> None:
        loud = sum(failure.is_loud for failure in self.failures)
        differ = len(self.failures)
        cells = (
            *(self.proof.recordings, self.records, self.replays, self.replays - differ, loud),
            *(differ - loud, self.differing_without_gate, f"{self.seconds:.1f}"),
        )
        print(
            f"{self.proof.protocol_version:14}{''.join(f'{cell:>13}' for cell in cells)}",
            flush=True,
        )


def run_proof(proof: Proof, contents: Contents) -> Row:
    """Record, replay, and replay without the sequencer."""
    begun, before = time.perf_counter(), contents.kinds.total()
    proof.record()
    for seed in proof.seeds:
        contents.add(recording_of(proof.folder, seed))
    found = [*proof.replay(has_gate=True)]
    (ungated,) = proof.replay(has_gate=False)
    return Row(
        proof=proof,
        records=contents.kinds.total() - before,
        replays=sum(replays.replayed for replays in found),
        failures=[failure for replays in found for failure in replays.failures],
        differing_without_gate=len(ungated.failures),
        seconds=time.perf_counter() - begun,
    )


def run_all(proofs: Sequence[Proof], keep: Path | None) -> bool:
    """Run all proofs and print the results; return whether all are right."""
    contents, rows = Contents(), list[Row]()
    print(HEADING, flush=True)
    for proof in proofs:
        rows.append(run_proof(proof, contents))
        rows[-1].show()
    total, differ = sum(row.replays for row in rows), sum(len(row.failures) for row in rows)
    print(f"\n{total} replays, {total - differ} identical, {differ} differ")
    contents.show()
    for row in rows:
        print_failures(row, None if keep is None else keep / row.proof.protocol_version)
    return all(row.is_right for row in rows)


def print_failures(row: Row, keep: Path | None) -> None:
    """Print some failed seeds, the silent ones first, and keep all failed recordings."""
    failures = sorted(row.failures, key=_failure_order, reverse=True)
    by_seed = {failure.seed: failure for failure in failures}
    for failure in sorted(by_seed.values(), key=_failure_order)[:TEXTS_SHOWN_MAX]:
        where = f"{row.proof.protocol_version}, seed {failure.seed}, process {failure.process}"
        print(f"\n{where}: {failure.text}")
    if keep is not None and by_seed:
        keep.mkdir(parents=True, exist_ok=True)
        for seed in sorted(by_seed):
            shutil.copy(recording_of(row.proof.folder, seed), keep)
            shutil.copy(state_of(row.proof.folder, seed), keep)


def _failure_order(failure: Failure) -> tuple[bool, int]:
    return failure.is_loud, failure.seed


# The command.


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--recordings", type=int, default=10, help="at each protocol version")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument(
        "--protocol-version",
        action="append",
        choices=PROTOCOL_VERSIONS,
        help="this one; may be repeated",
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the recordings")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for recordings that differ")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="replay one that was kept")
    parser.add_argument("--seed", type=int, help="which one")
    parser.add_argument("--process", type=int, default=0, help="as which process")
    parser.add_argument("--raw", action="store_true", help="handlers that wait unseen, as well")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ungated", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the docstring in the help."""


def replay_again(replayer: Replayer, seed: int) -> bool:
    """Replay one recording with a process's seeds; return whether it is identical."""
    hash_seed = str(replayer.process)
    if os.environ.get("PYTHONHASHSEED") != hash_seed:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    failure = replayer.failure(seed)
    print("identical" if failure is None else failure.text)
    return failure is None


def run_in_temporary_folder(options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        proofs = [
            Proof(
                folder=Path(folder, protocol_version),
                protocol_version=protocol_version,
                first=options.first,
                recordings=options.recordings,
                processes=options.processes,
                raw=options.raw,
            )
            for protocol_version in options.protocol_version or PROTOCOL_VERSIONS
        ]
        for proof in proofs:
            proof.folder.mkdir()
        return run_all(proofs, options.keep)


def main() -> None:
    options = arguments()
    logging.getLogger("mcp_trio").setLevel(logging.CRITICAL)  # handlers that fail on purpose
    replayer = Replayer(
        folder=options.worker or options.again or Path(),
        process=options.process,
        raw=options.raw,
        has_gate=not options.ungated,
    )
    if options.worker is not None:
        seeds = range(options.first, options.first + options.recordings)
        sys.stdout.buffer.write(msgspec.json.encode(replayer.replay_all(seeds)))
    elif options.again is not None:
        sys.exit(not replay_again(replayer, options.seed))
    else:
        sys.exit(not run_in_temporary_folder(options))


if __name__ == "__main__":
    main()
