"""Requests of a handler to its client: elicitation of forms and URLs, sampling, roots.

A request (`Ask`) knows which capability the client needs for it, its method and params, and how to
read the client's result. How it is sent depends on the protocol version: a legacy client receives
a request, and a stateless client an `InputRequiredResult`, which it answers with a retry.

https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation
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
from typing import (
    TYPE_CHECKING,
    Annotated,
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
from urllib.parse import parse_qsl, urlsplit

import attrs
import msgspec

from mcp_trio._journal.secret_names import DEFAULT_SECRET_NAMES, SecretNames
from mcp_trio._protocol.client_features import (
    FORMATS,
    check_form,
    forbidden_tool_use,
    form_errors,
    form_members,
    unbalanced_tool_use,
)
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.security import is_loopback
from mcp_trio._server.introspection import (
    Field,
    class_of,
    fields_of,
    has_fields,
    is_array_type,
    is_union,
    strip_metadata,
)
from mcp_trio._server.type_adapters import (
    InvalidValue,
    PydanticReading,
    TypeReader,
    convert,
    description_in,
    error_line,
    json_schema,
    type_name,
)
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

# Forms ------------------------------------------------------------------------------------------
#
# A form is made from a Python type on first use. Its schema is that of the newest protocol version;
# for a client of an older version, keywords that the version does not have are removed when the
# request is encoded.

VALUE: Final = "value"
"""The name of the field in a form for a single value."""

# The names of secrets, which neither a form nor the query of a URL may contain.
SECRETS: Final = SecretNames(DEFAULT_SECRET_NAMES)

_LINK: Final = re.compile(r"\bhttps?://", re.IGNORECASE)
_DEFINITIONS: Final = "#/$defs/"

# The keywords of JSON Schema that a form may have. Other constraints of the type are checked when
# the answer is decoded.
_TEXTS: Final[tuple[str, ...]] = ("title", "description")
_LIMITS: Final[dict[Any, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
_FORMATS: Final[dict[Any, str]] = {dt.datetime: "date-time", dt.date: "date"}


class FormError(ValueError):
    """The content of a form is invalid; `lines` has one short line for each validation error."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


class Form(msgspec.Struct, frozen=True, eq=False):
    """A form: the schema for the client, and the function that makes a value from valid content."""

    schema: dict[str, Any]
    build: Callable[[Mapping[str, Any]], Any]

    def read(self, content: Mapping[str, Any]) -> Any:
        """Return the value for the content that the user has filled in.

        Raises:
            FormError: The content is invalid.
        """
        errors = form_errors(content, self.schema)
        if errors:
            raise FormError(errors)
        return self.build(content)


def form_of(kind: Any) -> Form:
    """Return the form for a class with fields, the type of one value, or a JSON Schema.

    The form for None has no fields: the user can only confirm it. A list of strings is a choice.

    Raises:
        TypeError: A field has a type that a form cannot have, such as a nested object; the text
            names the field.
        ValueError: A form cannot have this schema; the text names the field.
        LocalProtocolError: A field asks for a secret, which the protocol allows by URL only, or its
            text contains a link.
    """
    if isinstance(kind, Mapping):
        schema = dict(cast("Mapping[str, Any]", kind))
        for name, member in form_members(schema).items():
            _check_field(name, member)
        check_form(schema)
        return Form(schema, dict)
    if isinstance(kind, list | tuple) and all(isinstance(it, str) for it in cast("Any", kind)):
        kind = Literal[tuple(cast("Sequence[str]", kind))]
    return _form_of_class(kind) if isinstance(kind, type) else _form_of_hint(kind)


def _form_of_hint(kind: Any) -> Form:
    if kind is None or kind is types.NoneType:
        return Form(_object({}, ()), lambda _: None)
    is_model = _is_model(kind)
    if not (is_model or has_fields(kind)):
        field = _FormField(owner="a form", name=VALUE, hint=kind)
        return Form(
            _object({VALUE: field.schema()}, () if field.is_optional else (VALUE,)),
            lambda content: field.read(content[VALUE]) if VALUE in content else None,
        )
    if is_model:
        pairs = [*_fields_of_model(kind)]
    else:
        field_of = functools.partial(_FormField, owner=type_name(kind))
        pairs = [(it, field_of(name=it.wire_name, hint=it.hint)) for it in fields_of(kind)]
    properties: dict[str, Any] = {}
    required: list[str] = []
    for each, member in pairs:
        schema = properties[each.wire_name] = member.schema()
        if each.default not in (msgspec.NODEFAULT, None):
            schema["default"] = msgspec.to_builtins(each.default)
        if each.is_required and not member.is_optional:
            required.append(each.wire_name)
    read = _read_model if is_model else _read_fields
    return Form(_object(properties, required), functools.partial(read, kind, pairs))


# Only the forms of classes are cached. Other hints can be equal and yet differ, such as two
# Literals with the same values in another order.
_form_of_class: Final = functools.lru_cache(_form_of_hint)


def _read_fields(
    kind: Any, pairs: Sequence[tuple[Field, "_FormField"]], content: Mapping[str, Any]
) -> Any:
    errors: list[str] = []
    values: dict[str, Any] = {}
    for field, member in pairs:
        if field.wire_name in content:
            try:
                values[field.name] = member.read(content[field.wire_name])
            except FormError as error:
                errors += error.lines
        elif field.is_required:  # The type allows None, so the form does not require the field.
            values[field.name] = None
    if errors:
        raise FormError(errors)
    try:
        return class_of(kind)(**values)
    except (TypeError, ValueError) as error:  # A validator of the class rejects the values.
        raise FormError([str(error)]) from error


# Models of pydantic. A model checks the complete content, because a validator may need all fields.


def _is_model(kind: Any) -> bool:
    """Return whether a type is a pydantic model with fields."""
    return getattr(kind, "__pydantic_root_model__", True) is False


def _fields_of_model(kind: Any) -> Iterator[tuple[Field, "_FormField"]]:
    owner = type_name(kind)
    try:
        schema = _flat(json_schema(TypeReader().readable(kind)))
    except Exception as error:  # pydantic raises `RuntimeError` for a type without a JSON form
        reason = str(error).partition("\n")[0]
        raise TypeError(f"{owner}: {reason}") from error
    for name, info in kind.model_fields.items():
        # An alias may be a choice of several, of which the schema has the first.
        alias = getattr(info.validation_alias, "choices", [info.validation_alias])[0]
        key = alias if isinstance(alias, str) else name
        if key in schema["properties"]:
            special: Any = Annotated
            hint = special[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            given = schema["properties"][key] | {"$defs": schema["$defs"]}
            member = _FormField(owner=owner, name=key, hint=hint, given_schema=given)
            default = member.json_schema.get("default", msgspec.NODEFAULT)
            required = info.is_required()
            yield (
                Field(name=name, wire_name=key, hint=hint, is_required=required, default=default),
                member,
            )


def _read_model(
    kind: Any, pairs: Sequence[tuple[Field, "_FormField"]], content: Mapping[str, Any]
) -> Any:
    # A required field whose type allows None is not required in the form.
    values: dict[str, Any] = {field.wire_name: None for field, _ in pairs if field.is_required}
    names = [field.wire_name for field, _ in pairs if field.wire_name in content]
    values |= {name: content[name] for name in names}
    try:
        return PydanticReading(kind).read(values, strict=True)
    except InvalidValue as error:
        lines = [
            f"{path.removeprefix('.')}: {text}" if path else text for path, text in error.errors
        ]
        raise FormError(lines) from error


def _object(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": [*required]} if required else schema


def _check_field(name: str, schema: Mapping[str, Any]) -> None:
    # The protocol forbids both: users must not type secrets into a client's form, nor follow a link
    # whose target the client has not shown them.
    if schema.get("format") == "password" or SECRETS.covers(name):
        raise LocalProtocolError(f"{name}: a form must not ask for secrets: use elicit_url")
    for text in _subset(schema, _TEXTS).values():
        _reject_link(text)


def _reject_link(text: str) -> None:
    if _LINK.search(text):
        raise LocalProtocolError(f"a form must not contain links: use elicit_url for {text!r}")


@attrs.define(kw_only=True, eq=False, repr=False)
class _FormField:
    """One field of a form.

    Attributes:
        owner: The name of the class, for errors.
        name: The name of the field.
        hint: The annotation.
        given_schema: The JSON Schema by pydantic, which also decodes the value.
        readable: The type that msgspec decodes.
        core: The type without None and without metadata.
        json_schema: The JSON Schema of the type, of which a form may have only a part.
        is_optional: True if the type allows None.
    """

    owner: str
    name: str
    hint: Any
    given_schema: dict[str, Any] | None = None
    readable: Any = attrs.field(init=False)
    core: Any = attrs.field(init=False)
    json_schema: Mapping[str, Any] = attrs.field(init=False)
    is_optional: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.core, self.is_optional = strip_metadata(self.hint), False
        if is_union(self.core):
            members = typing.get_args(self.core)
            others = [it for it in members if it is not types.NoneType]
            self.is_optional = len(others) < len(members)
            if len(others) == 1:
                self.core = strip_metadata(others[0])
        if self.given_schema is not None:
            self.json_schema = _flat(self.given_schema)
            return
        try:
            self.readable = TypeReader().readable(self.hint)
            self.json_schema = _flat(json_schema(self.readable))
        except TypeError as error:
            raise self._rejection(str(error)) from error

    def read(self, value: Any) -> Any:
        """Return the value for the content of the field.

        Raises:
            FormError: The content is invalid.
        """
        try:
            return convert(value, self.readable)
        except msgspec.ValidationError as error:
            raise FormError([error_line(error, f".{self.name}")]) from error

    def schema(self) -> dict[str, Any]:
        """Return the schema of the field in the form.

        Raises:
            TypeError: A form cannot have a field of the type.
            LocalProtocolError: The field asks for a secret, or its text contains a link.
        """
        text = description_in(self.hint)
        described = ({} if text is None else {"description": text}) | {**self.json_schema}
        _check_field(self.name, described)
        schema = _subset(described, _TEXTS)
        choices = _choices(self.core)
        if choices is not None:
            return {**schema, "type": "string", **self._choice_schema(choices, "oneOf")}
        kind = self.json_schema.get("type")
        if kind not in _LIMITS:
            raise self._rejection(f"a form is flat and cannot have a {type_name(self.core)}")
        schema |= {"type": kind, **_subset(self.json_schema, _LIMITS[kind])}
        # Forms have no exclusive limits, but those of an integer have inclusive equivalents.
        if kind == "integer" and "exclusiveMinimum" in self.json_schema:
            schema["minimum"] = self.json_schema["exclusiveMinimum"] + 1
        if kind == "integer" and "exclusiveMaximum" in self.json_schema:
            schema["maximum"] = self.json_schema["exclusiveMaximum"] - 1
        if kind != "array":
            format_name = _FORMATS.get(self.core, self.json_schema.get("format"))
            return {**schema, "format": format_name} if format_name in FORMATS else schema
        inner, *others = typing.get_args(self.core) or (Any,)
        is_fixed_tuple = others not in ([], [...])
        can_have_choices = is_array_type(self.core) and not is_fixed_tuple
        choices = _choices(strip_metadata(inner)) if can_have_choices else None
        if choices is None:
            raise self._rejection(
                "a list in a form has to be a list of choices, a Literal or an Enum"
            )
        items = self._choice_schema(choices, "anyOf")
        return {**schema, "items": items if "anyOf" in items else {"type": "string", **items}}

    def _choice_schema(self, choices: Mapping[Any, str | None], keyword: str) -> dict[str, Any]:
        if not all(isinstance(value, str) for value in choices):
            raise self._rejection("the choices of a form have to be strings")
        if None in choices.values():
            return {"enum": [*choices]}
        return {keyword: [{"const": it, "title": title} for it, title in choices.items()]}

    def _rejection(self, text: str) -> TypeError:
        return TypeError(f"{self.owner}, {self.name}: {text}")


def _choices(hint: Any) -> dict[Any, str | None] | None:
    """Return the choices of a Literal or Enum with their titles, None for any other type.

    A member of an Enum has its name as title, because its value is meant for programs.
    """
    if typing.get_origin(hint) is Literal:
        return dict.fromkeys(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {it.value: it.name.replace("_", " ").capitalize() for it in hint}
    return None


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without `null` and references.

    Keywords beside a reference, such as a description, override those of its definition.
    """
    beside = {
        keyword: value for keyword, value in schema.items() if keyword not in ("anyOf", "$ref")
    }
    alternatives = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(alternatives) == 1:
        return _flat({**alternatives[0], **beside})
    if "$ref" in schema:
        return {**schema["$defs"][schema["$ref"].removeprefix(_DEFINITIONS)], **beside}
    return schema


def _subset(schema: Mapping[str, Any], keywords: Sequence[str]) -> dict[str, Any]:
    return {keyword: schema[keyword] for keyword in keywords if keyword in schema}


# Sampling ---------------------------------------------------------------------------------------

# The `maxTokens` of a request for which the handler gives none; the protocol requires the field.
MAX_TOKENS: Final = 1024

_CONTENT: Final = (TextContent, ImageContent, AudioContent, ToolResultContent)

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


def sampling_params(prompt: SamplingInput, options: SamplingOptions) -> CreateMessageParams:
    """Return the params of `sampling/createMessage`; options override those in the input.

    Raises:
        TypeError: An option is unknown, or a message has a wrong type.
        LocalProtocolError: The results of tools in the conversation do not match the tool uses.
    """
    if not isinstance(prompt, CreateMessageParams):
        turns = prompt if isinstance(prompt, list | tuple) else [prompt]
        prompt = CreateMessageParams(
            messages=[_sampling_message(turn) for turn in turns], max_tokens=MAX_TOKENS
        )
    error = unbalanced_tool_use(prompt.messages)
    if error is not None:
        raise LocalProtocolError(f"sampling/createMessage: {error}")
    return msgspec.structs.replace(prompt, **options)


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
        case _ if isinstance(turn, _CONTENT):
            return SamplingMessage(role="user", content=turn)
        case _:
            raise TypeError(f"a message is a text, content or a SamplingMessage, not {turn!r}")


# Requests to the client -------------------------------------------------------------------------

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ELICIT: Final = "elicitation/create"
_SAMPLE: Final = "sampling/createMessage"
_LIST_ROOTS: Final = "roots/list"
_UUID_BITS: Final = 128


@attrs.frozen(kw_only=True)
class Answer(Generic[T_co]):
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


class Ask(ABC, Generic[T_co]):
    """A request for `ctx.ask_all`: an `Elicitation`, `UrlElicitation`, `Sampling` or `Roots`."""

    __slots__ = ()

    @abstractmethod
    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """Return the capabilities that the request needs and the client did not announce."""

    @abstractmethod
    def asked(self) -> Question:
        """Return the method and params of the request, and how its result is checked.

        Raises:
            TypeError, ValueError: The request is malformed.
            LocalProtocolError: The protocol forbids the request.
        """

    @abstractmethod
    def read(self, result: Any) -> T_co:
        """Return the answer in the client's result.

        Raises:
            RemoteProtocolError: The result is no valid answer to the request.
        """


async def answers(
    handling: Handling, served: "ServedSession", questions: Sequence[Ask[Any]]
) -> tuple[Any, ...]:
    """Send several requests to the client at once, and return the answers in their order.

    Raises:
        CapabilityMissing: The client did not announce a capability that one of the requests needs;
            nothing is sent.
        LocalProtocolError: The protocol forbids one of the requests; nothing is sent.
        RemoteProtocolError: A result is no valid answer.
        RequestError, RequestTimeout, ConnectionLost: The client did not answer a request.
    """
    questions = prepared(handling, served, questions)
    results = await ask_all(handling, [question.asked() for question in questions])
    rows = zip(questions, results, strict=True)
    return tuple(question.read(result) for question, result in rows)


def prepared(
    handling: Handling, served: "ServedSession", questions: Sequence[Ask[Any]]
) -> list[Ask[Any]]:
    """Return the requests as this client can receive them.

    A URL elicitation gets an id if the client can be notified of its completion.

    Raises:
        CapabilityMissing: The client did not announce a capability that one of the requests needs.
    """
    check_capabilities(handling.request.peer, questions)
    has_ids = handling.request.peer.protocol_version.has_elicitation_ids
    ready: list[Ask[Any]] = []
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


def check_capabilities(peer: Peer, questions: Sequence[Ask[Any]]) -> None:
    """Check that the client announced every capability that the requests need.

    Raises:
        CapabilityMissing: The client did not announce one; the text names all that are missing.
    """
    missing: dict[str, Any] = {}
    for question in questions:
        for name, inner in question.needs(peer).items():
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
class Elicitation(Ask[Answer[T]]):
    """A request that the user fills in a form.

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

    @property
    def _form(self) -> Form:
        return form_of(self.kind)

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """Return the mode `form` if the client supports no forms, as `Ask.needs` describes."""
        # A client that announces elicitation without a mode supports forms.
        can_form = peer.can("elicitation.form") or not peer.can("elicitation.url")
        return {} if can_form and peer.can("elicitation") else {"elicitation": {"form": {}}}

    def asked(self) -> Question:
        """Return the request, as `Ask.asked` describes."""
        _reject_link(self.message)
        params = ElicitParams(message=self.message, mode="form", requested_schema=self._form.schema)
        return Question(method=_ELICIT, params=params, check=self.read)

    def read(self, result: ElicitResult) -> Answer[T]:
        """Return the user's answer, as `Ask.read` describes."""
        if result.action != "accept":
            return Answer(action=result.action)
        try:
            return Answer(action="accept", data=self._form.read(result.content or {}))
        except FormError as error:
            raise RemoteProtocolError(
                f"{_ELICIT}: the answer does not match the form: {error}"
            ) from error


@attrs.frozen(eq=False)
class UrlElicitation(Ask[Answer[None]]):
    """A request that the user opens a URL, which must contain neither credentials nor user data.

    Attributes:
        message: The text that the client shows.
        url: The URL.
        elicitation_id: The id by which the client is notified of the completion, if its protocol
            version has that notification; None stands for a random id.
    """

    message: str
    url: str
    elicitation_id: str | None = attrs.field(default=None, kw_only=True)

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """Return the mode `url` if the client supports no URLs, as `Ask.needs` describes."""
        can_open_url = peer.protocol_version.has_url_elicitation and peer.can("elicitation.url")
        return {} if can_open_url else {"elicitation": {"url": {}}}

    def asked(self) -> Question:
        """Return the request, as `Ask.asked` describes.

        The URL has to be safe to show to a user:
        https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#safe-url-handling
        """
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
        """Return the user's answer, as `Ask.read` describes."""
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
        ready = prepared(handling, served, elicitations)
        params: list[Any] = msgspec.to_builtins([each.asked().params for each in ready])
        raise RequestError(URL_ELICITATION_REQUIRED, str(required), {"elicitations": params})
    agreed = await answers(handling, served, elicitations)
    if not all(answer.is_accepted for answer in agreed):
        raise ToolError(f"{required}, and the user has not agreed to it")


@attrs.define(init=False, eq=False)
class Sampling(Ask[CreateMessageResult]):
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
        return sampling_params(self.prompt, self.options)

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """Return the missing parts of the capability `sampling`, as `Ask.needs` describes."""
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

    def asked(self) -> Question:
        """Return the request, as `Ask.asked` describes."""
        return Question(
            method=_SAMPLE, params=self._params, check=self.read, on_progress=self.progress
        )

    def read(self, result: CreateMessageResult) -> CreateMessageResult:
        """Return the model's message, as `Ask.read` describes.

        If its content is a list of one block, it becomes that block.
        """
        misuse = forbidden_tool_use(self._params, result)
        if misuse is not None:
            raise RemoteProtocolError(f"{_SAMPLE}: the answer is invalid: {misuse}")
        match result.content:
            case [block]:
                return msgspec.structs.replace(result, content=block)
            case _:
                return result


@attrs.frozen(eq=False)
class Roots(Ask[list[Root]]):
    """A request for the client's roots."""

    def needs(self, peer: Peer) -> Mapping[str, Any]:
        """Return the capability `roots` if it is missing, as `Ask.needs` describes."""
        return {} if peer.can("roots") else {"roots": {}}

    def asked(self) -> Question:
        """Return the request, as `Ask.asked` describes."""
        return Question(method=_LIST_ROOTS, params=EmptyParams())

    def read(self, result: ListRootsResult) -> list[Root]:
        """Return the roots in the client's result."""
        return result.roots


def ask_of(method: str, params: Any) -> Ask[Any]:
    """Return the request for a method and params in an `InputRequiredResult`.

    Raises:
        LocalProtocolError: The method is not allowed there, or the params are invalid.
    """
    make = _ASKS.get(method)
    if make is None:
        raise LocalProtocolError(f"{method} is no input request: use {', '.join(_ASKS)}")
    kind = METHODS[method].params
    try:
        decoded = params if isinstance(params, kind) else msgspec.convert(params or {}, kind)
    except msgspec.ValidationError as error:
        raise LocalProtocolError(f"{method}: {error}") from error
    return make(decoded)


def _elicitation_of(params: ElicitParams) -> Ask[Any]:
    if params.url is not None:
        return UrlElicitation(params.message, params.url, elicitation_id=params.elicitation_id)
    return Elicitation(params.message, params.requested_schema)


_ASKS: Final[Mapping[str, Callable[[Any], Ask[Any]]]] = {
    _ELICIT: _elicitation_of,
    _SAMPLE: Sampling,
    _LIST_ROOTS: lambda _params: Roots(),
}
