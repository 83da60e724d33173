"""A recorded session, said again: `python python_repeater.py SCRIPT SERVER COMMAND…`.

By either official Python SDK: by the one of this environment. See `repeating` for the script, and
for what is printed.
"""

import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
from facts import FACTS
from mcp import types
from parties import Host, Json, Report
from pydantic import RootModel
from python_client import shaking_hands
from python_words import wire
from steps import ROOTS_LIST

SDK = importlib.import_module(f"python_{version('mcp').partition('.')[0]}_client")


class Whole(RootModel[Json]):
    """A result as it came, whatever the SDK knows of it."""


class RepeatingHost(Host):
    """A host that says what the recorded one did, and remembers what it was asked."""

    def __init__(self, replies: Json) -> None:
        self.replies = replies
        super().__init__()

    @property
    def roots(self) -> list[str]:
        """What the server is told."""
        self.asked.append({"method": ROOTS_LIST})
        return [root["uri"] for root in self.replies[ROOTS_LIST]["roots"]]

    @roots.setter
    def roots(self, roots: list[str]) -> None:
        """The recorded ones stay."""

    async def sample(self, params: Json, _report: Report) -> Json:
        method = "sampling/createMessage"
        self.asked.append({"method": method, "params": params})
        return self.replies[method]


class Session(SDK.Session):
    """A session of this SDK that keeps the answer to the handshake."""

    def adopt(self, server: types.InitializeResult) -> None:
        self.answers = [{"result": wire(server)}]
        super().adopt(server)

    async def repeat(self, request: Json) -> None:
        """Ask once more what was asked, and keep the answer."""
        asked = types.Request[Any, str](method=request["method"], params=request.get("params"))
        on_progress = hear_progress if request["wantsProgress"] else None
        try:
            result = await self.calls.send_request(asked, Whole, progress_callback=on_progress)
        except self.rejection as error:
            self.answers.append({"error": wire(error.error)})
        else:
            self.answers.append({"result": result.root})


async def hear_progress(_progress: float, _total: float | None, _message: str | None) -> None:
    """The host hears of it as of any notification."""


async def main(script: Json, command: list[str]) -> None:
    host = RepeatingHost(script["replies"])
    async with shaking_hands(Session, host, FACTS.protocol_version, command) as session:
        for request in script["requests"]:
            await session.repeat(request)
        # What was said before its answer has been heard with it.
        await session.ping()
    heard = [{"method": method, "params": params} for method, params in host.heard]
    told = {"answers": session.answers, "asked": host.asked, "heard": heard, "faults": host.faults}
    print(json.dumps(told))


if __name__ == "__main__":
    anyio.run(main, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2:])
