"""Fuzz every parser for a while, or the named ones: `python tools/fuzz/run_fuzz.py [TARGET …]`.

Each parser runs in a process of its own, with inputs that Atheris makes from `corpus/TARGET`, and
from the words in `dictionaries/TARGET`: it keeps those that run code which no input has run before.
At the first finding, the input is written to a file, and the exit status is 1. Put a file of each
mended finding into the corpus: the tests call every parser with every file of it.

With `--planted`, faults are put into a copy of the package, one at a time, and each has to be
found. So this shows that a fuzzer which finds nothing would find something.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
from planted_faults import PLANTED, Planted

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parent.parent
CORPUS: Final = HERE / "corpus"
DICTIONARIES: Final = HERE / "dictionaries"
SECONDS: Final = 60.0
PLANTED_SECONDS: Final = 120.0

# How long one input may take: the parsers need about a millisecond.
INPUT_SECONDS: Final = 5
INPUT_BYTES_MAX: Final = 4096
MEMORY_MIB_MAX: Final = 1024


@attrs.frozen
class Run:
    """The result of fuzzing one parser.

    Attributes:
        inputs: The number of inputs.
        inputs_a_second: How many were tried in a second.
        seconds: The time that the process took, with its start.
        finding: The error of the parser and the file with its input; empty without a finding.
    """

    inputs: int
    inputs_a_second: int
    seconds: float
    finding: str


def fuzz(
    target: str, seconds: float, findings: Path, *, seed: int = 0, package: Path = HOME
) -> Run:
    """Fuzz one parser of the package in a folder until a finding, or for some seconds."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as grown:
        command = [
            sys.executable,
            str(HERE / "with_atheris.py"),
            target,
            grown,
            str(CORPUS / target),
            f"-seed={seed}",  # 0: another one each time
            "-keep_seed=1",  # the decoders in C have no branches that tell the files apart
            f"-max_total_time={max(1, round(seconds))}",
            f"-timeout={INPUT_SECONDS}",
            f"-rss_limit_mb={MEMORY_MIB_MAX}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-artifact_prefix={findings}/{target}-",
            "-print_final_stats=1",
        ]
        if (dictionary := DICTIONARIES / target).exists():
            command.append(f"-dict={dictionary}")
        environment = {**os.environ, "PYTHONPATH": str(package)}
        begin = time.monotonic()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        took = time.monotonic() - begin
    executed = re.search(r"number_of_executed_units: *(\d+)", done.stderr)
    rate = re.search(r"average_exec_per_sec: *(\d+)", done.stderr)
    finding = "" if done.returncode == 0 else _finding(done.stdout + done.stderr)
    inputs, inputs_a_second = (int(each[1]) if each else 0 for each in (executed, rate))
    return Run(inputs, inputs_a_second, took, finding)


def _finding(output: str) -> str:
    """Return the error, and the file with the input, of what a process has printed."""
    error = re.search(r"=== Uncaught Python exception: ===\n(.+)", output)
    crash = re.search(r"SUMMARY: libFuzzer: (.+)", output)
    file = re.search(r"Test unit written to (.+)", output)
    found = error or crash
    return f"{found[1] if found else output[-2000:]}  {file[1] if file else ''}".rstrip()


def fuzz_all(targets: Sequence[str], seconds: float, findings: Path, seed: int) -> int:
    """Fuzz the parsers one after the other, and print a line for each; return the exit status."""
    failed = False
    for target in targets:
        run = fuzz(target, seconds / len(targets), findings, seed=seed)
        print(f"{target:14} {run.inputs:>10,} inputs, {run.inputs_a_second:>6,} a second", end="")
        print(f"  FOUND {run.finding}" if run.finding else "  nothing found", flush=True)
        failed |= bool(run.finding)
    return int(failed)


def planted_copies(faults: Sequence[Planted]) -> Iterator[tuple[Planted, Path]]:
    """Yield each fault, and a folder in which the package has this fault only."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        shutil.copytree(HOME / "mcp_trio", Path(folder, "mcp_trio"))
        for fault in faults:
            file = Path(folder, "mcp_trio", fault.file)
            source = file.read_text(encoding="utf-8")
            if source.count(fault.text) != 1:
                raise SystemExit(f"{fault.file} does not hold this text exactly once: {fault.text}")
            file.write_text(source.replace(fault.text, fault.fault), encoding="utf-8")
            yield fault, Path(folder)
            file.write_text(source, encoding="utf-8")


def find_planted(targets: Sequence[str], seconds: float) -> int:
    """Let each planted fault be found, and print a line for each; return the exit status."""
    faults = [fault for fault in PLANTED if fault.target in targets]
    found = 0
    with tempfile.TemporaryDirectory(prefix="findings-") as findings:
        for fault, folder in planted_copies(faults):
            run = fuzz(fault.target, seconds, Path(findings), package=folder)
            found += bool(run.finding)
            verdict = run.finding.partition("  ")[0][:80] if run.finding else "NOT FOUND"
            print(f"{fault.target:14} {run.seconds:6.1f} s {run.inputs:>9,}  {fault.text[:50]!r}")
            print(f"{'':14} {verdict}", flush=True)
    print(f"{found} of {len(faults)} planted faults found")
    return int(found < len(faults))


def main() -> None:
    known = sorted(each.name for each in CORPUS.iterdir())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--seconds", type=float, help=f"for all together ({SECONDS:.0f})")
    parser.add_argument("--seed", type=int, default=0, help="for the same inputs each time")
    parser.add_argument("--planted", action="store_true", help="look for planted faults")
    parser.add_argument("--findings", type=Path, default=Path.cwd(), help="folder for findings")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; one of {', '.join(known)}")
    targets = options.targets or known
    if options.planted:
        sys.exit(find_planted(targets, options.seconds or PLANTED_SECONDS))
    sys.exit(
        fuzz_all(targets, options.seconds or SECONDS, options.findings.resolve(), options.seed)
    )


if __name__ == "__main__":
    main()
