"""The methods of the protocol, as a table.

Each row has the method's direction, types, required capability and protocol versions. A method
without a row is unknown. A protocol version that adds a method adds a row with `since`; one that
removes a method adds `until`. Users add rows of their own with `custom_method`.
"""

import enum
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, Unpack, cast

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion, is_between

ParamsToSend: TypeAlias = types.Params | Mapping[str, Any]

_NO_PARAMS: Final = msgspec.Raw(b"{}")


class FastEnum(enum.Enum):
    """An enumeration whose members hash by identity, in C; every message looks up several."""

    if not TYPE_CHECKING:  # for a type checker, a class with an assigned hash is not hashable
        __hash__ = object.__hash__


class Role(FastEnum):
    """The side of a connection that sends a message."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def peer(self) -> "Role":
        """The other role."""
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


CLIENT: Final = frozenset({Role.CLIENT})
SERVER: Final = frozenset({Role.SERVER})
BOTH: Final = frozenset(Role)


class SessionTrigger(FastEnum):
    """The kind of a message, by which it changes the state of a session.

    `_protocol/connection.py` has the table of states. Each message of the handshake has a kind of
    its own, because it changes the state. The other kinds differ in the states that allow them.
    """

    INITIALIZE = enum.auto()
    INITIALIZE_RESULT = enum.auto()
    INITIALIZE_ERROR = enum.auto()
    INITIALIZED = enum.auto()
    PING = enum.auto()
    LOG = enum.auto()
    REFERENCE = enum.auto()  # a notification about a request: a cancellation, or progress
    REQUEST = enum.auto()
    NOTIFICATION = enum.auto()
    STATELESS = enum.auto()  # any but a reference, if its protocol version has no handshake
    RESPONSE = enum.auto()
    CLOSE = enum.auto()  # not a message: the session is closed


class RequiredCapability(msgspec.Struct, frozen=True, kw_only=True):
    """A capability that a method requires.

    Attributes:
        holder: The role that has to announce the capability.
        path: Its name on the wire, such as `resources.subscribe`.
    """

    holder: Role
    path: str

    def __str__(self) -> str:
        return f"{self.holder.value} capability {self.path!r}"


def _protocol_versions(row: "Method") -> frozenset[ProtocolVersion]:
    versions = PROTOCOL_VERSIONS.values()
    return frozenset(each for each in versions if is_between(each, row.since, row.until))


@attrs.frozen(kw_only=True)
class Method:
    """A row of the table.

    Attributes:
        name: The method.
        senders: The roles that send it.
        params: The type of its params: one of `types`, or any that msgspec decodes.
        result: The type of its result; None for a notification.
        trigger: The kind of the message, by which it changes the state of the session.
        required_capability: The capability that it requires, if any.
        since: The first protocol version that has the method; None for the oldest.
        until: The last protocol version that has the method; None for the newest.
        has_rounds: Whether a stateless server may respond with an `InputRequiredResult`.
        is_cacheable: Whether its stateless results say for how long they may be cached.
        is_subscription: Whether the request stays open until the client or server ends it, so that
            its handler does not count as running.
        needs_subscription: Whether a stateless server sends it only for an open subscription.
        is_custom: Whether it is a request that a user has registered, whose handler receives all
            params, with `_meta`.
        is_request: Whether it is answered.
        protocol_versions: The protocol versions that have the method.
    """

    name: str
    senders: frozenset[Role]
    params: Any
    result: Any = None
    trigger: SessionTrigger
    required_capability: RequiredCapability | None = None
    since: str | None = None
    until: str | None = None
    has_rounds: bool = False
    is_cacheable: bool = False
    is_subscription: bool = False
    needs_subscription: bool = False
    is_custom: bool = False
    is_request: bool = attrs.field(
        default=attrs.Factory(lambda row: row.result is not None, takes_self=True),
        init=False,
        eq=False,
        repr=False,
    )
    protocol_versions: frozenset[ProtocolVersion] = attrs.field(
        default=attrs.Factory(_protocol_versions, takes_self=True), init=False, eq=False, repr=False
    )

    # Made on first use: a connection uses few of all methods.

    @functools.cached_property
    def _params_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.params)

    @functools.cached_property
    def _result_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.result or types.EmptyResult)

    def check_types(self) -> None:
        """Check the types of params and result.

        Raises:
            TypeError: msgspec cannot decode one of them.
        """
        _ = self._params_decoder, self._result_decoder

    def decode_params(self, raw: msgspec.Raw | bytes | None) -> Any:
        """Return the typed params; absent params are an empty object.

        Raises:
            msgspec.MsgspecError: The params do not have the type of the method's params.
        """
        try:
            return self._params_decoder.decode(_NO_PARAMS if raw is None else raw)
        except RecursionError:
            raise _too_deep() from None

    def decode_result(self, raw: msgspec.Raw) -> Any:
        """Return the typed result.

        Raises:
            msgspec.MsgspecError: The result does not have the type of the method's results.
        """
        try:
            return self._result_decoder.decode(raw)
        except RecursionError:
            raise _too_deep() from None


def _too_deep() -> msgspec.ValidationError:
    # msgspec recurses for each level. The envelope was decoded where fewer calls were on the stack,
    # so it may have passed the same levels.
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
    trigger: SessionTrigger = SessionTrigger.REQUEST,
    **options: Unpack[_Options],
) -> Method:
    return Method(
        name=name, senders=senders, params=params, result=result, trigger=trigger, **options
    )


def _notification(
    name: str,
    senders: frozenset[Role],
    params: type[types.Params],
    trigger: SessionTrigger = SessionTrigger.NOTIFICATION,
    **options: Unpack[_Options],
) -> Method:
    return Method(name=name, senders=senders, params=params, trigger=trigger, **options)


def _list(name: str, result: type[types.PaginatedResult], capability: RequiredCapability) -> Method:
    return _request(
        name,
        CLIENT,
        types.PaginatedParams,
        result,
        required_capability=capability,
        is_cacheable=True,
    )


def _list_changed(name: str, capability: RequiredCapability) -> Method:
    return _notification(
        name,
        SERVER,
        types.EmptyParams,
        required_capability=capability,
        needs_subscription=True,
    )


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

# The last protocol version with a handshake, and the first without.
_LEGACY: Final = "2025-11-25"
_STATELESS: Final = "2026-07-28"

_ROWS: Final = (
    _request(
        INITIALIZE,
        CLIENT,
        types.InitializeParams,
        types.InitializeResult,
        trigger=SessionTrigger.INITIALIZE,
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
        PING, BOTH, types.EmptyParams, types.EmptyResult, trigger=SessionTrigger.PING, until=_LEGACY
    ),
    _list("tools/list", types.ListToolsResult, _TOOLS),
    _request(
        "tools/call",
        CLIENT,
        types.CallToolParams,
        types.CallToolResult,
        required_capability=_TOOLS,
        has_rounds=True,
    ),
    _list("resources/list", types.ListResourcesResult, _RESOURCES),
    _list("resources/templates/list", types.ListResourceTemplatesResult, _RESOURCES),
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
    _list("prompts/list", types.ListPromptsResult, _PROMPTS),
    _request(
        "prompts/get",
        CLIENT,
        types.GetPromptParams,
        types.GetPromptResult,
        required_capability=_PROMPTS,
        has_rounds=True,
    ),
    # Requires no capability here, because the oldest protocol version has none for completions.
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
        INITIALIZED, CLIENT, types.EmptyParams, trigger=SessionTrigger.INITIALIZED, until=_LEGACY
    ),
    _notification(CANCELLED, BOTH, types.CancelledParams, trigger=SessionTrigger.REFERENCE),
    _notification(PROGRESS, BOTH, types.ProgressParams, trigger=SessionTrigger.REFERENCE),
    _notification(
        "notifications/message",
        SERVER,
        types.LoggingMessageParams,
        trigger=SessionTrigger.LOG,
        required_capability=_LOGGING,
    ),
    _notification(
        RESOURCE_UPDATED,
        SERVER,
        types.ResourceUpdatedParams,
        required_capability=_SUBSCRIPTIONS,
        needs_subscription=True,
    ),
    _list_changed("notifications/resources/list_changed", _RESOURCE_CHANGES),
    _list_changed("notifications/tools/list_changed", _TOOL_CHANGES),
    _list_changed("notifications/prompts/list_changed", _PROMPT_CHANGES),
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


def custom_method(name: str, *, params: Any = Any, result: Any = Any) -> Method:
    """Return a row for a method of the user, which clients send; or a known one with other params.

    A known method keeps its senders, result, capability and protocol versions. Another method is a
    notification if its name begins with `notifications/`, and otherwise a request.

    Raises:
        TypeError: msgspec cannot decode a type.
    """
    known = METHODS.get(name)
    if known is not None:
        row = attrs.evolve(known, params=params, is_custom=True)
    elif name.startswith(_NOTIFICATIONS):
        row = Method(name=name, senders=CLIENT, params=params, trigger=SessionTrigger.NOTIFICATION)
    else:
        row = Method(
            name=name,
            senders=CLIENT,
            params=params,
            result=result,
            trigger=SessionTrigger.REQUEST,
            is_custom=True,
        )
    row.check_types()
    return row


def has_capability(capabilities: msgspec.Struct | None, path: str) -> bool:
    """Return whether a capability is announced: present, and not false.

    Args:
        capabilities: The capabilities of one side; None if they are not known.
        path: The name on the wire, such as `resources.subscribe`.
    """
    value: Any = capabilities
    if "." not in path:  # nearly every request; the loop would be slower
        attribute = _attribute_names(value.__class__).get(path)
        value = None if attribute is None else getattr(value, attribute)
        return value is not None and value is not False
    for name in path.split("."):
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(name)
        else:
            attribute = _attribute_names(value.__class__).get(name)
            value = None if attribute is None else getattr(value, attribute)
        if value is None or value is False:
            return False
    return True


@functools.cache
def _attribute_names(kind: type) -> dict[str, str]:
    """Return the attributes of a struct by their names on the wire; other types have none."""
    if not issubclass(kind, msgspec.Struct):
        return {}
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
