"""The types of the protocol: params, results, content and capabilities.

Each class describes one JSON object of the specification, under the specification's name where it
has one. Attributes have the specification's names in snake case (`mimeType` is `mime_type`). The
classes are `msgspec.Struct`s: create them with keyword arguments, compare them with `==`, and copy
them with `msgspec.structs.replace`.

- A required attribute has no default. An optional one is `X | None = None`: None is not sent, and a
  received null counts as absent.
- Unknown members of received objects are ignored. Objects that the specification leaves open
  (`_meta`, JSON Schemas, experimental capabilities, log data) are plain JSON values.
- A class has the attributes of all protocol versions. Those that the peer's version does not have
  are left out, or replaced, when a message is sent.
- `meta` is the member `_meta`: data of this package, of extensions and of users, by their keys.

The specification: https://modelcontextprotocol.io/specification/2026-07-28 and the versions before
it. The envelope of messages (`jsonrpc`, `id`, `method`) is not part of these types.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec

RequestId: TypeAlias = int | str
"""The id of a request; `1` and `"1"` are different ids."""

ProgressToken: TypeAlias = int | str
"""A value that the sender of a request chooses, and that progress notifications repeat."""

Cursor: TypeAlias = str
"""A position in a list, opaque to clients."""

Role: TypeAlias = Literal["assistant", "user"]
"""The author of a message, or the audience of content."""

Number: TypeAlias = int | float
"""A JSON number; an integer stays an integer."""

UnitInterval: TypeAlias = (
    Annotated[int, msgspec.Meta(ge=0, le=1)] | Annotated[float, msgspec.Meta(ge=0, le=1)]
)
"""A number from 0 (least) to 1 (most)."""


class Model(msgspec.Struct, rename="camel", omit_defaults=True, repr_omit_defaults=True):
    """The base class of all types in this module.

    Subclasses set `kw_only=True` themselves, because msgspec does not inherit that option.
    """


class Params(Model, kw_only=True):
    """The base class of the params of requests and notifications."""

    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class Result(Model, kw_only=True):
    """The base class of results.

    Attributes:
        result_type: "complete", "input_required", or the type of an extension's result. None means
            "complete". Only stateless protocol versions have it.
    """

    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)
    result_type: str | None = None


class EmptyParams(Params, kw_only=True):
    """The params of a method that has no params of its own."""


class EmptyResult(Result, kw_only=True):
    """The result of a method that returns nothing."""


class Icon(Model, kw_only=True):
    """An icon for user interfaces.

    Attributes:
        src: Its `https:` or `data:` URI.
        mime_type: Its media type, if the URI does not tell.
        sizes: Sizes such as "48x48", or "any".
        theme: The theme of the user interface for which it is designed.
    """

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["dark", "light"] | None = None


class Icons(Model, kw_only=True):
    """A base class of things with icons, in several sizes and formats."""

    icons: list[Icon] | None = None


class BaseMetadata(Model, kw_only=True):
    """A base class of things with a name for programs and a title for user interfaces."""

    name: str
    title: str | None = None


class Implementation(Icons, kw_only=True):
    """The name and version of a client or server, and a description for user interfaces."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None


class Annotations(Model, kw_only=True):
    """Hints for the client about the use of content or of a resource.

    Attributes:
        audience: The roles for which it is meant.
        priority: Its importance, from 0 (optional) to 1 (required).
        last_modified: The time of its last change, in ISO 8601.
    """

    audience: list[Role] | None = None
    priority: UnitInterval | None = None
    last_modified: str | None = None


class AnnotatedModel(Model, kw_only=True):
    """A base class of content and resources."""

    annotations: Annotations | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


# Caching: https://modelcontextprotocol.io/specification/2026-07-28/server/utilities/caching


CacheScope: TypeAlias = Literal["private", "public"]
"""Caches that may store a result: those of one user, or also shared ones."""


class CacheableResult(Result, kw_only=True):
    """The base class of results that clients may cache.

    Attributes:
        ttl_ms: The milliseconds for which the result may be cached. None and negative numbers count
            as 0.
        cache_scope: The caches that may store the result.
    """

    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


# Cancellation: https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/cancellation


class CancelledParams(Params, kw_only=True):
    """The params of `notifications/cancelled`: the sender no longer waits for the response."""

    request_id: RequestId
    reason: str | None = None


# Progress: https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/progress


class ProgressParams(Params, kw_only=True):
    """The params of `notifications/progress`.

    Attributes:
        progress_token: The token in the request.
        progress: The progress so far; it increases with each notification.
        total: The progress at the end, if known.
        message: A text for the user.
    """

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None


# Pagination: https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/pagination


class PaginatedParams(Params, kw_only=True):
    """The params of a list request: the cursor of a page, or None for the first page."""

    cursor: Cursor | None = None


class PaginatedResult(CacheableResult, kw_only=True):
    """One page of a list; without `next_cursor` it is the last page."""

    next_cursor: Cursor | None = None


# Logging: https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/logging


LoggingLevel: TypeAlias = Literal[
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
]
"""The severities of RFC 5424, from the least severe to the most severe."""


class SetLevelParams(Params, kw_only=True):
    """The params of `logging/setLevel`: the least severe level of messages to send."""

    level: LoggingLevel


class LoggingMessageParams(Params, kw_only=True):
    """The params of `notifications/message`: a log message, whose `data` is any JSON value."""

    level: LoggingLevel
    data: Any
    logger: str | None = None


# Capabilities, the handshake and discovery: https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle
#
# A capability that is absent (None) differs from one that is present and empty (`{}`).


class RootsCapability(Model, kw_only=True):
    """The client has roots.

    Attributes:
        list_changed: Whether it sends a notification when they change.
    """

    list_changed: bool | None = None


class SamplingCapability(Model, kw_only=True):
    """The client lets servers use its model.

    Attributes:
        context: Present if it supports `include_context`.
        tools: Present if it supports tools in sampling requests.
    """

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None


class ElicitationCapability(Model, kw_only=True):
    """The client asks its user for information; without either attribute, by form.

    Attributes:
        form: Present if it shows forms.
        url: Present if it asks its user to visit URLs.
    """

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class ClientCapabilities(Model, kw_only=True):
    """The capabilities of a client.

    Attributes:
        experimental: Capabilities outside the specification, by their names.
        roots: Present if the client has roots.
        sampling: Present if the client lets servers use its model.
        elicitation: Present if the client asks its user for information.
        extensions: The settings of supported extensions, by their identifiers.
    """

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: dict[str, dict[str, Any]] | None = None


class PromptsCapability(Model, kw_only=True):
    """The server has prompts.

    Attributes:
        list_changed: Whether it sends a notification when the list changes.
    """

    list_changed: bool | None = None


class ResourcesCapability(Model, kw_only=True):
    """The server has resources.

    Attributes:
        subscribe: Whether clients may subscribe to changes of a resource.
        list_changed: Whether it sends a notification when the list changes.
    """

    subscribe: bool | None = None
    list_changed: bool | None = None


class ToolsCapability(Model, kw_only=True):
    """The server has tools.

    Attributes:
        list_changed: Whether it sends a notification when the list changes.
    """

    list_changed: bool | None = None


class ServerCapabilities(Model, kw_only=True):
    """The capabilities of a server.

    Attributes:
        experimental: Capabilities outside the specification, by their names.
        logging: Present if the server sends log messages.
        prompts: Present if the server has prompts.
        resources: Present if the server has resources.
        tools: Present if the server has tools.
        completions: Present if the server completes arguments.
        extensions: The settings of supported extensions, by their identifiers.
    """

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    completions: dict[str, Any] | None = None
    extensions: dict[str, dict[str, Any]] | None = None


class InitializeParams(Params, kw_only=True):
    """The params of `initialize`, with which a client opens a session."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result, kw_only=True):
    """The result of `initialize`.

    Attributes:
        protocol_version: The protocol version that the server has chosen.
        capabilities: The server's capabilities.
        server_info: The server's name and version.
        instructions: A text about the use of the server, for the model.
    """

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class DiscoverResult(CacheableResult, kw_only=True):
    """The result of `server/discover`: supported protocol versions, capabilities, instructions."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None


# Subscriptions: https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/subscriptions


class SubscriptionFilter(Model, kw_only=True):
    """Kinds of changes: of lists, and of resources by their URIs."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


class ListenParams(Params, kw_only=True):
    """The params of `subscriptions/listen`: the changes that the client asks for."""

    notifications: SubscriptionFilter


class AcknowledgedParams(Params, kw_only=True):
    """The params of `notifications/subscriptions/acknowledged`, the first of a subscription.

    `notifications` has the changes that the server will report, of those that were asked for.
    """

    notifications: SubscriptionFilter


class ListenResult(Result, kw_only=True):
    """The result of `subscriptions/listen`, with which the server ends the subscription."""


# Elicitation: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation


ElicitAction: TypeAlias = Literal["accept", "cancel", "decline"]
"""The user's choice: the request was accepted, dismissed without a choice, or declined."""

ElicitMode: TypeAlias = Literal["form", "url"]
"""The way in which the user is asked: by a form, or by a URL to visit."""

ElicitValue: TypeAlias = str | int | float | bool | list[str]
"""A value of a form."""


class ElicitParams(Params, kw_only=True):
    """The params of `elicitation/create`: a form for the user, or a URL to visit.

    Attributes:
        message: A text for the user.
        mode: "form" or "url"; None means "form".
        requested_schema: The form: the JSON Schema of a flat object.
        url: The URL.
        elicitation_id: The id of a URL elicitation, which `notifications/elicitation/complete`
            repeats.

    Raises:
        ValueError: The attribute that the mode needs is missing. A decoder raises
            `msgspec.ValidationError` instead.
    """

    message: str
    mode: ElicitMode | None = None
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None

    def __post_init__(self) -> None:
        if self.mode == "url" and self.url is None:
            raise ValueError("an elicitation by URL needs `url`")
        if self.mode != "url" and self.requested_schema is None:
            raise ValueError("an elicitation by form needs `requestedSchema`")


class ElicitResult(Result, kw_only=True):
    """The result of `elicitation/create`; `content` has the values of an accepted form."""

    action: ElicitAction
    content: dict[str, ElicitValue] | None = None


class ElicitationCompleteParams(Params, kw_only=True):
    """The params of `notifications/elicitation/complete`: the user is done at the URL."""

    elicitation_id: str


# Roots: https://modelcontextprotocol.io/specification/2025-11-25/client/roots


class Root(Model, kw_only=True):
    """A directory or file that a server may use, by its `file://` URI."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ListRootsResult(Result, kw_only=True):
    """The result of `roots/list`."""

    roots: list[Root]


# Multi round-trip requests: https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr


class InputRequest(Model, kw_only=True):
    """A request of a server inside a result: elicitation, sampling or roots.

    Attributes:
        method: The method, such as "elicitation/create".
        params: To send: the params as an object of this module. Received: plain JSON values.
    """

    method: str
    params: Any = None


class InputRequiredResult(Result, kw_only=True):
    """A result with which a server asks for input; the client retries the request with it.

    At least one of the attributes is set.

    Attributes:
        input_requests: The server's requests, by keys that it chooses.
        request_state: A value, opaque to clients, that the retry returns unchanged.
    """

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class InputResponseParams(Params, kw_only=True):
    """The base class of the params of requests that can be retried with input.

    Attributes:
        input_responses: The results of the server's requests, by the server's keys, as raw JSON.
        request_state: The state from the `InputRequiredResult`.
    """

    input_responses: dict[str, msgspec.Raw] | None = None
    request_state: str | None = None


# Resources: https://modelcontextprotocol.io/specification/2025-11-25/server/resources


class Resource(AnnotatedModel, kw_only=True):
    """A resource in a list.

    Attributes:
        uri: Its URI.
        name: Its name for programs.
        description: A description for the model.
        mime_type: Its media type, if known.
        size: Its size in bytes, if known.
        title: Its title for user interfaces.
        icons: Its icons.
    """

    uri: str
    name: str
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    title: str | None = None
    icons: list[Icon] | None = None


class ResourceTemplate(AnnotatedModel, kw_only=True):
    """Resources whose URIs match an RFC 6570 template."""

    uri_template: str
    name: str
    description: str | None = None
    mime_type: str | None = None
    title: str | None = None
    icons: list[Icon] | None = None


class ResourceContentsBase(Model, kw_only=True):
    """The base class of resource contents; the specification's `ResourceContents`."""

    uri: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ResourceContents(ResourceContentsBase, kw_only=True):
    """The contents of a resource: either `text`, or `blob` in base64.

    This is the specification's `TextResourceContents` and `BlobResourceContents`, in one class
    because no tag distinguishes them.

    Raises:
        ValueError: Neither is set. A decoder raises `msgspec.ValidationError` instead.
    """

    text: str | None = None
    blob: str | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("resource contents need `text` or `blob`")


class ListResourcesResult(PaginatedResult, kw_only=True):
    """The result of `resources/list`: one page."""

    resources: list[Resource]


class ListResourceTemplatesResult(PaginatedResult, kw_only=True):
    """The result of `resources/templates/list`: one page."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(InputResponseParams, kw_only=True):
    """The params of `resources/read`."""

    uri: str


class ReadResourceResult(CacheableResult, kw_only=True):
    """The result of `resources/read`; a directory, for example, may have several contents."""

    contents: list[ResourceContents]


class SubscribeParams(Params, kw_only=True):
    """The params of `resources/subscribe`."""

    uri: str


class UnsubscribeParams(Params, kw_only=True):
    """The params of `resources/unsubscribe`."""

    uri: str


class ResourceUpdatedParams(Params, kw_only=True):
    """The params of `notifications/resources/updated`.

    The URI may be that of a part of the resource to which the client is subscribed.
    """

    uri: str


# Content of prompts, tool results and sampling.


class TextContent(AnnotatedModel, kw_only=True, tag_field="type", tag="text"):
    """Text content."""

    text: str


class ImageContent(AnnotatedModel, kw_only=True, tag_field="type", tag="image"):
    """An image; `data` is in base64."""

    data: str
    mime_type: str


class AudioContent(AnnotatedModel, kw_only=True, tag_field="type", tag="audio"):
    """Audio; `data` is in base64."""

    data: str
    mime_type: str


class ResourceLink(Resource, kw_only=True, tag_field="type", tag="resource_link"):
    """A link to a resource that the client can read; the resource need not be listed."""


class EmbeddedResource(AnnotatedModel, kw_only=True, tag_field="type", tag="resource"):
    """The contents of a resource, embedded in a prompt or a result."""

    resource: ResourceContents


Content: TypeAlias = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
"""A block of content."""


# Completion: https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/completion


class PromptReference(BaseMetadata, kw_only=True, tag_field="type", tag="ref/prompt"):
    """A reference to a prompt, to complete one of its arguments."""


class ResourceReference(Model, kw_only=True, tag_field="type", tag="ref/resource"):
    """A reference to a resource template, by its template, to complete one of its variables."""

    uri: str


Reference: TypeAlias = PromptReference | ResourceReference
"""The prompt or template of a completion."""


class CompletionArgument(Model, kw_only=True):
    """The argument or variable to complete, and the value typed so far."""

    name: str
    value: str


class CompletionContext(Model, kw_only=True):
    """The other arguments or variables that already have values, by name."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params, kw_only=True):
    """The params of `completion/complete`."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Model, kw_only=True):
    """Proposed values.

    Attributes:
        values: At most 100 values.
        total: The number of all values, if known.
        has_more: Whether there are more values than these.
    """

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result, kw_only=True):
    """The result of `completion/complete`."""

    completion: Completion


# Prompts: https://modelcontextprotocol.io/specification/2025-11-25/server/prompts


class PromptArgument(BaseMetadata, kw_only=True):
    """An argument of a prompt."""

    description: str | None = None
    required: bool | None = None


class Prompt(Icons, kw_only=True):
    """A prompt in a list: a template of messages with arguments."""

    name: str
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    title: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class PromptMessage(Model, kw_only=True):
    """A message of a prompt."""

    role: Role
    content: Content


class ListPromptsResult(PaginatedResult, kw_only=True):
    """The result of `prompts/list`: one page."""

    prompts: list[Prompt]


class GetPromptParams(InputResponseParams, kw_only=True):
    """The params of `prompts/get`; the values of all arguments are texts."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result, kw_only=True):
    """The result of `prompts/get`."""

    messages: list[PromptMessage]
    description: str | None = None


# Tools: https://modelcontextprotocol.io/specification/2025-11-25/server/tools


class ToolAnnotations(Model, kw_only=True):
    """Hints about the behaviour of a tool. A client must not trust those of an unknown server.

    Attributes:
        title: A title for user interfaces.
        read_only_hint: Whether the tool changes nothing; by default it may.
        destructive_hint: Whether its changes may destroy data; by default they may.
        idempotent_hint: Whether a repeated call has no further effect; by default it may.
        open_world_hint: Whether it interacts with systems outside the server; by default it may.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolExecution(Model, kw_only=True):
    """Execution options of a tool: whether a call may, or must, run as a task."""

    task_support: Literal["forbidden", "optional", "required"] | None = None


class Tool(Icons, kw_only=True):
    """A tool in a list.

    Attributes:
        name: Its name.
        input_schema: The JSON Schema of its arguments.
        description: A description for the model.
        title: Its title for user interfaces.
        output_schema: The JSON Schema of the structured content of its results.
        annotations: Hints about its behaviour.
        execution: Execution options.
    """

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    title: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    execution: ToolExecution | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ListToolsResult(PaginatedResult, kw_only=True):
    """The result of `tools/list`: one page."""

    tools: list[Tool]


_BRACE: Final = ord("{")


class CallToolParams(InputResponseParams, kw_only=True):
    """The params of `tools/call`.

    Attributes:
        name: The name of the tool.
        arguments: The arguments as raw JSON, to be decoded into the types of the tool.

    Raises:
        ValueError: The arguments are not an object.
    """

    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.arguments is msgspec.UNSET:
            return
        text = memoryview(self.arguments)
        if text and text[0] == _BRACE:
            return
        if bytes(text) != b"null":
            raise ValueError("arguments is not an object")
        self.arguments = msgspec.UNSET


class CallToolResult(Result, kw_only=True):
    """The result of `tools/call`.

    Attributes:
        content: The result for the model; with `is_error`, the text of the error.
        structured_content: The result for programs: any JSON value, including None. UNSET if there
            is none.
        is_error: Whether the tool failed.
    """

    content: list[Content]
    structured_content: Any | msgspec.UnsetType = msgspec.UNSET
    is_error: bool | None = None

    @property
    def data(self) -> Any:
        """The structured content as Python objects; None if there is none.

        A value that is the only member `result` of an object is returned without the object, in
        which servers wrap it for protocol versions that demand an object.
        """
        content = self.structured_content
        if content is msgspec.UNSET:
            return None
        if isinstance(content, msgspec.Raw):
            content = msgspec.json.decode(content)
        if isinstance(content, dict):
            members = cast("dict[str, Any]", content)
            return members["result"] if members.keys() == {"result"} else members
        return content


# Sampling: https://modelcontextprotocol.io/specification/2025-11-25/client/sampling


IncludeContext: TypeAlias = Literal["none", "thisServer", "allServers"]
"""The servers whose context the client adds to a sampling request."""


class ToolUseContent(Model, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool by the model; the result repeats `id` as `tool_use_id`."""

    id: str
    name: str
    input: dict[str, Any]
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ToolResultContent(Model, kw_only=True, tag_field="type", tag="tool_result"):
    """The result of a tool for the model; with `is_error`, the content is the text of the error."""

    tool_use_id: str
    content: list[Content]
    structured_content: Any | msgspec.UnsetType = msgspec.UNSET
    is_error: bool | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


SamplingBlock: TypeAlias = (
    TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
)
"""A block of content of a sampling message."""

SamplingContent: TypeAlias = SamplingBlock | list[SamplingBlock]
"""The content of a sampling message."""


class ToolChoice(Model, kw_only=True):
    """The use of tools by the model.

    Attributes:
        mode: "auto" if the model decides, "required" if it has to use a tool, or "none". None means
            "auto".
    """

    mode: Literal["auto", "none", "required"] | None = None


class SamplingMessage(Model, kw_only=True):
    """A message of the conversation that the model continues."""

    role: Role
    content: SamplingContent
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ModelHint(Model, kw_only=True):
    """A preferred model, by a part of its name."""

    name: str | None = None


class ModelPreferences(Model, kw_only=True):
    """A server's preferences for the choice of a model, from which the client may deviate.

    Attributes:
        hints: Preferred models, the most preferred first.
        cost_priority: The importance of low cost, from 0 to 1.
        speed_priority: The importance of speed, from 0 to 1.
        intelligence_priority: The importance of the model's abilities, from 0 to 1.
    """

    hints: list[ModelHint] | None = None
    cost_priority: UnitInterval | None = None
    speed_priority: UnitInterval | None = None
    intelligence_priority: UnitInterval | None = None


class CreateMessageParams(Params, kw_only=True):
    """The params of `sampling/createMessage`.

    Attributes:
        messages: The conversation so far.
        max_tokens: The maximum number of tokens in the new message.
        model_preferences: Preferences for the choice of a model.
        system_prompt: A system prompt, which the client may change or leave out.
        include_context: The servers whose context is added.
        temperature: The temperature of sampling.
        stop_sequences: Texts that end the message.
        metadata: Options of the provider of the model.
        tools: Tools that the model may use.
        tool_choice: The use of the tools.
    """

    messages: list[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = None
    system_prompt: str | None = None
    include_context: IncludeContext | None = None
    temperature: Number | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class CreateMessageResult(Result, kw_only=True):
    """The result of `sampling/createMessage`: the message of the model.

    Attributes:
        role: Its role.
        content: Its content.
        model: The name of the model.
        stop_reason: "endTurn", "stopSequence", "maxTokens", "toolUse", or another reason.
    """

    role: Role
    content: SamplingContent
    model: str
    stop_reason: str | None = None
