"""A login in a real browser: from the consent page of our authorization server to a session."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from peers import NodeEnvironment

from mcp_trio import Client, Context, Server
from mcp_trio.auth import AuthorizationServer, DevelopmentLogin, MemoryTokenStore, OAuth

SECONDS_MAX: Final = 60.0
USER: Final = "ada"
CLIENT: Final = "Buoy <b>&amp; mast</b>"
SCOPES: Final = {"notes:write": "Write and delete your notes"}


async def consent_problems(
    driver: NodeEnvironment, chromium: str, pages: str, picture: Path | None
) -> list[str]:
    """Log in with a browser, and return the differences from what is expected.

    Args:
        driver: The environment of the browser's driver.
        chromium: The path of the browser.
        pages: The origin of another page, which tries to frame the consent page.
        picture: The path of the screenshot of the consent page, if one is to be taken.
    """
    reports: list[Mapping[str, Any]] = []

    async def drive(url: str) -> None:
        task = {
            "executable": chromium,
            "url": url,
            "framer": pages,
            "picture": None if picture is None else str(picture),
        }
        done = await trio.run_process(
            driver.start("consent.mjs"), stdin=json.dumps(task).encode(), capture_stdout=True
        )
        reports.append(json.loads(done.stdout))

    with trio.fail_after(SECONDS_MAX):
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
    return [*_problems(report, url), *([] if user == USER else [f"the user is {user!r}"])]


def _protected_server() -> Server:
    auth = AuthorizationServer(login=DevelopmentLogin(USER), name="Notes", scopes=SCOPES)
    server = Server("notes", auth=auth)

    @server.tool
    async def whoami(*, ctx: Context) -> str | None:
        """Return the user."""
        return None if ctx.auth is None else ctx.auth.subject

    return server


def _problems(report: Mapping[str, Any], url: str) -> Iterator[str]:
    for text in (f"{CLIENT} asks for access to Notes", USER, url, *SCOPES, *SCOPES.values()):
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
