"""Run the tests that prove the guarantees of replay: `python tools/proof/properties.py [--full]`.

Runs the tests of each property, and controls, which show that the tests can fail. Prints a table
with the number of examples of each: those that Hypothesis generated, those of the test's `count`
fixture or of its row here, or one for each set of parameters. With `--full` there are thousands.
Exits with 1 if a test fails or is missing.
"""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PASSING: Final = re.compile(r"^    - (\d+) passing", re.MULTILINE)
EXAMPLES: Final = "examples"


@attrs.frozen
class Proof:
    """A test or a control; `examples` of each run, if the test does not report them."""

    test: str
    is_control: bool = False
    examples: int | None = None

    @property
    def node(self) -> str:
        return f"tests/{self.test}"


def control(test: str, *, examples: int | None = None) -> Proof:
    return Proof(test, is_control=True, examples=examples)


PROPERTIES: Final[dict[str, tuple[Proof, ...]]] = {
    "1 byte identity": (
        Proof(
            "replay/test_programs.py::test_handlers_send_the_same_bytes_in_the_same_order_whatever_the_schedule"
        ),
        Proof(
            "project/test_proof.py::test_generated_programs_replay_to_the_same_bytes_in_every_process",
            examples=30,
        ),
        control(
            "replay/test_programs.py::test_without_the_schedule_most_replays_differ", examples=20
        ),
    ),
    "2 the order is the journal's": (
        Proof(
            "properties/test_p2_order.py::test_lanes_and_their_order_are_the_same_under_every_schedule"
        ),
        control(
            "properties/test_p2_order.py::test_lanes_named_by_spawn_time_differ_in_most_replays"
        ),
    ),
    "3 cancellation is faithful": (
        Proof(
            "properties/test_p3_cancellation.py::test_a_cancelled_await_raises_and_cleans_up_as_it_did"
        ),
        Proof(
            "properties/test_p3_cancellation.py::test_every_await_was_cancelled_except_a_shielded_one"
        ),
        control(
            "properties/test_p3_cancellation.py::test_if_an_effect_could_be_cancelled_before_its_recorded_result_the_result_would_be_lost"
        ),
    ),
    "4 divergence is exact and loud": (
        Proof(
            "properties/test_p4_divergence.py::test_a_changed_handler_diverges_at_the_first_record_that_it_affects"
        ),
        Proof(
            "project/test_proof.py::test_mutants_of_servers_are_found_where_their_own_recordings_differ",
            examples=40,
        ),
        Proof("replay/test_replay.py::test_a_divergence_ends_whatever_handlers_do"),
        Proof("replay/test_threads.py::test_threads_end_with_a_replay_that_diverges"),
        control(
            "properties/test_p4_divergence.py::test_without_the_comparison_changes_are_not_detected"
        ),
    ),
    "5 crash prefix": (
        Proof(
            "stdio/test_processes.py::test_a_killed_server_has_recorded_every_message_that_its_peer_received",
            examples=500,
        ),
        Proof(
            "stdio/test_processes.py::test_a_recording_in_several_files_loses_no_record_either",
            examples=40,
        ),
        Proof(
            "properties/test_p5_crash_prefix.py::test_a_recording_cut_at_any_byte_opens_and_its_prefix_replays"
        ),
        Proof(
            "properties/test_p5_crash_prefix.py::test_a_compressed_recording_cut_at_any_byte_opens_and_its_prefix_replays"
        ),
        Proof("properties/test_p5_crash_prefix.py::test_a_byte_changed_in_the_middle_is_detected"),
        control(
            "stdio/test_processes.py::test_the_same_kills_find_lost_records_if_messages_are_sent_before_them",
            examples=60,
        ),
        control(
            "properties/test_p5_crash_prefix.py::test_without_the_digest_a_changed_byte_is_not_detected"
        ),
    ),
    "6 isolation": (
        Proof("properties/test_p6_isolation.py::test_a_replay_performs_no_effects"),
        Proof("properties/test_p6_isolation.py::test_direct_external_io_of_a_handler_is_blocked"),
        Proof("properties/test_p6_isolation.py::test_an_hour_of_sleeps_replays_at_once"),
        Proof("replay/test_replay.py::test_two_replays_at_once_do_not_disturb_each_other"),
        control(
            "properties/test_p6_isolation.py::test_without_the_watch_external_io_is_not_blocked"
        ),
    ),
    "7 recording changes nothing": (
        Proof("properties/test_p7_unobtrusive.py::test_a_peer_gets_the_same_bytes_recorded_or_not"),
        Proof(
            "properties/test_p7_unobtrusive.py::test_a_stalled_disk_delays_one_write_and_changes_no_byte"
        ),
        Proof(
            "properties/test_p7_unobtrusive.py::test_a_full_disk_leaves_a_gap_and_stops_no_session"
        ),
        control("properties/test_p7_unobtrusive.py::test_a_slow_recorder_is_detected"),
        control(
            "properties/test_p7_unobtrusive.py::test_a_recorder_without_the_stall_limit_stalls_at_each_write"
        ),
        control(
            "properties/test_p7_unobtrusive.py::test_a_recorder_that_hides_a_full_disk_is_detected"
        ),
    ),
    "8 redaction round trip": (
        Proof(
            "properties/test_p8_planted_secret.py::test_a_planted_secret_is_in_no_byte_of_any_file_and_the_recording_replays"
        ),
        Proof(
            "properties/test_p8_planted_secret.py::test_any_secret_in_chunks_of_any_size_is_in_no_byte_and_the_recording_replays"
        ),
        Proof("journal/test_redaction.py::test_no_planted_secret_is_in_any_byte"),
        Proof(
            "journal/test_redaction.py::test_a_redacted_body_has_its_structure_and_redacts_to_itself"
        ),
        Proof("journal/test_redaction.py::test_equal_stays_equal_and_different_different"),
        Proof("journal/test_redaction.py::test_protocol_fields_are_never_touched"),
        control(
            "properties/test_p8_planted_secret.py::test_without_redaction_the_secret_is_in_the_file_in_every_form"
        ),
    ),
    "9 format stability": (
        Proof("properties/test_p9_format.py::test_a_golden_recording_is_undamaged"),
        Proof("properties/test_p9_format.py::test_a_golden_recording_of_a_server_replays"),
        Proof(
            "properties/test_p9_format.py::test_unknown_kinds_and_keys_are_skipped_with_a_warning"
        ),
        Proof(
            "properties/test_p9_format.py::test_sessions_over_memory_and_stdio_exchange_the_same_messages"
        ),
        control("properties/test_p9_format.py::test_a_changed_golden_recording_does_not_replay"),
    ),
    "10 resumption is suspension": (
        Proof(
            "properties/test_p10_resumption.py::test_a_resumed_handler_does_the_same_as_a_suspended_one"
        ),
        Proof("properties/test_p10_resumption.py::test_concurrent_tasks_are_resumed"),
        Proof("properties/test_p10_resumption.py::test_a_state_is_rejected_for_another_request"),
        control(
            "properties/test_p10_resumption.py::test_without_the_context_actions_are_repeated_in_each_round"
        ),
    ),
}


@attrs.define(eq=False)
class TestCounts:
    """A pytest plugin that counts runs, failures and examples of each test."""

    runs: Counter[str] = attrs.field(factory=Counter[str])
    failures: Counter[str] = attrs.field(factory=Counter[str])
    reported_examples: Counter[str] = attrs.field(factory=Counter[str])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the run of a test, and a failure in any phase."""
        node = _without_parameters(report.nodeid)
        self.runs[node] += report.when == "call"
        self.failures[node] += report.failed
        if report.when == "call":
            reported = (value for name, value in report.user_properties if name == EXAMPLES)
            self.reported_examples[node] += sum(
                value for value in reported if isinstance(value, int)
            )

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Count the examples that Hypothesis has generated."""
        statistics: str = getattr(item, "hypothesis_statistics", "")
        self.reported_examples[_without_parameters(item.nodeid)] += sum(
            map(int, PASSING.findall(statistics))
        )

    def examples(self, proof: Proof) -> int:
        runs = self.runs[proof.node]
        if proof.examples is not None:
            return runs * proof.examples
        return self.reported_examples[proof.node] or runs

    def result(self, proof: Proof) -> str:
        if not self.runs[proof.node]:
            return "MISSING"
        return "FAILED" if self.failures[proof.node] else "ok"


class Unlimited:
    """A pytest plugin that removes time limits, for thousands of examples."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Remove the time limits of single tests."""
        for item in items:
            item.own_markers = [each for each in item.own_markers if each.name != "timeout"]


def _without_parameters(node: str) -> str:
    return node.partition("[")[0]


# Run and report.


def run(proofs: Sequence[Proof], *, is_full: bool) -> TestCounts:
    """Run the tests in this process."""
    os.environ["MCP_TRIO_EXAMPLES"] = "full" if is_full else "ci"
    counts = TestCounts()
    options = ["-q", "--no-header", "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    unlimited = ["--timeout=0"] if is_full else []
    nodes = [str(ROOT / proof.node) for proof in proofs]
    plugins: list[Any] = [counts, Unlimited()] if is_full else [counts]
    pytest.main([*options, *unlimited, *nodes], plugins=plugins)
    return counts


def print_table(counts: TestCounts) -> None:
    print(f"\n{'property':33}{'':9}{'test':105}{'examples':>9}  result")
    for name, proofs in PROPERTIES.items():
        for proof in proofs:
            role = "control" if proof.is_control else "test"
            words = proof.test.partition("::")[2].removeprefix("test_").replace("_", " ")
            print(
                f"{name:33}{role:9}{words:105}{counts.examples(proof):>9,}  {counts.result(proof)}"
            )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Prove what replay promises.")
    parser.add_argument("--full", action="store_true", help="thousands of examples")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    proofs = [proof for proofs in PROPERTIES.values() for proof in proofs]
    counts = run(proofs, is_full=options.full)
    print_table(counts)
    total = sum(counts.examples(proof) for proof in proofs)
    wrong = [proof for proof in proofs if counts.result(proof) != "ok"]
    print(
        f"{len(PROPERTIES)} properties, {len(proofs)} tests, {total:,} examples, {len(wrong)} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
