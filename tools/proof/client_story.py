"""The client of a generated program: it calls and cancels by the clock, and answers in its time."""

from typing import Any, Final

import attrs
import trio
from programs import Call, Program

from mcp_trio._testing.wire_peer import WirePeer

CAPABILITIES: Final[dict[str, Any]] = {"roots": {}, "sampling": {}}


@attrs.define
class ClientStory:
    """What the client of a program says; `url` is the latency server's."""

    program: Program
    peer: WirePeer
    url: str

    async def tell(self) -> None:
        """Talk until the program says that it is enough, whatever is still open then."""
        await self.peer.handshake(capabilities=CAPABILITIES)
        with trio.move_on_after(self.program.ends_after_ms / 1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._answer, nursery)
                for number, call in enumerate(self.program.calls):
                    await trio.sleep(call.delay_ms / 1000)
                    nursery.start_soon(self._call, number, call)

    async def _call(self, number: int, call: Call) -> None:
        meta = {"progressToken": number} if call.wants_progress else {}
        arguments = {"script": call.script, "url": self.url}
        params = {"name": call.tool, "arguments": arguments, "_meta": meta}
        request = {"id": number, "method": "tools/call", "params": params}
        cancel = {"method": "notifications/cancelled", "params": {"requestId": number}}
        if call.cancels_after_ms == 0:
            await self.peer.send(request, cancel)
            return
        await self.peer.send(request)
        if call.cancels_after_ms is not None:
            await trio.sleep(call.cancels_after_ms / 1000)
            await self.peer.send(cancel)

    async def _answer(self, nursery: trio.Nursery) -> None:
        asked = 0
        while True:
            message = await self.peer.receive()
            if "id" in message and "method" in message:
                nursery.start_soon(self._answer_one, message, asked)
                asked += 1

    async def _answer_one(self, question: dict[str, Any], number: int) -> None:
        delays = self.program.answer_delays_ms
        delay_seconds = delays[number % len(delays)] / 1000
        await trio.sleep(delay_seconds)
        if question["method"] == "roots/list":
            await self.peer.send_result(question, {"roots": [{"uri": "file:///a"}] * (number % 3)})
        else:
            await self._sample(question, number, delay_seconds)

    async def _sample(self, question: dict[str, Any], number: int, delay_seconds: float) -> None:
        token = question["params"].get("_meta", {}).get("progressToken")
        for progress in range(number % 3 if token is not None else 0):
            params = {"progressToken": token, "progress": progress}
            await self.peer.send_notification("notifications/progress", params)
            await trio.sleep(delay_seconds / 2)
        text = {"type": "text", "text": "So."}
        result = {"role": "assistant", "model": f"model {number}", "content": text}
        await self.peer.send_result(question, result)
