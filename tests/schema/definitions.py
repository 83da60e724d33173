"""The type for each published definition: one row for each name.

A later protocol version changes only rows: a new definition is a new row with `since`,
a dropped one gets its `until`, a renamed one is both. Rows are kept in alphabetical order, as the
schemas are published. Definitions of tasks have none: tasks are not spoken yet.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from mcp_trio import types

FIRST_PROTOCOL_VERSION: Final = "2024-11-05"

# Values that are not decoded: metadata, and the schemas of the members of forms.
_OBJECT: Final = dict[str, Any]


@attrs.frozen(kw_only=True)
class Definition:
    """The representation of one published definition; exactly one of the four ways is used.

    - `body`: the type that the JSON value is decoded to.
    - `params`: a request or notification, of which the struct is the parameters only. `method` is
      its name, or None for the published bases that stand for any method.
    - `members`: a union, by the names of its definitions: those of any version, each as long as
      its own row has it, or until it left the union, by `members_until`.
    - `envelope`: a JSON-RPC frame, or the error in one, which the wire decodes.

    `since` and `until` are the first and the last version that publish the definition; None means
    that the newest still does.
    """

    body: Any = None
    method: str | None = None
    params: type[Any] | None = None
    members: tuple[str, ...] = ()
    members_until: Mapping[str, str] = attrs.field(factory=dict[str, str])
    envelope: bool = False
    since: str = FIRST_PROTOCOL_VERSION
    until: str | None = None


DEFINITIONS: Final[dict[str, Definition]] = {
    "Annotated": Definition(body=types.AnnotatedModel, until="2024-11-05"),
    "Annotations": Definition(body=types.Annotations, since="2025-03-26"),
    "AudioContent": Definition(body=types.AudioContent, since="2025-03-26"),
    "BaseMetadata": Definition(body=types.BaseMetadata, since="2025-06-18"),
    "BlobResourceContents": Definition(body=types.ResourceContents),
    "BooleanSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "CacheableResult": Definition(body=types.CacheableResult, since="2026-07-28"),
    "CallToolRequest": Definition(method="tools/call", params=types.CallToolParams),
    "CallToolRequestParams": Definition(body=types.CallToolParams, since="2025-11-25"),
    "CallToolResult": Definition(body=types.CallToolResult),
    "CallToolResultResponse": Definition(envelope=True, since="2026-07-28"),
    "CancelledNotification": Definition(
        method="notifications/cancelled", params=types.CancelledParams
    ),
    "CancelledNotificationParams": Definition(body=types.CancelledParams, since="2025-11-25"),
    "ClientCapabilities": Definition(body=types.ClientCapabilities),
    "ClientNotification": Definition(
        members=(
            "CancelledNotification",
            "InitializedNotification",
            "ProgressNotification",
            "RootsListChangedNotification",
        ),
        members_until={"ProgressNotification": "2025-11-25"},
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
            "DiscoverRequest",
            "SubscriptionsListenRequest",
        )
    ),
    "ClientResult": Definition(
        members=(
            "Result",
            "CreateMessageResult",
            "ListRootsResult",
            "ElicitResult",
        ),
        members_until={
            "CreateMessageResult": "2025-11-25",
            "ListRootsResult": "2025-11-25",
            "ElicitResult": "2025-11-25",
        },
    ),
    "CompleteRequest": Definition(method="completion/complete", params=types.CompleteParams),
    "CompleteRequestParams": Definition(body=types.CompleteParams, since="2025-11-25"),
    "CompleteResult": Definition(body=types.CompleteResult),
    "CompleteResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ContentBlock": Definition(body=types.Content, since="2025-06-18"),
    "CreateMessageRequest": Definition(
        method="sampling/createMessage", params=types.CreateMessageParams
    ),
    "CreateMessageRequestParams": Definition(body=types.CreateMessageParams, since="2025-11-25"),
    "CreateMessageResult": Definition(body=types.CreateMessageResult),
    "Cursor": Definition(body=types.Cursor),
    "DiscoverRequest": Definition(
        method="server/discover", params=types.EmptyParams, since="2026-07-28"
    ),
    "DiscoverResult": Definition(body=types.DiscoverResult, since="2026-07-28"),
    "DiscoverResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ElicitRequest": Definition(
        method="elicitation/create", params=types.ElicitParams, since="2025-06-18"
    ),
    "ElicitRequestFormParams": Definition(body=types.ElicitParams, since="2025-11-25"),
    "ElicitRequestParams": Definition(body=types.ElicitParams, since="2025-11-25"),
    "ElicitRequestURLParams": Definition(body=types.ElicitParams, since="2025-11-25"),
    "ElicitResult": Definition(body=types.ElicitResult, since="2025-06-18"),
    "ElicitationCompleteNotification": Definition(
        method="notifications/elicitation/complete",
        params=types.ElicitationCompleteParams,
        since="2025-11-25",
        until="2025-11-25",
    ),
    "EmbeddedResource": Definition(body=types.EmbeddedResource),
    "EmptyResult": Definition(body=types.EmptyResult),
    "EnumSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "Error": Definition(envelope=True, since="2025-11-25"),
    "GetPromptRequest": Definition(method="prompts/get", params=types.GetPromptParams),
    "GetPromptRequestParams": Definition(body=types.GetPromptParams, since="2025-11-25"),
    "GetPromptResult": Definition(body=types.GetPromptResult),
    "GetPromptResultResponse": Definition(envelope=True, since="2026-07-28"),
    "HeaderMismatchError": Definition(envelope=True, since="2026-07-28"),
    "Icon": Definition(body=types.Icon, since="2025-11-25"),
    "Icons": Definition(body=types.Icons, since="2025-11-25"),
    "ImageContent": Definition(body=types.ImageContent),
    "Implementation": Definition(body=types.Implementation),
    "InitializeRequest": Definition(
        method="initialize", params=types.InitializeParams, until="2025-11-25"
    ),
    "InitializeRequestParams": Definition(
        body=types.InitializeParams, since="2025-11-25", until="2025-11-25"
    ),
    "InitializeResult": Definition(body=types.InitializeResult, until="2025-11-25"),
    "InitializedNotification": Definition(
        method="notifications/initialized", params=types.EmptyParams, until="2025-11-25"
    ),
    "InputRequest": Definition(body=types.InputRequest, since="2026-07-28"),
    "InputRequests": Definition(body=dict[str, types.InputRequest], since="2026-07-28"),
    "InputRequiredResult": Definition(body=types.InputRequiredResult, since="2026-07-28"),
    "InputResponse": Definition(
        members=(
            "CreateMessageResult",
            "ListRootsResult",
            "ElicitResult",
        ),
        since="2026-07-28",
    ),
    "InputResponseRequestParams": Definition(body=types.InputResponseParams, since="2026-07-28"),
    "InputResponses": Definition(body=dict[str, msgspec.Raw], since="2026-07-28"),
    "InternalError": Definition(envelope=True, since="2026-07-28"),
    "InvalidParamsError": Definition(envelope=True, since="2026-07-28"),
    "InvalidRequestError": Definition(envelope=True, since="2026-07-28"),
    "JSONArray": Definition(body=list[Any], since="2026-07-28"),
    "JSONObject": Definition(body=_OBJECT, since="2026-07-28"),
    "JSONRPCBatchRequest": Definition(envelope=True, since="2025-03-26", until="2025-03-26"),
    "JSONRPCBatchResponse": Definition(envelope=True, since="2025-03-26", until="2025-03-26"),
    "JSONRPCError": Definition(envelope=True, until="2025-06-18"),
    "JSONRPCErrorResponse": Definition(envelope=True, since="2025-11-25"),
    "JSONRPCMessage": Definition(envelope=True),
    "JSONRPCNotification": Definition(envelope=True),
    "JSONRPCRequest": Definition(envelope=True),
    "JSONRPCResponse": Definition(envelope=True),
    "JSONRPCResultResponse": Definition(envelope=True, since="2025-11-25"),
    "JSONValue": Definition(body=Any, since="2026-07-28"),
    "LegacyTitledEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "ListPromptsRequest": Definition(method="prompts/list", params=types.PaginatedParams),
    "ListPromptsResult": Definition(body=types.ListPromptsResult),
    "ListPromptsResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ListResourceTemplatesRequest": Definition(
        method="resources/templates/list", params=types.PaginatedParams
    ),
    "ListResourceTemplatesResult": Definition(body=types.ListResourceTemplatesResult),
    "ListResourceTemplatesResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ListResourcesRequest": Definition(method="resources/list", params=types.PaginatedParams),
    "ListResourcesResult": Definition(body=types.ListResourcesResult),
    "ListResourcesResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ListRootsRequest": Definition(method="roots/list", params=types.EmptyParams),
    "ListRootsResult": Definition(body=types.ListRootsResult),
    "ListToolsRequest": Definition(method="tools/list", params=types.PaginatedParams),
    "ListToolsResult": Definition(body=types.ListToolsResult),
    "ListToolsResultResponse": Definition(envelope=True, since="2026-07-28"),
    "LoggingLevel": Definition(body=types.LoggingLevel),
    "LoggingMessageNotification": Definition(
        method="notifications/message", params=types.LoggingMessageParams
    ),
    "LoggingMessageNotificationParams": Definition(
        body=types.LoggingMessageParams, since="2025-11-25"
    ),
    "MetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "MethodNotFoundError": Definition(envelope=True, since="2026-07-28"),
    "MissingRequiredClientCapabilityError": Definition(envelope=True, since="2026-07-28"),
    "ModelHint": Definition(body=types.ModelHint),
    "ModelPreferences": Definition(body=types.ModelPreferences),
    "MultiSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "Notification": Definition(params=types.EmptyParams),
    "NotificationMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "NotificationParams": Definition(body=types.EmptyParams, since="2025-11-25"),
    "NumberSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "PaginatedRequest": Definition(params=types.PaginatedParams),
    "PaginatedRequestParams": Definition(body=types.PaginatedParams, since="2025-11-25"),
    "PaginatedResult": Definition(body=types.PaginatedResult),
    "ParseError": Definition(envelope=True, since="2026-07-28"),
    "PingRequest": Definition(method="ping", params=types.EmptyParams, until="2025-11-25"),
    "PrimitiveSchemaDefinition": Definition(body=_OBJECT, since="2025-06-18"),
    "ProgressNotification": Definition(
        method="notifications/progress", params=types.ProgressParams
    ),
    "ProgressNotificationParams": Definition(body=types.ProgressParams, since="2025-11-25"),
    "ProgressToken": Definition(body=types.ProgressToken),
    "Prompt": Definition(body=types.Prompt),
    "PromptArgument": Definition(body=types.PromptArgument),
    "PromptListChangedNotification": Definition(
        method="notifications/prompts/list_changed", params=types.EmptyParams
    ),
    "PromptMessage": Definition(body=types.PromptMessage),
    "PromptReference": Definition(body=types.PromptReference),
    "ReadResourceRequest": Definition(method="resources/read", params=types.ReadResourceParams),
    "ReadResourceRequestParams": Definition(body=types.ReadResourceParams, since="2025-11-25"),
    "ReadResourceResult": Definition(body=types.ReadResourceResult),
    "ReadResourceResultResponse": Definition(envelope=True, since="2026-07-28"),
    "Request": Definition(params=types.EmptyParams),
    "RequestId": Definition(body=types.RequestId),
    "RequestMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "RequestParams": Definition(body=types.EmptyParams, since="2025-11-25"),
    "Resource": Definition(body=types.Resource),
    "ResourceContents": Definition(body=types.ResourceContentsBase),
    "ResourceLink": Definition(body=types.ResourceLink, since="2025-06-18"),
    "ResourceListChangedNotification": Definition(
        method="notifications/resources/list_changed", params=types.EmptyParams
    ),
    "ResourceReference": Definition(body=types.ResourceReference, until="2025-03-26"),
    "ResourceRequestParams": Definition(body=types.SubscribeParams, since="2025-11-25"),
    "ResourceTemplate": Definition(body=types.ResourceTemplate),
    "ResourceTemplateReference": Definition(body=types.ResourceReference, since="2025-06-18"),
    "ResourceUpdatedNotification": Definition(
        method="notifications/resources/updated", params=types.ResourceUpdatedParams
    ),
    "ResourceUpdatedNotificationParams": Definition(
        body=types.ResourceUpdatedParams, since="2025-11-25"
    ),
    "Result": Definition(body=types.EmptyResult),
    "ResultMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "ResultType": Definition(body=str, since="2026-07-28"),
    "Role": Definition(body=types.Role),
    "Root": Definition(body=types.Root),
    "RootsListChangedNotification": Definition(
        method="notifications/roots/list_changed", params=types.EmptyParams, until="2025-11-25"
    ),
    "SamplingMessage": Definition(body=types.SamplingMessage),
    "SamplingMessageContentBlock": Definition(body=types.SamplingBlock, since="2025-11-25"),
    "ServerCapabilities": Definition(body=types.ServerCapabilities),
    "ServerNotification": Definition(
        members=(
            "CancelledNotification",
            "ProgressNotification",
            "ResourceListChangedNotification",
            "ResourceUpdatedNotification",
            "PromptListChangedNotification",
            "ToolListChangedNotification",
            "LoggingMessageNotification",
            "ElicitationCompleteNotification",
            "SubscriptionsAcknowledgedNotification",
        )
    ),
    "ServerRequest": Definition(
        members=(
            "PingRequest",
            "CreateMessageRequest",
            "ListRootsRequest",
            "ElicitRequest",
        ),
        until="2025-11-25",
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
            "InputRequiredResult",
            "DiscoverResult",
            "SubscriptionsListenResult",
        )
    ),
    "SetLevelRequest": Definition(
        method="logging/setLevel", params=types.SetLevelParams, until="2025-11-25"
    ),
    "SetLevelRequestParams": Definition(
        body=types.SetLevelParams, since="2025-11-25", until="2025-11-25"
    ),
    "SingleSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "StringSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "SubscribeRequest": Definition(
        method="resources/subscribe", params=types.SubscribeParams, until="2025-11-25"
    ),
    "SubscribeRequestParams": Definition(
        body=types.SubscribeParams, since="2025-11-25", until="2025-11-25"
    ),
    "SubscriptionFilter": Definition(body=types.SubscriptionFilter, since="2026-07-28"),
    "SubscriptionsAcknowledgedNotification": Definition(
        method="notifications/subscriptions/acknowledged",
        params=types.AcknowledgedParams,
        since="2026-07-28",
    ),
    "SubscriptionsAcknowledgedNotificationParams": Definition(
        body=types.AcknowledgedParams, since="2026-07-28"
    ),
    "SubscriptionsListenRequest": Definition(
        method="subscriptions/listen", params=types.ListenParams, since="2026-07-28"
    ),
    "SubscriptionsListenRequestParams": Definition(body=types.ListenParams, since="2026-07-28"),
    "SubscriptionsListenResult": Definition(body=types.ListenResult, since="2026-07-28"),
    "SubscriptionsListenResultMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "SubscriptionsListenResultResponse": Definition(envelope=True, since="2026-07-28"),
    "TextContent": Definition(body=types.TextContent),
    "TextResourceContents": Definition(body=types.ResourceContents),
    "TitledMultiSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "TitledSingleSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "Tool": Definition(body=types.Tool),
    "ToolAnnotations": Definition(body=types.ToolAnnotations, since="2025-03-26"),
    "ToolChoice": Definition(body=types.ToolChoice, since="2025-11-25"),
    "ToolExecution": Definition(body=types.ToolExecution, since="2025-11-25", until="2025-11-25"),
    "ToolListChangedNotification": Definition(
        method="notifications/tools/list_changed", params=types.EmptyParams
    ),
    "ToolResultContent": Definition(body=types.ToolResultContent, since="2025-11-25"),
    "ToolUseContent": Definition(body=types.ToolUseContent, since="2025-11-25"),
    "URLElicitationRequiredError": Definition(
        envelope=True, since="2025-11-25", until="2025-11-25"
    ),
    "UnsubscribeRequest": Definition(
        method="resources/unsubscribe", params=types.UnsubscribeParams, until="2025-11-25"
    ),
    "UnsubscribeRequestParams": Definition(
        body=types.UnsubscribeParams, since="2025-11-25", until="2025-11-25"
    ),
    "UnsupportedProtocolVersionError": Definition(envelope=True, since="2026-07-28"),
    "UntitledMultiSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "UntitledSingleSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
}
