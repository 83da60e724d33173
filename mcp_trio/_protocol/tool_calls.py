"""Calls of tools, decoded in one pass.

Nearly all requests call a tool. Other requests are decoded in three passes: the envelope, its
`_meta`, and its params. Each pass would read the arguments of a tool, which may be large.
`decode_tool_call` decodes all three parts in one pass, which takes a third of the time. It accepts
only valid calls. Any other message is then decoded in three passes, which make the error response.
`with_decoded_params` does the same for a request whose envelope is decoded already.
"""

from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio import types
from mcp_trio._jsonrpc.messages import Notification, Request
from mcp_trio._protocol.metadata import Metadata, progress_token_in

CALL_TOOL: Final = "tools/call"


class _Params(msgspec.Struct, rename="camel", gc=False):
    """The members of `types.CallToolParams`, with `_meta` as raw JSON."""

    name: str
    arguments: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)
    input_responses: dict[str, Raw] | None = None
    request_state: str | None = None


class ToolCall(
    msgspec.Struct, tag_field="method", tag=CALL_TOOL, forbid_unknown_fields=True, gc=False
):
    """A request that calls a tool: a `Request` whose params are decoded."""

    method: ClassVar[str] = CALL_TOOL

    jsonrpc: Literal["2.0"]
    id: int | str
    params: _Params

    def typed_params(
        self, metadata: Metadata | None
    ) -> tuple[types.CallToolParams, types.RequestId | None]:
        """Return the typed params and the progress token.

        `metadata` is that of a stateless request. If it could be decoded, the params do not repeat
        it as `_meta`.

        Raises:
            msgspec.ValidationError: The arguments, `_meta` or the progress token are invalid.
        """
        given, meta, token = self.params, None, None
        if metadata is not None and metadata.is_readable:
            token = metadata.progress_token
        elif given.meta is not UNSET:
            meta = _decode_meta(b'{"_meta":%b}' % bytes(given.meta)).meta
            token = progress_token_in(meta) if meta else None
        try:
            params = types.CallToolParams(
                name=given.name,
                arguments=given.arguments,
                meta=meta,
                input_responses=given.input_responses,
                request_state=given.request_state,
            )
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from None
        return params, token


decode_tool_call: Final[Any] = msgspec.json.Decoder(ToolCall).decode
"""Decode a call of a tool; raises `msgspec.ValidationError` for any other message."""

_decode_call_params: Final = msgspec.json.Decoder(_Params).decode


def with_decoded_params(message: Request | Notification) -> ToolCall | None:
    """Return a call of a tool with its decoded params.

    Returns:
        None if the message is something else, or the params are invalid.
    """
    if type(message) is not Request or message.method != CALL_TOOL or message.params is None:
        return None
    try:
        return ToolCall("2.0", message.id, _decode_call_params(message.params))
    except (msgspec.MsgspecError, RecursionError):
        return None


_decode_meta: Final = msgspec.json.Decoder(types.EmptyParams).decode
