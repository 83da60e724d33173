"""The "everything" server by either official Python SDK, as far as the two are used alike.

`python_1_server` and `python_2_server` say what is different; see `python_client`.
"""

from collections.abc import Mapping
from typing import Any, Final

from caller import Question, SessionCaller
from mcp import types
from mcp.server.lowlevel import NotificationOptions
from parties import Json, Report
from pydantic import BaseModel, TypeAdapter
from python_words import wire

CHANGES: Final = NotificationOptions(
    prompts_changed=True, resources_changed=True, tools_changed=True
)
NOTIFICATION: Final = TypeAdapter(types.ServerNotification)

# The SDK's request, and its result.
QUESTIONS: Final[Mapping[str, tuple[type[BaseModel], type[BaseModel]]]] = {
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResultWithTools),
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
    "ping": (types.PingRequest, types.EmptyResult),
}


class Talker:
    """What the SDK lets a handler do that asks nothing; see `caller.Caller`."""

    def __init__(self, session: Any, revision: str) -> None:
        self.session = session
        self.revision = revision

    async def log(self, level: types.LoggingLevel, data: object) -> None:
        await self.session.send_log_message(level, data)

    async def notify(self, method: str, params: Json | None = None) -> None:
        message = {"method": method, "params": params}
        await self.session.send_notification(NOTIFICATION.validate_python(message))


class Caller(Talker, SessionCaller):
    """What the SDK lets a handler do in a session, of which `progress` is missing."""

    async def request(self, question: Question, report: Report | None = None) -> Json:
        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            await report(progress, total)

        request_type, result_type = QUESTIONS[question.method]
        words = {"method": question.method, "params": question.params or None}
        result = await self.session.send_request(
            request_type.model_validate(words),
            result_type,
            progress_callback=None if report is None else on_progress,
        )
        return wire(result)
