"""Checks of a server that is mounted in another application or behind a proxy.

Told by the Python clients instead of the whole scenario; `typescript/tour.mjs` is the same in other
words. Each step prints a line when it is over, as `mounts.py` reads them.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio
import scenario
import server_requests
from checks import expect, expect_that, text_of
from facts import FACTS, has
from parties import Host, Session

STEP_SECONDS: Final = 20.0
SLOW_SECONDS: Final = 1.5
REPORTS_MIN: Final = 15
ENDLESS_SECONDS: Final = 60


async def call(session: Session, _host: Host) -> None:
    """A tool answers."""
    expect("text", text_of(await session.call_tool("test_simple_text")), FACTS.simple_text)


async def be_asked(session: Session, host: Host) -> None:
    """The user is asked, or the model where there are no questions for users."""
    asked = (
        server_requests.elicit
        if has(session.protocol_version, "elicitation")
        else server_requests.sample
    )
    await asked(session, host)


async def come_back(session: Session, _host: Host) -> None:
    """A call takes longer than the server lets a connection last: no report gets lost, or twice."""
    found: list[float] = []

    def report(progress: float, _total: float | None, _message: str | None) -> None:
        found.append(progress)

    text_of(await session.call_tool("test_slow", {"seconds": SLOW_SECONDS}, report))
    expect("reports", found, sorted(set(found)))
    expect_that(f"{REPORTS_MIN} of {found}", len(found) >= REPORTS_MIN)


async def be_stopped(session: Session, _host: Host) -> None:
    """The server stops in the middle of a call, once it hears that this has begun."""
    is_begun = False

    def report(_progress: float, _total: float | None, _message: str | None) -> None:
        nonlocal is_begun
        if not is_begun:
            is_begun = True
            tell("begun", "ok")

    await session.call_tool("test_slow", {"seconds": ENDLESS_SECONDS}, report)


Step: TypeAlias = Callable[[Session, Host], Awaitable[None]]

STEPS: Final[tuple[tuple[str, Step], ...]] = (
    ("list", scenario.list_the_tools),
    ("call", call),
    ("ask", be_asked),
    ("progress", scenario.report_progress),
    ("resume", come_back),
)


def can_resume(session: Session) -> bool:
    """Whether the revision knows of streams that are resumed."""
    return has(session.protocol_version, "streamable_http") and has(
        session.protocol_version, "sessions"
    )


def tell(step: str, outcome: str) -> None:
    """Say at once what came of a step."""
    print(f"{step}: {' '.join(outcome.split())}", flush=True)


async def take(session: Session, host: Host, protocol_version: str) -> None:
    """Take all steps, of which one may fail, and then be stopped.

    Raises:
        Unexpected: The session is at another revision.
    """
    expect("protocol version", session.protocol_version, protocol_version)
    for name, step in STEPS:
        if name == "resume" and not can_resume(session):
            continue
        try:
            with anyio.fail_after(STEP_SECONDS):
                await step(session, host)
        except Exception as error:
            tell(name, f"{type(error).__name__}: {error}")
        else:
            tell(name, "ok")
    try:
        await be_stopped(session, host)
    except Exception as error:
        tell("stop", type(error).__name__)
    else:
        tell("stop", "answered")
