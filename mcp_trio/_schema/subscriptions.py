"""Utilities, subscriptions: one standing request for the changes that a client wants to hear of."""

from mcp_trio._schema.base import Model, Params, Result


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
