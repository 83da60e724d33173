"""The native listener over TLS: handshakes, and the ends of connections."""

import base64
import contextlib
import gc
import hashlib
import json
import pathlib
import socket
import ssl
import struct

import httpx2
import pytest
import trio
import trio.testing
from certificates import self_signed

from mcp_trio import Client, Context, MCPError, Server
from mcp_trio._auth.resource_server import ProtectedResource
from mcp_trio._transports.asgi import request_of
from mcp_trio.auth import AuthInfo, JWTVerifier, ResourceServer, StaticTokens
from mcp_trio.limits import HttpLimits, MessageLimits, ShutdownLimits
from tests.transports.http.conftest import RawClient, pouring, say_hello

SECONDS = 5.0
ACCEPT = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def plain(host):
    """Connect to a host over TCP only."""
    return trio.open_tcp_stream("127.0.0.1", host.port)


def messages(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "mcp_trio"]


# Handshakes


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x00" * 5000, b"\x16"],
    ids=["plain HTTP", "a broken ClientHello", "zeros", "one byte"],
)
async def test_a_failed_handshake_closes_its_connection_only(open_host, sent, caplog):
    host = await open_host("tls", say_hello)
    async with await plain(host) as stream:
        await stream.send_all(sent)
        await stream.send_eof()
        with trio.fail_after(SECONDS), contextlib.suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                assert not data.startswith(b"HTTP")
    assert (await (await host.connect()).exchange()).body == b"hello"
    assert messages(caplog) == []


async def test_a_client_that_rejects_the_certificate_harms_no_other(open_host, caplog):
    host = await open_host("tls", say_hello)
    distrusting = trio.SSLStream(
        await plain(host), ssl.create_default_context(), server_hostname="127.0.0.1"
    )
    with pytest.raises(trio.BrokenResourceError):
        await distrusting.do_handshake()
    await trio.aclose_forcefully(distrusting)
    assert (await (await host.connect()).exchange()).body == b"hello"
    assert messages(caplog) == []


async def test_a_client_that_is_silent_in_the_handshake_is_disconnected(open_host, autojump_clock):
    host = await open_host("tls", say_hello, http=HttpLimits(headers_seconds=3))
    begun = trio.current_time()
    for sent in (b"", b"\x16\x03\x01"):
        stream = await plain(host)
        if sent:
            await stream.send_all(sent)
        assert await stream.receive_some() == b""
        await stream.aclose()
    assert 6 <= trio.current_time() - begun < 7


async def test_a_handshake_counts_as_a_connection(open_host, caplog):
    host = await open_host("tls", say_hello, http=HttpLimits(connections_max=1))
    silent = await plain(host)
    await trio.testing.wait_all_tasks_blocked(0.01)
    with pytest.raises(trio.BrokenResourceError):
        await (await host.connect()).exchange()
    await silent.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert (await (await host.connect()).exchange()).status == 200


async def test_a_client_with_stalled_handshakes_begins_no_more(open_host, nursery):
    host = await open_host("tls", say_hello, http=HttpLimits(handshakes_max=1))
    silent, stalled = await plain(host), await plain(host)
    assert (await (await host.connect()).exchange()).body == b"hello"  # silence takes no place
    await stalled.send_all(b"\x16\x03\x01")
    await trio.testing.wait_all_tasks_blocked(0.05)
    waiting, answers = await host.connect(), []

    async def ask():
        answers.append(await waiting.exchange())

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked(0.1)
    assert answers == []
    await stalled.aclose()
    with trio.fail_after(SECONDS):
        while not answers:
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert answers[0].body == b"hello"
    await silent.aclose()


async def test_a_failed_handshake_leaves_nothing_to_the_garbage_collector(open_host):
    def ssl_objects():
        return sum(type(each) is ssl.SSLObject for each in gc.get_objects())

    host = await open_host("tls", say_hello, http=HttpLimits(headers_seconds=0.1))
    gc.collect()
    before = ssl_objects()
    gc.disable()
    try:
        for sent in (b"nonsense", b"\x16\x03\x01"):
            async with await plain(host) as stream:
                await stream.send_all(sent)
                with contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert ssl_objects() == before
    finally:
        gc.enable()


async def test_a_stop_does_not_wait_for_a_handshake(open_host, caplog):
    host = await open_host("tls", say_hello, shutdown=ShutdownLimits(close_seconds=60))
    async with await plain(host):
        await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.fail_after(SECONDS):
            await host.stop()
    assert messages(caplog) == []


async def test_http2_is_not_negotiated(open_host):
    host = await open_host("tls", say_hello)
    host.tls.set_alpn_protocols(["h2", "http/1.1"])
    client = await host.connect()
    await client.exchange()
    assert client.stream.selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_of_tls_are_served(open_host, version):
    host = await open_host("tls", say_hello)
    host.tls.minimum_version = host.tls.maximum_version = version
    client = await host.connect()
    for _ in range(2):
        assert (await client.exchange()).body == b"hello"


# The ends of connections


@pytest.mark.parametrize("is_idle", [True, False])
async def test_the_server_ends_a_connection_with_a_closure_alert(open_host, is_idle, mock_clock):
    """RFC 9112, section 9.8; without the alert, a client cannot tell an end from an attack."""
    host = await open_host("tls", say_hello, http=HttpLimits(idle_seconds=2))
    tls = trio.SSLStream(await plain(host), host.tls, server_hostname="127.0.0.1")
    client = RawClient(tls)
    await client.exchange(headers=[] if is_idle else [("Connection", "close")])
    if is_idle:
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(4)
    with trio.fail_after(SECONDS):
        assert await tls.receive_some() == b""  # an end without an alert would be an error
        await tls.aclose()


async def test_a_client_that_sends_its_closure_alert_gets_the_answer(open_host):
    is_closing = trio.Event()

    async def respond(exchange):
        await is_closing.wait()
        await say_hello(exchange)

    host = await open_host("tls", respond)
    client = await host.connect()
    await client.ask()
    with trio.move_on_after(0.05):
        await client.stream.unwrap()
    is_closing.set()
    received = b""
    with trio.fail_after(SECONDS):
        while data := await client.stream.transport_stream.receive_some():
            received += data
    assert len(received) > 100  # encrypted, and more than an alert


@pytest.mark.parametrize("begun", ["handshake", "headers", "body", "answer"])
@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_client_that_vanishes_leaves_no_task(open_host, begun, is_reset, caplog):
    async def respond(exchange):
        await exchange.body(100)
        await exchange.start(200, [])
        await exchange.gone()

    host = await open_host("tls", respond, http=HttpLimits(connections_max=1))
    if begun == "handshake":
        tcp = await plain(host)
        await tcp.send_all(b"\x16\x03\x01")
    else:
        client = await host.connect()
        await client.put(b"POST / HTTP/1.1\r\nHost: x\r\n")
        if begun != "headers":
            await client.put(b"Content-Length: 2\r\n\r\n{")
        if begun == "answer":
            await client.put(b"}")
            assert (await client.response_headers()).status == 200
        tcp = client.stream.transport_stream
    if is_reset:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await tcp.aclose()
    await trio.testing.wait_all_tasks_blocked(0.02)
    other = await host.connect()
    await other.ask()
    assert (await other.response_headers()).status == 200
    assert messages(caplog) == []


@pytest.mark.real_time
async def test_a_client_that_reads_nothing_is_disconnected(open_host):
    respond, errors = pouring(100_000)
    host = await open_host("tls", respond, messages=MessageLimits(write_stall_seconds=0.2))
    client = await host.connect()
    await client.ask()
    with trio.fail_after(SECONDS):
        error = await errors.receive()
    assert "limits.messages.write_stall_seconds" in str(error)


async def test_an_answer_before_the_body_reaches_a_client_that_sends_on(open_host):
    host = await open_host("tls", say_hello)
    client = await host.connect()
    await client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n")
    with contextlib.suppress(trio.BrokenResourceError), trio.fail_after(SECONDS):
        for _ in range(20):
            await client.put(b"x" * 100_000)
    assert (await client.rest()).endswith(b"\r\n\r\nhello")


async def test_a_large_body_and_pipelined_requests_are_answered(open_host):
    async def respond(exchange):
        await exchange.answer(200, [], await exchange.body(10_000_000))

    host = await open_host("tls", respond)
    client, sent = await host.connect(), bytes(range(256)) * 20_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: client.ask("POST", body=sent))
        assert (await client.answer()).body == sent
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    first = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
    await client.put(first + b"ab" + first + b"cd" + last)
    bodies = [part.partition(b"HTTP/1.1")[0] for part in (await client.rest()).split(b"\r\n\r\n")]
    assert bodies[1:] == [b"ab", b"cd", b""]


# A whole server


@pytest.fixture
def server():
    server = Server("harbour")

    @server.tool
    async def tide(*, ctx: Context) -> str:
        await ctx.info("measuring")
        await ctx.report_progress(1, total=2)
        return "high"

    return server


@contextlib.asynccontextmanager
async def served(server, **options):
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status):
            await server.serve_http(port=0, task_status=task_status, **options)

        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_a_server_with_a_certificate_is_called_over_https(
    server, certificate, protocol_version
):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    async with served(server, **certificate) as url:
        assert url.startswith("https://127.0.0.1:")
        async with (
            httpx2.AsyncClient(verify=trusting, trust_env=False) as http,
            Client(url, http=http, protocol_versions=[protocol_version]) as client,
        ):
            assert (await client.call_tool("tide")).content[0].text == "high"


async def test_a_server_over_https_answers_with_streams(server, certificate):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    async with (
        served(server, streams_answers=True, **certificate) as url,
        httpx2.AsyncClient(verify=trusting, trust_env=False) as http,
    ):
        answer = await http.post(url, json=INITIALIZE, headers=ACCEPT)
        fields = {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "tide"}}
        async with http.stream("POST", url, json=call, headers=fields) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in stream.aiter_lines() if line.startswith("data: {")]
    assert json.loads(lines[-1][6:])["result"]["content"][0]["text"] == "high"


async def test_websocket_is_served_over_tls_at_the_same_port(server, certificate):
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    async with served(server, **certificate) as url:
        address = url.replace("https://", "wss://").replace("/mcp", "/ws")
        async with Client(address, ssl_context=trusting) as client:
            assert (await client.call_tool("tide")).content[0].text == "high"


async def test_a_certificate_that_cannot_be_read_is_an_error_with_its_name(server, tmp_path):
    path = tmp_path / "cert.pem"
    for content in (None, "no certificate"):
        if content is not None:
            path.write_text(content)
        with pytest.raises(OSError, match=r"no usable certificate and key in .*cert\.pem"):
            await server.serve_http(port=0, certfile=str(path))


async def test_a_key_without_a_certificate_is_rejected(server):
    with pytest.raises(ValueError, match="certfile="):
        await server.serve_http(port=0, keyfile="key.pem")


# Certificates of clients, to which tokens can be bound (RFC 8705).


def thumbprint(certfile):
    """The thumbprint of a certificate in PEM, as in the claim `cnf`."""
    der = ssl.PEM_cert_to_DER_cert(pathlib.Path(certfile).read_text())
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")


def trusting(certificate, own=None):
    context = ssl.create_default_context(cafile=certificate["certfile"])
    if own is not None:
        context.load_cert_chain(own["certfile"], own["keyfile"])
    return context


def bound_to(certfile, **members):
    """A server whose token is bound to a certificate, and to what `members` name."""
    cnf = {"x5t#S256": thumbprint(certfile), **members}
    tokens = {"bound": AuthInfo(subject="ann", claims={"cnf": cnf}), "free": "bob"}
    server = Server("harbour", auth=ResourceServer(StaticTokens(tokens)))

    @server.tool
    async def who(ctx: Context) -> str:
        return ctx.auth.subject

    return server


WAYS = ["http", "websocket at the same port", "websocket"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.requirement("AUTHX-06")
async def test_a_token_that_is_bound_to_a_certificate_is_valid_with_it_only(
    certificate, tmp_path, nursery, way
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    mine, other = (self_signed(tmp_path / name, name=name) for name in ("mine", "other"))
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(
        b"".join(pathlib.Path(each["certfile"]).read_bytes() for each in (mine, other))
    )
    server = bound_to(mine["certfile"])
    serve = server.serve_websocket if way == "websocket" else server.serve_http
    url = await nursery.start(
        lambda task_status: serve(
            port=0, **certificate, client_cafile=str(authorities), task_status=task_status
        )
    )

    async def name_for(token, own):
        context = trusting(certificate, own)
        if way == "http":
            async with (
                httpx2.AsyncClient(verify=context, trust_env=False) as http,
                Client(url, http=http, token=token) as client,
            ):
                return (await client.call_tool("who")).data
        address = url.replace("https://", "wss://").replace("/mcp", "/ws")
        async with Client(address, token=token, ssl_context=context) as client:
            return (await client.call_tool("who")).data

    assert await name_for("bound", mine) == "ann"
    assert await name_for("free", None) == "bob"
    for own in (other, None):
        with pytest.raises(MCPError, match=r"401|certificate"):
            await name_for("bound", own)
    if way == "http":
        async with httpx2.AsyncClient(verify=trusting(certificate), trust_env=False) as http:
            headers = {"Authorization": "Bearer bound", **ACCEPT}
            answer = await http.post(url, json=INITIALIZE, headers=headers)
        assert "bound to a client certificate that the connection does not" in answer.text
    nursery.cancel_scope.cancel()


async def test_a_certificate_that_no_authority_has_signed_ends_the_handshake(certificate, tmp_path):
    (tmp_path / "mine").mkdir()
    mine = self_signed(tmp_path / "mine")
    server = bound_to(mine["certfile"])
    async with served(server, **certificate, client_cafile=certificate["certfile"]) as url:
        context = trusting(certificate, mine)
        async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
            with pytest.raises(httpx2.TransportError):
                await http.post(url, json=INITIALIZE, headers=ACCEPT)


async def test_a_token_may_be_bound_to_a_certificate_and_to_a_key(certificate, tmp_path):
    (tmp_path / "mine").mkdir()
    mine = self_signed(tmp_path / "mine")
    server = bound_to(mine["certfile"], jkt="a-key")
    async with (
        served(server, **certificate, client_cafile=mine["certfile"]) as url,
        httpx2.AsyncClient(verify=trusting(certificate, mine), trust_env=False) as http,
    ):
        headers = {"Authorization": "Bearer bound", **ACCEPT}
        answer = await http.post(url, json=INITIALIZE, headers=headers)
        assert (answer.status_code, "needs a proof" in answer.text) == (401, True)


@pytest.mark.requirement("AUTHX-06")
async def test_an_asgi_server_may_pass_certificates_on(certificate, tmp_path, caplog):
    (tmp_path / "other").mkdir()
    mine, other = (
        pathlib.Path(each["certfile"]).read_text()
        for each in (certificate, self_signed(tmp_path / "other", name="other"))
    )
    resource = ProtectedResource(
        settings=bound_to(certificate["certfile"]).auth, resources=[], path="/mcp"
    )

    async def outcome(extensions):
        headers = [(b"authorization", b"Bearer bound")]
        scope = {"method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}
        found = await resource.authenticate(request_of({**scope, "extensions": extensions}))
        return found if isinstance(found, AuthInfo) else found.text

    assert (await outcome({"tls": {"client_cert_chain": [mine, other]}})).subject == "ann"
    assert "does not have" in await outcome({"tls": {"client_cert_chain": [other, mine]}})
    assert caplog.text == ""
    unverified = {"client_cert_chain": [mine], "client_cert_error": "expired"}
    for extensions in ({"tls": unverified}, {"tls": {"client_cert_chain": ()}}, {}, None):
        assert "no certificates of clients reach this server" in await outcome(extensions)
    assert caplog.text.count("has the TLS extension") == 1


@pytest.mark.requirement("AUTHX-07")
async def test_the_metadata_say_that_tokens_may_be_bound_to_certificates(certificate):
    verifier = JWTVerifier("https://issuer.example")
    server = Server("harbour", auth=verifier)
    for options, expected in (({"client_cafile": certificate["certfile"]}, True), ({}, None)):
        async with (
            served(server, **certificate, **options) as url,
            httpx2.AsyncClient(verify=trusting(certificate), trust_env=False) as http,
        ):
            origin = url.removesuffix("/mcp")
            answer = await http.get(f"{origin}/.well-known/oauth-protected-resource/mcp")
        assert answer.json().get("tls_client_certificate_bound_access_tokens") is expected


async def test_certificates_of_clients_need_tls_and_the_native_listener(server, certificate):
    with pytest.raises(ValueError, match="client_cafile= needs certfile="):
        await server.serve_http(port=0, client_cafile=certificate["certfile"])
    with pytest.raises(ValueError, match="client_cafile= needs certfile="):
        await server.serve_websocket(port=0, client_cafile=certificate["certfile"])
    options = {**certificate, "client_cafile": certificate["certfile"]}
    with pytest.raises(ValueError, match="native"):
        await server.serve_http(port=0, server="hypercorn", **options)
    with pytest.raises(OSError, match=r"no usable certificates in .*key\.pem"):
        await server.serve_http(port=0, **{**options, "client_cafile": certificate["keyfile"]})
