"""Repeat a recorded session with a Python SDK: `python python_repeater.py SCRIPT SERVER COMMAND…`.

The SDK is that of the environment. `mocks.py` describes the script, and what is printed.
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
from pydantic import RootModel
from python_client import connected_by_handshake
from request_scripts import ROOTS_LIST
from sdk_adapter import Host, Json, Report, wire

SDK = importlib.import_module(f"python_{version('mcp').partition('.')[0]}_client")


class RawResult(RootModel[Json]):
    """A result as received, with all members."""


class RepeatingHost(Host):
    """A host that gives the recorded answers, and keeps the server's requests."""

    def __init__(self, replies: Json) -> None:
        self.replies = replies
        super().__init__()

    @property
    def roots(self) -> list[str]:
        self.sampling_requests.append({"method": ROOTS_LIST})
        return [root["uri"] for root in self.replies[ROOTS_LIST]["roots"]]

    @roots.setter
    def roots(self, roots: list[str]) -> None:
        """The recorded ones stay."""

    async def sample(self, params: Json, _report: Report) -> Json:
        method = "sampling/createMessage"
        self.sampling_requests.append({"method": method, "params": params})
        return self.replies[method]


class Session(SDK.Session):
    """A session that keeps the result of the handshake."""

    def adopt(self, server: types.InitializeResult) -> None:
        self.answers = [{"result": wire(server)}]
        super().adopt(server)

    async def repeat(self, request: Json) -> None:
        """Send a recorded request again, and keep its answer."""
        sampling_requests = types.Request[Any, str](
            method=request["method"], params=request.get("params")
        )
        on_progress = ignore_progress if request["wantsProgress"] else None
        try:
            result = await self.calls.send_request(
                sampling_requests, RawResult, progress_callback=on_progress
            )
        except self.rejection as error:
            self.answers.append({"error": wire(error.error)})
        else:
            self.answers.append({"result": result.root})


async def ignore_progress(_progress: float, _total: float | None, _message: str | None) -> None:
    """Ignore the report: the host receives it as a notification."""


async def main(script: Json, command: list[str]) -> None:
    host = RepeatingHost(script["replies"])
    async with connected_by_handshake(Session, host, FACTS.protocol_version, command) as session:
        for request in script["requests"]:
            await session.repeat(request)
        # Everything that the server sent before this answer has been received.
        await session.ping()
    notifications = [{"method": method, "params": params} for method, params in host.notifications]
    transcript = {
        "answers": session.answers,
        "serverRequests": host.sampling_requests,
        "notifications": notifications,
        "errors": host.failures,
    }
    print(json.dumps(transcript))


if __name__ == "__main__":
    anyio.run(main, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2:])
