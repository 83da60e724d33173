"""Checks of a server that is mounted in another application, for `mounts.py`.

Python clients run these few steps instead of the scenario, and print a line after each step;
`typescript/mount_checks.mjs` does the same.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio
import scenario
from facts import FACTS, has
from sdk_adapter import Host, Session, expect, expect_that, text_of

STEP_SECONDS: Final = 20.0
SLOW_SECONDS: Final = 1.5
REPORTS_MIN: Final = 15
ENDLESS_SECONDS: Final = 60


async def call(session: Session, _host: Host) -> None:
    expect("text", text_of(await session.call_tool("test_simple_text")), FACTS.simple_text)


async def ask_the_user(session: Session, host: Host) -> None:
    """The server elicits, or samples where the protocol version has no elicitation."""
    step = scenario.elicit if has(session.protocol_version, "elicitation") else scenario.sample
    await step(session, host)


async def call_across_reconnects(session: Session, _host: Host) -> None:
    """A call outlasts the server's connection limit; no report is lost or duplicated."""
    found: list[float] = []

    def report(progress: float, _total: float | None, _message: str | None) -> None:
        found.append(progress)

    text_of(await session.call_tool("test_slow", {"seconds": SLOW_SECONDS}, report))
    expect("reports", found, sorted(set(found)))
    expect_that(f"{REPORTS_MIN} of {found}", len(found) >= REPORTS_MIN)


async def call_until_stopped(session: Session, _host: Host) -> None:
    """Print "begun" when a long call reports progress; the server is stopped during the call."""
    is_begun = False

    def report(_progress: float, _total: float | None, _message: str | None) -> None:
        nonlocal is_begun
        if not is_begun:
            is_begun = True
            print_step("begun", "ok")

    await session.call_tool("test_slow", {"seconds": ENDLESS_SECONDS}, report)


Step: TypeAlias = Callable[[Session, Host], Awaitable[None]]

STEPS: Final[tuple[tuple[str, Step], ...]] = (
    ("list", scenario.list_the_tools),
    ("call", call),
    ("ask", ask_the_user),
    ("progress", scenario.report_progress),
    ("resume", call_across_reconnects),
)


def can_resume(session: Session) -> bool:
    """Return whether the protocol version has resumable streams."""
    return has(session.protocol_version, "streamable_http") and has(
        session.protocol_version, "sessions"
    )


def print_step(step: str, outcome: str) -> None:
    print(f"{step}: {' '.join(outcome.split())}", flush=True)


async def run(session: Session, host: Host, protocol_version: str) -> None:
    """Run all steps, going on after failures, then call until the server stops."""
    expect("protocol version", session.protocol_version, protocol_version)
    for name, step in STEPS:
        if name == "resume" and not can_resume(session):
            continue
        try:
            with anyio.fail_after(STEP_SECONDS):
                await step(session, host)
        except Exception as error:
            print_step(name, f"{type(error).__name__}: {error}")
        else:
            print_step(name, "ok")
    try:
        await call_until_stopped(session, host)
    except Exception as error:
        print_step("stop", type(error).__name__)
    else:
        print_step("stop", "answered")
