"""Run the official conformance suite: `python tools/conformance/suite.py`.

It tests our server and our client at the two protocol versions that have a set of scenarios, and
prints a table. The scenarios of the client that are in no set follow, and those that are not run.
The exit status is 1 unless every scenario passes without a warning and without a baseline, but for
those of `scores.REASONS`. The suite and its Node are pinned, and installed at the first run.
"""

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import trio
from scores import (
    Leg,
    ListedScenario,
    Scenario,
    Score,
    all_scenarios,
    cell_text,
    failures_of,
    reason_not_run,
    scenarios_in,
    scores_of,
    with_exit_statuses,
)

HERE: Final = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "interop"))

from install import ensure  # noqa: E402
from interop_command import new_table, show  # noqa: E402
from peers import NODE, NodeEnvironment  # noqa: E402
from server_processes import ServerFailed, free_port, running_server  # noqa: E402

from mcp_trio import Server  # noqa: E402
from mcp_trio.auth import AuthorizationServer, DevelopmentLogin, trusted_client  # noqa: E402
from mcp_trio.testing import allow_access  # noqa: E402

SUITE: Final = NodeEnvironment(name="conformance", folder=HERE / "npm", node=NODE)
PACKAGE: Final = "@modelcontextprotocol/conformance"
PROGRAM: Final = f"node_modules/{PACKAGE}/dist/index.js"
PROTOCOL_VERSIONS: Final = ("2025-11-25", "2026-07-28")
LEGS: Final[Sequence[Leg]] = ("server", "client", "authorization")
HOSTS: Final = ("native", "hypercorn")
RUN_SECONDS: Final = 600.0
STOPPED: Final = 128 + signal.SIGTERM
# They are ended by `client_run.py`, which begins to count when it is their turn.
CLIENT_MILLISECONDS: Final = 590_000

AUTHORIZATION_SCENARIOS: Final = (
    "authorization-server-metadata-endpoint",
    "authorization-code-grant",
)
CLIENT_ID: Final = "conformance"
CALLBACK: Final = "http://127.0.0.1/callback"  # with any port
AUTHORIZATION_SECONDS: Final = 60.0

AUTHORIZATION_URL: Final = re.compile(r"https?://\S+/authorize\?\S+")

Column = Mapping[str, Score]


class SuiteError(Exception):
    """The suite or the tested server failed."""


def suite(*arguments: str) -> str:
    """Run the suite, and return its output; a failed scenario is no error."""
    command = [*SUITE.start(PROGRAM), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode not in (0, 1):
        raise SuiteError(f"{shlex.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def run_server(protocol_version: str, folder: Path, host: str) -> Column:
    """Return the scores of our server."""
    with serving(host, folder / "server.log") as url:
        suite("server", "--url", url, "--requirements", protocol_version, "-o", str(folder))
    return scores_of(folder, "server")


@contextlib.contextmanager
def serving(host: str, log: Path) -> Iterator[str]:
    """Run our server while the block runs; raise `SuiteError` if it fails."""
    command = [sys.executable, str(HERE / "server.py"), "--port", "0", "--server", host]
    try:
        with running_server(command, log) as server:
            yield f"{server.origin}/mcp"
    except ServerFailed as error:
        raise SuiteError(str(error)) from None
    status = server.process.returncode
    if status != STOPPED:
        raise SuiteError(f"the server has ended with status {status}\n{log.read_text()}")


def run_client(protocol_version: str, folder: Path, _host: str) -> Column:
    """Return the scores of our client."""
    return client_scores(folder, "--requirements", protocol_version)


def client_scores(folder: Path, *options: str) -> Column:
    """Run the suite against our client with these options; return the scores."""
    notes = folder / "endings"
    notes.mkdir()
    programs = [HERE / "client_run.py", notes, sys.executable, HERE / "client.py"]
    command = shlex.join([sys.executable, *map(str, programs)])
    timeout = ("--timeout", str(CLIENT_MILLISECONDS))
    suite("client", "--command", command, *options, *timeout, "-o", str(folder / "checks"))
    return with_exit_statuses(scores_of(folder / "checks", "client"), notes)


RUNS: Final[Mapping[Leg, Callable[[str, Path, str], Column]]] = {
    "server": run_server,
    "client": run_client,
}


# Report.


def report(leg: str, sets: Mapping[str, Sequence[Scenario]], columns: Mapping[str, Column]) -> int:
    """Print the table and the problems; return the number of problems."""
    table = new_table(leg, "", *sets)
    rows = {each.name: each for scenarios in sets.values() for each in scenarios}
    for name, row in rows.items():
        cells = [
            cell_text(found, columns[protocol_version].get(name)) if found is not None else "-"
            for protocol_version, found in ((each, _find(name, sets[each])) for each in sets)
        ]
        table.add_row(name, "" if row.is_scored else "not scored", *cells)
    problems = [
        f"{scenario.name} at {protocol_version}: {failure}"
        for protocol_version, scenarios in sets.items()
        for scenario in scenarios
        if scenario.reason is None
        for failure in failures_of(columns[protocol_version].get(scenario.name))
    ]
    show(table, problems)
    return len(problems)


def _find(name: str, scenarios: Sequence[Scenario]) -> Scenario | None:
    return next((each for each in scenarios if each.name == name), None)


def run_leg(leg: Leg, protocol_versions: Sequence[str], host: str, folder: Path) -> int:
    """Test the server or the client at all versions; return the number of problems."""
    sets = {
        protocol_version: [
            each for each in scenarios_in(listing(protocol_version)) if each.leg == leg
        ]
        for protocol_version in protocol_versions
    }
    columns: dict[str, Column] = {}
    for protocol_version in protocol_versions:
        results = folder / f"{leg}-{protocol_version}"
        results.mkdir(parents=True)
        columns[protocol_version] = RUNS[leg](protocol_version, results, host)
    return report(leg, sets, columns)


def run_unlisted(folder: Path) -> int:
    """Run the client's scenarios that are in no set, print the others; return the problems."""
    in_sets = {
        scenario.name
        for protocol_version in PROTOCOL_VERSIONS
        for scenario in scenarios_in(listing(protocol_version))
    }
    others = [each for each in all_scenarios(suite("list")) if each.name not in in_sets]
    table = new_table("in no set", "", "")
    problems: list[str] = []
    for number, scenario in enumerate(others):
        reason = reason_not_run(scenario.name)
        if reason is not None:
            table.add_row(scenario.name, scenario.tested, f"not run: {reason}")
            continue
        score, protocol_version = run_one(scenario, folder / f"single-{number}")
        failures = failures_of(score)
        passed = 0 if score is None else score.passed
        table.add_row(
            f"{scenario.name} at {protocol_version}",
            scenario.tested,
            "FAILED" if failures else f"{passed} passed",
        )
        problems += [f"{scenario.name} at {protocol_version}: {each}" for each in failures]
    show(table, problems)
    return len(problems)


def run_one(scenario: ListedScenario, folder: Path) -> tuple[Score | None, str]:
    """Return the score of one scenario of the client, and its protocol version."""
    protocol_version = scenario.protocol_versions[-1]
    if scenario.tested != "client":
        return None, protocol_version
    folder.mkdir(parents=True)
    options = ("--scenario", scenario.name, "--spec-version", protocol_version)
    return client_scores(folder, *options).get(scenario.name), protocol_version


async def run_authorization_suite(folder: Path) -> None:
    """Run the suite against our authorization server.

    The suite is a client, which prints the URL of its authorization request, for a user who opens
    it in a browser; here a program allows the access, and follows the redirect to the suite.

    Raises:
        trio.TooSlowError: The suite does not end.
    """
    clients = [trusted_client(CLIENT_ID, [CALLBACK])]
    auth = AuthorizationServer(login=DevelopmentLogin(), clients=clients)
    server = Server("conformance", auth=auth)
    with trio.fail_after(AUTHORIZATION_SECONDS):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(partial(server.serve_http, port=0))
            issuer = url.removesuffix("/mcp")
            target = ["--url", issuer, "--resource", url, "--client-id", CLIENT_ID]
            options = ["--port", f"{free_port()}", "-o", f"{folder}"]
            run = partial(trio.run_process, stdout=-1, check=False)
            process = await nursery.start(
                run, [*SUITE.start(PROGRAM), "authorization", *target, *options]
            )
            async for piece in process.stdout:
                for found in AUTHORIZATION_URL.findall(piece.decode()):
                    nursery.start_soon(act_as_user, found)
            nursery.cancel_scope.cancel()


async def act_as_user(url: str) -> None:
    """Allow the access on the consent page, and follow the redirect to the suite."""
    async with httpx2.AsyncClient() as browser:
        await browser.get(await allow_access(url))


def run_authorization(folder: Path) -> int:
    """Test the authorization server, which no set contains; return the number of problems."""
    folder.mkdir(parents=True)
    trio.run(run_authorization_suite, folder)
    scores = scores_of(folder, "authorization")
    table = new_table("authorization", "")
    problems: list[str] = []
    for name in AUTHORIZATION_SCENARIOS:
        score = scores.get(name)
        failures = failures_of(score)
        passed = 0 if score is None else score.passed
        table.add_row(name, "FAILED" if failures else f"{passed} passed")
        problems += [f"{name}: {failure}" for failure in failures]
    show(table, problems)
    return len(problems)


def listing(protocol_version: str) -> str:
    """Return the suite's list of the scenarios of a protocol version."""
    return suite("list", "--requirements", protocol_version)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the official conformance suite.")
    parser.add_argument("--leg", choices=LEGS, action="append", help="may be repeated")
    parser.add_argument(
        "--protocol-version", choices=PROTOCOL_VERSIONS, action="append", help="may be repeated"
    )
    parser.add_argument("--server", choices=HOSTS, default=HOSTS[0], help="the HTTP host")
    parser.add_argument("-o", "--output", type=Path, help="keep what the suite writes, here")
    options = parser.parse_args()
    ensure(SUITE)
    print(f"{PACKAGE} {SUITE.pins()[PACKAGE]}, server: {options.server}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.output or Path(temporary)
        wrong = sum(
            run_leg(leg, options.protocol_version or PROTOCOL_VERSIONS, options.server, folder)
            for leg in options.leg or LEGS
            if leg != "authorization"
        )
        if "authorization" in (options.leg or LEGS) and options.protocol_version is None:
            wrong += run_authorization(folder / "authorization")
        if "client" in (options.leg or LEGS) and options.protocol_version is None:
            wrong += run_unlisted(folder)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    os.chdir(HERE)
    main()
