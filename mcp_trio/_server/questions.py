"""What a handler may ask its client: each question, and what comes back for it.

A question knows which capability it needs, how it is said to a client of some revision, and how
the client's result is read. How it travels, the engine knows: to a legacy client as a request, to a
modern one in a round of the handler's own request.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final, Generic, Literal, TypeVar, Unpack, overload
from urllib.parse import SplitResult, parse_qsl, urlsplit

import attrs
import msgspec

from mcp_trio._engine import Asked, Handling, ProgressCallback, ask_all, randomness
from mcp_trio._errors import CapabilityMissing, LocalProtocolError, RemoteProtocolError
from mcp_trio._protocol import METHODS, Peer
from mcp_trio._protocol.tool_results import misused_tools
from mcp_trio._schema import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    EmptyParams,
    ListRootsResult,
    Root,
)
from mcp_trio._server.facts import ServedSession
from mcp_trio._server.forms import SECRETS, Form, FormError, form_of, refuse_link
from mcp_trio._server.sampling import Question, SamplingOptions, sampling_params

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ELICIT: Final = "elicitation/create"
_SAMPLE: Final = "sampling/createMessage"
_LIST_ROOTS: Final = "roots/list"
_UUID_BITS: Final = 128


@attrs.frozen(kw_only=True)
class Answer(Generic[T_co]):
    """What a user did with a form or a URL.

    Attributes:
        action: "accept" (of a URL that is consent, and not that anything is done yet), "decline"
            (the user says no), or "cancel" (the user went away).
        data: What was filled in; None unless a form was accepted.
        elicitation_id: By which to tell the client later that what was to be done at a URL is
            done; None for forms, and for clients that cannot hear of it.
    """

    action: Literal["accept", "decline", "cancel"]
    data: T_co | None = None
    elicitation_id: str | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the user has agreed."""
        return self.action == "accept"


class Ask(ABC, Generic[T_co]):
    """A question for `ctx.ask_all`: an `Elicitation`, `UrlElicitation`, `Sampling` or `Roots`."""

    __slots__ = ()

    @abstractmethod
    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """What the client would have to announce, and has not; empty if nothing is missing."""

    @abstractmethod
    def asked(self) -> Asked:
        """The question in the protocol's words."""

    @abstractmethod
    def read(self, result: Any) -> T_co:
        """The answer, from the client's result.

        Raises:
            RemoteProtocolError: It does not fit the question.
        """


async def answers(
    handling: Handling, served: ServedSession, questions: Sequence[Ask[Any]]
) -> tuple[Any, ...]:
    """What the client says to all the questions, in their order.

    Raises:
        CapabilityMissing: It has not announced that it can be asked one of them; it is asked none.
        LocalProtocolError: One of them is against the rules; the client is asked none.
        RemoteProtocolError: It answers something else.
        RequestError, RequestTimeout, ConnectionLost: It does not answer.
    """
    questions = askable(handling, served, questions)
    results = await ask_all(handling, [question.asked() for question in questions])
    rows = zip(questions, results, strict=True)
    return tuple(question.read(result) for question, result in rows)


def askable(
    handling: Handling, served: ServedSession, questions: Sequence[Ask[Any]]
) -> list[Ask[Any]]:
    """The questions as this client is asked them: a visit has an id if its end can be told.

    Raises:
        CapabilityMissing: It has not announced that it can be asked one of them.
    """
    refuse_unannounced(handling.request.peer, questions)
    return [_with_id(handling, served, question) for question in questions]


def refuse_unannounced(peer: Peer, questions: Sequence[Ask[Any]]) -> None:
    """Refuse what cannot be asked of this client.

    Raises:
        CapabilityMissing: It has not announced that.
    """
    missing: dict[str, Any] = {}
    for question in questions:
        for name, inner in question.needs(peer).items():
            missing[name] = {**missing.get(name, {}), **inner}
    if missing:
        paths = [
            f"{name}.{path}" if path else name
            for name, inner in missing.items()
            for path in inner or [""]
        ]
        raise CapabilityMissing(f"the client did not announce {', '.join(paths)}", missing)


# Elicitation ------------------------------------------------------------------------------------


@attrs.define(init=False, eq=False)
class Elicitation(Ask[Answer[T]]):
    """Asks the user to fill in a form; `kind` says what is wanted, see `Context.elicit`."""

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

    @property
    def _form(self) -> Form:
        return form_of(self.kind)

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """See `Ask`; a client that says of no mode that it can do it can do forms (ELIC-03)."""
        can = peer.can("elicitation.form") or not peer.can("elicitation.url")
        return {} if can and peer.can("elicitation") else {"elicitation": {"form": {}}}

    def asked(self) -> Asked:
        """See `Ask`."""
        refuse_link(self.message)
        params = ElicitParams(message=self.message, mode="form", requested_schema=self._form.schema)
        return Asked(method=_ELICIT, params=params, check=self.read)

    def read(self, result: ElicitResult) -> Answer[T]:
        """See `Ask`."""
        if result.action != "accept":
            return Answer(action=result.action)
        try:
            return Answer(action="accept", data=self._form.read(result.content or {}))
        except FormError as error:
            raise RemoteProtocolError(f"{_ELICIT}: the answer does not fit: {error}") from error


@attrs.frozen(eq=False)
class UrlElicitation(Ask[Answer[None]]):
    """Asks the user to visit a URL, which is to tell nothing of the user and lets nobody in.

    `elicitation_id` is for clients to which its completion is told, and drawn if it is not given.
    """

    message: str
    url: str
    elicitation_id: str | None = attrs.field(default=None, kw_only=True)

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """See `Ask`."""
        can = peer.revision.has_url_elicitation and peer.can("elicitation.url")
        return {} if can else {"elicitation": {"url": {}}}

    def asked(self) -> Asked:
        """See `Ask`."""
        _check_url(self.url)
        params = ElicitParams(
            message=self.message, mode="url", url=self.url, elicitation_id=self.elicitation_id
        )
        return Asked(method=_ELICIT, params=params)

    def read(self, result: ElicitResult) -> Answer[None]:
        """See `Ask`."""
        return Answer(action=result.action, elicitation_id=self.elicitation_id)


def _with_id(handling: Handling, served: ServedSession, question: Ask[Any]) -> Ask[Any]:
    """The question, with an id if it is of a visit whose end the client may hear of (ELIC-28)."""
    if not isinstance(question, UrlElicitation):
        return question
    if not handling.request.peer.revision.has_elicitation_ids:
        return attrs.evolve(question, elicitation_id=None)
    elicitation_id = question.elicitation_id or _drawn_id(handling)
    served.elicitations.begin(elicitation_id)
    return attrs.evolve(question, elicitation_id=elicitation_id)


def _drawn_id(handling: Handling) -> str:
    return str(uuid.UUID(int=randomness(handling).getrandbits(_UUID_BITS), version=4))


def _check_url(url: str) -> None:
    """Refuse what nobody should be sent to (ELIC-27, ELIC-42, ELIC-44)."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise LocalProtocolError(f"no URL to send a user to: {error}") from None
    if not host or any(map(str.isspace, url)):
        raise LocalProtocolError(f"no URL to send a user to: {url!r}")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise LocalProtocolError("a user is sent to https, or to http on this machine only")
    if _tells_secrets(parts):
        raise LocalProtocolError("the URL for a user carries what lets others in, too")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tells_secrets(parts: SplitResult) -> bool:
    named = [*parse_qsl(parts.query), *parse_qsl(parts.fragment)]
    return "@" in parts.netloc or any(SECRETS.covers(name) for name, _ in named)


def params_of_visits(
    handling: Handling, served: ServedSession, visits: Sequence[UrlElicitation]
) -> list[Any]:
    """What a client is told of visits that it is not asked for, as data of an error (ERR-17).

    Raises:
        CapabilityMissing: The client cannot be asked for them at all.
        LocalProtocolError: A URL is none that a user may be sent to.
    """
    params = [visit.asked().params for visit in askable(handling, served, visits)]
    told: list[Any] = msgspec.to_builtins(params)
    return told


# The client's model, and its roots --------------------------------------------------------------


@attrs.define(init=False, eq=False)
class Sampling(Ask[CreateMessageResult]):
    """Asks the client's model; see `Context.sample` for the question and its options."""

    question: Question
    progress: ProgressCallback | None
    options: SamplingOptions

    def __init__(
        self,
        question: Question,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[SamplingOptions],
    ) -> None:
        self.question = question
        self.progress = progress
        self.options = options

    @property
    def _params(self) -> CreateMessageParams:
        return sampling_params(self.question, self.options)

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """See `Ask`."""
        params, missing = self._params, dict[str, Any]()
        uses_tools = params.tools is not None or params.tool_choice is not None
        if uses_tools and not peer.can("sampling.tools"):
            missing["tools"] = {}
        uses_context = params.include_context not in (None, "none")
        if uses_context and peer.revision.announces_context and not peer.can("sampling.context"):
            missing["context"] = {}
        return {} if peer.can("sampling") and not missing else {"sampling": missing}

    def asked(self) -> Asked:
        """See `Ask`."""
        return Asked(
            method=_SAMPLE, params=self._params, check=self.read, on_progress=self.progress
        )

    def read(self, result: CreateMessageResult) -> CreateMessageResult:
        """See `Ask`; a list of one block is that block (TRAP-85)."""
        misuse = misused_tools(self._params, result)
        if misuse is not None:
            raise RemoteProtocolError(f"{_SAMPLE}: the answer does not fit: {misuse}")
        match result.content:
            case [block]:
                return msgspec.structs.replace(result, content=block)
            case _:
                return result


@attrs.frozen(eq=False)
class Roots(Ask[list[Root]]):
    """Asks the client for its roots."""

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """See `Ask`."""
        return {} if peer.can("roots") else {"roots": {}}

    def asked(self) -> Asked:
        """See `Ask`."""
        return Asked(method=_LIST_ROOTS, params=EmptyParams())

    def read(self, result: ListRootsResult) -> list[Root]:
        """See `Ask`."""
        return result.roots


# Questions in the protocol's words --------------------------------------------------------------


def ask_of(method: str, params: Any) -> Ask[Any]:
    """The question that a method and its params are, of those that a round may have (MRTR-06).

    Raises:
        LocalProtocolError: It is none.
    """
    read = _ASKS.get(method)
    if read is None:
        raise LocalProtocolError(f"{method} is no question to a client")
    kind = METHODS[method].params
    try:
        whole = params if isinstance(params, kind) else msgspec.convert(params or {}, kind)
    except msgspec.ValidationError as error:
        raise LocalProtocolError(f"{method}: {error}") from error
    return read(whole)


def _elicitation_of(params: ElicitParams) -> Ask[Any]:
    if params.url is not None:
        return UrlElicitation(params.message, params.url, elicitation_id=params.elicitation_id)
    return Elicitation(params.message, params.requested_schema)


_ASKS: Final[Mapping[str, Callable[[Any], Ask[Any]]]] = {
    _ELICIT: _elicitation_of,
    _SAMPLE: Sampling,
    _LIST_ROOTS: lambda _params: Roots(),
}
