"""Which of our types stands for which published definition: one row for each name.

A row is the only place that a later revision adds to: a new definition is a new row with `since`,
a dropped one gets its `until`, a renamed one is both. Rows are kept in alphabetical order, as the
schemas are published. Definitions of tasks have none: tasks are not spoken yet.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from mcp_trio._schema import (
    base,
    caching,
    cancellation,
    completion,
    content,
    elicitation,
    input_rounds,
    lifecycle,
    logging,
    pagination,
    progress,
    prompts,
    resources,
    roots,
    sampling,
    subscriptions,
    tools,
)

FIRST_REVISION: Final = "2024-11-05"

# What stays as it came: metadata, and the schemas of the members of forms.
_OBJECT: Final = dict[str, Any]


@attrs.frozen(kw_only=True)
class Definition:
    """How one published definition is represented here; exactly one of the four ways is used.

    - `body`: the type that the JSON value is decoded to.
    - `params`: a request or notification, of which the struct is the parameters only. `method` is
      its name, or None for the published bases that stand for any method.
    - `members`: a union, by the names of its definitions: those of any revision, each as long as
      its own row says, or `members_until` says that it left the union earlier.
    - `envelope`: a JSON-RPC frame, or the error in one, which the wire decodes.

    `since` and `until` are the first and the last revision that publish the definition; None means
    that the newest still does.
    """

    body: Any = None
    method: str | None = None
    params: type[Any] | None = None
    members: tuple[str, ...] = ()
    members_until: Mapping[str, str] = attrs.field(factory=dict[str, str])
    envelope: bool = False
    since: str = FIRST_REVISION
    until: str | None = None


DEFINITIONS: Final[dict[str, Definition]] = {
    "Annotated": Definition(body=base.AnnotatedModel, until="2024-11-05"),
    "Annotations": Definition(body=base.Annotations, since="2025-03-26"),
    "AudioContent": Definition(body=content.AudioContent, since="2025-03-26"),
    "BaseMetadata": Definition(body=base.BaseMetadata, since="2025-06-18"),
    "BlobResourceContents": Definition(body=resources.ResourceContents),
    "BooleanSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "CacheableResult": Definition(body=caching.CacheableResult, since="2026-07-28"),
    "CallToolRequest": Definition(method="tools/call", params=tools.CallToolParams),
    "CallToolRequestParams": Definition(body=tools.CallToolParams, since="2025-11-25"),
    "CallToolResult": Definition(body=tools.CallToolResult),
    "CallToolResultResponse": Definition(envelope=True, since="2026-07-28"),
    "CancelledNotification": Definition(
        method="notifications/cancelled", params=cancellation.CancelledParams
    ),
    "CancelledNotificationParams": Definition(
        body=cancellation.CancelledParams, since="2025-11-25"
    ),
    "ClientCapabilities": Definition(body=lifecycle.ClientCapabilities),
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
    "CompleteRequest": Definition(method="completion/complete", params=completion.CompleteParams),
    "CompleteRequestParams": Definition(body=completion.CompleteParams, since="2025-11-25"),
    "CompleteResult": Definition(body=completion.CompleteResult),
    "CompleteResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ContentBlock": Definition(body=content.Content, since="2025-06-18"),
    "CreateMessageRequest": Definition(
        method="sampling/createMessage", params=sampling.CreateMessageParams
    ),
    "CreateMessageRequestParams": Definition(body=sampling.CreateMessageParams, since="2025-11-25"),
    "CreateMessageResult": Definition(body=sampling.CreateMessageResult),
    "Cursor": Definition(body=base.Cursor),
    "DiscoverRequest": Definition(
        method="server/discover", params=base.EmptyParams, since="2026-07-28"
    ),
    "DiscoverResult": Definition(body=lifecycle.DiscoverResult, since="2026-07-28"),
    "DiscoverResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ElicitRequest": Definition(
        method="elicitation/create", params=elicitation.ElicitParams, since="2025-06-18"
    ),
    "ElicitRequestFormParams": Definition(body=elicitation.ElicitParams, since="2025-11-25"),
    "ElicitRequestParams": Definition(body=elicitation.ElicitParams, since="2025-11-25"),
    "ElicitRequestURLParams": Definition(body=elicitation.ElicitParams, since="2025-11-25"),
    "ElicitResult": Definition(body=elicitation.ElicitResult, since="2025-06-18"),
    "ElicitationCompleteNotification": Definition(
        method="notifications/elicitation/complete",
        params=elicitation.ElicitationCompleteParams,
        since="2025-11-25",
        until="2025-11-25",
    ),
    "EmbeddedResource": Definition(body=content.EmbeddedResource),
    "EmptyResult": Definition(body=base.EmptyResult),
    "EnumSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "Error": Definition(envelope=True, since="2025-11-25"),
    "GetPromptRequest": Definition(method="prompts/get", params=prompts.GetPromptParams),
    "GetPromptRequestParams": Definition(body=prompts.GetPromptParams, since="2025-11-25"),
    "GetPromptResult": Definition(body=prompts.GetPromptResult),
    "GetPromptResultResponse": Definition(envelope=True, since="2026-07-28"),
    "HeaderMismatchError": Definition(envelope=True, since="2026-07-28"),
    "Icon": Definition(body=base.Icon, since="2025-11-25"),
    "Icons": Definition(body=base.Icons, since="2025-11-25"),
    "ImageContent": Definition(body=content.ImageContent),
    "Implementation": Definition(body=base.Implementation),
    "InitializeRequest": Definition(
        method="initialize", params=lifecycle.InitializeParams, until="2025-11-25"
    ),
    "InitializeRequestParams": Definition(
        body=lifecycle.InitializeParams, since="2025-11-25", until="2025-11-25"
    ),
    "InitializeResult": Definition(body=lifecycle.InitializeResult, until="2025-11-25"),
    "InitializedNotification": Definition(
        method="notifications/initialized", params=base.EmptyParams, until="2025-11-25"
    ),
    "InputRequest": Definition(body=input_rounds.InputRequest, since="2026-07-28"),
    "InputRequests": Definition(body=dict[str, input_rounds.InputRequest], since="2026-07-28"),
    "InputRequiredResult": Definition(body=input_rounds.InputRequiredResult, since="2026-07-28"),
    "InputResponse": Definition(
        members=(
            "CreateMessageResult",
            "ListRootsResult",
            "ElicitResult",
        ),
        since="2026-07-28",
    ),
    "InputResponseRequestParams": Definition(
        body=input_rounds.InputResponseParams, since="2026-07-28"
    ),
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
    "ListPromptsRequest": Definition(method="prompts/list", params=pagination.PaginatedParams),
    "ListPromptsResult": Definition(body=prompts.ListPromptsResult),
    "ListPromptsResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ListResourceTemplatesRequest": Definition(
        method="resources/templates/list", params=pagination.PaginatedParams
    ),
    "ListResourceTemplatesResult": Definition(body=resources.ListResourceTemplatesResult),
    "ListResourceTemplatesResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ListResourcesRequest": Definition(method="resources/list", params=pagination.PaginatedParams),
    "ListResourcesResult": Definition(body=resources.ListResourcesResult),
    "ListResourcesResultResponse": Definition(envelope=True, since="2026-07-28"),
    "ListRootsRequest": Definition(method="roots/list", params=base.EmptyParams),
    "ListRootsResult": Definition(body=roots.ListRootsResult),
    "ListToolsRequest": Definition(method="tools/list", params=pagination.PaginatedParams),
    "ListToolsResult": Definition(body=tools.ListToolsResult),
    "ListToolsResultResponse": Definition(envelope=True, since="2026-07-28"),
    "LoggingLevel": Definition(body=logging.LoggingLevel),
    "LoggingMessageNotification": Definition(
        method="notifications/message", params=logging.LoggingMessageParams
    ),
    "LoggingMessageNotificationParams": Definition(
        body=logging.LoggingMessageParams, since="2025-11-25"
    ),
    "MetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "MethodNotFoundError": Definition(envelope=True, since="2026-07-28"),
    "MissingRequiredClientCapabilityError": Definition(envelope=True, since="2026-07-28"),
    "ModelHint": Definition(body=sampling.ModelHint),
    "ModelPreferences": Definition(body=sampling.ModelPreferences),
    "MultiSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "Notification": Definition(params=base.EmptyParams),
    "NotificationMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "NotificationParams": Definition(body=base.EmptyParams, since="2025-11-25"),
    "NumberSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "PaginatedRequest": Definition(params=pagination.PaginatedParams),
    "PaginatedRequestParams": Definition(body=pagination.PaginatedParams, since="2025-11-25"),
    "PaginatedResult": Definition(body=pagination.PaginatedResult),
    "ParseError": Definition(envelope=True, since="2026-07-28"),
    "PingRequest": Definition(method="ping", params=base.EmptyParams, until="2025-11-25"),
    "PrimitiveSchemaDefinition": Definition(body=_OBJECT, since="2025-06-18"),
    "ProgressNotification": Definition(
        method="notifications/progress", params=progress.ProgressParams
    ),
    "ProgressNotificationParams": Definition(body=progress.ProgressParams, since="2025-11-25"),
    "ProgressToken": Definition(body=base.ProgressToken),
    "Prompt": Definition(body=prompts.Prompt),
    "PromptArgument": Definition(body=prompts.PromptArgument),
    "PromptListChangedNotification": Definition(
        method="notifications/prompts/list_changed", params=base.EmptyParams
    ),
    "PromptMessage": Definition(body=prompts.PromptMessage),
    "PromptReference": Definition(body=completion.PromptReference),
    "ReadResourceRequest": Definition(method="resources/read", params=resources.ReadResourceParams),
    "ReadResourceRequestParams": Definition(body=resources.ReadResourceParams, since="2025-11-25"),
    "ReadResourceResult": Definition(body=resources.ReadResourceResult),
    "ReadResourceResultResponse": Definition(envelope=True, since="2026-07-28"),
    "Request": Definition(params=base.EmptyParams),
    "RequestId": Definition(body=base.RequestId),
    "RequestMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "RequestParams": Definition(body=base.EmptyParams, since="2025-11-25"),
    "Resource": Definition(body=resources.Resource),
    "ResourceContents": Definition(body=resources.ContentsHead),
    "ResourceLink": Definition(body=content.ResourceLink, since="2025-06-18"),
    "ResourceListChangedNotification": Definition(
        method="notifications/resources/list_changed", params=base.EmptyParams
    ),
    "ResourceReference": Definition(body=completion.ResourceReference, until="2025-03-26"),
    "ResourceRequestParams": Definition(body=resources.SubscribeParams, since="2025-11-25"),
    "ResourceTemplate": Definition(body=resources.ResourceTemplate),
    "ResourceTemplateReference": Definition(body=completion.ResourceReference, since="2025-06-18"),
    "ResourceUpdatedNotification": Definition(
        method="notifications/resources/updated", params=resources.ResourceUpdatedParams
    ),
    "ResourceUpdatedNotificationParams": Definition(
        body=resources.ResourceUpdatedParams, since="2025-11-25"
    ),
    "Result": Definition(body=base.EmptyResult),
    "ResultMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "ResultType": Definition(body=str, since="2026-07-28"),
    "Role": Definition(body=base.Role),
    "Root": Definition(body=roots.Root),
    "RootsListChangedNotification": Definition(
        method="notifications/roots/list_changed", params=base.EmptyParams, until="2025-11-25"
    ),
    "SamplingMessage": Definition(body=sampling.SamplingMessage),
    "SamplingMessageContentBlock": Definition(body=sampling.SamplingBlock, since="2025-11-25"),
    "ServerCapabilities": Definition(body=lifecycle.ServerCapabilities),
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
        method="logging/setLevel", params=logging.SetLevelParams, until="2025-11-25"
    ),
    "SetLevelRequestParams": Definition(
        body=logging.SetLevelParams, since="2025-11-25", until="2025-11-25"
    ),
    "SingleSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "StringSchema": Definition(body=_OBJECT, since="2025-06-18"),
    "SubscribeRequest": Definition(
        method="resources/subscribe", params=resources.SubscribeParams, until="2025-11-25"
    ),
    "SubscribeRequestParams": Definition(
        body=resources.SubscribeParams, since="2025-11-25", until="2025-11-25"
    ),
    "SubscriptionFilter": Definition(body=subscriptions.SubscriptionFilter, since="2026-07-28"),
    "SubscriptionsAcknowledgedNotification": Definition(
        method="notifications/subscriptions/acknowledged",
        params=subscriptions.AcknowledgedParams,
        since="2026-07-28",
    ),
    "SubscriptionsAcknowledgedNotificationParams": Definition(
        body=subscriptions.AcknowledgedParams, since="2026-07-28"
    ),
    "SubscriptionsListenRequest": Definition(
        method="subscriptions/listen", params=subscriptions.ListenParams, since="2026-07-28"
    ),
    "SubscriptionsListenRequestParams": Definition(
        body=subscriptions.ListenParams, since="2026-07-28"
    ),
    "SubscriptionsListenResult": Definition(body=subscriptions.ListenResult, since="2026-07-28"),
    "SubscriptionsListenResultMetaObject": Definition(body=_OBJECT, since="2026-07-28"),
    "SubscriptionsListenResultResponse": Definition(envelope=True, since="2026-07-28"),
    "TextContent": Definition(body=content.TextContent),
    "TextResourceContents": Definition(body=resources.ResourceContents),
    "TitledMultiSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "TitledSingleSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "Tool": Definition(body=tools.Tool),
    "ToolAnnotations": Definition(body=tools.ToolAnnotations, since="2025-03-26"),
    "ToolChoice": Definition(body=sampling.ToolChoice, since="2025-11-25"),
    "ToolExecution": Definition(body=tools.ToolExecution, since="2025-11-25", until="2025-11-25"),
    "ToolListChangedNotification": Definition(
        method="notifications/tools/list_changed", params=base.EmptyParams
    ),
    "ToolResultContent": Definition(body=sampling.ToolResultContent, since="2025-11-25"),
    "ToolUseContent": Definition(body=sampling.ToolUseContent, since="2025-11-25"),
    "URLElicitationRequiredError": Definition(
        envelope=True, since="2025-11-25", until="2025-11-25"
    ),
    "UnsubscribeRequest": Definition(
        method="resources/unsubscribe", params=resources.UnsubscribeParams, until="2025-11-25"
    ),
    "UnsubscribeRequestParams": Definition(
        body=resources.UnsubscribeParams, since="2025-11-25", until="2025-11-25"
    ),
    "UnsupportedProtocolVersionError": Definition(envelope=True, since="2026-07-28"),
    "UntitledMultiSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
    "UntitledSingleSelectEnumSchema": Definition(body=_OBJECT, since="2025-11-25"),
}
