"""Requests of a handler to its client: elicitation by forms and URLs, sampling, roots.

A `ClientQuestion` knows the capability that the client needs for it, its method and params, and
how to read the client's result. A legacy client receives it as a request, and a stateless client in
an `InputRequiredResult`, which the client answers with a retry.

https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from urllib.parse import parse_qsl, urlsplit

import attrs
import msgspec

from mcp_trio._protocol.client_features import forbidden_tool_use, unbalanced_tool_use
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import METHODS
from mcp_trio._server.forms import SECRETS, FormError, form_of, reject_link
from mcp_trio._session.calls import ProgressCallback, Question
from mcp_trio._session.effects import randomness
from mcp_trio._session.handlers import Handling
from mcp_trio._session.input_required import ask_all
from mcp_trio.errors import (
    URL_ELICITATION_REQUIRED,
    CapabilityMissing,
    LocalProtocolError,
    RemoteProtocolError,
    RequestError,
    ToolError,
    UrlElicitationRequired,
)
from mcp_trio.types import (
    AudioContent,
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    EmptyParams,
    ImageContent,
    IncludeContext,
    ListRootsResult,
    ModelPreferences,
    Root,
    SamplingMessage,
    TextContent,
    Tool,
    ToolChoice,
    ToolResultContent,
)

if TYPE_CHECKING:
    from mcp_trio._server.handlers import ServedSession

# Questions --------------------------------------------------------------------------------------

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ELICIT: Final = "elicitation/create"
_SAMPLE: Final = "sampling/createMessage"
_LIST_ROOTS: Final = "roots/list"
_UUID_BITS: Final = 128


class Answer(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """A user's answer to a form or a URL.

    Attributes:
        action: "accept", "decline" (the user rejected it), or "cancel" (the user dismissed it).
            "accept" of a URL means that the user agrees to open it, not that they have finished.
        data: The content of an accepted form; else None.
        elicitation_id: The id by which the client is notified when a URL elicitation is complete.
            None for a form, and for a client whose protocol version has no such notification.
    """

    action: Literal["accept", "decline", "cancel"]
    data: T_co | None = None
    elicitation_id: str | None = None

    @property
    def is_accepted(self) -> bool:
        """True if the user accepted."""
        return self.action == "accept"


class ClientQuestion(ABC, Generic[T_co]):
    """A question for `ctx.ask_all`: an `Elicitation`, `UrlElicitation`, `Sampling` or `Roots`."""

    __slots__ = ()

    @abstractmethod
    def missing_capabilities(self, peer: Peer) -> Mapping[str, Any]:
        """Return the capabilities that the question needs and the client did not announce."""

    @abstractmethod
    def as_sent(self) -> Question:
        """Return the method and params to send, and how the result is checked.

        Raises:
            TypeError, ValueError: The question is malformed.
            LocalProtocolError: The protocol forbids the question.
        """

    @abstractmethod
    def read(self, result: Any) -> T_co:
        """Return the answer in the client's result.

        Raises:
            RemoteProtocolError: The result is no valid answer to the question.
        """


async def ask_client(
    handling: Handling, served: "ServedSession", questions: Sequence[ClientQuestion[Any]]
) -> tuple[Any, ...]:
    """Ask the client several questions at once, and return the answers in their order.

    Nothing is sent if the protocol forbids one of them, or the client lacks a capability for it.
    """
    questions = prepare_questions(handling, served, questions)
    results = await ask_all(handling, [question.as_sent() for question in questions])
    return tuple(question.read(result) for question, result in zip(questions, results, strict=True))


def prepare_questions(
    handling: Handling, served: "ServedSession", questions: Sequence[ClientQuestion[Any]]
) -> list[ClientQuestion[Any]]:
    """Return the questions as this client can receive them, after `check_capabilities`.

    A URL elicitation gets an id if the client can be notified of its completion. The session
    remembers the id until then.
    """
    check_capabilities(handling.request.peer, questions)
    has_ids = handling.request.peer.protocol_version.has_elicitation_ids
    ready: list[ClientQuestion[Any]] = []
    for question in questions:
        if not isinstance(question, UrlElicitation):
            ready.append(question)
        elif not has_ids:
            ready.append(attrs.evolve(question, elicitation_id=None))
        else:
            elicitation_id = question.elicitation_id or str(
                uuid.UUID(int=randomness(handling).getrandbits(_UUID_BITS), version=4)
            )
            served.elicitations.begin(elicitation_id)
            ready.append(attrs.evolve(question, elicitation_id=elicitation_id))
    return ready


def check_capabilities(peer: Peer, questions: Sequence[ClientQuestion[Any]]) -> None:
    """Check that the client announced every capability that the questions need.

    Raises:
        CapabilityMissing: The client did not announce one; the text names all that are missing.
    """
    missing: dict[str, Any] = {}
    for question in questions:
        for name, inner in question.missing_capabilities(peer).items():
            missing[name] = {**missing.get(name, {}), **inner}
    if missing:
        paths = [
            f"{name}.{path}" if path else name
            for name, inner in missing.items()
            for path in inner or [""]  # the whole capability is missing
        ]
        raise CapabilityMissing(f"the client did not announce {', '.join(paths)}", missing)


# Elicitation ------------------------------------------------------------------------------------


@attrs.define(init=False, eq=False)
class Elicitation(ClientQuestion[Answer[T]]):
    """A form that the user is asked to fill in.

    Attributes:
        message: The text that the client shows.
        kind: A class with fields, the type of one value, a JSON Schema, or None for a confirmation.
    """

    message: str
    kind: Any

    @overload
    def __init__(self: "Elicitation[None]", message: str) -> None: ...

    @overload
    def __init__(self, message: str, kind: type[T]) -> None: ...

    @overload
    def __init__(
        self: "Elicitation[dict[str, Any]]", message: str, kind: Mapping[str, Any]
    ) -> None: ...

    @overload
    def __init__(self: "Elicitation[Any]", message: str, kind: object) -> None: ...

    def __init__(self, message: str, kind: Any = None) -> None:
        self.message = message
        self.kind = kind

    def missing_capabilities(self, peer: Peer) -> Mapping[str, Any]:
        # A client that announces elicitation without a mode supports forms.
        can_form = peer.can("elicitation.form") or not peer.can("elicitation.url")
        return {} if can_form and peer.can("elicitation") else {"elicitation": {"form": {}}}

    def as_sent(self) -> Question:
        reject_link(self.message)
        params = ElicitParams(
            message=self.message, mode="form", requested_schema=form_of(self.kind).schema
        )
        return Question(method=_ELICIT, params=params, check=self.read)

    def read(self, result: ElicitResult) -> Answer[T]:
        if result.action != "accept":
            return Answer(action=result.action)
        try:
            return Answer(action="accept", data=form_of(self.kind).read(result.content or {}))
        except FormError as error:
            raise RemoteProtocolError(
                f"{_ELICIT}: the answer does not match the form: {error}"
            ) from error


@attrs.frozen(eq=False)
class UrlElicitation(ClientQuestion[Answer[None]]):
    """A URL that the user is asked to open, which must contain neither credentials nor user data.

    Attributes:
        message: The text that the client shows.
        url: The URL.
        elicitation_id: The id by which the client is notified of the completion, if its protocol
            version has that notification; None stands for a random id.
    """

    message: str
    url: str
    elicitation_id: str | None = attrs.field(default=None, kw_only=True)

    def missing_capabilities(self, peer: Peer) -> Mapping[str, Any]:
        can_open_url = peer.protocol_version.has_url_elicitation and peer.can("elicitation.url")
        return {} if can_open_url else {"elicitation": {"url": {}}}

    def as_sent(self) -> Question:
        # A server over stdio starts without the rules of HTTP.
        from mcp_trio._protocol.security import is_loopback

        # https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#safe-url-handling
        try:
            parts = urlsplit(self.url)
            host = parts.hostname
        except ValueError as error:
            raise LocalProtocolError(f"not a URL that a user can open: {error}") from None
        if not host or any(map(str.isspace, self.url)):
            raise LocalProtocolError(f"not a URL that a user can open: {self.url!r}")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
            raise LocalProtocolError(
                "a URL for a user needs https; http is for the loopback interface only"
            )
        named = [*parse_qsl(parts.query), *parse_qsl(parts.fragment)]
        if "@" in parts.netloc or any(SECRETS.covers(name) for name, _ in named):
            raise LocalProtocolError("a URL for a user must not contain credentials")
        params = ElicitParams(
            message=self.message, mode="url", url=self.url, elicitation_id=self.elicitation_id
        )
        return Question(method=_ELICIT, params=params)

    def read(self, result: ElicitResult) -> Answer[None]:
        return Answer(action=result.action, elicitation_id=self.elicitation_id)


async def elicit_urls(
    handling: Handling, served: "ServedSession", required: UrlElicitationRequired
) -> None:
    """Ask the user to visit the URLs that a handler needs; return when the user has agreed.

    Raises:
        RequestError: With code -32042, for a client that has to visit the URLs and then repeat the
            request.
        ToolError: The user does not agree.
        CapabilityMissing: The client does not support URL elicitation.
        LocalProtocolError: A URL breaks a rule of the protocol.
    """
    elicitations: list[UrlElicitation] = required.elicitations
    if handling.request.peer.protocol_version.has_elicitation_ids:
        ready = prepare_questions(handling, served, elicitations)
        params: list[Any] = msgspec.to_builtins([each.as_sent().params for each in ready])
        raise RequestError(URL_ELICITATION_REQUIRED, str(required), {"elicitations": params})
    agreed = await ask_client(handling, served, elicitations)
    if not all(answer.is_accepted for answer in agreed):
        raise ToolError(f"{required}, and the user has not agreed to it")


# Sampling ---------------------------------------------------------------------------------------

# The `maxTokens` of a request for which the handler gives none; the protocol requires the field.
MAX_TOKENS: Final = 1024

SamplingContent: TypeAlias = TextContent | ImageContent | AudioContent | ToolResultContent
SamplingTurn: TypeAlias = (
    str | SamplingContent | SamplingMessage | CreateMessageResult | Sequence[ToolResultContent]
)
SamplingInput: TypeAlias = CreateMessageParams | SamplingTurn | Sequence[SamplingTurn]
"""The input of a model: a text of the user, a conversation, or complete params.

In a conversation, an earlier answer of the model is its `CreateMessageResult`. A list inside the
conversation is one message with the results of the tools that the model has used.
"""


class SamplingOptions(TypedDict, total=False):
    """Options of a sampling request; `CreateMessageParams` describes them."""

    max_tokens: int
    model_preferences: ModelPreferences
    system_prompt: str
    include_context: IncludeContext
    temperature: float
    stop_sequences: list[str]
    metadata: dict[str, Any]
    tools: list[Tool]
    tool_choice: ToolChoice


@attrs.define(init=False, eq=False)
class Sampling(ClientQuestion[CreateMessageResult]):
    """A request for a message of the client's language model.

    Attributes:
        prompt: The input of the model.
        progress: The callback that receives the client's progress notifications.
        options: The other params of the request.
    """

    prompt: SamplingInput
    progress: ProgressCallback | None
    options: SamplingOptions

    def __init__(
        self,
        prompt: SamplingInput,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[SamplingOptions],
    ) -> None:
        self.prompt = prompt
        self.progress = progress
        self.options = options

    @property
    def _params(self) -> CreateMessageParams:
        """The complete params; `options` override those in `prompt`."""
        prompt = self.prompt
        if not isinstance(prompt, CreateMessageParams):
            turns = prompt if isinstance(prompt, list | tuple) else [prompt]
            messages = [_sampling_message(turn) for turn in turns]
            prompt = CreateMessageParams(messages=messages, max_tokens=MAX_TOKENS)
        error = unbalanced_tool_use(prompt.messages)
        if error is not None:
            raise LocalProtocolError(f"{_SAMPLE}: {error}")
        return msgspec.structs.replace(prompt, **self.options)

    def missing_capabilities(self, peer: Peer) -> Mapping[str, Any]:
        params, missing = self._params, dict[str, Any]()
        uses_tools = params.tools is not None or params.tool_choice is not None
        if uses_tools and not peer.can("sampling.tools"):
            missing["tools"] = {}
        announces = peer.protocol_version.announces_context
        uses_context = announces and params.include_context not in (None, "none")
        if uses_context and not peer.can("sampling.context"):
            missing["context"] = {}
        return {} if peer.can("sampling") and not missing else {"sampling": missing}

    def as_sent(self) -> Question:
        params = self._params
        try:
            # The messages are typed, and may be large.
            options = msgspec.structs.replace(params, messages=[])
            msgspec.convert(msgspec.to_builtins(options), CreateMessageParams)
        except (TypeError, msgspec.ValidationError) as error:
            raise TypeError(f"{_SAMPLE}: an option is invalid: {error}") from error
        return Question(method=_SAMPLE, params=params, check=self.read, on_progress=self.progress)

    def read(self, result: CreateMessageResult) -> CreateMessageResult:
        """Return the model's message; content that is a list of one block becomes that block."""
        misuse = forbidden_tool_use(self._params, result)
        if misuse is not None:
            raise RemoteProtocolError(f"{_SAMPLE}: the answer is invalid: {misuse}")
        match result.content:
            case [block]:
                return msgspec.structs.replace(result, content=block)
            case _:
                return result


def _sampling_message(turn: Any) -> SamplingMessage:
    match turn:
        case SamplingMessage():
            return turn
        case CreateMessageResult():
            return SamplingMessage(role=turn.role, content=turn.content)
        case str():
            return SamplingMessage(role="user", content=TextContent(text=turn))
        case [*blocks] if blocks and all(isinstance(it, ToolResultContent) for it in blocks):
            return SamplingMessage(role="user", content=blocks)
        case _ if isinstance(turn, SamplingContent):
            return SamplingMessage(role="user", content=turn)
        case _:
            raise TypeError(f"a message is a text, content or a SamplingMessage, not {turn!r}")


# Roots, and questions by their method ------------------------------------------------------------


@attrs.frozen(eq=False)
class Roots(ClientQuestion[list[Root]]):
    """A request for the client's roots."""

    def missing_capabilities(self, peer: Peer) -> Mapping[str, Any]:
        return {} if peer.can("roots") else {"roots": {}}

    def as_sent(self) -> Question:
        return Question(method=_LIST_ROOTS, params=EmptyParams())

    def read(self, result: ListRootsResult) -> list[Root]:
        return result.roots


def question_of(method: str, params: Any) -> ClientQuestion[Any]:
    """Return the question for a method and params in an `InputRequiredResult`.

    Raises:
        LocalProtocolError: The method is not allowed there, or the params are invalid.
    """
    known = (_ELICIT, _SAMPLE, _LIST_ROOTS)
    if method not in known:
        raise LocalProtocolError(f"{method} is not an input request: use {', '.join(known)}")
    kind = METHODS[method].params
    try:
        decoded = params if isinstance(params, kind) else msgspec.convert(params or {}, kind)
    except msgspec.ValidationError as error:
        raise LocalProtocolError(f"{method}: {error}") from error
    match decoded:
        case CreateMessageParams():
            return Sampling(decoded)
        case ElicitParams(url=str(url)):
            return UrlElicitation(decoded.message, url, elicitation_id=decoded.elicitation_id)
        case ElicitParams():
            return Elicitation(decoded.message, decoded.requested_schema)
        case _:
            return Roots()
