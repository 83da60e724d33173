"""The actions of a handler of the "everything" server, independent of the SDK.

`ask` requests input from the client. In a session this sends a request; without sessions the
handler ends with an `input_required` result, and runs again when the client retries with the
answers.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from facts import FACTS
from sdk_adapter import Json, Report


class Question(NamedTuple):
    """A request to the client."""

    method: str
    params: Json


class InputRequired(Exception):  # noqa: N818  it is no error
    """The handler needs answers to `questions`; `answers` are those that it has already."""

    def __init__(self, questions: Mapping[str, Question], answers: Json) -> None:
        super().__init__()
        self.questions = questions
        self.answers = answers

    def result(self) -> Json:
        """Return the `input_required` result."""
        requests = {
            key: {"method": method, "params": params}
            for key, (method, params) in self.questions.items()
        }
        state = json.dumps(self.answers)
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}


class Caller(Protocol):
    """The actions that an SDK's adapter gives a handler; a cancelled request ends at the client."""

    protocol_version: str

    async def log(self, level: str, data: object) -> None: ...

    async def progress(
        self, progress: float, total: float | None, message: str | None = None
    ) -> None: ...

    async def ask(self, questions: Mapping[str, Question]) -> Json:
        """Return the client's answers by key, or raise `InputRequired`."""

    async def request(self, question: Question, report: Report | None = None) -> Json:
        """Send a request in a session; `report` receives its progress."""

    async def notify(self, method: str, params: Json | None = None) -> None: ...


class SessionCaller:
    """A caller in a session: each question is a request."""

    async def request(self, question: Question, report: Report | None = None) -> Json:
        raise NotImplementedError

    async def ask(self, questions: Mapping[str, Question]) -> Json:
        """Send the questions as requests, one after the other."""
        return {key: await self.request(question) for key, question in questions.items()}


class InputRequiredCaller:
    """A caller without sessions: questions are sent in `input_required` results."""

    def __init__(self, params: Json) -> None:
        self.answers = {
            **json.loads(params.get("requestState") or "{}"),
            **(params.get("inputResponses") or {}),
        }

    async def request(self, question: Question, report: Report | None = None) -> Json:
        """Requests of the server do not exist without sessions."""
        raise NotImplementedError(question.method)

    async def ask(self, questions: Mapping[str, Question]) -> Json:
        """Return the answers that came with the request, or raise `InputRequired`."""
        open_ = {key: asked for key, asked in questions.items() if key not in self.answers}
        if open_:
            raise InputRequired(open_, self.answers)
        return {key: self.answers[key] for key in questions}


# Questions.


def to_model(prompt: str, **more: object) -> Question:
    """Return a sampling request."""
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    params = {"messages": [message], "maxTokens": FACTS.max_tokens, **more}
    return Question("sampling/createMessage", params)


def to_user(message: str, **properties: Json) -> Question:
    """Return an elicitation with a form whose fields are all required."""
    form = {"type": "object", "properties": properties, "required": list(properties)}
    params = {"mode": "form", "message": message, "requestedSchema": form}
    return Question("elicitation/create", params)


def for_roots() -> Question:
    return Question("roots/list", {})
