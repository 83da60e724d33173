"""Inputs mode: what a recorded client said is said to a live server, and the answers compared."""

import os
from collections.abc import Collection, Mapping

import trio

from mcp_trio._client.targets import (
    NO_WEB_OPTIONS,
    ProcessOptions,
    Target,
    WebOptions,
    open_target,
)
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._replay.comparing import report_of
from mcp_trio._replay.correspondence import Correspondence
from mcp_trio._replay.driving import Driver
from mcp_trio._replay.ignoring import IgnoreRules
from mcp_trio._replay.inputs_report import InputsReport
from mcp_trio._replay.recorded import load_conversation
from mcp_trio._replay.revising import AGREED, check_revision


def drive(
    path: str | os.PathLike[str],
    target: Target,
    *,
    ignore: Collection[str] = (),
    channel: int | None = None,
    revision: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
) -> InputsReport:
    """Say to a live server what the client in a recording said, and compare what it answers.

    `path` is a recording of any role, by whomever. Ids, progress tokens, and cursors and URIs that
    the client had from the server are those of the live session; times and cursors in answers do
    not count, and neither do the places that `ignore` names (see `IgnoreRules`). Questions of the
    server get the recorded replies, by requests or in rounds. `revision` is another one to speak,
    of the era in which the client spoke. `headers` go along with each request to a URL. How the
    recorded client was connected does not matter. Starts a Trio run of its own; see `run_inputs`.

    Raises:
        RecordingError: The file is no recording, or holds several sessions: choose a `channel`.
        ConnectionLost: A command could not be started, or the server at a URL does not take the
            first request. What happens later is in the report.
        ValueError: A path in `ignore` is none, or the client cannot speak that `revision`, or a URL
            is none.
    """

    async def run() -> InputsReport:
        return await run_inputs(
            path,
            target,
            ignore=ignore,
            channel=channel,
            revision=revision,
            limits=limits,
            inherit_env=inherit_env,
            headers=headers,
        )

    return trio.run(run)


async def run_inputs(
    path: str | os.PathLike[str],
    target: Target,
    *,
    ignore: Collection[str] = (),
    channel: int | None = None,
    revision: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
) -> InputsReport:
    """`drive` inside a Trio program.

    Every wait is bounded, by `request_idle_seconds` and `drive_unasked_seconds` of `limits`.
    Cancelled: the connection is closed, and the process of a command stopped.

    Raises:
        RecordingError: As `drive`; so do the others.
    """
    recorded = load_conversation(path, channel=channel)
    if revision is not None:
        check_revision(recorded, revision)
        ignore = (*ignore, AGREED)
    rules = IgnoreRules(ignore)
    played = Correspondence(recorded, revision)
    process = ProcessOptions(inherit_env=inherit_env)
    web = WebOptions(headers=headers) if headers else NO_WEB_OPTIONS
    connected = await open_target(target, process=process, web=web, limits=limits)
    driver = Driver(played=played, channel=connected.channel, limits=limits)
    await driver.run(connected.served)
    if driver.unreached is not None:
        raise driver.unreached
    return report_of(driver, rules)


async def mock_client(
    path: str | os.PathLike[str],
    target: Target,
    *,
    channel: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
) -> InputsReport:
    """Stand in for the recorded client, whatever the server answers.

    As `run_inputs`, with every place of every answer ignored: what the report still holds is what
    did not come, came unasked, or came to an end.

    Raises:
        RecordingError: As `drive`; so do the others.
    """
    return await run_inputs(
        path,
        target,
        ignore=("$",),
        channel=channel,
        limits=limits,
        inherit_env=inherit_env,
        headers=headers,
    )
