"""Scores of the conformance suite's scenarios, more strictly than the suite counts.

The suite accepts a scored scenario in which no check failed. Here these are failures, too: a
warning, a scenario without any check of its own, a client that failed or timed out, and an unscored
scenario that does not pass, unless `REASONS` has a reason for that.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs

Leg = Literal["server", "client", "authorization"]

# Scenarios that are let be, by how their names begin, and why.
REASONS: Final[Mapping[str, str]] = {
    "tasks-status-notifications": "the suite always skips it",
    "tasks-": "the tasks extension is not implemented",
}

# Scenarios in no set that are not run, by how their names begin, and why.
NOT_RUN: Final[Mapping[str, str]] = {
    "sep-2640-": "the skills extension is not implemented",
    "authorization-": "the leg `authorization` runs it",
}

# Checks of the suite's own: of every message's shape, also where there was no message.
SYNTHETIC: Final = frozenset({"wire-schema-valid"})
BAD: Final = frozenset({"FAILURE", "WARNING"})

_WHEN = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")
_PREFIXES: Final[Mapping[Leg, str]] = {
    "server": "server-",
    "client": "",
    "authorization": "authorization-server-",
}
_LEGS: Final[Mapping[str | None, Leg]] = {"server": "server", "client": "client"}
_SCENARIO = re.compile(r"\s+- (\S+)(?: \[(server|client)\])?")
_LISTED = re.compile(r"\s+- (\S+) \[([^\]]+)\]")
_HEADINGS: Final[Mapping[str, str]] = {
    "Server scenarios": "server",
    "Client scenarios": "client",
    "Authorization server scenarios": "authorization server",
}


@attrs.frozen(kw_only=True)
class Scenario:
    """A scenario of a protocol version's set."""

    name: str
    leg: Leg
    is_scored: bool

    @property
    def reason(self) -> str | None:
        """Return why it need not pass, None if it must."""
        return next((why for begin, why in REASONS.items() if self.name.startswith(begin)), None)


@attrs.frozen(kw_only=True)
class Score:
    """The number of passed checks, and the failures."""

    passed: int = 0
    failures: Sequence[str] = ()


def scenarios_in(listing: str) -> Iterator[Scenario]:
    """Yield the scenarios in the suite's list."""
    leg: Leg = "server"
    for line in listing.splitlines():
        if line.startswith("Client scenarios"):
            leg = "client"
        found = _SCENARIO.fullmatch(line)
        if found is None:
            continue
        name, unscored = found.groups()
        own_leg = _LEGS.get(unscored, leg)
        yield Scenario(name=name, leg=own_leg, is_scored=unscored is None)


@attrs.frozen
class ListedScenario:
    """A scenario of the complete list: what it tests, and its protocol versions."""

    name: str
    tested: str
    protocol_versions: Sequence[str]


def all_scenarios(listing: str) -> Iterator[ListedScenario]:
    """Yield the scenarios in the suite's complete list."""
    tested = ""
    for line in listing.splitlines():
        tested = next((_HEADINGS[each] for each in _HEADINGS if line.startswith(each)), tested)
        if found := _LISTED.fullmatch(line):
            yield ListedScenario(found[1], tested, found[2].split(","))


def reason_not_run(name: str) -> str | None:
    """Return why a scenario that is in no set is not run, None if it is run."""
    return next((why for begin, why in NOT_RUN.items() if name.startswith(begin)), None)


def scores_of(folder: Path, leg: Leg) -> dict[str, Score]:
    """Return the score of each scenario whose checks are in the folder."""
    scores: dict[str, Score] = {}
    for path in folder.rglob("checks.json"):
        name = _WHEN.sub("", path.parent.relative_to(folder).as_posix())
        checks = json.loads(path.read_text(encoding="utf-8"))
        scores[name.removeprefix(_PREFIXES[leg])] = score_of_checks(checks)
    return scores


def score_of_checks(checks: Sequence[Mapping[str, Any]]) -> Score:
    """Return the score of one scenario's checks."""
    own = [check for check in checks if check["id"] not in SYNTHETIC]
    failures = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] in BAD
    ]
    return Score(passed=sum(check["status"] == "SUCCESS" for check in own), failures=failures)


def with_exit_statuses(scores: Mapping[str, Score], folder: Path) -> dict[str, Score]:
    """Return the scores, with failures for clients that failed or timed out."""
    notes = (json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json"))
    statuses = {note["scenario"]: note.get("status") for note in notes}
    return {
        name: attrs.evolve(score, failures=[*score.failures, *_ending(statuses.get(name))])
        for name, score in scores.items()
    }


def _ending(status: int | None) -> list[str]:
    if status is None:
        return ["the client timed out"]
    return [f"the client exited with status {status}"] if status else []


def failures_of(score: Score | None) -> list[str]:
    if score is None:
        return ["the scenario did not run"]
    if score.failures or score.passed:
        return [*score.failures]
    return ["the scenario has no checks of its own"]


def cell_text(scenario: Scenario, score: Score | None) -> str:
    failures = failures_of(score)
    if not failures:
        assert score is not None
        return f"{score.passed} passed"
    return "FAILED" if scenario.reason is None else scenario.reason
