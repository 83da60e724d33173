"""How a handler asks its client: for what a user says, for its model's words, for its roots.

Two classes with the same words, as in `outside`. One handler serves clients of all revisions.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeVar, Unpack, overload

import attrs

from mcp_trio._engine import Handling, ProgressCallback, bare
from mcp_trio._errors import (
    URL_ELICITATION_REQUIRED,
    LocalProtocolError,
    RequestError,
    ToolError,
    UrlElicitationRequired,
)
from mcp_trio._schema import CreateMessageResult, ElicitationCompleteParams, Root
from mcp_trio._server.facts import ServedSession
from mcp_trio._server.outside import Outside, ThreadOutside
from mcp_trio._server.questions import (
    Answer,
    Ask,
    Elicitation,
    Roots,
    Sampling,
    UrlElicitation,
    answers,
    params_of_visits,
)
from mcp_trio._server.sampling import Question, SamplingOptions

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_COMPLETE: Final = "notifications/elicitation/complete"


@attrs.define(eq=False)
class Asking(Outside):
    """What an `async def` handler's context can ask the client.

    Each of these raises `CapabilityMissing` for what the client did not announce; then nothing was
    asked. If the client does not answer: `RequestError`, `RequestTimeout`, `ConnectionLost`; if it
    answers something else: `RemoteProtocolError`.
    """

    @overload
    async def elicit(self, message: str) -> Answer[None]: ...

    @overload
    async def elicit(self, message: str, kind: type[T]) -> Answer[T]: ...

    @overload
    async def elicit(self, message: str, kind: Mapping[str, Any]) -> Answer[dict[str, Any]]: ...

    @overload
    async def elicit(self, message: str, kind: object) -> Answer[Any]: ...

    async def elicit(self, message: str, kind: Any = None) -> Answer[Any]:
        """Ask the user to fill in a form, and give back what they did.

        The form is made from a flat class (attrs, dataclass, Struct, TypedDict, NamedTuple) with
        texts, numbers, booleans, dates, choices (Literal, Enum) and lists of choices, with defaults
        and constraints; or from one such type alone; or it is the `requestedSchema` itself. Without
        `kind` the user only agrees or not.

        Raises:
            TypeError: The class is not flat; the field is named.
            ValueError: The schema is none of a form.
            LocalProtocolError: A field asks for a secret, or a text has a link in it: for both
                there is `elicit_url`.
        """
        (answer,) = await self.ask_all(Elicitation(message, kind))
        return answer

    async def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> Answer[None]:
        """Ask the user to visit a URL, for what is not the client's business: secrets, payments.

        Accepted is consent, and not that anything is done there. Who visits the URL must be asked
        there who they are: it may be another person.

        Raises:
            LocalProtocolError: The URL is not https (or of this machine), or carries a password.
        """
        (answer,) = await self.ask_all(UrlElicitation(message, url, elicitation_id=elicitation_id))
        return answer

    async def elicitation_complete(self, elicitation_id: str | None) -> None:
        """Tell the client that what was to be done at a URL is done; see `Answer.elicitation_id`.

        Nothing is sent for None, for some clients cannot hear of it.

        Raises:
            LocalProtocolError: This client was not asked so, or has heard already (ELIC-32).
        """
        if elicitation_id is None:
            return
        if not self._served.elicitations.end(elicitation_id):
            raise LocalProtocolError(f"this client was not asked for {elicitation_id!r}")
        params = ElicitationCompleteParams(elicitation_id=elicitation_id)
        await self._handling.notify(_COMPLETE, params)

    async def sample(
        self,
        question: Question,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[SamplingOptions],
    ) -> CreateMessageResult:
        """Ask the client for a message of its language model.

        The question is a text, a conversation (a list of texts, contents, messages and results), or
        all params; options such as `max_tokens`, `system_prompt` and `tools` win over these. If the
        model wants to use tools, ask again with its result and those of the tools behind what was
        said before; and not for ever. `progress` is called with the client's reports, in this task.

        Raises:
            TypeError: The question is none, or there is no such option.
            LocalProtocolError: The tools' results do not belong to what the model said.
            RequestError: With code -1, that the user refused.
        """
        (result,) = await self.ask_all(Sampling(question, progress=progress, **options))
        return result

    async def list_roots(self) -> list[Root]:
        """Ask the client for its roots."""
        (roots,) = await self.ask_all(Roots())
        return roots

    @overload
    async def ask_all(self, a: Ask[A], /) -> tuple[A]: ...

    @overload
    async def ask_all(self, a: Ask[A], b: Ask[B], /) -> tuple[A, B]: ...

    @overload
    async def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], /) -> tuple[A, B, C]: ...

    @overload
    async def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], d: Ask[D], /) -> tuple[A, B, C, D]: ...

    @overload
    async def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]: ...

    async def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]:
        """Ask several questions at once, and give back the answers in their order.

        A modern client gets them in one round. If one fails, all do.
        """
        return await answers(self._handling, self._served, questions)


@attrs.define(eq=False)
class ThreadAsking(ThreadOutside):
    """What a `def` handler's context can ask the client; each call blocks the thread."""

    @property
    def _asking(self) -> Asking:
        return Asking(self._handling, self._served)

    @overload
    def elicit(self, message: str) -> Answer[None]: ...

    @overload
    def elicit(self, message: str, kind: type[T]) -> Answer[T]: ...

    @overload
    def elicit(self, message: str, kind: Mapping[str, Any]) -> Answer[dict[str, Any]]: ...

    @overload
    def elicit(self, message: str, kind: object) -> Answer[Any]: ...

    def elicit(self, message: str, kind: Any = None) -> Answer[Any]:
        """See `Context.elicit`."""
        return self._bridge.call(self._asking.elicit, message, kind)

    def elicit_url(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> Answer[None]:
        """See `Context.elicit_url`."""
        call = functools.partial(self._asking.elicit_url, elicitation_id=elicitation_id)
        return self._bridge.call(call, message, url)

    def elicitation_complete(self, elicitation_id: str | None) -> None:
        """See `Context.elicitation_complete`."""
        self._bridge.call(self._asking.elicitation_complete, elicitation_id)

    def sample(self, question: Question, **options: Unpack[SamplingOptions]) -> CreateMessageResult:
        """See `Context.sample`; reports of progress are not handed on."""
        return self._bridge.call(functools.partial(self._asking.sample, question, **options))

    def list_roots(self) -> list[Root]:
        """See `Context.list_roots`."""
        return self._bridge.call(self._asking.list_roots)

    @overload
    def ask_all(self, a: Ask[A], /) -> tuple[A]: ...

    @overload
    def ask_all(self, a: Ask[A], b: Ask[B], /) -> tuple[A, B]: ...

    @overload
    def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], /) -> tuple[A, B, C]: ...

    @overload
    def ask_all(self, a: Ask[A], b: Ask[B], c: Ask[C], d: Ask[D], /) -> tuple[A, B, C, D]: ...

    @overload
    def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]: ...

    def ask_all(self, *questions: Ask[Any]) -> tuple[Any, ...]:
        """See `Context.ask_all`."""
        return self._bridge.call(answers, self._handling, self._served, questions)


async def visit_first(handling: Handling, served: ServedSession, error: Exception) -> None:
    """Let the user visit what a handler has raised `UrlElicitationRequired` for.

    Returns when a modern client's user has agreed, so that the handler may run again.

    Raises:
        RequestError: With code -32042, for a client that calls again when it likes.
        ToolError: The user does not agree.
        CapabilityMissing: The client cannot be asked.
        Exception: `error` itself, if it is another.
    """
    required = bare(error)
    if not isinstance(required, UrlElicitationRequired):
        raise error
    visits: list[UrlElicitation] = required.elicitations
    if handling.request.peer.revision.has_elicitation_ids:
        params = params_of_visits(handling, served, visits)
        raise RequestError(URL_ELICITATION_REQUIRED, str(required), {"elicitations": params})
    agreed = await answers(handling, served, visits)
    if not all(answer.is_accepted for answer in agreed):
        raise ToolError(f"{required}, and the user has not agreed to it")
