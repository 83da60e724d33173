"""The "everything" server by either official Python SDK, as far as the two are used alike.

`python_1_server` and `python_2_server` say what is different; see `python_client`.
"""

from typing import Any, Final

from facts import FACTS
from mcp import types
from mcp.server.lowlevel import NotificationOptions
from parties import Json, Report
from pydantic import TypeAdapter

CHANGES: Final = NotificationOptions(
    prompts_changed=True, resources_changed=True, tools_changed=True
)
NOTIFICATION: Final = TypeAdapter(types.ServerNotification)


class Caller:
    """What the SDK lets a handler do; see `everything.Caller`, of which `progress` is missing."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def log(self, level: types.LoggingLevel, data: object) -> None:
        await self.session.send_log_message(level, data)

    async def sample(self, prompt: str, report: Report | None = None) -> str:
        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            await report(progress, total)

        message = {"role": "user", "content": {"type": "text", "text": prompt}}
        words = {"messages": [message], "maxTokens": FACTS.max_tokens}
        params = types.CreateMessageRequestParams.model_validate(words)
        result = await self.session.send_request(
            types.CreateMessageRequest(params=params),
            types.CreateMessageResult,
            progress_callback=None if report is None else on_progress,
        )
        return result.content.text

    async def list_roots(self) -> list[str]:
        return [str(root.uri) for root in (await self.session.list_roots()).roots]

    async def ping(self) -> None:
        await self.session.send_ping()

    async def notify(self, method: str, params: Json | None = None) -> None:
        message = {"method": method, "params": params}
        await self.session.send_notification(NOTIFICATION.validate_python(message))
