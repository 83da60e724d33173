"""HTTP as an effect, against a server that listens on a loopback socket."""

import base64
import contextlib
import functools
import gc
import gzip
import json
import tracemalloc

import attrs
import httpx
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Limits, Server
from mcp_trio._server.sessions import HandlerHttpClient
from mcp_trio.errors import ReplayDivergence
from mcp_trio.http import EffectTransport
from mcp_trio.limits import KIB, MIB, RequestLimits
from tests.server.conftest import played_again


@pytest.fixture(params=[httpx2, httpx], ids=["in httpx2", "in httpx"])
def inner_library(request):
    """The library of a transport inside an `EffectTransport`."""
    return request.param


PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nahoy!"


def response(body, *headers, status="200 OK"):
    head = [f"HTTP/1.1 {status}", *headers, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


@attrs.define(eq=False)
class Web:
    """A server that gives one answer to every request; `requests` are their bytes."""

    answer: bytes = PLAIN
    url: str = ""
    requests: list = attrs.field(factory=list)
    connections: int = 0
    is_leaving: bool = False

    async def serve(self, stream):
        self.connections += 1
        try:
            while data := await stream.receive_some():
                while not self.is_whole(data):
                    data += await stream.receive_some()
                self.requests.append(data)
                await stream.send_all(self.answer)
                if self.is_leaving:
                    return
        except trio.BrokenResourceError:
            pass
        finally:
            self.connections -= 1
            await stream.aclose()

    def is_whole(self, data):
        head, end, body = data.partition(b"\r\n\r\n")
        lengths = [line[15:] for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
        return end and len(body) >= int(lengths[0] if lengths else 0)


@pytest.fixture
async def web(nursery):
    listeners = await nursery.start(trio.serve_tcp, (made := Web()).serve, 0)
    port = listeners[0].socket.getsockname()[1]
    made.url = f"http://127.0.0.1:{port}/ships"
    return made


@pytest.fixture
def server():
    return Server("harbour", limits=Limits(requests=RequestLimits(http_effect_bytes_max=100)))


@pytest.fixture
def fetching(server, web):
    """Register a tool that sends one request by `ctx.http`, and tells what it gets."""

    def register(method="GET", **options):
        @server.tool
        async def fetch(ctx: Context) -> list[object]:
            try:
                found = await ctx.http.request(method, web.url, **options)
            except httpx2.HTTPError as error:
                return [type(error).__name__, str(error)]
            body = base64.b64encode(found.content).decode()
            return [found.status_code, sorted(found.headers.items()), body]

    return register


async def fetched(asker):
    status, headers, body = json.loads(await asker.call("fetch"))
    return status, dict(headers), base64.b64decode(body)


async def test_a_request_is_an_effect(server, web, fetching, record):
    fetching("POST", json={"name": "Ada"}, headers={"Accept": "text/plain", "X-Trace": "1"})
    asker, recorded = await record(server)
    assert await fetched(asker) == (
        200,
        {"content-type": "text/plain", "content-length": "5"},
        b"ahoy!",
    )
    assert recorded() == [
        (
            "cmd",
            {
                "name": "ctx.http",
                "arguments": {
                    "method": "POST",
                    "url": web.url,
                    "headers": [["accept", "text/plain"], ["content-type", "application/json"]],
                    "body": '{"name":"Ada"}',
                },
            },
        ),
        ("res", {"status": 200, "headers": [["content-type", "text/plain"]], "body": "ahoy!"}),
    ]
    assert b"x-trace: 1" in web.requests[0].lower()


async def test_a_handler_sees_the_same_response_without_a_recording(
    server, web, fetching, serve, record
):
    web.answer = response(b"ahoy!", "etag: 1", "x-own: 2", "set-cookie: a=b", "content-type: t/p")
    fetching()
    plain = await fetched(await serve(server))
    assert plain == (200, {"content-type": "t/p", "etag": "1", "content-length": "5"}, b"ahoy!")
    assert await fetched((await record(server))[0]) == plain


async def test_a_replay_sends_nothing(server, web, fetching, record):
    fetching()
    asker, recorded = await record(server)
    await fetched(asker)
    web.url = web.url.replace("/ships", "/boats")
    with pytest.raises(ReplayDivergence):
        await played_again(asker, recorded, server)
    web.url = web.url.replace("/boats", "/ships")
    await played_again(asker, recorded, server)
    assert len(web.requests) == 1


async def test_credentials_and_cookies_are_sent_but_not_recorded(server, web, record):
    @server.tool
    async def fetch(ctx: Context) -> str:
        url = web.url.replace("127.0.0.1", "ada:secret-1@127.0.0.1")
        headers = {"Authorization": "Bearer secret-2", "Cookie": "a=secret-3"}
        found = await ctx.http.get(url), await ctx.http.get(web.url, headers=headers)
        return found[0].text

    web.answer = response(b"ahoy!", "set-cookie: a=secret-4", "www-authenticate: secret-5")
    asker, recorded = await record(server)
    assert await asker.call("fetch") == "ahoy!"
    sent = b"".join(web.requests)
    assert b"secret-2" in sent
    assert b"secret-3" in sent
    assert base64.b64encode(b"ada:secret-1") in sent
    assert b"secret-" not in recorded.path.read_bytes()


async def test_bodies_that_are_not_utf_8_are_recorded_in_base64(server, web, fetching, record):
    web.answer = response(b"\xff\xfe")
    fetching("PUT", content=b"\x80")
    asker, recorded = await record(server)
    assert (await fetched(asker))[2] == b"\xff\xfe"
    (_, command), (_, result) = recorded()
    assert command["arguments"]["body"] == {"base64": "gA=="}
    assert result["body"] == {"base64": "//4="}
    await played_again(asker, recorded, server)


async def test_a_compressed_body_is_recorded_decoded(server, web, fetching, record):
    web.answer = response(gzip.compress(b"ahoy!"), "content-encoding: gzip")
    fetching()
    asker, recorded = await record(server)
    assert await fetched(asker) == (200, {"content-length": "5"}, b"ahoy!")
    assert recorded()[1][1]["body"] == "ahoy!"


async def test_a_handler_asks_for_gzip_only_and_for_nothing_if_its_client_does_not(
    server, web, fetching, serve
):
    asked = [
        ("br, GZIP;q=0.5", b"gzip"),
        ("deflate, br, zstd", b"identity"),
        ("identity", b"identity"),
    ]

    @server.tool
    async def fetch(ctx: Context) -> str:
        await ctx.http.get(web.url)
        for accepted, _ in asked:
            await ctx.http.get(web.url, headers={"Accept-Encoding": accepted})
        return "done"

    await (await serve(server)).call("fetch")
    sent = b"".join(web.requests).lower().split(b"\r\n")
    found = [line for line in sent if line.startswith(b"accept-encoding:")]
    assert found == [b"accept-encoding: " + value for value in (b"gzip", *dict(asked).values())]


@pytest.mark.parametrize("encoding", ["gzip, gzip", "deflate", "br", "zstd", "unknown"])
async def test_a_body_with_another_encoding_is_an_error_that_names_it(
    server, web, fetching, serve, encoding
):
    web.answer = response(gzip.compress(gzip.compress(b"ahoy!")), f"content-encoding: {encoding}")
    fetching()
    name, text = json.loads(await (await serve(server)).call("fetch"))
    assert name == "DecodingError"
    assert text == f"the response has Content-Encoding '{encoding}'; handlers decode only gzip"


async def test_a_body_that_is_no_gzip_is_an_error(server, web, fetching, record):
    web.answer = response(b"ahoy!", "content-encoding: gzip")
    fetching()
    asker, recorded = await record(server)
    name, text = json.loads(await asker.call("fetch"))
    assert name == "DecodingError"
    assert text.startswith("the response cannot be decoded: ")
    await played_again(asker, recorded, server)


async def test_a_compressed_body_is_decoded_only_up_to_the_limit(
    server, serve, library, inner_library
):
    body = gzip.compress(bytes(64 * MIB))

    class Stream(inner_library.AsyncByteStream):
        async def __aiter__(self):
            yield body

    class Inner(inner_library.AsyncBaseTransport):
        async def handle_async_request(self, _):
            headers = {"content-encoding": "gzip"}
            return inner_library.Response(200, headers=headers, stream=Stream())

    @server.tool
    async def fetch() -> str:
        async with library.AsyncClient(transport=EffectTransport(Inner())) as client:
            try:
                return (await client.get("http://nowhere")).text
            except library.ReadError as error:
                return str(error)

    asker = await serve(server)
    await asker.call("fetch")  # the first call also imports and caches, which may take as much
    tracemalloc.start()
    try:
        text = await asker.call("fetch")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "limits.requests.http_effect_bytes_max" in text
    assert peak < 4 * MIB


async def test_bytes_after_the_end_of_a_compressed_body_are_not_kept(
    server, serve, library, inner_library
):
    class Stream(inner_library.AsyncByteStream):
        pieces_left = 256

        async def __aiter__(self):
            yield gzip.compress(b"ahoy!")
            while self.pieces_left:
                self.pieces_left -= 1
                yield bytes(64 * KIB)

        async def aclose(self):
            self.pieces_left = 0

    class Inner(inner_library.AsyncBaseTransport):
        async def handle_async_request(self, _):
            headers = {"content-encoding": "gzip"}
            return inner_library.Response(200, headers=headers, stream=Stream())

    @server.tool
    async def fetch() -> str:
        async with library.AsyncClient(transport=EffectTransport(Inner())) as client:
            return (await client.get("http://nowhere")).text

    asker = await serve(server)
    tracemalloc.start()
    try:
        assert await asker.call("fetch") == "ahoy!"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


@pytest.mark.parametrize("size", [3 * MIB, 3 * MIB + 1])
async def test_a_large_compressed_body_is_decoded_completely(web, serve, size):
    server = Server("sea", limits=Limits(requests=RequestLimits(http_effect_bytes_max=3 * MIB)))
    web.answer = response(gzip.compress(bytes(size)), "content-encoding: gzip")

    @server.tool
    async def fetch(ctx: Context) -> int | str:
        try:
            return len((await ctx.http.get(web.url)).content)
        except httpx2.ReadError as error:
            return str(error)

    text = await (await serve(server)).call("fetch")
    assert text == str(size) if size == 3 * MIB else "http_effect_bytes_max" in text


async def test_repeated_headers_are_all_kept(server, web, record):
    web.answer = response(b"", "link: </a>", "link: </b>")

    @server.tool
    async def fetch(ctx: Context) -> list[str]:
        return (await ctx.http.get(web.url)).headers.get_list("link")

    asker, _ = await record(server)
    assert await asker.call("fetch") == '["</a>","</b>"]'


async def test_each_redirect_is_an_effect_of_its_own(server, web, record):
    @server.tool
    async def fetch(ctx: Context) -> str:
        found = await ctx.http.get(web.url)
        web.answer = PLAIN
        return (await ctx.http.send(found.next_request)).text

    web.answer = response(b"", "location: /boats", status="302 Found")
    asker, recorded = await record(server)
    assert await asker.call("fetch") == "ahoy!"
    assert [body["arguments"]["url"][-6:] for kind, body in recorded() if kind == "cmd"] == [
        "/ships",
        "/boats",
    ]


@pytest.mark.parametrize("size", [101, 200_000, 2_000_000])
async def test_a_body_over_the_limit_is_an_error_that_names_the_limit(
    server, web, fetching, serve, size
):
    web.answer = response(b"a" * size)
    fetching()
    name, text = json.loads(await (await serve(server)).call("fetch"))
    assert name == "ReadError"
    assert text == "the response has more than 100 bytes (limits.requests.http_effect_bytes_max)"


@pytest.mark.filterwarnings("ignore:.*garbage collected before:ResourceWarning")
async def test_an_endless_body_is_read_up_to_the_limit(server, serve, library, inner_library):
    class Endless(inner_library.AsyncBaseTransport):
        async def handle_async_request(self, _):
            return inner_library.Response(200, stream=Stream())

    class Stream(inner_library.AsyncByteStream):
        async def __aiter__(self):
            while True:
                yield b"a" * 60

    @server.tool
    async def fetch() -> str:
        async with library.AsyncClient(transport=EffectTransport(Endless())) as client:
            try:
                return (await client.get("http://nowhere")).text
            except library.ReadError as error:
                return str(error)

    assert "limits.requests.http_effect_bytes_max" in await (await serve(server)).call("fetch")
    gc.collect()


async def test_a_response_with_its_content_is_limited_like_a_stream(
    server, serve, library, inner_library
):
    def answer(request):
        return inner_library.Response(200, content=b"a" * len(request.content))

    @server.tool
    async def fetch(size: int) -> str:
        transport = EffectTransport(inner_library.MockTransport(answer))
        async with library.AsyncClient(transport=transport) as client:
            try:
                return (await client.post("http://nowhere", content=b"b" * size)).text
            except library.ReadError as error:
                return str(error)

    asker = await serve(server)
    assert await asker.call("fetch", size=3) == "aaa"
    assert "limits.requests.http_effect_bytes_max" in await asker.call("fetch", size=101)


async def test_a_request_body_over_the_limit_is_sent_but_not_recorded(server, fetching, record):
    fetching("POST", content=b"a" * 101)
    asker, recorded = await record(server)
    assert (await fetched(asker))[2] == b"ahoy!"
    assert recorded()[0][1]["arguments"]["body"] == "<opaque>"


async def test_a_truncated_body_is_a_protocol_error(server, web, fetching, serve):
    web.answer = response(b"ahoy!").replace(b"content-length: 5", b"content-length: 6")
    web.is_leaving = True
    fetching()
    name, text = json.loads(await (await serve(server)).call("fetch"))
    assert name == "RemoteProtocolError"
    assert "limits.requests.http_effect_bytes_max" not in text


async def test_an_error_is_the_same_in_a_replay(server, web, fetching, record):
    web.url = "http://127.0.0.1:1/"
    fetching()
    asker, recorded = await record(server)
    assert json.loads(await asker.call("fetch"))[0] == "ConnectError"
    assert recorded()[1][0] == "err"
    await played_again(asker, recorded, server)


async def test_streams_are_recorded_completely(server, web, record):
    @server.tool
    async def fetch(ctx: Context) -> list[str]:
        async with ctx.http.stream("GET", web.url) as found:
            return [line async for line in found.aiter_lines()]

    web.answer = response(b"one\ntwo")
    asker, recorded = await record(server)
    assert await asker.call("fetch") == '["one","two"]'
    await played_again(asker, recorded, server)


async def test_a_cancelled_request_is_a_cancelled_effect(server, nursery, record):
    """The server does not answer; the connection closes, and so does the session's client."""
    accepted = trio.Event()

    async def silent(stream):
        accepted.set()
        await stream.receive_some()
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.receive_some()

    listeners = await nursery.start(trio.serve_tcp, silent, 0)
    port = listeners[0].socket.getsockname()[1]

    @server.tool
    async def fetch(ctx: Context) -> None:
        await ctx.http.get(f"http://127.0.0.1:{port}/")

    asker, recorded = await record(server)
    call = await asker.begin("tools/call", {"name": "fetch"})
    await accepted.wait()
    await asker.wire.cancel(call)
    await trio.testing.wait_all_tasks_blocked()
    assert await asker.result("ping") == {}  # and so all is written
    assert [kind for kind, _ in recorded()] == ["cmd", "cxl", "cxl"]


# The client.


async def test_a_session_has_one_client_that_is_closed_with_it(server, web):
    clients = []

    @server.tool
    async def fetch(ctx: Context) -> str:
        clients.append(ctx.http)
        return (await ctx.http.get(web.url)).text

    async with Client(server) as client:
        for _ in range(2):
            await client.call_tool("fetch")
        assert web.connections == 1
        assert not clients[0].is_closed
    assert clients[0] is clients[1]
    assert clients[0].is_closed
    await trio.testing.wait_all_tasks_blocked()
    assert web.connections == 0


async def test_a_cookie_that_a_response_sets_is_not_sent_for_another_user(server, web):
    async def log_in(http) -> str:
        return (await http.get(web.url)).text

    @server.tool
    async def fetch(ctx: Context) -> str:
        return await ctx.effect(log_in, ctx.http)

    web.answer = response(b"ahoy!", "set-cookie: session=ada; path=/")
    async with trio.open_nursery() as nursery:
        url = await nursery.start(functools.partial(server.serve_http, port=0))
        for _ in range(2):
            async with Client(url) as client:
                await client.call_tool("fetch")
        nursery.cancel_scope.cancel()
    assert len(web.requests) == 2
    assert b"session=ada" not in web.requests[1]


async def test_the_client_is_closed_when_the_session_is_cancelled(server, web):
    clients = []

    @server.tool
    async def fetch(ctx: Context) -> str:
        clients.append(ctx.http)
        return (await ctx.http.get(web.url)).text

    with trio.CancelScope() as scope:
        async with Client(server) as client:
            await client.call_tool("fetch")
            scope.cancel()
            await trio.sleep_forever()
    assert clients[0].is_closed


async def test_a_cancelled_session_still_closes_its_client(web):
    with trio.CancelScope() as scope:
        async with HandlerHttpClient(close_seconds=5) as http:
            await http.client.get(web.url)
            scope.cancel()
            await trio.sleep_forever()
    await trio.testing.wait_all_tasks_blocked()
    assert http.client.is_closed
    assert web.connections == 0


async def test_a_client_that_hangs_on_closing_is_waited_for_in_bounded_time(autojump_clock):
    class Stuck(httpx2.AsyncClient):
        async def aclose(self):
            await trio.sleep_forever()

    start = trio.current_time()
    with trio.CancelScope() as scope:
        async with HandlerHttpClient(close_seconds=5) as http:
            http._client = Stuck()
            scope.cancel()
    assert trio.current_time() - start == 5


# Clients of the user.


@pytest.fixture
async def own(library):
    async with library.AsyncClient(transport=EffectTransport()) as client:
        yield client


async def test_requests_of_a_user_s_client_are_effects_of_the_handler(server, web, record, own):
    @server.tool
    async def fetch() -> str:
        return (await own.get(web.url)).text

    asker, recorded = await record(server)
    assert await asker.call("fetch") == "ahoy!"
    assert [kind for kind, _ in recorded()] == ["cmd", "res"]


async def test_a_user_s_client_is_a_plain_client_outside_of_handlers(web, own):
    web.answer = response(b"a" * 200, "x-own: 2")
    found = await own.get(web.url)
    assert found.headers["x-own"] == "2"
    assert len(found.content) == 200


async def test_a_user_s_client_is_a_plain_client_inside_an_effect(server, web, record, own):
    async def ask() -> str:
        return (await own.get(web.url)).headers["x-own"]

    @server.tool
    async def fetch(ctx: Context) -> str:
        return await ctx.effect(ask)

    web.answer = response(b"", "x-own: 2")
    asker, recorded = await record(server)
    assert await asker.call("fetch") == "2"
    assert recorded()[0] == ("cmd", {"name": "ask", "arguments": {}})


async def test_the_inner_transport_is_closed_with_the_client(library, inner_library):
    class Inner(inner_library.AsyncBaseTransport):
        is_closed = False

        async def handle_async_request(self, request):
            assert isinstance(request, inner_library.Request)
            return inner_library.Response(200, text=request.url.path)

        async def aclose(self):
            self.is_closed = True

    inner = Inner()
    async with library.AsyncClient(transport=EffectTransport(inner)) as client:
        found = await client.get("http://nowhere/a")
        assert (type(found), found.text) == (library.Response, "/a")
    assert inner.is_closed


async def test_an_unused_transport_can_be_closed():
    await EffectTransport().aclose()


# Both HTTP libraries.


async def test_a_body_is_streamed_outside_of_handlers(library, inner_library):
    closed, got = [], trio.Event()

    class Stream(inner_library.AsyncByteStream):
        async def __aiter__(self):
            yield gzip.compress(b"one")
            await got.wait()
            raise inner_library.ReadError("cut")

        async def aclose(self):
            closed.append(True)

    async def respond(request):
        assert [piece async for piece in request.stream] == [b"x"]
        return inner_library.Response(200, headers={"content-encoding": "gzip"}, stream=Stream())

    async def body():
        yield b"x"

    class Inner(inner_library.AsyncBaseTransport):
        handle_async_request = staticmethod(respond)

    async with (
        library.AsyncClient(transport=EffectTransport(Inner())) as client,
        client.stream("POST", "http://nowhere", content=body()) as found,
    ):
        pieces = found.aiter_bytes()
        assert await anext(pieces) == b"one"
        got.set()
        with pytest.raises(library.ReadError, match="cut"):
            await anext(pieces)
    assert closed


async def test_a_response_that_its_transport_has_read_is_decoded_once(library, inner_library):
    class Stream(inner_library.AsyncByteStream):
        async def __aiter__(self):
            yield gzip.compress(b"ahoy!")

    class Caching(inner_library.AsyncBaseTransport):
        async def handle_async_request(self, request):
            headers = {"content-encoding": "gzip", "x-own": "1"}
            found = inner_library.Response(200, headers=headers, stream=Stream(), request=request)
            await found.aread()
            return found

    async with library.AsyncClient(transport=EffectTransport(Caching())) as client:
        found = await client.get("http://nowhere")
    assert (found.text, found.headers["x-own"]) == ("ahoy!", "1")


async def test_a_recording_of_one_library_replays_with_a_client_of_the_other(
    server, web, record, library, inner_library
):
    using = [inner_library]

    @server.tool
    async def fetch() -> list[str]:
        async with using[0].AsyncClient(transport=EffectTransport()) as client:
            texts = [(await client.post(web.url, json={"name": "Ada"})).text]
            try:
                await client.get("http://127.0.0.1:1/")
            except using[0].ConnectError as error:
                texts.append(str(error))
            return texts

    asker, recorded = await record(server)
    texts = json.loads(await asker.call("fetch"))
    assert texts[0] == "ahoy!"
    assert [body["type"] for kind, body in recorded() if kind == "err"] == [
        f"{inner_library.__name__}.ConnectError"
    ]
    using[0] = library
    await played_again(asker, recorded, server)


def authorizing(library):
    """An `Auth` that reads the request, and sends it again with the token of a 401's body."""

    class Authorizing(library.Auth):
        requires_request_body = requires_response_body = True

        def auth_flow(self, request):
            assert isinstance(request, library.Request)
            request.headers["authorization"] = f"sized {len(request.content)}"
            response = yield request
            assert isinstance(response, library.Response)
            if response.status_code == 401:
                request.headers["authorization"] = response.text
                yield request

    return Authorizing()


@pytest.mark.parametrize("outside", [False, True])
async def test_a_request_accepts_an_auth_of_either_library(server, web, record, library, outside):
    web.answer = response(gzip.compress(b"token"), "content-encoding: gzip", status="401 No")

    async def fetched_with(http):
        found = await http.put(web.url, content=b"ahoy", auth=authorizing(library))
        return found.status_code, found.text

    @server.tool
    async def fetch(ctx: Context) -> list[object]:
        return list(await fetched_with(ctx.http))

    if outside:
        async with HandlerHttpClient(close_seconds=5) as http:
            assert await fetched_with(http.client) == (401, "token")
    else:
        asker, recorded = await record(server)
        assert json.loads(await asker.call("fetch")) == [401, "token"]
        await played_again(asker, recorded, server)
    tokens = [
        data.lower().partition(b"authorization: ")[2].split(b"\r\n")[0] for data in web.requests
    ]
    assert tokens == [b"sized 4", b"token"]
    assert all(data.endswith(b"ahoy") for data in web.requests)
