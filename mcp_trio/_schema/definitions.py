"""Which of our types stands for which published definition: one row for each name.

A row is the only place that a later revision adds to: a new definition is a new row with `since`,
a dropped one gets its `until`, a renamed one is both. Rows are kept in alphabetical order, as the
schemas are published.
"""

from typing import Any, Final

import attrs

from mcp_trio._schema.base import (
    AnnotatedModel,
    Cursor,
    EmptyParams,
    EmptyResult,
    Implementation,
    ProgressToken,
    RequestId,
    Role,
)
from mcp_trio._schema.cancellation import CancelledParams
from mcp_trio._schema.completion import (
    CompleteParams,
    CompleteResult,
    PromptReference,
    ResourceReference,
)
from mcp_trio._schema.content import EmbeddedResource, ImageContent, TextContent
from mcp_trio._schema.lifecycle import (
    ClientCapabilities,
    InitializeParams,
    InitializeResult,
    ServerCapabilities,
)
from mcp_trio._schema.logging import LoggingLevel, LoggingMessageParams, SetLevelParams
from mcp_trio._schema.pagination import PaginatedParams, PaginatedResult
from mcp_trio._schema.progress import ProgressParams
from mcp_trio._schema.prompts import (
    GetPromptParams,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
)
from mcp_trio._schema.resources import (
    ContentsHead,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceTemplate,
    ResourceUpdatedParams,
    SubscribeParams,
    UnsubscribeParams,
)
from mcp_trio._schema.roots import ListRootsResult, Root
from mcp_trio._schema.sampling import (
    CreateMessageParams,
    CreateMessageResult,
    ModelHint,
    ModelPreferences,
    SamplingMessage,
)
from mcp_trio._schema.tools import CallToolParams, CallToolResult, ListToolsResult, Tool

FIRST_REVISION: Final = "2024-11-05"


@attrs.frozen(kw_only=True)
class Definition:
    """How one published definition is represented here; exactly one of the four ways is used.

    - `body`: the type that the JSON value is decoded to.
    - `params`: a request or notification, of which the struct is the parameters only. `method` is
      its name, or None for the published bases that stand for any method.
    - `members`: a union, by the names of its definitions.
    - `envelope`: a JSON-RPC frame, which the wire decodes.

    `since` and `until` are the first and the last revision that publish the definition; None means
    that the newest still does.
    """

    body: Any = None
    method: str | None = None
    params: type[Any] | None = None
    members: tuple[str, ...] = ()
    envelope: bool = False
    since: str = FIRST_REVISION
    until: str | None = None


DEFINITIONS: Final[dict[str, Definition]] = {
    "Annotated": Definition(body=AnnotatedModel),
    "BlobResourceContents": Definition(body=ResourceContents),
    "CallToolRequest": Definition(method="tools/call", params=CallToolParams),
    "CallToolResult": Definition(body=CallToolResult),
    "CancelledNotification": Definition(method="notifications/cancelled", params=CancelledParams),
    "ClientCapabilities": Definition(body=ClientCapabilities),
    "ClientNotification": Definition(
        members=(
            "CancelledNotification",
            "InitializedNotification",
            "ProgressNotification",
            "RootsListChangedNotification",
        )
    ),
    "ClientRequest": Definition(
        members=(
            "InitializeRequest",
            "PingRequest",
            "ListResourcesRequest",
            "ListResourceTemplatesRequest",
            "ReadResourceRequest",
            "SubscribeRequest",
            "UnsubscribeRequest",
            "ListPromptsRequest",
            "GetPromptRequest",
            "ListToolsRequest",
            "CallToolRequest",
            "SetLevelRequest",
            "CompleteRequest",
        )
    ),
    "ClientResult": Definition(
        members=(
            "Result",
            "CreateMessageResult",
            "ListRootsResult",
        )
    ),
    "CompleteRequest": Definition(method="completion/complete", params=CompleteParams),
    "CompleteResult": Definition(body=CompleteResult),
    "CreateMessageRequest": Definition(method="sampling/createMessage", params=CreateMessageParams),
    "CreateMessageResult": Definition(body=CreateMessageResult),
    "Cursor": Definition(body=Cursor),
    "EmbeddedResource": Definition(body=EmbeddedResource),
    "EmptyResult": Definition(body=EmptyResult),
    "GetPromptRequest": Definition(method="prompts/get", params=GetPromptParams),
    "GetPromptResult": Definition(body=GetPromptResult),
    "ImageContent": Definition(body=ImageContent),
    "Implementation": Definition(body=Implementation),
    "InitializeRequest": Definition(method="initialize", params=InitializeParams),
    "InitializeResult": Definition(body=InitializeResult),
    "InitializedNotification": Definition(method="notifications/initialized", params=EmptyParams),
    "JSONRPCError": Definition(envelope=True),
    "JSONRPCMessage": Definition(envelope=True),
    "JSONRPCNotification": Definition(envelope=True),
    "JSONRPCRequest": Definition(envelope=True),
    "JSONRPCResponse": Definition(envelope=True),
    "ListPromptsRequest": Definition(method="prompts/list", params=PaginatedParams),
    "ListPromptsResult": Definition(body=ListPromptsResult),
    "ListResourceTemplatesRequest": Definition(
        method="resources/templates/list", params=PaginatedParams
    ),
    "ListResourceTemplatesResult": Definition(body=ListResourceTemplatesResult),
    "ListResourcesRequest": Definition(method="resources/list", params=PaginatedParams),
    "ListResourcesResult": Definition(body=ListResourcesResult),
    "ListRootsRequest": Definition(method="roots/list", params=EmptyParams),
    "ListRootsResult": Definition(body=ListRootsResult),
    "ListToolsRequest": Definition(method="tools/list", params=PaginatedParams),
    "ListToolsResult": Definition(body=ListToolsResult),
    "LoggingLevel": Definition(body=LoggingLevel),
    "LoggingMessageNotification": Definition(
        method="notifications/message", params=LoggingMessageParams
    ),
    "ModelHint": Definition(body=ModelHint),
    "ModelPreferences": Definition(body=ModelPreferences),
    "Notification": Definition(params=EmptyParams),
    "PaginatedRequest": Definition(params=PaginatedParams),
    "PaginatedResult": Definition(body=PaginatedResult),
    "PingRequest": Definition(method="ping", params=EmptyParams),
    "ProgressNotification": Definition(method="notifications/progress", params=ProgressParams),
    "ProgressToken": Definition(body=ProgressToken),
    "Prompt": Definition(body=Prompt),
    "PromptArgument": Definition(body=PromptArgument),
    "PromptListChangedNotification": Definition(
        method="notifications/prompts/list_changed", params=EmptyParams
    ),
    "PromptMessage": Definition(body=PromptMessage),
    "PromptReference": Definition(body=PromptReference),
    "ReadResourceRequest": Definition(method="resources/read", params=ReadResourceParams),
    "ReadResourceResult": Definition(body=ReadResourceResult),
    "Request": Definition(params=EmptyParams),
    "RequestId": Definition(body=RequestId),
    "Resource": Definition(body=Resource),
    "ResourceContents": Definition(body=ContentsHead),
    "ResourceListChangedNotification": Definition(
        method="notifications/resources/list_changed", params=EmptyParams
    ),
    "ResourceReference": Definition(body=ResourceReference),
    "ResourceTemplate": Definition(body=ResourceTemplate),
    "ResourceUpdatedNotification": Definition(
        method="notifications/resources/updated", params=ResourceUpdatedParams
    ),
    "Result": Definition(body=EmptyResult),
    "Role": Definition(body=Role),
    "Root": Definition(body=Root),
    "RootsListChangedNotification": Definition(
        method="notifications/roots/list_changed", params=EmptyParams
    ),
    "SamplingMessage": Definition(body=SamplingMessage),
    "ServerCapabilities": Definition(body=ServerCapabilities),
    "ServerNotification": Definition(
        members=(
            "CancelledNotification",
            "ProgressNotification",
            "ResourceListChangedNotification",
            "ResourceUpdatedNotification",
            "PromptListChangedNotification",
            "ToolListChangedNotification",
            "LoggingMessageNotification",
        )
    ),
    "ServerRequest": Definition(
        members=(
            "PingRequest",
            "CreateMessageRequest",
            "ListRootsRequest",
        )
    ),
    "ServerResult": Definition(
        members=(
            "Result",
            "InitializeResult",
            "ListResourcesResult",
            "ListResourceTemplatesResult",
            "ReadResourceResult",
            "ListPromptsResult",
            "GetPromptResult",
            "ListToolsResult",
            "CallToolResult",
            "CompleteResult",
        )
    ),
    "SetLevelRequest": Definition(method="logging/setLevel", params=SetLevelParams),
    "SubscribeRequest": Definition(method="resources/subscribe", params=SubscribeParams),
    "TextContent": Definition(body=TextContent),
    "TextResourceContents": Definition(body=ResourceContents),
    "Tool": Definition(body=Tool),
    "ToolListChangedNotification": Definition(
        method="notifications/tools/list_changed", params=EmptyParams
    ),
    "UnsubscribeRequest": Definition(method="resources/unsubscribe", params=UnsubscribeParams),
}
