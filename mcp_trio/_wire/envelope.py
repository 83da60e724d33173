"""The JSON-RPC envelope: one frame to one message, and one message to one frame.

A frame is decoded once, into a struct that holds `params` and `result` as they stood on the wire;
whoever knows their type decodes them, once. What the members of an envelope may be together stands
in a table (`_SHAPES`): a combination without a row is not a message.

The decoder answers every frame with a message, and never raises:

- not UTF-8, not JSON, NaN, Infinity, half an escaped surrogate pair, a byte order mark: -32700;
- JSON that is no message of this protocol, or nested deeper than `json_depth_max`: -32600;
- `null` is a value like any other: as `id` of a request, `params` or `result` it is refused;
- an array is a batch of messages; whether one may come is for those to say who know the revision;
- members that are not known are ignored; of a member that occurs twice the last one counts;
- an id is kept as it came: 1, "1" and 18446744073709551616 are three ids; 1.0 and true are none.

Only the envelope is judged here: of `params` and `result`, that they are objects of valid JSON.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio._errors import INVALID_REQUEST, PARSE_ERROR
from mcp_trio._limits import DEFAULT_LIMITS
from mcp_trio._wire.nesting import is_deeper_than
from mcp_trio._wire.recovery import recover

# The parser says the same of half an escaped surrogate pair as of text that ends too early.
_PLAINER: Final = {"Input data was truncated": "cut off, or half an escaped surrogate pair"}

_BRACE: Final = ord("{")
_BRACKET: Final = b"["
_LF: Final = ord("\n")
_CR: Final = ord("\r")


class Request(msgspec.Struct, frozen=True, gc=False):
    """A message that wants an answer with the same `id`; `params` is None when absent."""

    id: int | str
    method: str
    params: Raw | None


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A message that is never answered; `params` is None when absent."""

    method: str
    params: Raw | None


class Response(msgspec.Struct, frozen=True, gc=False):
    """The result, a JSON object, of the request with this `id`."""

    id: int | str
    result: Raw


class ErrorObject(msgspec.Struct, frozen=True, gc=False):
    """Why a request failed; `data` may be any JSON value, and null differs from absent."""

    code: int
    message: str
    data: Raw | UnsetType = UNSET


class ErrorResponse(msgspec.Struct, frozen=True, gc=False):
    """The failure of the request with this `id`, which is None when the peer could not read it."""

    id: int | str | None
    error: ErrorObject


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """A frame that is no message, and the error that answers it.

    `id` is None where it could not be read. `is_request` tells whether an answer may be due at all:
    nothing is ever sent back for a notification or an answer. Of what is not `is_whole` the end has
    not come.
    """

    code: int
    message: str
    id: int | str | None
    is_request: bool
    is_whole: bool = True


Message: TypeAlias = Request | Notification | Response | ErrorResponse | Malformed


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A frame that is an array: its messages, in order; there is at least one."""

    messages: Sequence[Message]


class Unencodable(ValueError):  # noqa: N818  named for what the value is
    """A value cannot be sent as JSON; the text says why."""


# Stands where a member is absent, whatever its type.
_ABSENT: Any = UNSET


class _Envelope(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: int | str | None = _ABSENT
    method: str = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: ErrorObject = _ABSENT


_MEMBERS: Final = msgspec.json.Decoder(list[Raw])


def _request(envelope: _Envelope) -> Request:
    return Request(_id(envelope), envelope.method, _params(envelope))


def _notification(envelope: _Envelope) -> Notification:
    return Notification(envelope.method, _params(envelope))


def _response(envelope: _Envelope) -> Response:
    if memoryview(envelope.result)[0] != _BRACE:
        raise msgspec.ValidationError("result is not an object")
    return Response(_id(envelope), envelope.result)


def _error_response(envelope: _Envelope) -> ErrorResponse:
    return ErrorResponse(None if envelope.id is _ABSENT else envelope.id, envelope.error)


def _id(envelope: _Envelope) -> int | str:
    if envelope.id is None:
        raise msgspec.ValidationError("id is null")
    return envelope.id


def _params(envelope: _Envelope) -> Raw | None:
    if envelope.params is _ABSENT:
        return None
    if memoryview(envelope.params)[0] != _BRACE:
        raise msgspec.ValidationError("params is not an object")
    return envelope.params


# Which of id, method, result and error are there, and what they are together.
_SHAPES: Final[Mapping[tuple[bool, bool, bool, bool], Callable[[_Envelope], Message]]] = {
    (True, True, False, False): _request,
    (False, True, False, False): _notification,
    (True, False, True, False): _response,
    (True, False, False, True): _error_response,
    (False, False, False, True): _error_response,
}


_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode


class Decoder:
    """Turns frames into messages; holds no state between them."""

    __slots__ = ("_batch_messages_max", "_json_depth_max")

    def __init__(
        self,
        *,
        json_depth_max: int,
        batch_messages_max: int = DEFAULT_LIMITS.batch_messages_max,
    ) -> None:
        self._json_depth_max = json_depth_max
        self._batch_messages_max = batch_messages_max

    def messages(self, frame: bytes) -> Sequence[Message]:
        """The messages in `frame`, of whatever revision: one, or those of a batch."""
        decoded = self.decode(frame)
        return decoded.messages if isinstance(decoded, Batch) else (decoded,)

    def decode(self, frame: bytes) -> Message | Batch:
        """The message that `frame` is; `Malformed`, with the answer to give, if it is none.

        A batch of no message, or of more than `batch_messages_max`, is malformed as a whole; one
        with a member that is no message is not.
        """
        try:
            if len(frame) > self._json_depth_max and is_deeper_than(self._json_depth_max, frame):
                return self._too_deep(frame)
            if not frame.isascii():
                frame.decode()  # the parser does not look into the strings that it skips
            return _message(_decode_envelope(frame))
        except UnicodeDecodeError as error:
            return malformed(frame, PARSE_ERROR, f"not UTF-8: {error.reason}")
        except msgspec.ValidationError as error:
            is_array = frame.lstrip().startswith(_BRACKET)
            return self._batch(frame) if is_array else _invalid(frame, str(error))
        except msgspec.DecodeError as error:
            return _broken(frame, error)
        except RecursionError:  # our caller left less room than json_depth_max asks for
            return self._too_deep(frame)

    def _batch(self, frame: bytes) -> Message | Batch:
        try:
            members = _MEMBERS.decode(frame)
        except msgspec.DecodeError as error:
            return _broken(frame, error)
        except RecursionError:
            return self._too_deep(frame)
        if not members:
            return _no_message("an empty batch")
        if len(members) > self._batch_messages_max:
            return _no_message(f"more than batch_messages_max ({self._batch_messages_max})")
        return Batch([self._member(bytes(member)) for member in members])

    def _member(self, member: bytes) -> Message:
        decoded = None if member.startswith(_BRACKET) else self.decode(member)
        return decoded if isinstance(decoded, Message) else _no_message("a batch inside a batch")

    def _too_deep(self, frame: bytes) -> Malformed:
        reason = f"nested deeper than json_depth_max ({self._json_depth_max})"
        return malformed(frame, INVALID_REQUEST, reason)


def _message(envelope: _Envelope) -> Message:
    build = _SHAPES.get(
        (
            envelope.id is not _ABSENT,
            envelope.method is not _ABSENT,
            envelope.result is not _ABSENT,
            envelope.error is not _ABSENT,
        )
    )
    if build is None:
        raise msgspec.ValidationError("neither a request, a notification nor a response")
    return build(envelope)


def malformed(frame: bytes, code: int, message: str) -> Malformed:
    """Refuse `frame`, which may be broken or only the head of one, with what it tells of itself."""
    seen = recover(frame)
    return Malformed(code, message, seen.id, seen.is_request, seen.is_whole)


def _broken(frame: bytes, error: msgspec.DecodeError) -> Malformed:
    return malformed(frame, PARSE_ERROR, f"not JSON: {_PLAINER.get(str(error), error)}")


def _no_message(reason: str) -> Malformed:
    return Malformed(INVALID_REQUEST, f"not a message: {reason}", id=None, is_request=True)


def _invalid(frame: bytes, reason: str) -> Malformed:
    seen = recover(frame)
    # Unlike text that is broken, this is the whole message: without an id nobody waits for it.
    is_notification = seen.has_method and not seen.has_id
    return Malformed(
        INVALID_REQUEST,
        f"not a message: {reason}",
        seen.id,
        seen.is_request and not is_notification,
    )


class _RequestFrame(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str
    method: str
    params: Any


class _NotificationFrame(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    method: str
    params: Any


class _ResponseFrame(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str
    result: Any


class _ErrorBody(msgspec.Struct, gc=False):
    code: int
    message: str
    data: Any


class _ErrorFrame(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str | UnsetType
    error: _ErrorBody


_ENCODER: Final = msgspec.json.Encoder()


def encode_request(
    id: int | str,  # noqa: A002  the specification's word
    method: str,
    params: Any = None,
    *,
    json_depth_max: int = DEFAULT_LIMITS.json_depth_max,
) -> bytes:
    """The frame of a request; `params` of None is left out.

    Raises:
        Unencodable: `params` hold something that JSON cannot say, or too deeply.
    """
    frame = _RequestFrame(id, method, UNSET if params is None else params)
    return _encode(frame, json_depth_max)


def encode_notification(
    method: str,
    params: Any = None,
    *,
    json_depth_max: int = DEFAULT_LIMITS.json_depth_max,
) -> bytes:
    """The frame of a notification; `params` of None is left out.

    Raises:
        Unencodable: `params` hold something that JSON cannot say, or too deeply.
    """
    frame = _NotificationFrame(method, UNSET if params is None else params)
    return _encode(frame, json_depth_max)


def encode_response(
    id: int | str,  # noqa: A002  the specification's word
    result: Any,
    *,
    json_depth_max: int = DEFAULT_LIMITS.json_depth_max,
) -> bytes:
    """The frame of an answer; `result` is whatever encodes to an object.

    NaN and the infinities become null, which is all that JSON has for them.

    Raises:
        Unencodable: `result` holds something that JSON cannot say, or too deeply.
    """
    return _encode(_ResponseFrame(id, result), json_depth_max)


def encode_error(
    id: int | str | None,  # noqa: A002  the specification's word
    code: int,
    message: str,
    data: Any = UNSET,
    *,
    json_depth_max: int = DEFAULT_LIMITS.json_depth_max,
) -> bytes:
    """The frame of an answer that says why a request failed; `data` of None is sent as null.

    `id` is None for a request whose id could not be read, in the revisions that know such errors:
    then it is left out, and never sent as null (TRAP-03).

    Raises:
        Unencodable: `data` holds something that JSON cannot say, or too deeply.
    """
    frame = _ErrorFrame(UNSET if id is None else id, _ErrorBody(code, message, data))
    return _encode(frame, json_depth_max)


class _Answer(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str | None = None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


def readdressed(
    frame: bytes,
    id: int | str,  # noqa: A002  the specification's word
) -> bytes:
    """The frame that gives an answer to another request than its own, or to one if it has none."""
    answer = msgspec.json.decode(frame, type=_Answer)
    answer.id = id
    return _ENCODER.encode(answer)


_OF_A_NUMBER: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":[0-9]+,')


def renumbered(
    frame: bytes,
    id: int | str,  # noqa: A002  the specification's word
) -> bytes:
    """The same; of an answer to a number that begins as those encoded here, no more is read."""
    begin = _OF_A_NUMBER.match(frame)
    if begin is None:  # it passes by, and was written by others
        return readdressed(frame, id)
    return b'{"jsonrpc":"2.0","id":%b,%b' % (_ENCODER.encode(id), frame[begin.end() :])


def _encode(envelope: msgspec.Struct, json_depth_max: int) -> bytes:
    try:
        frame = _ENCODER.encode(envelope)
    except Exception as error:  # people's values fail in many ways; all of them end here
        raise Unencodable(f"cannot be sent as JSON: {error}") from error
    if len(frame) > json_depth_max and is_deeper_than(json_depth_max, frame):
        raise Unencodable(f"nested deeper than json_depth_max ({json_depth_max})")
    if _LF in frame or _CR in frame:  # only text that was encoded before brings them in
        return msgspec.json.format(frame, indent=-1)
    return frame
