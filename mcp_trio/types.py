"""Client, sampling: the server asks the client's model."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

# --------------------
# What every page of the specification builds on: the base of all structs, and the common words.
#
# A struct describes one JSON object. Members keep the specification's names in snake case; `Model`
# renames them on the wire. Three conventions hold for every struct of this folder:
#
# - A required member has no default. An optional one is `X | None = None`: it is never sent when it
#   is None, and an incoming null reads as absent.
# - Members that a struct does not know are ignored (BASE-17). What the specification leaves open
#   (`_meta`, schemas, experimental capabilities, log data) is kept untouched as plain JSON values.
# - One struct has the members of all revisions, with rows in `definitions`; there is never a copy
# for   a revision. `fitting`, on the floor above, leaves out what the one spoken with does not
# have.
#
# The envelope (`jsonrpc`, `id`, `method`) is no part of these structs: it belongs to the wire.


RequestId: TypeAlias = int | str
ProgressToken: TypeAlias = int | str
Cursor: TypeAlias = str
Role: TypeAlias = Literal["assistant", "user"]

Number: TypeAlias = int | float
"""Any JSON number; an integer stays an integer on the wire."""

UnitInterval: TypeAlias = (
    Annotated[int, msgspec.Meta(ge=0, le=1)] | Annotated[float, msgspec.Meta(ge=0, le=1)]
)
"""A number from 0 (least) to 1 (most)."""


class Model(msgspec.Struct, rename="camel", omit_defaults=True, repr_omit_defaults=True):
    """The base of all structs of the vocabulary.

    Subclasses say `kw_only=True` themselves, because msgspec does not inherit that option.
    """


class Params(Model, kw_only=True):
    """The parameters of a request or notification; absent parameters read as an empty object."""

    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class Result(Model, kw_only=True):
    """The answer to a request; `result_type` says whether it is the last word (None: it is)."""

    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)
    result_type: str | None = None


class EmptyParams(Params, kw_only=True):
    """The parameters of a method that takes none."""


class EmptyResult(Result, kw_only=True):
    """An answer that says only that the request succeeded."""


class Icon(Model, kw_only=True):
    """A picture to show for something, by its `https:` or `data:` URI."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["dark", "light"] | None = None


class Icons(Model, kw_only=True):
    """The base of what has pictures in several sizes and formats."""

    icons: list[Icon] | None = None


class BaseMetadata(Model, kw_only=True):
    """The base of what has a name for programs, and perhaps a title for people."""

    name: str
    title: str | None = None


class Implementation(Icons, kw_only=True):
    """The name and version of a client or server, and what to show of it."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None


class Annotations(Model, kw_only=True):
    """For whom a piece of content is meant, how much it matters to them, and how old it is."""

    audience: list[Role] | None = None
    priority: UnitInterval | None = None
    last_modified: str | None = None


class AnnotatedModel(Model, kw_only=True):
    """The base of content and resources, which may carry annotations."""

    annotations: Annotations | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


# --------------------
# Utilities, caching: how long a result stays good, and for whom.


CacheScope: TypeAlias = Literal["private", "public"]


class CacheableResult(Result, kw_only=True):
    """The base of results that may be kept for `ttl_ms` milliseconds from their receipt.

    None and negative numbers mean no time at all.
    """

    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


# --------------------
# Basic, cancellation.


class CancelledParams(Params, kw_only=True):
    """The sender no longer waits for the answer to a request of its own."""

    request_id: RequestId
    reason: str | None = None


# --------------------
# Basic, progress.


class ProgressParams(Params, kw_only=True):
    """How far the request that gave the token has come."""

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None


# --------------------
# Server, pagination: what all lists have in common.


class PaginatedParams(Params, kw_only=True):
    """Asks for the page that the cursor names, or for the first."""

    cursor: Cursor | None = None


class PaginatedResult(CacheableResult, kw_only=True):
    """One page; without `next_cursor` it is the last."""

    next_cursor: Cursor | None = None


# --------------------
# Server, logging: the severities of RFC 5424.


LoggingLevel: TypeAlias = Literal[
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
]
"""From the least severe to the most."""


class SetLevelParams(Params, kw_only=True):
    """The least severe level that the client wants to hear of."""

    level: LoggingLevel


class LoggingMessageParams(Params, kw_only=True):
    """One log message; `data` is any JSON value."""

    level: LoggingLevel
    data: Any
    logger: str | None = None


# --------------------
# Basic, lifecycle: the handshake or the discovery, and the capabilities that are exchanged.
#
# Capability sets are open: those that we do not know are ignored. A capability that is absent
# (None) differs from one that is present and empty (`{}`).


class RootsCapability(Model, kw_only=True):
    """The client lists its roots; with `list_changed` it says when they change."""

    list_changed: bool | None = None


class SamplingCapability(Model, kw_only=True):
    """The client lends its model; perhaps with tools, and with the context of its servers."""

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None


class ElicitationCapability(Model, kw_only=True):
    """The client asks its user: by form, by URL, or both; neither means by form (ELIC-03)."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class ClientCapabilities(Model, kw_only=True):
    """What a client can do for its server."""

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: dict[str, dict[str, Any]] | None = None


class PromptsCapability(Model, kw_only=True):
    """The server offers prompts; with `list_changed` it says when the list changes."""

    list_changed: bool | None = None


class ResourcesCapability(Model, kw_only=True):
    """The server offers resources, and perhaps subscriptions and changes of the list."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class ToolsCapability(Model, kw_only=True):
    """The server offers tools; with `list_changed` it says when the list changes."""

    list_changed: bool | None = None


class ServerCapabilities(Model, kw_only=True):
    """What a server can do for its client."""

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    completions: dict[str, Any] | None = None
    extensions: dict[str, dict[str, Any]] | None = None


class InitializeParams(Params, kw_only=True):
    """The client opens the session and says what it speaks, can do and is."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result, kw_only=True):
    """The server chooses the revision and says what it can do and is."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class DiscoverResult(CacheableResult, kw_only=True):
    """The server says which revisions it speaks and what it can do."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None


# --------------------
# Utilities, subscriptions: one standing request for the changes that a client wants to hear of.


class SubscriptionFilter(Model, kw_only=True):
    """Which changes: of lists, and of resources by their URIs."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


class ListenParams(Params, kw_only=True):
    """What the client wants to hear of."""

    notifications: SubscriptionFilter


class AcknowledgedParams(Params, kw_only=True):
    """What of it the server will tell; comes before anything else of the subscription."""

    notifications: SubscriptionFilter


class ListenResult(Result, kw_only=True):
    """The server ends the subscription that `_meta` names."""


# --------------------
# Client, elicitation: the server asks the client's user.


ElicitAction: TypeAlias = Literal["accept", "cancel", "decline"]
ElicitMode: TypeAlias = Literal["form", "url"]
ElicitValue: TypeAlias = str | int | float | bool | list[str]


class ElicitParams(Params, kw_only=True):
    """A form to fill in by `requested_schema`, or a `url` to visit; without `mode` it is a form.

    `requested_schema` is the JSON Schema of a flat object, kept as it came. `elicitation_id` is
    what a later `notifications/elicitation/complete` names.

    Raises:
        ValueError: What the mode needs is not there. While decoding it becomes a
            `msgspec.ValidationError`.
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
    """What the user did; `content` is the form that was filled in."""

    action: ElicitAction
    content: dict[str, ElicitValue] | None = None


class ElicitationCompleteParams(Params, kw_only=True):
    """What was to be done at the URL is done."""

    elicitation_id: str


# --------------------
# Client, roots: the places that a server may work in.


class Root(Model, kw_only=True):
    """A directory or file, by its `file://` URI."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ListRootsResult(Result, kw_only=True):
    """All roots."""

    roots: list[Root]


# --------------------
# Patterns, multi round-trip requests: a server asks by a result, the client answers by a retry.


class InputRequest(Model, kw_only=True):
    """One question to the client: a request of the server without envelope.

    On sending `params` is the struct of the method's row; on receipt it is what JSON gave, which
    that row reads.
    """

    method: str
    params: Any = None


class InputRequiredResult(Result, kw_only=True):
    """The request can go on when its questions are answered, each under its key.

    `request_state` comes back with the answers as it was. At least one of the two is there.
    """

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class InputResponseParams(Params, kw_only=True):
    """The base of requests that may be retries: with answers by key, and the state as it came."""

    input_responses: dict[str, msgspec.Raw] | None = None
    request_state: str | None = None


# --------------------
# Server, resources.


class Resource(AnnotatedModel, kw_only=True):
    """Something that the server can read, known by its URI."""

    uri: str
    name: str
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    title: str | None = None
    icons: list[Icon] | None = None


class ResourceTemplate(AnnotatedModel, kw_only=True):
    """A family of resources, known by an RFC 6570 template."""

    uri_template: str
    name: str
    description: str | None = None
    mime_type: str | None = None
    title: str | None = None
    icons: list[Icon] | None = None


class ResourceContentsBase(Model, kw_only=True):
    """What textual and binary contents have in common: the published `ResourceContents`."""

    uri: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ResourceContents(ResourceContentsBase, kw_only=True):
    """The contents of a resource: either `text`, or `blob` in base64.

    One struct stands for the published `TextResourceContents` and `BlobResourceContents`, which no
    tag tells apart.

    Raises:
        ValueError: neither is given. While decoding it becomes a `msgspec.ValidationError`.
    """

    text: str | None = None
    blob: str | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("resource contents need `text` or `blob`")


class ListResourcesResult(PaginatedResult, kw_only=True):
    """One page of the server's resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(PaginatedResult, kw_only=True):
    """One page of the server's resource templates."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(InputResponseParams, kw_only=True):
    """Names the resource to read."""

    uri: str


class ReadResourceResult(CacheableResult, kw_only=True):
    """What was read; a directory, for instance, may give several contents."""

    contents: list[ResourceContents]


class SubscribeParams(Params, kw_only=True):
    """Names the resource whose updates the client wants to hear of."""

    uri: str


class UnsubscribeParams(Params, kw_only=True):
    """Names the resource whose updates the client no longer wants to hear of."""

    uri: str


class ResourceUpdatedParams(Params, kw_only=True):
    """A resource has changed; it may be part of the one that was subscribed to."""

    uri: str


# --------------------
# Server, content: what prompts, tools and sampling carry.


class TextContent(AnnotatedModel, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImageContent(AnnotatedModel, kw_only=True, tag_field="type", tag="image"):
    """An image, as base64 text."""

    data: str
    mime_type: str


class AudioContent(AnnotatedModel, kw_only=True, tag_field="type", tag="audio"):
    """Sound, as base64 text."""

    data: str
    mime_type: str


class ResourceLink(Resource, kw_only=True, tag_field="type", tag="resource_link"):
    """Names a resource that can be read; it need not be one of those that are listed."""


class EmbeddedResource(AnnotatedModel, kw_only=True, tag_field="type", tag="resource"):
    """The contents of a resource, carried along."""

    resource: ResourceContents


Content: TypeAlias = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


# --------------------
# Server, completion.


class PromptReference(BaseMetadata, kw_only=True, tag_field="type", tag="ref/prompt"):
    """Names a prompt one of whose arguments is being typed."""


class ResourceReference(Model, kw_only=True, tag_field="type", tag="ref/resource"):
    """Names a resource or template one of whose variables is being typed."""

    uri: str


Reference: TypeAlias = PromptReference | ResourceReference


class CompletionArgument(Model, kw_only=True):
    """The argument that is being typed, and what stands there so far."""

    name: str
    value: str


class CompletionContext(Model, kw_only=True):
    """What is settled already: the other arguments or variables, by name."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params, kw_only=True):
    """Asks how an argument could go on."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Model, kw_only=True):
    """At most 100 proposals; `total` and `has_more` tell of those that were left out."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result, kw_only=True):
    """The proposals."""

    completion: Completion


# --------------------
# Server, prompts.


class PromptArgument(BaseMetadata, kw_only=True):
    """A blank of a prompt that the client fills in."""

    description: str | None = None
    required: bool | None = None


class Prompt(Icons, kw_only=True):
    """A template of messages."""

    name: str
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    title: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class PromptMessage(Model, kw_only=True):
    """One message of a filled-in prompt."""

    role: Role
    content: Content


class ListPromptsResult(PaginatedResult, kw_only=True):
    """One page of the server's prompts."""

    prompts: list[Prompt]


class GetPromptParams(InputResponseParams, kw_only=True):
    """Names the prompt to fill in, and its arguments, which are all text."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result, kw_only=True):
    """The filled-in prompt."""

    messages: list[PromptMessage]
    description: str | None = None


# --------------------
# Server, tools.


class ToolAnnotations(Model, kw_only=True):
    """What a tool says of its ways: hints for people, on which nothing may rely."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolExecution(Model, kw_only=True):
    """Whether a call may, or must, run as a task."""

    task_support: Literal["forbidden", "optional", "required"] | None = None


class Tool(Icons, kw_only=True):
    """A function that the client may call.

    `input_schema` is the JSON Schema of its arguments, `output_schema` that of its structured
    content.
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
    """One page of the server's tools."""

    tools: list[Tool]


class CallToolParams(InputResponseParams, kw_only=True):
    """Names the tool to call; its arguments stay the text of an object, for the tool's own type.

    Raises:
        ValueError: The arguments are no object.
    """

    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.arguments is msgspec.UNSET:
            return
        text = bytes(memoryview(self.arguments)[:4])
        if text == b"null":
            self.arguments = msgspec.UNSET
        elif text[:1] != b"{":
            raise ValueError("arguments is not an object")


class CallToolResult(Result, kw_only=True):
    """What the tool gave back; with `is_error` the content says what went wrong.

    `structured_content` is the same for programs; None is a value of it.
    """

    content: list[Content]
    structured_content: Any | msgspec.UnsetType = msgspec.UNSET
    is_error: bool | None = None


IncludeContext: TypeAlias = Literal["none", "thisServer", "allServers"]


class ToolUseContent(Model, kw_only=True, tag_field="type", tag="tool_use"):
    """The model wants a tool called; `id` is what the result names."""

    id: str
    name: str
    input: dict[str, Any]
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ToolResultContent(Model, kw_only=True, tag_field="type", tag="tool_result"):
    """What the tool gave back to the model; with `is_error` the content says what went wrong."""

    tool_use_id: str
    content: list[Content]
    structured_content: Any | msgspec.UnsetType = msgspec.UNSET
    is_error: bool | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


SamplingBlock: TypeAlias = (
    TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
)
SamplingContent: TypeAlias = SamplingBlock | list[SamplingBlock]


class ToolChoice(Model, kw_only=True):
    """Whether the model uses tools: as it likes (also for None), at least one, or none."""

    mode: Literal["auto", "none", "required"] | None = None


class SamplingMessage(Model, kw_only=True):
    """One message of the conversation to continue."""

    role: Role
    content: SamplingContent
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ModelHint(Model, kw_only=True):
    """A part of the name of a model that would do."""

    name: str | None = None


class ModelPreferences(Model, kw_only=True):
    """Which model to take: the first hint that matches, else by the priorities."""

    hints: list[ModelHint] | None = None
    cost_priority: UnitInterval | None = None
    speed_priority: UnitInterval | None = None
    intelligence_priority: UnitInterval | None = None


class CreateMessageParams(Params, kw_only=True):
    """Asks the client's model for the next message."""

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
    """The message that the model gave, and why it stopped."""

    role: Role
    content: SamplingContent
    model: str
    stop_reason: str | None = None
