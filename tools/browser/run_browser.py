"""Test our servers with pages in a real browser: `python tools/browser/run_browser.py`.

Headless Chromium shows a page from an allowed origin, the server's own origin, another one, an
opaque one, or a rebound name. The page calls a tool over WebSocket, Streamable HTTP or HTTP+SSE, at
a legacy or a stateless version, with its own client or an SDK, and shows the answer. A user logs in
on the consent page of our authorization server, which another page cannot frame. Prints a table of
the outcomes; the exit status is 1 if one is not as expected. The npm packages that drive the
browser are pinned, and installed at the first run; Chromium is the system's.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import attrs
import trio

HERE: Final = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "interop")]

from browser_cases import (  # noqa: E402
    H2,
    HOSTS,
    PAGES,
    PATHS,
    SETTINGS,
    TOKENS,
    Attempt,
    Host,
    Outcome,
    attempts,
)
from browser_servers import (  # noqa: E402
    PAGE,
    SANDBOXED,
    Addresses,
    bundle,
    pages_of,
    serve_all,
    server_with_greeting,
)
from certificates import self_signed  # noqa: E402
from install import ensure  # noqa: E402
from interop_command import new_table, run_command, show, wrong  # noqa: E402
from peers import NODE, NodeEnvironment  # noqa: E402
from rich.table import Table  # noqa: E402

from mcp_trio import Client, Context, Server  # noqa: E402
from mcp_trio.auth import (  # noqa: E402
    AuthorizationServer,
    DevelopmentLogin,
    MemoryTokenStore,
    OAuth,
)

DRIVER: Final = NodeEnvironment(name="browser", folder=HERE / "node", node=NODE)
CHROMIUM: Final = "chromium"
AT_ONCE: Final = 3
SECONDS_MAX: Final = 120.0
REBOUND: Final = "evil.test"
PAGES_AT_SERVERS: Final = ("own", "rebound")
"""Pages whose origin is the server's, which serves no pages itself."""

SILENT: Final[Mapping[str, Any]] = {"result": "nothing", "statuses": (), "protocols": ()}
"""The report of a visit that the browser has not made."""

LOGIN_SECONDS_MAX: Final = 60.0
USER: Final = "ada"
CLIENT: Final = "Buoy <b>&amp; mast</b>"
SCOPES: Final = {"notes:write": "Write and delete your notes"}

CHROMIUM_OPTIONS: Final = (
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
    "--ignore-certificate-errors",
    # Newer browsers reject rebound names themselves; older ones leave that to the server.
    "--disable-features=LocalNetworkAccessChecks",
)


@attrs.frozen(kw_only=True)
class Visit:
    """An attempt at one host.

    Attributes:
        name: The name that the tool greets.
        attempt: The attempt.
        host: The implementation that serves the connections.
        page: The address of the page.
        origin: The page's origin in the browser.
        url: The URL of the server.
    """

    name: str
    attempt: Attempt
    host: Host
    page: str
    origin: str
    url: str

    def order(self) -> Mapping[str, Any]:
        """Return the instructions for `drive.mjs`."""
        attempt = self.attempt
        task = {
            "url": self.url,
            "client": attempt.client,
            "transport": attempt.transport,
            "mode": attempt.mode,
            "token": TOKENS[attempt.token],
            "name": self.name,
        }
        is_fulfilled = attempt.page in PAGES_AT_SERVERS
        return {"name": self.name, "page": self.page, "isFulfilled": is_fulfilled, "task": task}


def visits_to(
    addresses: Addresses, tried: Iterable[Attempt], *, allowed: str, other: str
) -> Iterator[Visit]:
    """Return every attempt at every host."""
    numbers = count(1)
    for attempt in tried:
        for host in attempt.hosts:
            server = addresses[host, attempt.setting]
            if attempt.page == "rebound":
                server = server.replace("127.0.0.1", REBOUND)
            own = f"{attempt.scheme('http')}://{server}"
            page, origin = {
                "allowed": (allowed + PAGE, allowed),
                "own": (own + PAGE, own),
                "other": (other + PAGE, other),
                "opaque": (allowed + SANDBOXED, "null"),
                "rebound": (own + PAGE, own),
            }[attempt.page]
            scheme = attempt.scheme("ws" if attempt.transport == "websocket" else "http")
            yield Visit(
                name=_name_of(next(numbers), attempt, host),
                attempt=attempt,
                host=host,
                page=page,
                origin=origin,
                url=f"{scheme}://{server}{PATHS[attempt.transport]}",
            )


def _name_of(number: int, attempt: Attempt, host: str) -> str:
    words = [f"{number:03}", attempt.page, attempt.client, attempt.transport, attempt.mode, host]
    return "-".join(words).replace(" ", "-")


async def run_visits(folder: Path, chromium: str, problems: list[str]) -> list[Outcome]:
    """Serve everything in this process; let a browser make all visits, and a user log in.

    The problems of the login are added to `problems`.
    """
    greeted: set[str] = set()
    bundle(DRIVER, folder)
    with pages_of(folder) as allowed, pages_of(folder) as other, trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            addresses = await serve_all(
                nursery, server_with_greeting(greeted), allowed, self_signed(folder)
            )
            visits = list(visits_to(addresses, attempts(), allowed=allowed, other=other))
            page_report = await drive_browser(
                {
                    "executable": chromium,
                    "args": CHROMIUM_OPTIONS,
                    "pages": allowed,
                    "atOnce": AT_ONCE,
                    "visits": [visit.order() for visit in visits],
                }
            )
            problems += await login_problems(chromium, allowed + PAGE)
            nursery.cancel_scope.cancel()
    return [
        Outcome(
            attempt=visit.attempt,
            host=visit.host,
            name=visit.name,
            has_run=visit.name in greeted,
            origin=visit.origin,
            page_report=page_report.get(visit.name, SILENT),
        )
        for visit in visits
    ]


async def drive_browser(order: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Run the browser; return its reports by the visits' names."""
    done = await trio.run_process(
        DRIVER.start("drive.mjs"),
        stdin=json.dumps(order).encode(),
        capture_stdout=True,
        check=False,  # errors are on stderr; visits without a report are problems
    )
    page_report = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["name"]: each for each in page_report}


def visit_all_pages(folder: Path, problems: list[str]) -> list[Outcome]:
    """Install what is missing, and run all visits and the login."""
    chromium = shutil.which(CHROMIUM)
    if chromium is None:
        raise SystemExit(f"{CHROMIUM} is not installed: `apt-get install {CHROMIUM}`")
    ensure(DRIVER)
    subprocess.run([chromium, "--version"], check=True, stderr=subprocess.DEVNULL)
    try:
        return trio.run(run_visits, folder, chromium, problems)
    except trio.TooSlowError:
        raise SystemExit(f"the browser was not done after {SECONDS_MAX:g} s") from None


# A login, from the consent page of our authorization server to a session.


async def login_problems(chromium: str, pages: str) -> list[str]:
    """Log in with a browser, and return the differences from what is expected.

    Args:
        chromium: The path of the browser.
        pages: The origin of another page, which tries to frame the consent page.
    """
    reports: list[Mapping[str, Any]] = []

    async def drive(url: str) -> None:
        task = {"executable": chromium, "url": url, "framer": pages}
        done = await trio.run_process(
            DRIVER.start("consent.mjs"), stdin=json.dumps(task).encode(), capture_stdout=True
        )
        reports.append(json.loads(done.stdout))

    with trio.fail_after(LOGIN_SECONDS_MAX):
        async with trio.open_nursery() as serving:
            url = await serving.start(partial(_protected_server().serve_http, port=0))
            async with trio.open_nursery() as nursery:

                async def open_browser(url: str) -> None:
                    nursery.start_soon(drive, url)  # it goes on after the redirect

                store = MemoryTokenStore()
                login = OAuth(client_name=CLIENT, on_authorize=open_browser, store=store)
                async with Client(url, auth=login) as client:
                    user = (await client.call_tool("whoami")).data
            serving.cancel_scope.cancel()
    (report,) = reports
    return [
        *_page_problems(report, url),
        *([] if user == USER else [f"the user is {user!r}"]),
    ]


def _protected_server() -> Server:
    auth = AuthorizationServer(login=DevelopmentLogin(USER), name="Notes", scopes=SCOPES)
    server = Server("notes", auth=auth)

    @server.tool
    async def whoami(*, ctx: Context) -> str | None:
        """Return the user."""
        return None if ctx.auth is None else ctx.auth.subject

    return server


def _page_problems(report: Mapping[str, Any], url: str) -> Iterator[str]:
    for text in (
        f"{CLIENT} asks for access to Notes",
        USER,
        url,
        *SCOPES,
        *SCOPES.values(),
    ):
        if text not in report["shown"]:
            yield f"the consent page does not show {text!r}: {report['shown']!r}"
    if report["framed"]:
        yield f"another page frames the consent page: {report['framed']!r}"
    if report["scripts"] or report["errors"]:
        yield f"the page has {report['scripts']} scripts, and errors: {report['errors']}"
    if "sans-serif" not in report["font"]:
        yield f"the style is not used: {report['font']}"
    if not report["reached"].startswith("http://127.0.0.1:"):
        yield f"the browser is sent to {report['reached']}"


# Report.


def table_of(outcomes: Sequence[Outcome]) -> Table:
    headings = ("page", "client", "transport", "mode", "setting", "token", "expected")
    table = new_table(*headings, *HOSTS)
    cells = {(outcome.attempt, outcome.host): _cell(outcome) for outcome in outcomes}
    for attempt in dict.fromkeys(outcome.attempt for outcome in outcomes):
        table.add_row(
            *(attempt.page, attempt.client, attempt.transport, attempt.mode, attempt.setting),
            *(attempt.token, attempt.expected),
            *(cells.get((attempt, host), "") for host in HOSTS),
        )
    return table


def _cell(outcome: Outcome) -> str:
    is_right = not any(outcome.problems())
    cell = f"{outcome.observed}, {H2}" if H2 in outcome.protocols else outcome.observed
    return cell if is_right else wrong(cell)


def report(outcomes: Sequence[Outcome], seconds: float, problems: Sequence[str] = ()) -> bool:
    """Print the table and the problems; return whether there are no problems."""
    found = [f"login: {problem}" for problem in problems]
    found += [f"{each.name}: {problem}" for each in outcomes for problem in each.problems()]
    show(table_of(outcomes))
    for word, meaning in (*PAGES.items(), *SETTINGS.items()):
        print(f"{word}: {meaning}")
    return show(None, found, f"{len(outcomes)} visits, a login, {{}}, {seconds:.0f} s")


def main() -> int:
    problems: list[str] = []
    return run_command(
        partial(visit_all_pages, problems=problems), partial(report, problems=problems)
    )


if __name__ == "__main__":
    sys.exit(main())
