"""JSON-RPC messages: decoding, encoding, and recovery of malformed ones."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final, Literal, Self, TypeAlias

import attrs
import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio.errors import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ConnectionLost,
    LocalProtocolError,
    Unencodable,
)
from mcp_trio.limits import DEFAULT_LIMITS

# --------------------
# How deeply a JSON text is nested, found without recursion.


_BRACKETS: Final = b"{[}]"
_STEPS: Final = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")
_NOT_MARKS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS + b'"')

# Each round takes one level off, two at most; few messages have more levels than that.
_ROUNDS: Final = 8

# A round that takes less than this part away costs more than it is worth.
_SHARE: Final = 8


def is_deeper_than(depth_max: int, text: bytes) -> bool:
    """Return whether `text` opens more than `depth_max` objects and arrays inside one another.

    Linear, and exact for JSON. In anything else it is exact up to the first error, which is as far
    as a parser gets, so no text makes the parser that follows recurse deeper than `depth_max`.
    """
    if _has_at_most(depth_max // 2, b"{", text) and _has_at_most(depth_max // 2, b"[", text):
        return False
    brackets = _brackets(text)
    return not _is_shallow(brackets, depth_max // 2) and _depth_exceeds(depth_max, brackets)


def _has_at_most(number: int, byte: bytes, text: bytes) -> bool:
    """Whether `byte` occurs so seldom; `find` skips at the speed of memory, `count` does not."""
    at = -1
    for _ in range(number + 1):
        at = text.find(byte, at + 1)
        if at < 0:
            return True
    return False


def _brackets(text: bytes) -> bytes:
    """The brackets outside of strings."""
    if b"\\" in text:
        # Backslashes pair up from the left of their run, so what remains of them escapes a quote.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(None, _NOT_MARKS)
    # A string without brackets is two quotes side by side. Where one has a bracket, an odd number
    # of quotes stands before that, so at least one of them is left.
    outside = marks.replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2]) if b'"' in outside else outside


def _is_shallow(brackets: bytes, rounds_max: int) -> bool:
    """Return whether taking innermost pairs away, a few times, leaves nothing."""
    for _ in range(min(_ROUNDS, rounds_max)):
        before = len(brackets)
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if before - len(brackets) < before // _SHARE:
            break
    return not brackets


def _depth_exceeds(depth_max: int, brackets: bytes) -> bool:
    steps = brackets.translate(_STEPS)
    return any(map(depth_max.__lt__, accumulate(memoryview(steps).cast("b"))))


# --------------------
# What a frame that no decoder accepts still tells about the message that it was meant to be.


_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]++|"', re.DOTALL)
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,99})")
_OPENING: Final = frozenset({b"{", b"["})
_CLOSING: Final = frozenset({b"}", b"]"})
_END: Final = b"}"

# A hostile frame of nothing but brackets must not hold up the session; this is about 0.1 s.
_TOKENS_MAX: Final = 250_000


class Recovered(msgspec.Struct, frozen=True, gc=False):
    """The id of a message that was not understood, and which of its members and ends were seen."""

    id: int | str | None
    has_id: bool
    has_method: bool
    has_outcome: bool
    is_whole: bool

    @property
    def is_request(self) -> bool:
        """Whether an answer may be due: it names a method, or nothing says that it is an answer."""
        return self.has_method or not self.has_outcome


def recover(text: bytes) -> Recovered:
    """Find what the top level of a broken, too deep or cut off JSON text says; never raises.

    A member that occurs twice counts with its last value, as in the decoder. An id counts only if
    it is certainly whole: a number at which the text is cut off is not.
    """
    members = dict(_members(text))
    return Recovered(
        id=_recovered_id(members.get(b'"id"', b"")),
        has_id=b'"id"' in members,
        has_method=b'"method"' in members,
        has_outcome=b'"result"' in members or b'"error"' in members,
        is_whole=_END in members,
    )


def _members(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and first token of each top-level member, and the object's end behind them.

    b"" is a value that may be cut off.
    """
    member: list[bytes] = []
    for token in _top_level_tokens(text):
        if token in {b",", _END}:
            yield from _member(member)
            member = []
            if token == _END:
                yield _END, b""
        else:
            member.append(token)
    if member and not member[-1].endswith(b'"'):
        member[2:] = [b""]
    yield from _member(member)


def _member(tokens: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    match tokens:
        case [name, b":", value]:
            yield name, value
        case _:
            return


def _top_level_tokens(text: bytes) -> Iterator[bytes]:
    """Yield what stands directly in the outermost object; a nested value is its opening alone."""
    tokens = (match[0] for match in islice(_TOKEN.finditer(text), _TOKENS_MAX))
    if next(tokens, b"") != b"{":
        return
    depth = 1
    for token in tokens:
        if token == b'"':  # a string without an end: whatever follows is inside it
            return
        if token in _CLOSING:
            depth -= 1
        elif depth == 1:
            yield token
        if token in _OPENING:
            depth += 1
        if depth == 0:
            yield _END
            return


def _recovered_id(token: bytes) -> int | str | None:
    if _INTEGER.fullmatch(token):
        return int(token)
    try:
        return msgspec.json.decode(token, type=str)
    except ValueError:
        return None


# --------------------
# The JSON-RPC envelope: one frame to one message, and one message to one frame.
#
# A frame is decoded once, into a struct that holds `params` and `result` as they stood on the wire;
# whoever knows their type decodes them, once. What the members of an envelope may be together
# stands in a table (`_SHAPES`): a combination without a row is not a message.
#
# The decoder answers every frame with a message, and never raises:
#
# - not UTF-8, not JSON, NaN, Infinity, half an escaped surrogate pair, a byte order mark: -32700;
# - JSON that is no message of this protocol, or nested deeper than
# `limits.messages.json_depth_max`: -32600;
# - `null` is a value like any other: as `id` of a request, `params` or `result` it is refused;
# - an array is a batch of messages; whether one may come is for those to say who know the revision;
# - members that are not known are ignored; of a member that occurs twice the last one counts;
# - an id is kept as it came: 1, "1" and 18446744073709551616 are three ids; 1.0 and true are none.
#
# Only the envelope is judged here: of `params` and `result`, that they are objects of valid JSON.


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
        batch_messages_max: int = DEFAULT_LIMITS.messages.batch_size_max,
    ) -> None:
        self._json_depth_max = json_depth_max
        self._batch_messages_max = batch_messages_max

    def messages(self, frame: bytes) -> Sequence[Message]:
        """The messages in `frame`, of whatever revision: one, or those of a batch."""
        decoded = self.decode(frame)
        return decoded.messages if isinstance(decoded, Batch) else (decoded,)

    def decode(self, frame: bytes) -> Message | Batch:
        """The message that `frame` is; `Malformed`, with the answer to give, if it is none.

        A batch of no message, or of more than `limits.messages.batch_size_max`, is malformed as a
        whole; one with a member that is no message is not.
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
        except (
            RecursionError
        ):  # our caller left less room than limits.messages.json_depth_max asks for
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
            return _no_message(
                f"more than limits.messages.batch_size_max ({self._batch_messages_max})"
            )
        return Batch([self._member(bytes(member)) for member in members])

    def _member(self, member: bytes) -> Message:
        decoded = None if member.startswith(_BRACKET) else self.decode(member)
        return decoded if isinstance(decoded, Message) else _no_message("a batch inside a batch")

    def _too_deep(self, frame: bytes) -> Malformed:
        reason = f"nested deeper than limits.messages.json_depth_max ({self._json_depth_max})"
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
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
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
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
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
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
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
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
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


def reencoded_with_id(
    frame: bytes,
    id: int | str,  # noqa: A002  the specification's word
) -> bytes:
    """The frame that gives an answer to another request than its own, or to one if it has none."""
    answer = msgspec.json.decode(frame, type=_Answer)
    answer.id = id
    return _ENCODER.encode(answer)


_OF_A_NUMBER: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":[0-9]+,')


def with_id_replaced(
    frame: bytes,
    id: int | str,  # noqa: A002  the specification's word
) -> bytes:
    """The same; of an answer to a number that begins as those encoded here, no more is read."""
    begin = _OF_A_NUMBER.match(frame)
    if begin is None:  # it passes by, and was written by others
        return reencoded_with_id(frame, id)
    return b'{"jsonrpc":"2.0","id":%b,%b' % (_ENCODER.encode(id), frame[begin.end() :])


def _encode(envelope: msgspec.Struct, json_depth_max: int) -> bytes:
    try:
        frame = _ENCODER.encode(envelope)
    except Exception as error:  # people's values fail in many ways; all of them end here
        raise Unencodable(f"cannot be sent as JSON: {error}") from error
    if len(frame) > json_depth_max and is_deeper_than(json_depth_max, frame):
        raise Unencodable(f"nested deeper than limits.messages.json_depth_max ({json_depth_max})")
    if _LF in frame or _CR in frame:  # only text that was encoded before brings them in
        return msgspec.json.format(frame, indent=-1)
    return frame


class RelatedMessage(bytes):
    """A frame that belongs to a request of the peer: its answer, or what is said about it.

    `about` is the request's id; None: it belongs to none. `is_answer` says that no other will come.
    """

    about: int | str | None
    is_answer: bool

    def __new__(cls, frame: bytes, about: int | str | None, *, is_answer: bool = False) -> Self:
        """The same bytes, with an address."""
        self = bytes.__new__(cls, frame)
        self.about = about
        self.is_answer = is_answer
        return self


class PrincipalMessage(bytes):
    """A received frame of which its transport has made sure who sent it: the `principal`."""

    principal: str

    def __new__(cls, frame: bytes, principal: str) -> Self:
        """The same bytes, with a name."""
        self = bytes.__new__(cls, frame)
        self.principal = principal
        return self


def with_principal(frame: bytes, principal: str | None) -> bytes:
    """A frame as it is to be received from somebody; None: nobody knows who that is."""
    return frame if principal is None else PrincipalMessage(frame, principal)


class DecodedMessage(bytes):
    """A received frame that was decoded on its way, as HTTP looks into what it carries.

    `principal` is who has sent it; None: nobody knows.
    """

    message: Message | Batch
    principal: str | None

    def __new__(cls, frame: bytes, message: Message | Batch, principal: str | None) -> Self:
        """The same bytes, with what they mean."""
        self = bytes.__new__(cls, frame)
        self.message = message
        self.principal = principal
        return self


@attrs.frozen
class Lost:
    """What a channel gives instead of an answer to a request of ours that it sent, or could not.

    `error` is what the caller gets: a `LocalProtocolError` for what could not be said on this way.
    """

    id: int | str
    error: ConnectionLost | LocalProtocolError
