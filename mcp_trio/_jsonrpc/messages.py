"""JSON-RPC 2.0 messages: decoding, encoding, and the ids of malformed messages.

A message is decoded once, into a struct that keeps `params` and `result` as raw JSON; the code that
knows their type decodes them, once. The decoder returns a message for all bytes, and never raises:

- Bytes that are not UTF-8, or not JSON, are `Malformed` with code -32700. NaN, Infinity, incomplete
  surrogate pairs and byte order marks are not JSON.
- JSON that is not a message, is nested deeper than `limits.messages.json_depth_max`, or has more
  numbers that take long to read than `limits.messages.long_exponents_max`, is `Malformed` with code
  -32600. `null` is a value like any other: it is not a valid `id` of a request, and not valid as
  `params` or `result`.
- An array is a `Batch` of messages. The caller decides whether a batch is allowed, because that
  depends on the protocol version.
- Unknown members are ignored. If a member occurs twice, the last one counts.
- An id is kept exactly: 1, "1" and 18446744073709551616 are three ids. 1.0 and true are not ids.

Only the envelope is checked here; of `params` and `result` only that they are objects.

The rules: https://www.jsonrpc.org/specification and
https://modelcontextprotocol.io/specification/2025-11-25/basic#messages
"""

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio.errors import INVALID_REQUEST, PARSE_ERROR, Unencodable
from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits

_BRACE: Final = ord("{")
_LF: Final = ord("\n")
_CR: Final = ord("\r")

# Messages.


class Request(msgspec.Struct, frozen=True, gc=False):
    """A message that is answered by a response with the same id.

    Attributes:
        id: The id that the sender chose.
        method: The method.
        params: The params as raw JSON; None if absent.
    """

    id: int | str
    method: str
    params: Raw | None


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A message that is never answered.

    Attributes:
        method: The method.
        params: The params as raw JSON; None if absent.
    """

    method: str
    params: Raw | None


class Response(msgspec.Struct, frozen=True, gc=False):
    """A successful response; `result` is a JSON object, as raw JSON."""

    id: int | str
    result: Raw


class ErrorObject(msgspec.Struct, frozen=True, gc=False):
    """The reason why a request failed; `data` is any JSON value, and null differs from absent."""

    code: int
    message: str
    data: Raw | UnsetType = UNSET


class ErrorResponse(msgspec.Struct, frozen=True, gc=False):
    """A response for a request that failed; `id` is None if the peer could not read the id."""

    id: int | str | None
    error: ErrorObject


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """Data that is not a message, with the error to answer it.

    Attributes:
        code: The JSON-RPC error code.
        message: The text of the error.
        id: The id in the data; None if it could not be read.
        is_request: Whether an error response may be sent. Notifications and responses are never
            answered.
        is_complete: Whether the end of the message has arrived.
    """

    code: int
    message: str
    id: int | str | None
    is_request: bool
    is_complete: bool = True


Message: TypeAlias = Request | Notification | Response | ErrorResponse | Malformed


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Several messages in one JSON array, in order; at least one."""

    messages: Sequence[Message]


# Decoding.

Decoded = TypeVar("Decoded")

# The value of an absent member, whatever the type of the member.
_ABSENT: Any = UNSET


class _Envelope(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: int | str | None = _ABSENT
    method: str = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: ErrorObject = _ABSENT


def _request_or_notification(envelope: _Envelope) -> Request | Notification:
    params = None if envelope.params is _ABSENT else envelope.params
    if params is not None and memoryview(params)[0] != _BRACE:
        raise msgspec.ValidationError("params is not an object")
    if envelope.id is _ABSENT:
        return Notification(envelope.method, params)
    assert envelope.id is not None  # `decode` has checked it
    return Request(envelope.id, envelope.method, params)


def _response(envelope: _Envelope) -> Response:
    if memoryview(envelope.result)[0] != _BRACE:
        raise msgspec.ValidationError("result is not an object")
    assert envelope.id is not None  # as above
    return Response(envelope.id, envelope.result)


def _error_response(envelope: _Envelope) -> ErrorResponse:
    return ErrorResponse(None if envelope.id is _ABSENT else envelope.id, envelope.error)


# The function that builds a message, by the presence of `id`, `method`, `result` and `error`. An
# envelope with another combination of these members is not a message.
_SHAPES: Final[Mapping[tuple[bool, bool, bool, bool], Callable[[_Envelope], Message]]] = {
    (True, True, False, False): _request_or_notification,
    (False, True, False, False): _request_or_notification,
    (True, False, True, False): _response,
    (True, False, False, True): _error_response,
    (False, False, False, True): _error_response,
}

_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_decode_array: Final = msgspec.json.Decoder(list[Raw]).decode


class Decoder:
    """Decodes messages and batches; it keeps no state between them."""

    __slots__ = ("_batch_size_max", "_json_depth_max", "_long_exponents_max", "_short_bytes")

    def __init__(self, limits: MessageLimits) -> None:
        self._json_depth_max = limits.json_depth_max
        self._batch_size_max = limits.batch_size_max
        self._long_exponents_max = limits.long_exponents_max
        # Data of at most this length cannot have more than `long_exponents_max` long exponents.
        self._short_bytes = limits.long_exponents_max * len("1e100,")

    def messages(self, data: bytes) -> Sequence[Message]:
        """Return the messages in `data`: one, or those of a batch."""
        decoded = self.decode(data)
        return decoded.messages if isinstance(decoded, Batch) else (decoded,)

    def decode_by(
        self, decode_first: Callable[[bytes], Decoded], data: bytes
    ) -> Decoded | Message | Batch:
        """Decode `data` by `decode_first` or, if that raises an error, by `decode`.

        `decode_first` is a fast function for some kind of request; it raises an error of msgspec
        for all other data.
        """
        size = len(data)
        try:
            if size > self._json_depth_max and is_deeper_than(self._json_depth_max, data):
                return self.decode(data)
            _ = data.isascii() or data.decode()  # as in `decode`
            request = decode_first(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.decode(data)
        if size <= self._short_bytes:
            return request
        return self._error_if_slow_to_read(data, request) or request

    def decode(self, data: bytes) -> Message | Batch:
        """Return the message or batch in `data`, or `Malformed`.

        A batch without messages, or with more than `limits.messages.batch_size_max`, is malformed.
        A batch with a malformed message contains a `Malformed`.
        """
        try:
            if len(data) > self._json_depth_max and is_deeper_than(self._json_depth_max, data):
                return self._too_deep(data)
            if not data.isascii():
                data.decode()  # msgspec does not check strings that it skips
            envelope = _decode_envelope(data)
            build = _SHAPES.get(
                (
                    envelope.id is not _ABSENT,
                    envelope.method is not _ABSENT,
                    envelope.result is not _ABSENT,
                    envelope.error is not _ABSENT,
                )
            )
            if build is None:
                return _invalid(data, "neither a request, a notification nor a response")
            if envelope.id is None and envelope.error is _ABSENT:
                return _invalid(data, "id is null")
            message = build(envelope)
            if len(data) <= self._short_bytes:
                return message
            return self._error_if_slow_to_read(data, message) or message
        except UnicodeDecodeError as error:
            return malformed(data, PARSE_ERROR, f"not UTF-8: {error.reason}")
        except msgspec.ValidationError as error:
            if not data.lstrip().startswith(b"["):
                return _invalid(data, str(error))
            return self._error_if_slow_to_read(data) or self._batch(data)
        except msgspec.DecodeError as error:
            return _not_json(data, error)
        except RecursionError:
            # The caller's own calls left less stack than json_depth_max levels need.
            return self._too_deep(data)

    def _batch(self, data: bytes) -> Message | Batch:
        try:
            members = _decode_array(data)
        except msgspec.DecodeError as error:
            return _not_json(data, error)
        except RecursionError:
            return self._too_deep(data)
        if not members:
            return not_a_message("an empty batch")
        if len(members) > self._batch_size_max:
            return not_a_message(
                f"more than limits.messages.batch_size_max ({self._batch_size_max})"
            )
        messages: list[Message] = []
        for member in map(bytes, members):
            decoded = None if member.startswith(b"[") else self.decode(member)
            if not isinstance(decoded, Message):
                decoded = not_a_message("a batch inside a batch")
            messages.append(decoded)
        return Batch(messages)

    def _error_if_slow_to_read(self, data: bytes, message: object = None) -> Malformed | None:
        """Return the error for a message, or batch, that would take too long to read."""
        count_max = self._long_exponents_max
        if len(data) <= self._short_bytes or not has_more_long_exponents(count_max, data):
            return None
        reason = f"more long exponents than limits.messages.long_exponents_max ({count_max})"
        request_id = getattr(message, "id", None)
        is_request = not isinstance(message, Notification | Response | ErrorResponse)
        return Malformed(INVALID_REQUEST, reason, request_id, is_request)

    def _too_deep(self, data: bytes) -> Malformed:
        reason = f"nested deeper than limits.messages.json_depth_max ({self._json_depth_max})"
        return malformed(data, INVALID_REQUEST, reason)


@functools.lru_cache
def decoder_for(limits: MessageLimits) -> Decoder:
    """Return the decoder with these limits, which all channels and sessions with them share."""
    return Decoder(limits)


def malformed(data: bytes, code: int, message: str) -> Malformed:
    """Return the error for data that is not a message, with the id that can be recovered from it.

    The data may be invalid, or only the beginning of a message.
    """
    recovered = recover(data)
    return Malformed(code, message, recovered.id, recovered.is_request, recovered.is_complete)


def _not_json(data: bytes, error: msgspec.DecodeError) -> Malformed:
    reason = str(error)
    if reason == "Input data was truncated":  # msgspec has this text for two kinds of errors.
        reason = "incomplete text, or an incomplete surrogate pair"
    return malformed(data, PARSE_ERROR, f"not JSON: {reason}")


def not_a_message(reason: str) -> Malformed:
    """Return the error for valid JSON that is no message, and has no id."""
    return Malformed(INVALID_REQUEST, f"not a message: {reason}", id=None, is_request=True)


def _invalid(data: bytes, reason: str) -> Malformed:
    recovered = recover(data)
    # The data is valid JSON, so an id that was not found is not there: it is a notification.
    is_notification = recovered.has_method and not recovered.has_id
    return Malformed(
        INVALID_REQUEST,
        f"not a message: {reason}",
        recovered.id,
        recovered.is_request and not is_notification,
    )


# Recovering the id from data that no JSON decoder accepts.

_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]++|"', re.DOTALL)
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,99})")
_OPENING: Final = frozenset({b"{", b"["})
_CLOSING: Final = frozenset({b"}", b"]"})

# Data of nothing but brackets must not block the session; this many take about 30 ms.
_TOKENS_MAX: Final = 80_000


class Recovered(msgspec.Struct, frozen=True, gc=False):
    """The id of a malformed message, and the members and the end that were found.

    Attributes:
        id: The id; None if it was not found, or may be incomplete.
        has_id: Whether there is a member `id`.
        has_method: Whether there is a member `method`.
        has_outcome: Whether there is a member `result` or `error`.
        is_complete: Whether the end of the message was found.
    """

    id: int | str | None
    has_id: bool
    has_method: bool
    has_outcome: bool
    is_complete: bool

    @property
    def is_request(self) -> bool:
        """True if it may be a request: it has a method, or no sign of a response."""
        return self.has_method or not self.has_outcome


def recover(text: bytes) -> Recovered:
    """Return the id and the members in invalid, too deep or incomplete JSON; never raises.

    Only members of the outermost object count. If a member occurs twice, the last one counts, as in
    the decoder. An id counts only if it is certainly complete: a number at the end of incomplete
    data may have further digits.
    """
    # The tokens of each top-level member; of a nested value only the opening bracket.
    found: list[list[bytes]] = [[]]
    depth, is_complete = 0, False
    for match in islice(_TOKEN.finditer(text), _TOKENS_MAX):
        token = match[0]
        if token == b'"' or (depth == 0 and token != b"{"):
            break  # the beginning of a string without an end, or a text that is no object
        if token in _CLOSING:
            depth -= 1
            if depth == 0:
                is_complete = True
                break
        elif depth == 1 and token == b",":
            found.append([])
        elif depth == 1:
            found[-1].append(token)
        if token in _OPENING:
            depth += 1
    last = found[-1]
    if last and not is_complete and not last[-1].endswith(b'"'):
        last[2:] = [b""]  # the value may be incomplete: keep the name only
    members: dict[bytes, bytes] = {}
    for tokens in found:
        match tokens:
            case [name, b":", value]:
                members[name] = value
            case _:  # no member
                pass
    token = members.get(b'"id"', b"")
    request_id: int | str | None = None
    if _INTEGER.fullmatch(token):
        request_id = int(token)
    else:
        with contextlib.suppress(ValueError):
            request_id = msgspec.json.decode(token, type=str)
    return Recovered(
        id=request_id,
        has_id=b'"id"' in members,
        has_method=b'"method"' in members,
        has_outcome=b'"result"' in members or b'"error"' in members,
        is_complete=is_complete,
    )


# The nesting depth of a JSON text, found without recursion.

_BRACKETS: Final = b"{[}]"
# Each bracket as the change of the depth that it makes, +1 or -1, in a signed byte.
_DEPTH_CHANGES: Final = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")
_NOT_MARKS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS + b'"')

# Each removal of all innermost pairs removes one level or two; few messages have more levels.
_REMOVALS_MAX: Final = 8

# The next removal is not worth its time if one has removed less than this part of the brackets.
_USEFUL_PART: Final = 1 / 8


def is_deeper_than(depth_max: int, text: bytes) -> bool:
    """Return whether objects and arrays are nested deeper than `depth_max` in a JSON text.

    The time is linear. In invalid JSON the depth is exact up to the first error, where a parser
    stops, so no text lets the parser that is called next recurse deeper than `depth_max`.
    """
    if _has_at_most(depth_max // 2, b"{", text) and _has_at_most(depth_max // 2, b"[", text):
        return False
    marks = _without_escapes(text).translate(None, _NOT_MARKS)
    # A string without brackets is now two adjacent quotes, which are removed. If quotes remain,
    # strings contain brackets: only every second part between quotes is outside of strings.
    brackets = marks.replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(marks.split(b'"')[::2])
    # In most messages, removing innermost pairs a few times removes all brackets.
    remaining = brackets
    for _ in range(min(_REMOVALS_MAX, depth_max // 2)):
        before = len(remaining)
        remaining = remaining.replace(b"{}", b"").replace(b"[]", b"")
        if before - len(remaining) < before * _USEFUL_PART:
            break
    if not remaining:
        return False
    changes = memoryview(brackets.translate(_DEPTH_CHANGES)).cast("b")
    return any(map(depth_max.__lt__, accumulate(changes)))


def _has_at_most(number: int, byte: bytes, text: bytes) -> bool:
    # `bytes.find` skips at the speed of memory, `bytes.count` does not.
    at = -1
    for _ in range(number + 1):
        at = text.find(byte, at + 1)
        if at < 0:
            return True
    return False


def _without_strings(text: bytes) -> bytes:
    """Return the text with one quote in place of each string; `text` has no escaped quotes."""
    parts: list[bytes] = []
    start = 0
    while (begin := text.find(b'"', start)) >= 0:
        parts.append(text[start:begin])
        start = text.find(b'"', begin + 1) + 1
        if not start:  # the string has no end
            return b'"'.join(parts)
    return b'"'.join([*parts, text[start:]])


def _without_escapes(text: bytes) -> bytes:
    """Return the text without escaped backslashes and quotes."""
    if b"\\" not in text:
        return text
    # Backslashes pair up from the left of a run, so a remaining one escapes a quote.
    return text.replace(b"\\\\", b"").replace(b'\\"', b"")


# Numbers that take long to read.

# Up to this number of quotes, strings are cut out of a text one by one. This takes the time of
# copying the rest; translating the strings as well would take a hundred times as long.
_QUOTES_TO_CUT: Final = 1000
_WINDOW_BYTES: Final = 64 * 1024
# Marks each digit as `0` and each `e` as `e`; all other bytes but quotes become spaces.
_NUMBER_MARKS: Final = bytes.maketrans(
    bytes(range(256)),
    bytes(
        {
            **dict.fromkeys(b"0123456789", ord("0")),
            **dict.fromkeys(b"eE", ord("e")),
            ord('"'): ord('"'),
        }.get(byte, ord(" "))
        for byte in range(256)
    ),
)
# The marks of an exponent with three digits or more, whose sign is deleted.
_LONG_EXPONENT: Final = b"e000"
_SIGNS: Final = b"+-"


def has_more_long_exponents(count_max: int, text: bytes) -> bool:
    """Return whether more than `count_max` numbers have exponents of three or more digits.

    msgspec reads `1e300` in some 20 microseconds, a hundred times slower than other numbers, so
    that a megabyte of them would block the event loop for seconds. This check takes linear time.
    """
    if _has_at_most(_QUOTES_TO_CUT, b'"', text):
        text = _without_strings(_without_escapes(text))
        return text.translate(_NUMBER_MARKS, _SIGNS).count(_LONG_EXPONENT) > count_max
    if text.translate(_NUMBER_MARKS, _SIGNS).count(_LONG_EXPONENT) <= count_max:
        return False
    # Some of these may be in strings, so count again outside of strings. The text is split into
    # windows, because splitting the whole text at its quotes would take much memory. Each window
    # ends a little later than the next one begins, so that no exponent is cut.
    marks = _without_escapes(text).translate(_NUMBER_MARKS, _SIGNS)
    count = is_in_string = 0
    for start in range(0, len(marks), _WINDOW_BYTES):
        end = start + _WINDOW_BYTES
        window = marks[start : end + len(_LONG_EXPONENT) - 1]
        if _LONG_EXPONENT in window:
            outside = window.split(b'"')[is_in_string::2]
            count += b'"'.join(outside).count(_LONG_EXPONENT)
        is_in_string ^= marks.count(b'"', start, end) & 1
    return count > count_max


# Encoding.


class _EncodedRequest(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str | UnsetType  # a notification has none
    method: str
    params: Any


class _EncodedResponse(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str
    result: Any


class _EncodedErrorResponse(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str | UnsetType
    error: ErrorObject


_ENCODER: Final = msgspec.json.Encoder()


def encode_request(
    id: int | str,  # noqa: A002  the specification's name
    method: str,
    params: Any = None,
    *,
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
) -> bytes:
    """Return an encoded request; `params` of None are left out.

    Raises:
        Unencodable: `params` cannot be written as JSON, or are nested too deeply.
    """
    request = _EncodedRequest(id, method, UNSET if params is None else params)
    return _encode(request, json_depth_max)


def encode_notification(
    method: str,
    params: Any = None,
    *,
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
) -> bytes:
    """Return an encoded notification; `params` of None are left out.

    Raises:
        Unencodable: `params` cannot be written as JSON, or are nested too deeply.
    """
    notification = _EncodedRequest(UNSET, method, UNSET if params is None else params)
    return _encode(notification, json_depth_max)


def encode_plain_notification(method: str, params: msgspec.Struct) -> bytes:
    """Return an encoded notification whose params are only numbers and received texts.

    UTF-8 can encode these, and they are not nested, so no check is needed.
    """
    return _ENCODER.encode(_EncodedRequest(UNSET, method, params))


def encode_response(
    id: int | str,  # noqa: A002  the specification's name
    result: Any,
    *,
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
) -> bytes:
    """Return an encoded response; `result` is any value that encodes to an object.

    NaN and the infinities become null, because JSON has no such numbers.

    Raises:
        Unencodable: `result` cannot be written as JSON, or is nested too deeply.
    """
    return _encode(_EncodedResponse(id, result), json_depth_max)


def encode_error(
    id: int | str | None,  # noqa: A002  the specification's name
    code: int,
    message: str,
    data: Any = UNSET,
    *,
    json_depth_max: int = DEFAULT_LIMITS.messages.json_depth_max,
) -> bytes:
    """Return an encoded error response; `data` of None is sent as null.

    `id` is None if the id of the request could not be read. It is then left out, because the
    specification's schemas, unlike JSON-RPC, do not allow null. Only protocol versions from
    2025-11-25 on have such errors.

    Raises:
        Unencodable: `data` cannot be written as JSON, or is nested too deeply.
    """
    error = _EncodedErrorResponse(UNSET if id is None else id, ErrorObject(code, message, data))
    return _encode(error, json_depth_max)


def _encode(message: msgspec.Struct, json_depth_max: int) -> bytes:
    try:
        encoded = _ENCODER.encode(message)
        if _LF in encoded or _CR in encoded:  # only raw JSON that a user passed can contain these
            encoded = msgspec.json.format(encoded, indent=-1)
    except Exception as error:  # encoding a user's values can raise anything
        raise Unencodable(f"cannot be sent as JSON: {error}") from error
    if len(encoded) > json_depth_max and is_deeper_than(json_depth_max, encoded):
        raise Unencodable(f"nested deeper than limits.messages.json_depth_max ({json_depth_max})")
    return encoded


class _AnyResponse(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str | None = None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_ENCODED_WITH_NUMBER: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":[0-9]+,')


def with_id_replaced(
    response: bytes,
    id: int | str,  # noqa: A002  the specification's name
) -> bytes:
    """Return an encoded response with another id.

    A response that begins as this module encodes one with a number as id is not decoded.
    """
    beginning = _ENCODED_WITH_NUMBER.match(response)
    if beginning is not None:
        return b'{"jsonrpc":"2.0","id":%b,%b' % (_ENCODER.encode(id), response[beginning.end() :])
    decoded = msgspec.json.decode(response, type=_AnyResponse)
    decoded.id = id
    return _ENCODER.encode(decoded)
