"""What a run of the official suite says, more strictly than the suite itself counts.

The suite is content when no check of a scored scenario has failed. Here a warning is a fault, too;
so is a scenario of which nothing was tested, a client that failed or had to be ended, and a
scenario that is not scored and does not pass, unless there is a reason for that.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs

Leg = Literal["server", "client"]

# Scenarios that are let be, by how their names begin, and why.
REASONS: Final[Mapping[str, str]] = {
    "auth/": "authorization is not there yet",
    "tasks-status-notifications": "the suite skips it always",
    "tasks-": "the tasks extension is not there",
}

# Checks of the suite's own: of every message's shape, also where there was no message.
SYNTHETIC: Final = frozenset({"wire-schema-valid"})
BAD: Final = frozenset({"FAILURE", "WARNING"})

_WHEN = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")
_PREFIXES: Final[Mapping[Leg, str]] = {"server": "server-", "client": ""}
_LEGS: Final[Mapping[str | None, Leg]] = {"server": "server", "client": "client"}
_SCENARIO = re.compile(r"\s+- (\S+)(?: \[(server|client)\])?")


@attrs.frozen(kw_only=True)
class Scenario:
    """One scenario of a revision's set."""

    name: str
    leg: Leg
    is_scored: bool

    @property
    def reason(self) -> str | None:
        """Why it need not pass; None if it has to."""
        return next((why for begin, why in REASONS.items() if self.name.startswith(begin)), None)


@attrs.frozen(kw_only=True)
class Score:
    """What came of a scenario: how many of its own checks passed, and what is wrong."""

    passed: int = 0
    faults: Sequence[str] = ()


def scenarios_in(listing: str) -> Iterator[Scenario]:
    """The scenarios of a revision's set, as the suite lists them."""
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


def scores_of(folder: Path, leg: Leg) -> dict[str, Score]:
    """The scores of the scenarios whose checks stand in a folder, each in one of its own."""
    scores: dict[str, Score] = {}
    for path in folder.rglob("checks.json"):
        name = _WHEN.sub("", path.parent.relative_to(folder).as_posix())
        checks = json.loads(path.read_text(encoding="utf-8"))
        scores[name.removeprefix(_PREFIXES[leg])] = checked_trace(checks)
    return scores


def checked_trace(checks: Sequence[Mapping[str, Any]]) -> Score:
    """The score of one scenario."""
    own = [check for check in checks if check["id"] not in SYNTHETIC]
    faults = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] in BAD
    ]
    return Score(passed=sum(check["status"] == "SUCCESS" for check in own), faults=faults)


def with_endings(scores: Mapping[str, Score], folder: Path) -> dict[str, Score]:
    """The scores, with what is wrong with how the clients have ended."""
    notes = (json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json"))
    statuses = {note["scenario"]: note.get("status") for note in notes}
    return {
        name: attrs.evolve(score, faults=[*score.faults, *_ending(statuses.get(name))])
        for name, score in scores.items()
    }


def _ending(status: int | None) -> list[str]:
    if status is None:
        return ["the client had to be ended"]
    return [f"the client has ended with status {status}"] if status else []


def faults_of(score: Score | None) -> list[str]:
    """What is wrong with the score of a scenario."""
    if score is None:
        return ["it has not run"]
    if score.faults or score.passed:
        return [*score.faults]
    return ["nothing of it was tested"]


def in_a_word(scenario: Scenario, score: Score | None) -> str:
    """What stands in the table."""
    faults = faults_of(score)
    if not faults:
        assert score is not None
        return f"{score.passed} passed"
    return "FAILED" if scenario.reason is None else scenario.reason
