"""Questions of a handler to its client: elicitation forms and URLs, sampling, roots.

A question knows which capability it needs, how it is said to a client of some revision, and how
the client's result is read. How it travels, the engine knows: to a legacy client as a request, to a
modern one in a round of the handler's own request.
"""

import datetime as dt
import enum
import functools
import re
import types
import typing
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from urllib.parse import SplitResult, parse_qsl, urlsplit

import attrs
import msgspec

from mcp_trio._journal.secret_detection import DEFAULT_SECRET_NAMES, SecretNames
from mcp_trio._protocol.forms import FORMATS, check_form, form_errors, form_members
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.sampling import forbidden_tool_use, unbalanced_tool_use
from mcp_trio._server.facts import ServedSession
from mcp_trio._server.introspection import (
    Field,
    bare,
    class_of,
    fields_of,
    has_fields,
    is_array,
    is_union,
)
from mcp_trio._server.type_adapters import TypeReader, convert, json_schema, name_of
from mcp_trio._server.validation_errors import line
from mcp_trio._session.calls import Asked, ProgressCallback
from mcp_trio._session.effects import randomness
from mcp_trio._session.handlers import Handling
from mcp_trio._session.input_required import ask_all
from mcp_trio.errors import CapabilityMissing, LocalProtocolError, RemoteProtocolError
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

# --------------------
# From a type to a form that a client's user fills in, and from what they said to a value of it.
#
# A form is made at first use, and refused then if the type is not flat. Its schema is that of the
# newest revision; what older clients do not know is taken out on the way to them.


VALUE: Final = "value"
"""The member of a form that asks for one value alone."""

SECRETS: Final = SecretNames(DEFAULT_SECRET_NAMES)
"""What a form never asks for, and no URL carries, by its name (ELIC-25, ELIC-42)."""

_LINK: Final = re.compile(r"\bhttps?://", re.IGNORECASE)
_DEFINITIONS: Final = "#/$defs/"

# What of a JSON Schema a form can say too; the rest is checked when the answer is here.
_WORDS: Final[tuple[str, ...]] = ("title", "description")
_LIMITS: Final[dict[Any, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
_FORMATS: Final[dict[Any, str]] = {dt.datetime: "date-time", dt.date: "date"}


class FormError(ValueError):
    """What was filled in does not fit the form; `lines` has one short line for each mistake."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


@attrs.frozen(eq=False)
class Form:
    """A form: what the client is told, and what makes a value of its answer."""

    schema: dict[str, Any]
    build: Callable[[Mapping[str, Any]], Any]

    def read(self, content: Mapping[str, Any]) -> Any:
        """The value that a user has given.

        Raises:
            FormError: It does not fit (ELIC-23).
        """
        mistakes = form_errors(content, self.schema)
        if mistakes:
            raise FormError(mistakes)
        return self.build(content)


def form_of(kind: Any) -> Form:
    """The form for a class, for one value alone, for a schema, or (None) for a confirmation.

    Raises:
        TypeError: The type is not flat; the member is named (ELIC-09).
        ValueError: The schema is none of a form; the member is named.
        LocalProtocolError: A member is a secret, which is asked for by URL (ELIC-25, ELIC-26).
    """
    if isinstance(kind, Mapping):
        return _form_by_schema(dict(cast("Mapping[str, Any]", kind)))
    return _form_of_class(kind) if isinstance(kind, type) else _form_of_hint(kind)


# Only classes: hints can be equal without being the same, as Literals in another order.
@functools.lru_cache
def _form_of_class(kind: type) -> Form:
    return _form_of_hint(kind)


def _form_of_hint(kind: Any) -> Form:
    if kind is None or kind is types.NoneType:
        return Form(_object({}, ()), lambda _: None)
    return _Members(kind).form() if has_fields(kind) else _form_of_value(kind)


def _form_by_schema(schema: dict[str, Any]) -> Form:
    for name, member in form_members(schema).items():
        _reject_unfit(name, member)
    check_form(schema)
    return Form(schema, dict)


def _form_of_value(hint: Any) -> Form:
    member = _Member(owner="a form", name=VALUE, hint=hint)
    return Form(
        _object({VALUE: member.schema()}, () if member.is_optional else (VALUE,)),
        lambda content: member.read(content[VALUE]) if VALUE in content else None,
    )


def _object(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": [*required]} if required else schema


def reject_link(text: str) -> None:
    """Refuse a text of a form that leads elsewhere (ELIC-43).

    Raises:
        LocalProtocolError: It does.
    """
    if _LINK.search(text):
        raise LocalProtocolError(f"a form has no links: ask by elicit_url instead of {text!r}")


def _reject_unfit(name: str, member: Mapping[str, Any]) -> None:
    if member.get("format") == "password" or SECRETS.covers(name):
        raise LocalProtocolError(f"{name}: a form asks for no secrets: ask by elicit_url")
    for words in _kept(member, _WORDS).values():
        reject_link(words)


# The members of a class -------------------------------------------------------------------------


@attrs.define(eq=False)
class _Members:
    """The members of a class, each with what reads it."""

    kind: Any
    members: Sequence[tuple[Field, "_Member"]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        owner = name_of(self.kind)
        self.members = [
            (field, _Member(owner=owner, name=field.wire_name, hint=field.hint))
            for field in fields_of(self.kind)
        ]

    def form(self) -> Form:
        """Their form."""
        required = [
            field.wire_name
            for field, member in self.members
            if field.is_required and not member.is_optional
        ]
        properties = {field.wire_name: _with_default(field, it) for field, it in self.members}
        return Form(_object(properties, required), self.build)

    def build(self, content: Mapping[str, Any]) -> Any:
        """The object; what a validator of its class refuses is a mistake, too."""
        mistakes: list[str] = []
        values = dict(self._values(content, mistakes))
        if mistakes:
            raise FormError(mistakes)
        try:
            return class_of(self.kind)(**values)
        except (TypeError, ValueError) as error:
            raise FormError([str(error)]) from error

    def _values(self, content: Mapping[str, Any], mistakes: list[str]) -> Iterator[tuple[str, Any]]:
        for field, member in self.members:
            if field.wire_name in content:
                try:
                    yield field.name, member.read(content[field.wire_name])
                except FormError as error:
                    mistakes += error.lines
            elif field.is_required:  # and optional, or the form would have missed it
                yield field.name, None


def _with_default(field: Field, member: "_Member") -> dict[str, Any]:
    schema = member.schema()
    if field.default in (msgspec.NODEFAULT, None):
        return schema
    return {**schema, "default": msgspec.to_builtins(field.default)}


# One member -------------------------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False)
class _Member:
    """One member of a form; `owner` and `name` say in errors which.

    `core` is its type without None and without metadata, and `told` its JSON Schema.
    """

    owner: str
    name: str
    hint: Any
    readable: Any = attrs.field(init=False)
    core: Any = attrs.field(init=False)
    told: Mapping[str, Any] = attrs.field(init=False)
    is_optional: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.core, self.is_optional = _without_none(self.hint)
        try:
            self.readable = TypeReader().readable(self.hint)
            self.told = _flat(json_schema(self.readable))
        except TypeError as error:
            raise self._rejection(str(error)) from error

    def read(self, value: Any) -> Any:
        """The value, from what was filled in."""
        try:
            return convert(value, self.readable)
        except msgspec.ValidationError as error:
            raise FormError([line(error, f".{self.name}")]) from error

    def schema(self) -> dict[str, Any]:
        """What the form says of it."""
        _reject_unfit(self.name, self.told)
        return {**_kept(self.told, _WORDS), **self._shape()}

    def _shape(self) -> dict[str, Any]:
        told = self.told
        choices = _choices(self.core)
        if choices is not None:
            return {"type": "string", **self._chosen(choices, "oneOf")}
        kind = told.get("type")
        if kind not in _LIMITS:
            raise self._rejection(f"a form is flat, and has no {name_of(self.core)}")
        shape = {"type": kind, **_limits(told, _LIMITS[kind])}
        if kind == "array":
            return {**shape, "items": self._items()}
        named = _FORMATS.get(self.core, told.get("format"))
        return {**shape, "format": named} if named in FORMATS else shape

    def _items(self) -> dict[str, Any]:
        inner, *others = typing.get_args(self.core) or (Any,)
        is_row = others not in ([], [...])
        choices = None if is_row or not is_array(self.core) else _choices(bare(inner))
        if choices is None:
            raise self._rejection("a list in a form is of choices: of Literal or Enum")
        chosen = self._chosen(choices, "anyOf")
        return chosen if "anyOf" in chosen else {"type": "string", **chosen}

    def _chosen(self, choices: Mapping[Any, str | None], titled: str) -> dict[str, Any]:
        if not all(isinstance(value, str) for value in choices):
            raise self._rejection("the choices of a form are texts")
        if None in choices.values():
            return {"enum": [*choices]}
        return {titled: [{"const": it, "title": title} for it, title in choices.items()]}

    def _rejection(self, text: str) -> TypeError:
        return TypeError(f"{self.owner}, {self.name}: {text}")


def _without_none(hint: Any) -> tuple[Any, bool]:
    """What a type is besides None, without metadata, and whether it may be None."""
    found = bare(hint)
    if not is_union(found):
        return found, False
    others = [it for it in typing.get_args(found) if it is not types.NoneType]
    is_optional = len(others) < len(typing.get_args(found))
    return (bare(others[0]) if len(others) == 1 else found), is_optional


def _choices(hint: Any) -> dict[Any, str | None] | None:
    """What may be chosen, with titles if it is an Enum; None if the type is no choice.

    The values of an Enum are for programs, and so it is shown by its names.
    """
    if typing.get_origin(hint) is Literal:
        return dict.fromkeys(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {it.value: it.name.replace("_", " ").capitalize() for it in hint}
    return None


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without `null` and references; what stands around them wins, as descriptions."""
    around = {keyword: it for keyword, it in schema.items() if keyword not in ("anyOf", "$ref")}
    others = [it for it in schema.get("anyOf", ()) if it != {"type": "null"}]
    if len(others) == 1:
        return _flat({**others[0], **around})
    if "$ref" in schema:
        return {**schema["$defs"][schema["$ref"].removeprefix(_DEFINITIONS)], **around}
    return schema


def _limits(told: Mapping[str, Any], keywords: Sequence[str]) -> dict[str, Any]:
    """The limits that a form can say; those of an integer can always be said."""
    limits = _kept(told, keywords)
    if told.get("type") == "integer":
        if "exclusiveMinimum" in told:
            limits["minimum"] = told["exclusiveMinimum"] + 1
        if "exclusiveMaximum" in told:
            limits["maximum"] = told["exclusiveMaximum"] - 1
    return limits


def _kept(schema: Mapping[str, Any], keywords: Sequence[str]) -> dict[str, Any]:
    return {keyword: schema[keyword] for keyword in keywords if keyword in schema}


# --------------------
# From what a handler asks of the client's model to the params of `sampling/createMessage`.


# How long an answer may be if the handler does not say; the specification asks for a number.
TOKENS: Final = 1024

_SPOKEN: Final = (TextContent, ImageContent, AudioContent, ToolResultContent)

Block: TypeAlias = TextContent | ImageContent | AudioContent | ToolResultContent
RecordedMessage: TypeAlias = (
    str | Block | SamplingMessage | CreateMessageResult | Sequence[ToolResultContent]
)
Question: TypeAlias = CreateMessageParams | RecordedMessage | Sequence[RecordedMessage]
"""What the model is asked: a text, which the user says, or a conversation, or everything.

What the model said before stands in a conversation as the result that it came by; after that, a
list in the list is one message with the results of the tools that it used.
"""


class SamplingOptions(TypedDict, total=False):
    """What else may be said about the answer; see `CreateMessageParams`."""

    max_tokens: int
    model_preferences: ModelPreferences
    system_prompt: str
    include_context: IncludeContext
    temperature: float
    stop_sequences: list[str]
    metadata: dict[str, Any]
    tools: list[Tool]
    tool_choice: ToolChoice


def sampling_params(question: Question, options: SamplingOptions) -> CreateMessageParams:
    """The params; options win over what stands in the question.

    Raises:
        TypeError: An unknown option, or no message.
        LocalProtocolError: The results of tools do not belong to what the model said (SAMP-18,
            SAMP-19).
    """
    if not isinstance(question, CreateMessageParams):
        said = question if isinstance(question, list | tuple) else [question]
        question = CreateMessageParams(
            messages=[_message(each) for each in said], max_tokens=TOKENS
        )
    fault = unbalanced_tool_use(question.messages)
    if fault is not None:
        raise LocalProtocolError(f"sampling/createMessage: {fault}")
    return msgspec.structs.replace(question, **options)


def _message(said: Any) -> SamplingMessage:
    match said:
        case SamplingMessage():
            return said
        case CreateMessageResult():
            return SamplingMessage(role=said.role, content=said.content)
        case str():
            return SamplingMessage(role="user", content=TextContent(text=said))
        case [ToolResultContent(), *others] if _are_results(others):
            return SamplingMessage(role="user", content=[*said])
        case _ if isinstance(said, _SPOKEN):
            return SamplingMessage(role="user", content=said)
        case _:
            raise TypeError(f"a model is asked by text, image or SamplingMessage, not {said!r}")


def _are_results(blocks: list[Any]) -> bool:
    return all(isinstance(block, ToolResultContent) for block in blocks)


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
        """Return whether the user has agreed."""
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
    reject_unannounced(handling.request.peer, questions)
    return [_with_id(handling, served, question) for question in questions]


def reject_unannounced(peer: Peer, questions: Sequence[Ask[Any]]) -> None:
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
        reject_link(self.message)
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
        can = peer.protocol_version.has_url_elicitation and peer.can("elicitation.url")
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
    if not handling.request.peer.protocol_version.has_elicitation_ids:
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
        if (
            uses_context
            and peer.protocol_version.announces_context
            and not peer.can("sampling.context")
        ):
            missing["context"] = {}
        return {} if peer.can("sampling") and not missing else {"sampling": missing}

    def asked(self) -> Asked:
        """See `Ask`."""
        return Asked(
            method=_SAMPLE, params=self._params, check=self.read, on_progress=self.progress
        )

    def read(self, result: CreateMessageResult) -> CreateMessageResult:
        """See `Ask`; a list of one block is that block (TRAP-85)."""
        misuse = forbidden_tool_use(self._params, result)
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
