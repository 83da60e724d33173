"""What a handler of the "everything" server may do meanwhile, whatever SDK it runs in.

It asks the client by `ask`: in a session its questions are requests of the server; where there is
none, the handler ends with what it wants to know, and runs again when that is answered.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from facts import FACTS
from parties import Json, Report


class Question(NamedTuple):
    """A request to the client."""

    method: str
    params: Json


class NeedsAnswers(Exception):  # noqa: N818  it is no fault
    """A handler cannot go on without the answers to these; `answers` are those that it has."""

    def __init__(self, questions: Mapping[str, Question], answers: Json) -> None:
        super().__init__()
        self.questions = questions
        self.answers = answers

    def result(self) -> Json:
        """What the request is answered with."""
        asked = {
            key: {"method": method, "params": params}
            for key, (method, params) in self.questions.items()
        }
        state = json.dumps(self.answers)
        return {"resultType": "input_required", "inputRequests": asked, "requestState": state}


class Caller(Protocol):
    """What an SDK lets a handler do meanwhile; what it gives up is cancelled at the client."""

    protocol_version: str

    async def log(self, level: str, data: object) -> None:
        """Send a log message."""

    async def progress(
        self, progress: float, total: float | None, message: str | None = None
    ) -> None:
        """Report on the request."""

    async def ask(self, questions: Mapping[str, Question]) -> Json:
        """The client's answers, by the keys of the questions.

        Raises:
            NeedsAnswers: They come with the next request.
        """

    async def request(self, question: Question, report: Report | None = None) -> Json:
        """The client's answer, in a session; `report` is called with its progress."""

    async def notify(self, method: str, params: Json | None = None) -> None:
        """Send a notification."""


class SessionCaller:
    """Questions are requests, see `Caller.request`."""

    async def request(self, question: Question, report: Report | None = None) -> Json:
        """See `Caller`."""
        raise NotImplementedError

    async def ask(self, questions: Mapping[str, Question]) -> Json:
        """See `Caller`: one after the other."""
        return {key: await self.request(question) for key, question in questions.items()}


class RoundCaller:
    """Questions are results, see `NeedsAnswers`; what was answered comes with `params`."""

    def __init__(self, params: Json) -> None:
        self.answers = {
            **json.loads(params.get("requestState") or "{}"),
            **(params.get("inputResponses") or {}),
        }

    async def request(self, question: Question, report: Report | None = None) -> Json:
        """There is no such thing here.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(question.method)

    async def ask(self, questions: Mapping[str, Question]) -> Json:
        """See `Caller`."""
        open_ = {key: asked for key, asked in questions.items() if key not in self.answers}
        if open_:
            raise NeedsAnswers(open_, self.answers)
        return {key: self.answers[key] for key in questions}


# Questions.


def to_model(prompt: str, **more: object) -> Question:
    """A question to the client's model."""
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    params = {"messages": [message], "maxTokens": FACTS.max_tokens, **more}
    return Question("sampling/createMessage", params)


def to_user(message: str, **properties: Json) -> Question:
    """A form for the client's user, in which everything has to be filled in."""
    form = {"type": "object", "properties": properties, "required": list(properties)}
    params = {"mode": "form", "message": message, "requestedSchema": form}
    return Question("elicitation/create", params)


def for_roots() -> Question:
    """The question for the client's roots."""
    return Question("roots/list", {})
