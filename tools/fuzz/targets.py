"""The parsers that a fuzzer calls with bytes of its own: one function each, by name.

A function returns if the parser accepts the data, or rejects it as its documentation says. Any
other exception is a finding, and so is a failed assertion about the result. Most assertions compare
two ways to the same result: the data at once and in pieces, decoded and encoded again, ours and the
standard library's or h11's.
"""

import json
import re
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import h11
import msgspec
import trio
import trio.testing
import wsproto.connection
import wsproto.utilities
from wsproto.events import BytesMessage, CloseConnection, TextMessage

from mcp_trio import KeyRing
from mcp_trio._journal.conversation import conversation
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
    encode_notification,
    encode_request,
    is_deeper_than,
    recover,
)
from mcp_trio._jsonrpc.sse import Event, EventParser, encode_event
from mcp_trio._protocol.connection import (
    BatchReceived,
    Connection,
    ImmediateResponse,
    RequestReceived,
    ResponseReceived,
)
from mcp_trio._protocol.http_headers import (
    HeaderMismatchError,
    check_headers_match,
    headers_from_body,
)
from mcp_trio._protocol.json_schema import SchemaValidator
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.requests import IncomingTrigger
from mcp_trio._protocol.uri_templates import TemplateError, UriError, UriTemplate
from mcp_trio._server.sealed_state import Binding, Sealer
from mcp_trio._transports.http1 import (
    ChunkedBody,
    HttpError,
    headers_length,
    is_cacheable,
    parse_request,
)
from mcp_trio._transports.http_response import BodyTooLargeError, shares_of_bodies
from mcp_trio._transports.trio_websocket import StreamUpgrade
from mcp_trio.auth import HttpRequest
from mcp_trio.errors import RecordingError, RemoteProtocolError, SchemaError
from mcp_trio.limits import DEFAULT_LIMITS, MessageLimits
from mcp_trio.recording import Damage, Record, check, diff, read_recording
from mcp_trio.transports import LineSplitter, Oversized
from mcp_trio.types import (
    CallToolParams,
    ClientCapabilities,
    GetPromptParams,
    Implementation,
    PromptsCapability,
    ReadResourceParams,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)

_DEPTH_MAX: Final = 4
_BYTES_MAX: Final = 256


def _pieces(data: bytes) -> Iterator[bytes]:
    """Yield the data in pieces of 1 to 7 bytes, whose lengths depend on the data only."""
    at = 0
    while at < len(data):
        length = 1 + (data[at] + at) % 7
        yield data[at : at + length]
        at += length


# JSON-RPC -----------------------------------------------------------------------------------------


def messages(data: bytes) -> None:
    """Decode messages, and compare them with what `json` reads and with what `recover` finds."""
    found = Decoder(MessageLimits(json_depth_max=_DEPTH_MAX, batch_size_max=8)).messages(data)
    assert found, "no message, and no error"
    recovered = recover(data)
    value = _json_of(data)
    if value is not _NO_JSON:
        assert is_deeper_than(_DEPTH_MAX, data) == (_depth(value) > _DEPTH_MAX), "another depth"
    for message in found:
        _check_message(message)
    only = found[0] if len(found) == 1 else None
    if isinstance(only, Request | Response) and data.lstrip().startswith(b"{"):
        if b"\\u" not in data:  # an escaped name is not recovered
            assert recovered.id == only.id, "another id is recovered than was decoded"
        assert recovered.is_complete, "a complete message is recovered as incomplete"


def _check_message(message: Message) -> None:
    """Check that a message is the same when it is encoded and decoded again."""
    decode = Decoder(MessageLimits(json_depth_max=_DEPTH_MAX)).decode
    if isinstance(message, Request | Response):
        assert isinstance(message.id, int | str), "an id of another type"
    if isinstance(message, Request):
        params = None if message.params is None else bytes(message.params)
        again = decode(encode_request(message.id, message.method, message.params))
        assert isinstance(again, Request), "an encoded request is none"
        assert (again.id, again.method) == (message.id, message.method), "another request"
        assert params is None or json.loads(params) is not None, "params are not JSON"
    elif isinstance(message, Notification):
        again = decode(encode_notification(message.method, message.params))
        assert isinstance(again, Notification), "an encoded notification is none"
        assert again.method == message.method, "another notification"
    elif isinstance(message, ErrorResponse):
        assert message.id is None or isinstance(message.id, int | str), "an id of another type"


_NO_JSON: Final = object()


def _json_of(data: bytes) -> Any:
    """Return the value of a JSON text with every member of its objects, or `_NO_JSON`."""
    try:
        return json.loads(data.decode(), object_pairs_hook=list, parse_constant=_reject)
    except (ValueError, RecursionError):
        return _NO_JSON


def _reject(constant: str) -> None:
    raise ValueError(constant)


def _depth(value: Any) -> int:
    """Return the depth of a value of `_json_of`, in which an object is a list of pairs."""
    if not isinstance(value, list):
        return 0
    return 1 + max((_depth(_member(each)) for each in value), default=0)


def _member(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


def connections(data: bytes) -> None:
    """Receive each line of the data as a message, as a client and as a server with a session."""
    client = Connection(our_role=Role.CLIENT, our_info=_INFO, our_capabilities=ClientCapabilities())
    server = Connection(our_role=Role.SERVER, our_info=_INFO, our_capabilities=_SERVER_CAN)
    fresh = Connection(our_role=Role.SERVER, our_info=_INFO, our_capabilities=_SERVER_CAN)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    reply = server.receive(opened.message)
    assert isinstance(reply, ImmediateResponse), "a handshake is not answered"
    result = client.receive(reply.message)
    assert isinstance(result, ResponseReceived), "an answer is not received"
    assert result.result is not None, "a handshake is rejected"
    server.receive(client.accept_initialize(client.decode_result(opened, result.result)))
    for method in ("tools/list", "tools/call", "prompts/get", "resources/read"):
        client.open_request(method, _PARAMS.get(method), now=0.0)
    for line in data.split(b"\n"):
        for side in (fresh, server, client):
            _take_event(side, side.receive(line))


def _take_event(side: Connection, event: object) -> None:
    if isinstance(event, BatchReceived):
        for message in event.messages:
            _take_event(side, side.receive_batched(message, event.size_bytes))
    elif isinstance(event, ResponseReceived) and event.result is not None:
        with suppress(RemoteProtocolError):
            side.decode_result(event.request, event.result)
    elif isinstance(event, RequestReceived):
        event.request.move(IncomingTrigger.START)
        side.error(event.request, -32603, "internal error")
        side.finish(event.request)
    elif isinstance(event, ImmediateResponse):
        assert json.loads(event.message)["jsonrpc"] == "2.0", "a reply is no message"


_INFO: Final = Implementation(name="fuzzed", version="1")
_SERVER_CAN: Final = ServerCapabilities(
    tools=ToolsCapability(), prompts=PromptsCapability(), resources=ResourcesCapability()
)
_PARAMS: Final = {
    "tools/call": CallToolParams(name="a"),
    "prompts/get": GetPromptParams(name="a"),
    "resources/read": ReadResourceParams(uri="a://b"),
}


def lines(data: bytes) -> None:
    """Split a stream into lines, at once and in pieces, and compare them with a simple split."""

    def split(chunks: Sequence[bytes]) -> list[bytes | Oversized]:
        splitter = LineSplitter(message_bytes_max=_BYTES_MAX)
        return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()

    ended = (each.removesuffix(b"\r") for each in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    expected = [each[:_BYTES_MAX] for each in ended if len(each) > _BYTES_MAX or each.strip()]
    for chunks in ([data], [*_pieces(data)]):
        found = split(chunks)
        assert [*map(_kind, found)] == expected, "other lines"
        for line in found:
            if isinstance(line, Oversized):
                assert line.size > _BYTES_MAX, "a small line is oversized"


def _kind(item: bytes | Event | Oversized) -> object:
    # The size that is reported depends on the chunks; the beginning of the message does not.
    return item.prefix if isinstance(item, Oversized) else item


# HTTP ---------------------------------------------------------------------------------------------


def sse(data: bytes) -> None:
    """Parse an event stream, at once and in pieces, and encode its events again."""

    def parse(chunks: Sequence[bytes]) -> tuple[list[Event | Oversized], str | None]:
        parser = EventParser(data_bytes_max=_BYTES_MAX)
        return [event for chunk in chunks for event in parser.feed(chunk)], parser.last_id

    whole, last_id = parse([data])
    pieced, last_id_of_pieces = parse([*_pieces(data)])
    events = [each for each in whole if isinstance(each, Event)]
    assert events == [each for each in pieced if isinstance(each, Event)], "the chunks matter"
    assert len(whole) == len(pieced), "the chunks matter to oversized events"
    assert last_id == last_id_of_pieces, "the chunks matter to the last id"
    for event in events:
        assert len(event.data) <= _BYTES_MAX, "an oversized event"
        if "\0" not in event.name:  # which only a foreign server sends
            (again,) = EventParser(data_bytes_max=_BYTES_MAX * 4).feed(encode_event(event))
            assert again == event, "an event is another one when it is encoded and parsed"


def http(data: bytes) -> None:
    """Parse a request with its body, at once and in pieces, and compare it with h11."""
    whole, pieced = _http_outcome([data]), _http_outcome([*_pieces(data)])
    assert whole == pieced, "the chunks of a connection matter"
    if not isinstance(whole, tuple):
        return
    try:
        read = _read_by_h11(data)
    except h11.RemoteProtocolError as error:
        # h11 checks the framing headers among the trailers, which our parser ignores.
        after_headers = data.partition(b"\r\n\r\n")[2].lower()
        if b"transfer-encoding" in after_headers or b"content-length" in after_headers:
            return
        raise AssertionError(f"h11 rejects an accepted request: {error}") from error
    assert whole == read, "another request than h11 reads"


def _read_by_h11(data: bytes) -> tuple[str, bytes] | None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
    connection.receive_data(data)
    request, body = connection.next_event(), b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    if not isinstance(request, h11.Request) or not isinstance(event, h11.EndOfMessage):
        return None
    return request.method.decode(), body


def _http_outcome(chunks: Sequence[bytes]) -> tuple[str, bytes] | int | None:
    """Return the method and the body of a request, or the status of its rejection.

    Return None for an incomplete request.
    """
    received, searched, length = bytearray(), 0, 0
    limits = DEFAULT_LIMITS.http
    rest = iter(chunks)
    try:
        while not length:
            chunk = next(rest, b"")
            if not chunk:
                return None
            received += chunk
            length = headers_length(received, searched, bytes_max=limits.headers_bytes_max)
            searched = len(received)
        raw = bytes(received[:length])
        parsed = parse_request(raw, None)
        if is_cacheable(raw):
            assert parsed == parse_request(raw + b"", None), "another request from the cache"
        received = received[length:]
        received += b"".join(rest)
        if parsed.body_bytes is not None:
            body = bytes(received[: parsed.body_bytes])
            return (parsed.request.method, body) if len(body) == parsed.body_bytes else None
        chunked = ChunkedBody(bytes_max=1_000_000, framing_bytes_max=4096)
        taken = bytearray()
        for piece in _pieces(bytes(received)) if len(chunks) > 1 else [bytes(received)]:
            taken += piece
            if chunked.take(taken):
                return parsed.request.method, bytes(chunked.data)
    except HttpError as error:
        return error.status
    except BodyTooLargeError:
        return 413
    return None


def headers(data: bytes) -> None:
    """Write arguments into parameter headers, and compare those with the body again."""
    try:
        params = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    paths: Mapping[str, tuple[str, ...]] = {"City": ("city",), "Zip": ("address", "zip")}
    version, method = "2026-07-28", "tools/call"
    try:
        sent = headers_from_body(version=version, method=method, params=params, paths=paths)
    except HeaderMismatchError:
        return
    encoded = [(name.encode("ascii"), value.encode("ascii")) for name, value in sent]
    assert not any(each in value for _, value in encoded for each in b"\r\n\0"), "another header"
    request = HttpRequest.of("POST", "/mcp", encoded)
    check_headers_match(
        request, version=version, method=method, params=params, paths=paths, is_request=True
    )


_HANDSHAKE: Final = (
    b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
_SMALL_MESSAGES: Final = msgspec.structs.replace(
    DEFAULT_LIMITS, messages=msgspec.structs.replace(DEFAULT_LIMITS.messages, bytes_max=_BYTES_MAX)
)


def websocket(data: bytes) -> None:
    """Read the messages of a client that sends the data after its handshake, whole and in pieces.

    A key of four zero bytes leaves the payload of a frame as it is.
    """
    expected = _read_by_wsproto(data)
    for chunks in ([data], [*_pieces(data)]):
        found = trio.run(_websocket_messages, chunks)
        assert found[: len(expected)] == expected, "other messages than wsproto reads"
        # A last message that the end of the connection cuts may be reported as oversized before.
        assert found[len(expected) :] in ([], [None]), "more messages than wsproto reads"


def _read_by_wsproto(data: bytes) -> list[bytes | None]:
    """Return the complete text messages, with None for an oversized one."""
    connection = wsproto.connection.Connection(wsproto.ConnectionType.SERVER)
    connection.receive_data(data)
    messages: list[bytes | None] = []
    held = b""
    with suppress(wsproto.utilities.RemoteProtocolError):
        for event in connection.events():
            if isinstance(event, BytesMessage | CloseConnection):
                break
            if isinstance(event, TextMessage):
                held += event.data.encode()
                if event.message_finished:
                    messages.append(held if len(held) <= _BYTES_MAX else None)
                    held = b""
    return messages


async def _websocket_messages(chunks: Sequence[bytes]) -> list[bytes | None]:
    """Return the messages, with None for an oversized one."""
    client, server = trio.testing.memory_stream_pair()
    messages: list[bytes | None] = []

    async def send() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for chunk in chunks:
                await client.send_all(chunk)
            await client.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        upgrade = StreamUpgrade(
            stream=server,
            request=parse_request(_HANDSHAKE, None).request,
            encoded=_HANDSHAKE,
            limits=_SMALL_MESSAGES,
            bodies=shares_of_bodies(_SMALL_MESSAGES),
        )
        with suppress(trio.BrokenResourceError):
            async with upgrade.opened(None) as socket:
                while received := await socket.receive():
                    for message in received:
                        if isinstance(message, Oversized):
                            assert message.size > _BYTES_MAX, "a small message is oversized"
                            messages.append(None)
                        else:
                            assert len(message) <= _BYTES_MAX, "an oversized message"
                            messages.append(message)
        nursery.cancel_scope.cancel()
    return messages


# Recordings ---------------------------------------------------------------------------------------


def recordings(data: bytes) -> None:
    """Read a recording, check it, lay out its conversation, and compare it with itself."""
    given = data.splitlines(keepends=True)
    try:
        read = list(read_recording(given))
    except RecordingError:
        return
    records = [each for each in read if isinstance(each, Record)]
    report = check(given)
    assert report.records == len(records), "a check counts other records than are read"
    assert len(report.damage) == sum(isinstance(each, Damage) for each in read), "other damage"
    with suppress(RecordingError):
        conversation(records)
    with suppress(RecordingError):
        assert diff(records, records) == [], "a recording differs from itself"


# Users' templates and schemas, clients' states ----------------------------------------------------


_ENCODED_UNRESERVED: Final = re.compile(  # RFC 3986, section 2.3
    "%(?:2[DE]|3[0-9]|[46][1-9A-F]|[57][0-9A]|5F|7E)", re.IGNORECASE
)


def uri_templates(data: bytes) -> None:
    """Match the second line of the data, a URI, with the first line, a template."""
    text, _, uri = data.decode(errors="replace").partition("\n")
    try:
        template = UriTemplate.parse(text)
        values = template.match(uri, uri_chars_max=1000)
    except (TemplateError, UriError):
        return
    if values is None:
        return
    assert values.keys() <= set(template.variables), "a value of an unknown variable"
    # An expansion keeps unreserved characters as they are, so that a `%2E` becomes a `.`, which may
    # end the value; and `{+path}` would decode a `%` in the value.
    if not _ENCODED_UNRESERVED.search(uri) and not any("%" in value for value in values.values()):
        expanded = template.expand(values)
        # Encoded, each of the 1,000 characters may need nine.
        again = template.match(expanded, uri_chars_max=len(expanded))
        assert again is not None, "an expanded template does not match"
        # Other values may have the same expansion, as `.x` is that of `{.a}{.b}` with either.
        assert template.expand(again) == expanded, "other values after expanding and matching"


def schemas(data: bytes) -> None:
    """Validate the second line of the data, a JSON value, by the first line, a schema."""
    schema, value = (_decoded(line) for line in (*data.split(b"\n", 1), b"")[:2])
    if not isinstance(schema, dict) or value is None:
        return
    try:
        validator = SchemaValidator(schema)
    except SchemaError:
        return
    errors = validator.check(value)
    assert all(errors), "an error without a text"
    assert errors == validator.check(value), "another result the second time"


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_reject)  # with integers of any size
    except (ValueError, RecursionError):
        return None


_KEYS: Final = KeyRing((bytes(32),))
_SEALER: Final = Sealer(server="fuzzed", keys=_KEYS, limits=DEFAULT_LIMITS)


def sealed_states(data: bytes) -> None:
    """Open a state that is the data, and states that were sealed with the data in them."""
    binding = Binding(principal=None, method="tools/call", digest=b"")
    texts = [data.decode("latin-1")]
    for plain in (data, zlib.compress(data)):
        sealed = _KEYS.seal(plain, bound_to=binding.bytes_for("fuzzed"), nonce=bytes(12))
        texts.append(urlsafe_b64encode(sealed).rstrip(b"=").decode())
    for text in texts:
        state = _SEALER.open(text, binding, version="1", now=0.0)
        assert state is None or state.version == "1", "a state of another version"


Target: TypeAlias = Callable[[bytes], None]

TARGETS: Final[Mapping[str, Target]] = {
    target.__name__: target
    for target in (
        messages,
        connections,
        lines,
        sse,
        http,
        headers,
        websocket,
        recordings,
        uri_templates,
        schemas,
        sealed_states,
    )
}
"""The parsers, by name."""
