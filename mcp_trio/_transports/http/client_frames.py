"""What a client's channel reads in the frames that it carries: as much as the headers need."""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio._protocol.metadata import PROTOCOL_VERSION
from mcp_trio._wire import Decoder, Notification, Request

CANCELLED: Final = "notifications/cancelled"
INITIALIZED: Final = "notifications/initialized"


class _Meta(msgspec.Struct, gc=False):
    version: Any = msgspec.field(name=PROTOCOL_VERSION, default=None)


class _Params(msgspec.Struct, gc=False):
    """The members of any params that headers, or the channel itself, have a use for."""

    meta: _Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)
    name: Any = UNSET
    uri: Any = UNSET
    task_id: Any = msgspec.field(name="taskId", default=UNSET)
    request_id: Any = msgspec.field(name="requestId", default=None)


_NOTHING: Final = _Params()
_decode_params: Final = msgspec.json.Decoder(_Params).decode


@attrs.frozen(eq=False)
class Outgoing:
    """A frame on its way to the server.

    `id` is there for a request, `method` for a notification too; answers have neither. `version` is
    the revision that a modern message says it is made under.
    """

    frame: bytes
    id: int | str | None = None
    method: str | None = None
    version: str | None = None
    _params: Raw | None = None
    _seen: _Params = _NOTHING

    @property
    def tool(self) -> str | None:
        """The name of the tool that is called."""
        is_call = self.method == "tools/call" and isinstance(self._seen.name, str)
        return self._seen.name if is_call else None

    @property
    def cancels(self) -> int | str | None:
        """The id of the request that is cancelled; what is none passes like everything else."""
        request_id = self._seen.request_id
        is_id = self.method == CANCELLED and type(request_id) in {int, str}
        return request_id if is_id else None

    def params(self, *, is_whole: bool) -> Mapping[str, Any]:
        """What headers are made of: all params, or those that have a header of their own."""
        if is_whole and self._params is not None:
            params: dict[str, Any] = msgspec.json.decode(self._params)
            return params
        seen = self._seen
        named = {"name": seen.name, "uri": seen.uri, "taskId": seen.task_id}
        return {name: value for name, value in named.items() if value is not UNSET}


def outgoing(frame: bytes, decoder: Decoder) -> Outgoing:
    """Look into one frame, once."""
    message = decoder.decode(frame)
    if not isinstance(message, Request | Notification):
        return Outgoing(frame)
    seen = _NOTHING if message.params is None else _seen(message.params)
    version = None if seen.meta is UNSET else seen.meta.version
    return Outgoing(
        frame,
        message.id if isinstance(message, Request) else None,
        message.method,
        version if isinstance(version, str) else None,
        message.params,
        seen,
    )


def _seen(params: Raw) -> _Params:
    try:
        return _decode_params(params)
    except msgspec.MsgspecError:  # people's own params, with a `_meta` that is none
        return _NOTHING


class _Version(msgspec.Struct, gc=False):
    version: Any = msgspec.field(name="protocolVersion", default=None)


def agreed_version(result: Raw) -> str | None:
    """The revision that the result of `initialize` names."""
    try:
        version = msgspec.json.decode(result, type=_Version).version
    except msgspec.MsgspecError:
        return None
    return version if isinstance(version, str) else None
