"""The methods of the protocol, as a table.

Each row has the method's direction, types, required capability and protocol versions. A method
without a row is unknown. A protocol version that adds a method adds a row with `since`; one that
removes a method adds `until`. Users add rows of their own with `custom_method`.
"""

import enum
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

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


class RequiredCapability(msgspec.Struct, frozen=True):
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


def _usual_trigger(row: "Method") -> SessionTrigger:
    return SessionTrigger.NOTIFICATION if row.result is None else SessionTrigger.REQUEST


@attrs.frozen(slots=False)  # with slots, cached properties make each access slower
class Method:
    """A row of the table.

    Attributes:
        name: The method.
        senders: The roles that send it.
        params: The type of its params: one of `types`, or any that msgspec decodes.
        result: The type of its result; None for a notification.
        required_capability: The capability that it requires, if any.
        trigger: The kind of the message, by which it changes the state of the session.
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
    required_capability: RequiredCapability | None = None
    trigger: SessionTrigger = attrs.field(default=attrs.Factory(_usual_trigger, takes_self=True))
    since: str | None = None
    until: str | None = None
    has_rounds: bool = False
    is_cacheable: bool = False
    is_subscription: bool = False
    needs_subscription: bool = False
    is_custom: bool = False
    is_request: bool = attrs.field(
        default=attrs.Factory(lambda row: row.result is not None, takes_self=True), init=False
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


INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
PING: Final = "ping"
CALL_TOOL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
RESOURCE_UPDATED: Final = "notifications/resources/updated"

_TOOLS: Final = RequiredCapability(Role.SERVER, "tools")
_RESOURCES: Final = RequiredCapability(Role.SERVER, "resources")
_SUBSCRIPTIONS: Final = RequiredCapability(Role.SERVER, "resources.subscribe")
_PROMPTS: Final = RequiredCapability(Role.SERVER, "prompts")
_LOGGING: Final = RequiredCapability(Role.SERVER, "logging")

# The last protocol version with a handshake, and the first without.
_LEGACY: Final = "2025-11-25"
_STATELESS: Final = "2026-07-28"


def _list(name: str, result: type[types.PaginatedResult], capability: RequiredCapability) -> Method:
    return Method(name, CLIENT, types.PaginatedParams, result, capability, is_cacheable=True)


def _list_changed(lists: str) -> Method:
    name, capability = f"notifications/{lists}/list_changed", f"{lists}.listChanged"
    required = RequiredCapability(Role.SERVER, capability)
    return Method(name, SERVER, types.EmptyParams, None, required, needs_subscription=True)


# Each row: the name, the senders, the types of params and result, and the required capability.
_ROWS: Final = (
    Method(
        INITIALIZE,
        CLIENT,
        types.InitializeParams,
        types.InitializeResult,
        trigger=SessionTrigger.INITIALIZE,
        until=_LEGACY,
    ),
    Method(
        DISCOVER,
        CLIENT,
        types.EmptyParams,
        types.DiscoverResult,
        since=_STATELESS,
        is_cacheable=True,
    ),
    Method(
        PING, BOTH, types.EmptyParams, types.EmptyResult, trigger=SessionTrigger.PING, until=_LEGACY
    ),
    _list("tools/list", types.ListToolsResult, _TOOLS),
    Method(CALL_TOOL, CLIENT, types.CallToolParams, types.CallToolResult, _TOOLS, has_rounds=True),
    _list("resources/list", types.ListResourcesResult, _RESOURCES),
    _list("resources/templates/list", types.ListResourceTemplatesResult, _RESOURCES),
    Method(
        "resources/read",
        CLIENT,
        types.ReadResourceParams,
        types.ReadResourceResult,
        _RESOURCES,
        has_rounds=True,
        is_cacheable=True,
    ),
    Method(
        "resources/subscribe",
        CLIENT,
        types.SubscribeParams,
        types.EmptyResult,
        _SUBSCRIPTIONS,
        until=_LEGACY,
    ),
    Method(
        "resources/unsubscribe",
        CLIENT,
        types.UnsubscribeParams,
        types.EmptyResult,
        _SUBSCRIPTIONS,
        until=_LEGACY,
    ),
    _list("prompts/list", types.ListPromptsResult, _PROMPTS),
    Method(
        "prompts/get",
        CLIENT,
        types.GetPromptParams,
        types.GetPromptResult,
        _PROMPTS,
        has_rounds=True,
    ),
    # Requires no capability here, because the oldest protocol version has none for completions.
    Method("completion/complete", CLIENT, types.CompleteParams, types.CompleteResult),
    Method(
        "logging/setLevel", CLIENT, types.SetLevelParams, types.EmptyResult, _LOGGING, until=_LEGACY
    ),
    Method(
        LISTEN,
        CLIENT,
        types.ListenParams,
        types.ListenResult,
        since=_STATELESS,
        is_subscription=True,
    ),
    Method(
        "sampling/createMessage",
        SERVER,
        types.CreateMessageParams,
        types.CreateMessageResult,
        RequiredCapability(Role.CLIENT, "sampling"),
        until=_LEGACY,
    ),
    Method(
        "roots/list",
        SERVER,
        types.EmptyParams,
        types.ListRootsResult,
        RequiredCapability(Role.CLIENT, "roots"),
        until=_LEGACY,
    ),
    Method(
        "elicitation/create",
        SERVER,
        types.ElicitParams,
        types.ElicitResult,
        RequiredCapability(Role.CLIENT, "elicitation"),
        since="2025-06-18",
        until=_LEGACY,
    ),
    Method(
        INITIALIZED, CLIENT, types.EmptyParams, trigger=SessionTrigger.INITIALIZED, until=_LEGACY
    ),
    Method(CANCELLED, BOTH, types.CancelledParams, trigger=SessionTrigger.REFERENCE),
    Method(PROGRESS, BOTH, types.ProgressParams, trigger=SessionTrigger.REFERENCE),
    Method(
        "notifications/message",
        SERVER,
        types.LoggingMessageParams,
        required_capability=_LOGGING,
        trigger=SessionTrigger.LOG,
    ),
    Method(
        RESOURCE_UPDATED,
        SERVER,
        types.ResourceUpdatedParams,
        required_capability=_SUBSCRIPTIONS,
        needs_subscription=True,
    ),
    _list_changed("resources"),
    _list_changed("tools"),
    _list_changed("prompts"),
    Method(
        "notifications/roots/list_changed",
        CLIENT,
        types.EmptyParams,
        required_capability=RequiredCapability(Role.CLIENT, "roots.listChanged"),
        until=_LEGACY,
    ),
    Method(
        "notifications/elicitation/complete",
        SERVER,
        types.ElicitationCompleteParams,
        required_capability=RequiredCapability(Role.CLIENT, "elicitation.url"),
        since=_LEGACY,
        until=_LEGACY,
    ),
    Method(
        ACKNOWLEDGED, SERVER, types.AcknowledgedParams, since=_STATELESS, needs_subscription=True
    ),
)

METHODS: Final = {row.name: row for row in _ROWS}


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
    elif name.startswith("notifications/"):
        row = Method(name, CLIENT, params)
    else:
        row = Method(name, CLIENT, params, result, is_custom=True)
    row.check_types()
    return row


def has_capability(capabilities: msgspec.Struct | None, path: str) -> bool:
    """Return whether a capability is announced: present, and not false.

    `path` is its name on the wire, such as `resources.subscribe`.
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
