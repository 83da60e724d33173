"""Custom HTTP routes beside the MCP endpoint."""

import contextvars
import functools
import logging
import re

import httpx2
import pytest
import trio

from mcp_trio import Limits, Server
from mcp_trio.http import Request, Response
from mcp_trio.limits import MessageLimits
from tests.server.http.conftest import site_of


@pytest.fixture(params=[False, True], ids=["in one task", "by leaders"])
def leads(request):
    return request.param


@pytest.fixture
def server():
    return Server("harbour", limits=Limits(messages=MessageLimits(bytes_max=100)))


def answering(server, value, path="/x", **options):
    @server.route(path, **options)
    async def answer(_request):
        return value


@pytest.mark.parametrize(
    ("value", "status", "content_type", "body"),
    [
        ("ahoy ☼", 200, "text/plain; charset=utf-8", "ahoy ☼".encode()),
        (b"\x00", 200, "application/octet-stream", b"\x00"),
        ({"tide": {"b", "a"}}, 200, "application/json", b'{"tide":["a","b"]}'),
        (Response({"a": 1}, status=201), 201, "application/json", b'{"a":1}'),
        (Response(status=204), 204, None, b""),
        (
            Response("<p>", headers={"content-type": "text/html"}),
            200,
            "text/html",
            b"<p>",
        ),
    ],
)
async def test_the_returned_value_becomes_the_response(
    open_site, server, value, status, content_type, body, autojump_clock
):
    answering(server, value)
    answer = await (await open_site(server)).ask("GET", path="/x")
    assert (answer.status, answer.answer_body) == (status, body)
    assert answer.headers.get("content-type") == content_type


async def test_a_handler_gets_the_request(open_site, server, autojump_clock):
    received = []

    @server.route("/ships/{name}/logs/{+rest}", methods=["post"])
    async def log(request: Request) -> dict[str, object]:
        received.append(request)
        return {"json": await request.json(), "again": (await request.body()).decode()}

    site = await open_site(server)
    answer = await site.ask(
        "POST", {"a": 1}, path="/ships/Ada%20L/logs/2026/11?q=1&q=%C3%A4&empty=", X_Trace="7"
    )
    assert answer.json == {"json": {"a": 1}, "again": '{"a": 1}'}
    (request,) = received
    assert request.method == "POST"
    assert request.path == "/ships/Ada%20L/logs/2026/11"
    assert request.path_params == {"name": "Ada L", "rest": "2026/11"}
    assert request.query == {"q": ["1", "ä"], "empty": [""]}
    assert request.headers["x-trace"] == "7"
    assert (request.client, request.principal) == (None, None)


async def test_other_methods_are_rejected_and_named(open_site, server, autojump_clock):
    answering(server, "got")
    answering(server, "put", methods=["PUT"])
    site = await open_site(server)
    assert (await site.ask("PUT", b"", path="/x")).answer_body == b"put"
    rejected = await site.ask("DELETE", path="/x")
    assert (rejected.status, rejected.headers["allow"]) == (405, "GET, HEAD, PUT")
    assert (await site.ask("GET", path="/y")).status == 404


@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_head_is_answered_like_get_without_the_body(nursery, server, host):
    seen = []

    @server.route("/x")
    async def answer(request):
        seen.append(request.method)
        return "ahoy"

    url = await nursery.start(functools.partial(server.serve_http, port=0, server=host))
    async with httpx2.AsyncClient() as http:
        got = await http.head(url.replace("/mcp", "/x"))
        assert (got.status_code, got.headers["content-length"], got.content) == (200, "4", b"")
        assert (await http.get(url.replace("/mcp", "/x/"))).text == "ahoy"
    assert seen == ["HEAD", "GET"]
    nursery.cancel_scope.cancel()


async def test_head_may_have_a_handler_of_its_own(open_site, server, autojump_clock):
    answering(server, "got")
    answering(server, Response(status=204), methods=["HEAD"])
    assert (await (await open_site(server)).ask("HEAD", path="/x")).status == 204


class Panic(BaseException):
    """A fault that is no `Exception`, as libraries in Rust raise it."""


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize(
    ("error", "text"),
    [(KeyError("hunter2"), "KeyError: 'hunter2'"), (Panic("index"), "RuntimeError: Panic: index")],
)
async def test_an_exception_is_a_500_without_details_and_one_line_in_the_log(
    open_site, server, caplog, error, text, is_grouped, autojump_clock
):
    @server.route("/x")
    async def fail(_request):
        if not is_grouped:
            raise error
        async with trio.open_nursery():
            raise error

    site = await open_site(server)
    with caplog.at_level(logging.INFO, "mcp_trio"):
        answer = await site.ask("GET", path="/x")
    assert (answer.status, answer.answer_body) == (500, b"internal error")
    (record,) = caplog.records
    assert record.exc_info is None
    assert f"the handler of GET /x failed: {text} (test_routes.py:" in record.message


@pytest.mark.parametrize("value", [None, 3, Response(3), {"a": object()}, "\ud800"])
async def test_a_value_that_is_no_response_is_a_500(
    open_site, server, caplog, value, autojump_clock
):
    answering(server, value)
    assert (await (await open_site(server)).ask("GET", path="/x")).status == 500
    assert len(caplog.records) == 1


async def test_an_error_beside_a_cancellation_is_logged_and_ends_only_the_request(
    open_site, server, caplog, autojump_clock
):
    @server.route("/x")
    async def fail(_request):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("gone")

    answering(server, "fine", "/y")
    site = await open_site(server)
    exchange = site.begin("GET", path="/x")
    await trio.sleep(1)
    exchange.leave()
    await trio.sleep(1)
    assert "KeyError: 'gone'" in caplog.text
    assert (await site.ask("GET", path="/y")).answer_body == b"fine"


async def test_a_handler_is_cancelled_when_its_client_disconnects(
    open_site, server, caplog, autojump_clock
):
    outcomes = []

    @server.route("/x")
    async def wait(_request):
        try:
            await trio.sleep(1000)
        except trio.Cancelled:
            outcomes.append("cancelled")
            raise

    exchange = (await open_site(server)).begin("GET", path="/x")
    await trio.sleep(1)
    exchange.leave()
    await trio.sleep(1)
    assert outcomes == ["cancelled"]
    assert caplog.records == []


@pytest.mark.parametrize("catches", [False, True])
async def test_a_body_over_the_limit_is_rejected(
    open_site, server, caplog, catches, autojump_clock
):
    @server.route("/x", methods=["POST"])
    async def read(request):
        try:
            await request.body()
        except Exception:
            if catches:
                return "too much"
            raise

    answer = await (await open_site(server)).ask("POST", b" " * 101, path="/x")
    if catches:
        assert answer.answer_body == b"too much"
    else:
        assert answer.status == 413
        assert "limits.messages.bytes_max (100)" in answer.json["error"]["message"]
    assert caplog.records == []


async def test_a_body_that_is_not_json_is_rejected(open_site, server, caplog, autojump_clock):
    @server.route("/x", methods=["POST"])
    async def read(request):
        return await request.json()

    for body in (b"{", b"\xff", b""):
        answer = await (await open_site(server)).ask("POST", body, path="/x")
        assert answer.status == 400
        assert "the body is not JSON" in answer.json["error"]["message"]
    assert caplog.records == []


async def test_a_client_that_leaves_within_its_body_is_no_failure(
    open_site, server, caplog, autojump_clock
):
    @server.route("/x", methods=["POST"])
    async def read(request):
        await request.body()

    site = await open_site(server)
    exchange = site.exchange("POST", b"ahoy", path="/x")
    exchange.leave()
    await site.answered(exchange)
    assert exchange.status is None
    assert caplog.records == []


@pytest.mark.requirement("HTTP-02", "HTTP-03", "SEC-10")
async def test_host_and_origin_are_checked(open_site, server, autojump_clock):
    answering(server, "ahoy")
    site = await open_site(server)
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        assert (await site.ask("GET", path="/x", **headers)).status == 403
    assert (await site.ask("GET", path="/x", Origin="http://127.0.0.1:80")).status == 200


async def test_a_preflight_request_gets_the_methods_of_the_route(open_site, server, autojump_clock):
    page = "http://app.example"
    answering(server, "ahoy", methods=["PUT"])
    site = await open_site(server, origins=[page], allows_cors=True)
    for path, methods in {"/x": "PUT", "/mcp": "GET, POST, DELETE"}.items():
        asked = await site.ask(
            "OPTIONS", path=path, Origin=page, Access_Control_Request_Method="PUT"
        )
        assert asked.headers["access-control-allow-methods"] == methods
    answer = await site.ask("PUT", b"", path="/x", Origin=page)
    assert answer.headers["access-control-allow-origin"] == page


@pytest.mark.requirement("HTTP-05")
async def test_a_route_needs_authentication_unless_it_is_public(open_site, server, autojump_clock):
    async def verify(head):
        return {"Bearer 1": "anna"}.get(head.header("authorization"))

    async def whom(request):
        return f"{request.principal}"

    server.route("/private")(whom)
    server.route("/public", is_public=True)(whom)
    server.auth = verify
    site = await open_site(server)
    assert (await site.ask("GET", path="/private")).status == 401
    known = await site.ask("GET", path="/private", Authorization="Bearer 1")
    assert known.answer_body == b"anna"
    assert (await site.ask("GET", path="/public")).answer_body == b"None"


async def test_a_path_without_variables_has_precedence(open_site, server, autojump_clock):
    answering(server, "any", "/{page}")
    answering(server, "rest", "/{+rest}")
    answering(server, "about", "/about")
    answering(server, "root", "/")
    site = await open_site(server)
    found = {"/about": b"about", "/about/": b"about", "/b": b"any", "/b/c": b"rest", "/": b"root"}
    for path, body in found.items():
        assert (await site.ask("GET", path=path)).answer_body == body
    # The endpoints of the server come first.
    assert (await site.ask("GET", path="/health")).json == {"status": "ok"}


async def test_a_value_that_leaves_its_segment_is_rejected(open_site, server, autojump_clock):
    answering(server, "x", "/files/{name}")
    site = await open_site(server)
    assert (await site.ask("GET", path="/files/..%2fkeys")).status == 400
    answering(server, "rest", "/files/{+rest}")
    assert (await site.ask("GET", path="/files/a%2Fb")).answer_body == b"rest"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("x", "has to begin with a slash"),
        ("/x?y=1", "has a query"),
        ("/x{?y}", "has a query"),
        ("/x{/y}", "a variable of a path is {name}"),
        ("/x/{a,b}", "a variable of a path is {name}"),
        ("/x/{a", "invalid text"),
        ("/mcp", "that of the MCP endpoint"),
        ("/mcp/", "that of the MCP endpoint"),
        ("/health", "that of the health check"),
    ],
)
def test_a_bad_path_is_an_error_at_the_decorator(server, path, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        server.route(path)


def test_a_path_that_is_taken_is_an_error_at_the_decorator(server):
    answering(server, "x", "/x/{a}")
    with pytest.raises(ValueError, match=r"'/x/\{b\}' matches the same paths as '/x/\{a\}'"):
        answering(server, "x", "/x/{b}", methods=["PUT"])
    with pytest.raises(ValueError, match=r"has a handler of GET already"):
        answering(server, "x", "/x/{a}", methods=["PUT", "GET"])
    answering(server, "x", "/x/{a}/", methods=["PUT"])


def test_a_path_of_a_served_endpoint_cannot_be_a_route(server):
    answering(server, "x", "/sse")
    with pytest.raises(ValueError, match=r"has the path of HTTP\+SSE, which has_sse=False"):
        server.asgi()
    server.asgi(has_sse=False)
    with pytest.raises(ValueError, match="'/ws' is that of WebSocket"):
        answering(server, "x", "/ws")


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (lambda _: "", r"test_routes.py:\d+: the handler of a route has to be `async def`"),
        (3, "is not a Python function"),
    ],
)
def test_a_bad_handler_is_an_error_at_the_decorator(server, handler, text):
    with pytest.raises(TypeError, match=text):
        server.route("/x")(handler)


def test_a_handler_with_another_signature_is_an_error_at_the_decorator(server):
    async def none():
        pass

    async def two(request, ctx):
        pass

    for handler in (none, two):
        with pytest.raises(TypeError, match="takes one parameter, the request"):
            server.route("/x")(handler)


def test_a_route_without_a_path_is_an_error(server):
    with pytest.raises(TypeError, match=r'write @server.route\("/none"\) above none'):

        @server.route
        async def none(_request):
            pass


@pytest.mark.parametrize(
    ("methods", "error", "text"),
    [
        ("GET", TypeError, r"write \['GET'\]"),
        ([], ValueError, "at least one method"),
        (["G E T"], ValueError, "'G E T' is not an HTTP method"),
    ],
)
def test_bad_methods_are_an_error(server, methods, error, text):
    with pytest.raises(error, match=text):
        server.route("/x", methods=methods)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"status": 101}, "from 200 to 599"),
        ({"headers": {"a b": "c"}}, "not a valid name"),
        ({"headers": {"a": "b\nc"}}, "not allowed"),
        ({"headers": {"Content-Length": "3"}}, "itself sets the header content-length"),
    ],
)
def test_an_invalid_response_is_an_error_where_it_is_made(options, text):
    with pytest.raises(ValueError, match=text):
        Response("ahoy", **options)


async def test_a_route_may_be_added_while_the_server_runs(open_site, server, autojump_clock):
    site = await open_site(server)
    assert (await site.ask("GET", path="/late")).status == 404
    answering(server, "late", "/late")
    assert (await site.ask("GET", path="/late")).answer_body == b"late"


async def test_routes_are_in_no_recording(server, tmp_path, autojump_clock):
    answering(server, "secret")
    async with site_of(server, record=tmp_path) as site:
        assert (await site.ask("GET", path="/x")).answer_body == b"secret"
        site.runtime.close()
        await site.runtime.ended.wait()
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.iterdir())


async def test_requests_on_one_connection_go_on_after_a_failure(nursery, server):
    @server.route("/x/{n}")
    async def answer(request):
        return f"{1 / int(request.path_params['n'])}"

    url = await nursery.start(functools.partial(server.serve_http, port=0))
    async with httpx2.AsyncClient() as http:
        found = [await http.get(url.replace("/mcp", f"/x/{n}")) for n in (1, 0, 2)]
    assert [(each.status_code, each.text) for each in found] == [
        (200, "1.0"),
        (500, "internal error"),
        (200, "0.5"),
    ]
    nursery.cancel_scope.cancel()


USER = contextvars.ContextVar("user", default="no user")


async def test_context_variables_of_a_handler_end_with_its_request(nursery, server):
    # A proxy sends the requests of many users on the same connection.
    @server.route("/x/{name}")
    async def answer(request):
        before = USER.get()
        USER.set(request.path_params["name"])
        return before

    url = await nursery.start(functools.partial(server.serve_http, port=0))
    async with httpx2.AsyncClient() as http:
        found = [await http.get(url.replace("/mcp", f"/x/{name}")) for name in ("ada", "bo")]
    assert [each.text for each in found] == ["no user", "no user"]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("waits", [False, True])
async def test_context_variables_of_a_verifier_end_with_its_request(nursery, waits):
    async def verify(request):
        name = request.header("x-user")
        USER.set(name)
        if waits:
            await trio.lowlevel.checkpoint()
        assert USER.get() == name
        return name

    server = Server("harbour", auth=verify)

    @server.route("/own")
    async def own(_request):
        return USER.get()

    @server.route("/public", is_public=True)
    async def public(_request):
        return USER.get()

    url = await nursery.start(functools.partial(server.serve_http, port=0))
    async with httpx2.AsyncClient() as http:
        own_page = await http.get(url.replace("/mcp", "/own"), headers={"X-User": "ada"})
        public_page = await http.get(url.replace("/mcp", "/public"))
    assert (own_page.text, public_page.text) == ("ada", "no user")
    nursery.cancel_scope.cancel()
