"""The table of methods: direction, types, capability, protocol versions.

A method that has no row is unknown. A later revision adds rows with a `since`, or an `until` to old
ones; people add rows of their own by `custom_method`.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypedDict, Unpack, cast

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._protocol.states import Role, SessionTrigger
from mcp_trio._protocol.versions import ProtocolVersion, is_between

CLIENT: Final = frozenset({Role.CLIENT})
SERVER: Final = frozenset({Role.SERVER})
BOTH: Final = frozenset(Role)
_NO_PARAMS: Final = msgspec.Raw(b"{}")

ParamsToSend: TypeAlias = types.Params | Mapping[str, Any]


@attrs.frozen(kw_only=True)
class RequiredCapability:
    """A capability that `holder` must have announced: a path such as `resources.subscribe`."""

    holder: Role
    path: str

    def __str__(self) -> str:
        return f"{self.holder.value} capability {self.path!r}"


def _is_request(row: "Method") -> bool:
    return row.result is not None


def _decoder_of_params(row: "Method") -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(row.params)


def _decoder_of_result(row: "Method") -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(row.result or types.EmptyResult)


@attrs.frozen(kw_only=True)
class Method:
    """One row: `result` is None for notifications; `input` is what it is to the session table.

    `params` and `result` are types: those of the specification, or any that msgspec decodes.

    Attributes:
        since: The first revision that has it; None: the first of all.
        until: The last revision that has it; None: the newest.
        has_rounds: Its modern answer may be that more input is required (MRTR-02).
        is_cacheable: Its modern result says for how long it holds (CACHE-01).
        is_standing: It is answered when nobody wants it any more, so it takes no handler's place.
        is_subscribed: A modern server sends it on a subscription only.
        hands_on_params: Its handler is people's own, and sees all params, with what a modern
            request says of itself in `_meta`.
        is_request: It is answered.
    """

    name: str
    senders: frozenset[Role]
    params: Any
    result: Any = None
    input: SessionTrigger
    required_capability: RequiredCapability | None = None
    since: str | None = None
    until: str | None = None
    has_rounds: bool = False
    is_cacheable: bool = False
    is_subscription: bool = False
    needs_subscription: bool = False
    is_custom: bool = False
    is_request: bool = attrs.field(
        default=attrs.Factory(_is_request, takes_self=True), init=False, eq=False, repr=False
    )
    _params_decoder: msgspec.json.Decoder[Any] = attrs.field(
        default=attrs.Factory(_decoder_of_params, takes_self=True), init=False, eq=False, repr=False
    )
    _result_decoder: msgspec.json.Decoder[Any] = attrs.field(
        default=attrs.Factory(_decoder_of_result, takes_self=True), init=False, eq=False, repr=False
    )

    def exists_in(self, protocol_version: ProtocolVersion) -> bool:
        """Return whether a revision has this method."""
        return is_between(protocol_version, self.since, self.until)

    def decode_params(self, raw: msgspec.Raw | bytes | None) -> Any:
        """The params of this method; absent ones read as an empty object.

        Raises:
            msgspec.MsgspecError: They do not have the method's shape.
        """
        try:
            return self._params_decoder.decode(_NO_PARAMS if raw is None else raw)
        except RecursionError:
            raise _too_deep() from None

    def decode_result(self, raw: msgspec.Raw) -> Any:
        """The result of this method.

        Raises:
            msgspec.MsgspecError: It does not have the method's shape.
        """
        try:
            return self._result_decoder.decode(raw)
        except RecursionError:
            raise _too_deep() from None


def _too_deep() -> msgspec.ValidationError:
    """The stack below us left less room than the envelope's decoder had."""
    return msgspec.ValidationError("nested too deeply")


class _Options(TypedDict, total=False):
    required_capability: RequiredCapability
    since: str
    until: str
    has_rounds: bool
    is_cacheable: bool
    is_subscription: bool
    needs_subscription: bool


def _request(
    name: str,
    senders: frozenset[Role],
    params: type[types.Params],
    result: Any,
    kind: SessionTrigger = SessionTrigger.REQUEST,
    **options: Unpack[_Options],
) -> Method:
    return Method(name=name, senders=senders, params=params, result=result, input=kind, **options)


def _notification(
    name: str,
    senders: frozenset[Role],
    params: type[types.Params],
    kind: SessionTrigger = SessionTrigger.NOTIFICATION,
    **options: Unpack[_Options],
) -> Method:
    return Method(name=name, senders=senders, params=params, input=kind, **options)


INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
PING: Final = "ping"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
RESOURCE_UPDATED: Final = "notifications/resources/updated"

_TOOLS: Final = RequiredCapability(holder=Role.SERVER, path="tools")
_RESOURCES: Final = RequiredCapability(holder=Role.SERVER, path="resources")
_SUBSCRIPTIONS: Final = RequiredCapability(holder=Role.SERVER, path="resources.subscribe")
_PROMPTS: Final = RequiredCapability(holder=Role.SERVER, path="prompts")
_LOGGING: Final = RequiredCapability(holder=Role.SERVER, path="logging")
_SAMPLING: Final = RequiredCapability(holder=Role.CLIENT, path="sampling")
_ROOTS: Final = RequiredCapability(holder=Role.CLIENT, path="roots")
_ELICITATION: Final = RequiredCapability(holder=Role.CLIENT, path="elicitation")
_URL_ELICITATION: Final = RequiredCapability(holder=Role.CLIENT, path="elicitation.url")
_RESOURCE_CHANGES: Final = RequiredCapability(holder=Role.SERVER, path="resources.listChanged")
_TOOL_CHANGES: Final = RequiredCapability(holder=Role.SERVER, path="tools.listChanged")
_PROMPT_CHANGES: Final = RequiredCapability(holder=Role.SERVER, path="prompts.listChanged")
_ROOT_CHANGES: Final = RequiredCapability(holder=Role.CLIENT, path="roots.listChanged")

# The last revision with a handshake, and the first without.
_LEGACY: Final = "2025-11-25"
_STATELESS: Final = "2026-07-28"

_ROWS: Final = (
    _request(
        INITIALIZE,
        CLIENT,
        types.InitializeParams,
        types.InitializeResult,
        kind=SessionTrigger.INITIALIZE,
        until=_LEGACY,
    ),
    _request(
        DISCOVER,
        CLIENT,
        types.EmptyParams,
        types.DiscoverResult,
        since=_STATELESS,
        is_cacheable=True,
    ),
    _request(
        PING, BOTH, types.EmptyParams, types.EmptyResult, kind=SessionTrigger.PING, until=_LEGACY
    ),
    _request(
        "tools/list",
        CLIENT,
        types.PaginatedParams,
        types.ListToolsResult,
        required_capability=_TOOLS,
        is_cacheable=True,
    ),
    _request(
        "tools/call",
        CLIENT,
        types.CallToolParams,
        types.CallToolResult,
        required_capability=_TOOLS,
        has_rounds=True,
    ),
    _request(
        "resources/list",
        CLIENT,
        types.PaginatedParams,
        types.ListResourcesResult,
        required_capability=_RESOURCES,
        is_cacheable=True,
    ),
    _request(
        "resources/templates/list",
        CLIENT,
        types.PaginatedParams,
        types.ListResourceTemplatesResult,
        required_capability=_RESOURCES,
        is_cacheable=True,
    ),
    _request(
        "resources/read",
        CLIENT,
        types.ReadResourceParams,
        types.ReadResourceResult,
        required_capability=_RESOURCES,
        has_rounds=True,
        is_cacheable=True,
    ),
    _request(
        "resources/subscribe",
        CLIENT,
        types.SubscribeParams,
        types.EmptyResult,
        required_capability=_SUBSCRIPTIONS,
        until=_LEGACY,
    ),
    _request(
        "resources/unsubscribe",
        CLIENT,
        types.UnsubscribeParams,
        types.EmptyResult,
        required_capability=_SUBSCRIPTIONS,
        until=_LEGACY,
    ),
    _request(
        "prompts/list",
        CLIENT,
        types.PaginatedParams,
        types.ListPromptsResult,
        required_capability=_PROMPTS,
        is_cacheable=True,
    ),
    _request(
        "prompts/get",
        CLIENT,
        types.GetPromptParams,
        types.GetPromptResult,
        required_capability=_PROMPTS,
        has_rounds=True,
    ),
    # Of the capability `completions`, which not every revision has, the server itself asks.
    _request("completion/complete", CLIENT, types.CompleteParams, types.CompleteResult),
    _request(
        "logging/setLevel",
        CLIENT,
        types.SetLevelParams,
        types.EmptyResult,
        required_capability=_LOGGING,
        until=_LEGACY,
    ),
    _request(
        LISTEN,
        CLIENT,
        types.ListenParams,
        types.ListenResult,
        since=_STATELESS,
        is_subscription=True,
    ),
    _request(
        "sampling/createMessage",
        SERVER,
        types.CreateMessageParams,
        types.CreateMessageResult,
        required_capability=_SAMPLING,
        until=_LEGACY,
    ),
    _request(
        "roots/list",
        SERVER,
        types.EmptyParams,
        types.ListRootsResult,
        required_capability=_ROOTS,
        until=_LEGACY,
    ),
    _request(
        "elicitation/create",
        SERVER,
        types.ElicitParams,
        types.ElicitResult,
        required_capability=_ELICITATION,
        since="2025-06-18",
        until=_LEGACY,
    ),
    _notification(
        INITIALIZED, CLIENT, types.EmptyParams, kind=SessionTrigger.INITIALIZED, until=_LEGACY
    ),
    _notification(CANCELLED, BOTH, types.CancelledParams, kind=SessionTrigger.REFERENCE),
    _notification(PROGRESS, BOTH, types.ProgressParams, kind=SessionTrigger.REFERENCE),
    _notification(
        "notifications/message",
        SERVER,
        types.LoggingMessageParams,
        kind=SessionTrigger.LOG,
        required_capability=_LOGGING,
    ),
    _notification(
        RESOURCE_UPDATED,
        SERVER,
        types.ResourceUpdatedParams,
        required_capability=_SUBSCRIPTIONS,
        needs_subscription=True,
    ),
    _notification(
        "notifications/resources/list_changed",
        SERVER,
        types.EmptyParams,
        required_capability=_RESOURCE_CHANGES,
        needs_subscription=True,
    ),
    _notification(
        "notifications/tools/list_changed",
        SERVER,
        types.EmptyParams,
        required_capability=_TOOL_CHANGES,
        needs_subscription=True,
    ),
    _notification(
        "notifications/prompts/list_changed",
        SERVER,
        types.EmptyParams,
        required_capability=_PROMPT_CHANGES,
        needs_subscription=True,
    ),
    _notification(
        "notifications/roots/list_changed",
        CLIENT,
        types.EmptyParams,
        required_capability=_ROOT_CHANGES,
        until=_LEGACY,
    ),
    _notification(
        "notifications/elicitation/complete",
        SERVER,
        types.ElicitationCompleteParams,
        required_capability=_URL_ELICITATION,
        since=_LEGACY,
        until=_LEGACY,
    ),
    _notification(
        ACKNOWLEDGED, SERVER, types.AcknowledgedParams, since=_STATELESS, needs_subscription=True
    ),
)

METHODS: Final = {row.name: row for row in _ROWS}

_NOTIFICATIONS: Final = "notifications/"


def custom_method(
    name: str, *, senders: frozenset[Role] = CLIENT, params: Any = Any, result: Any = Any
) -> Method:
    """The row of a method that the protocol does not know, or one that it knows with other params.

    A method that it knows keeps who sends it, its result, what it needs and when it is legal; any
    other is a notification if its name begins with `notifications/`, and else a request.

    Raises:
        TypeError: A type that msgspec cannot decode.
    """
    known = METHODS.get(name)
    if known is not None:
        return attrs.evolve(known, params=params, is_custom=True)
    if name.startswith(_NOTIFICATIONS):
        return Method(name=name, senders=senders, params=params, input=SessionTrigger.NOTIFICATION)
    return Method(
        name=name,
        senders=senders,
        params=params,
        result=result,
        input=SessionTrigger.REQUEST,
        is_custom=True,
    )


def unknown(method: str, sender: Role, *, is_request: bool) -> str:
    """What to say to who wants to send a method that its session does not know."""
    text = f"no such {'request' if is_request else 'notification'}: {method!r}"
    if method in METHODS or sender is not Role.CLIENT:
        return text
    return f"{text}; Client(methods={{{method!r}: …}}) makes one of the server's own known"


def announced(capabilities: msgspec.Struct | None, path: str) -> bool:
    """Return whether `capabilities` holds `path` (wire names, dotted): present, and not false."""
    value: Any = capabilities
    for step in path.split("."):
        value = _member(value, step)
        if value is None or value is False:
            return False
    return True


def _member(holder: object, wire_name: str) -> Any:
    if isinstance(holder, dict):
        return cast("dict[str, Any]", holder).get(wire_name)
    kind: type = type(holder)
    name = _attribute_names(kind).get(wire_name)
    return None if name is None else getattr(holder, name)


@functools.cache
def _attribute_names(kind: type) -> dict[str, str]:
    """By their wire names, for a struct of capabilities or what one holds; no other has any."""
    if not issubclass(kind, msgspec.Struct):
        return {}
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
