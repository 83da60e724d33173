"""Draw the pictures of the documentation that show what commands print on a terminal.

`python tools/pictures.py` writes the files of `docs/pictures`. The server is the one of the page on
developing a server. A virtual clock makes each duration, and the time of day is fixed, so the files
are the same each time; a test compares them.
"""

import io
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio
import trio.testing
from memory_sessions import client_session
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from mcp_trio import Client, Server
from mcp_trio._cli.dev_server import Logged, MessageReporter
from mcp_trio._cli.inspect import fetch_facts, print_page
from mcp_trio._cli.reloader import MessageLog
from mcp_trio.recording import RecordOptions

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "pictures"
PAGE: Final = ROOT / "docs" / "how-to" / "develop-a-server.md"

# No font is fetched from elsewhere.
FORMAT: Final = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
BEGIN: Final = datetime(2026, 11, 28, 9, 30, 1, tzinfo=UTC)


def server_of_the_page() -> Server:
    """Return the server in the first example of the page."""
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    variables: dict[str, Any] = {"__name__": "tea"}
    exec(compile(code, "tea.py", "exec"), variables)
    server = variables["server"]
    assert isinstance(server, Server)
    return server


def console(width: int) -> Console:
    return Console(
        width=width,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        markup=False,
        emoji=False,
    )


def svg(drawn: Console, name: str) -> str:
    text = drawn.export_svg(title=f"mcp-trio {name} tea.py", code_format=FORMAT, unique_id=name)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def inspect_picture() -> str:
    """Return the picture of `mcp-trio inspect`."""

    async def facts() -> Any:
        async with Client(server_of_the_page()) as client:
            return await fetch_facts(client)

    drawn = console(88)
    print_page(drawn, trio.run(facts))
    return svg(drawn, "inspect")


def dev_picture() -> str:
    """Return the picture of the log of `mcp-trio dev`."""
    reported: list[tuple[float, Logged]] = []

    def report(logged: Logged) -> None:
        reported.append((trio.current_time(), logged))

    async def session(folder: str) -> None:
        record = RecordOptions(f"{folder}/", observer=MessageReporter(report))
        async with client_session(server_of_the_page(), record, raise_tool_errors=False) as client:
            await client.list_tools()
            await client.call_tool("brew", {"tea": "green", "minutes": 2}, progress=print_none)
            await client.call_tool("brew", {"tea": "tee"})
            await client.get_prompt("invite", {"guest": "Ada"})

    with TemporaryDirectory() as folder:
        trio.run(session, folder, clock=trio.testing.MockClock(autojump_threshold=0))
    drawn = console(128)
    for seconds, logged in reported:
        log = MessageLog(now=partial(operator.add, BEGIN, timedelta(seconds=seconds)))
        drawn.print(Text.from_ansi(log.line(logged, logged.session, columns_max=128)))
    return svg(drawn, "dev")


def print_none(_: object) -> None:
    """Ask for progress, which the server then reports."""


PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "inspect.svg": inspect_picture,
    "dev.svg": dev_picture,
}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        print(f"{name}: {(FOLDER / name).stat().st_size} bytes")
