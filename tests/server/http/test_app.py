"""The application: who is let in, what is where, and what the runtime of it does."""

import contextlib

import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio.limits import MessageLimits, ShutdownLimits
from tests.server.http.conftest import call, harbour, hello, site_of, text


async def test_a_server_that_answers_is_well(open_site, autojump_clock):
    site = await open_site(harbour())
    answer = await site.ask("GET", path="/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/mcp/x", "/MCP", "/health/x"])
async def test_who_is_lost_is_told_where_the_endpoint_is(open_site, path, autojump_clock):
    rejected = await (await open_site(harbour())).ask("POST", hello("2025-11-25"), path=path)
    assert rejected.status == 404
    assert "/mcp" in rejected.json["error"]["message"]


@pytest.mark.parametrize("path", ["/there", "/there/", "/there?x=1"])
async def test_the_endpoint_may_be_elsewhere(open_site, path, autojump_clock):
    site = await open_site(harbour(), path="/there")
    assert (await site.ask("POST", hello("2025-11-25"), path=path)).status == 200
    assert (await site.ask("POST", hello("2025-11-25"), path="/mcp")).status == 404


@pytest.mark.requirement("HTTP-02", "HTTP-03", "MHTTP-05", "MHTTP-06", "SEC-10", "TRAP-45")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS"])
async def test_a_page_of_somebody_else_is_not_let_in(open_site, method, autojump_clock):
    site = await open_site(harbour())
    rejected = await site.ask(method, hello("2025-11-25"), Origin="http://evil.example")
    assert (rejected.status, "id" in rejected.json) == (403, False)
    assert len(site.runtime.sessions) == 0
    own = await site.ask("POST", hello("2025-11-25"), Origin="http://127.0.0.1:80")
    assert own.status == 200


async def test_browsers_are_told_what_they_may_if_that_is_wished(open_site, autojump_clock):
    page = "http://app.example"
    site = await open_site(harbour(), origins=[page], allows_cors=True)
    asked = await site.ask("OPTIONS", Origin=page, Access_Control_Request_Method="POST")
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, page)
    for message in (hello("2025-11-25"), b"{", call("tide")):
        answer = await site.ask("POST", message, Origin=page)
        assert answer.headers["access-control-allow-origin"] == page
        assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]
    stateless = await site.ask_stateless(call("log"), Origin=page)
    assert stateless.headers["access-control-allow-origin"] == page
    other = await site.ask("OPTIONS", Origin="http://x", Access_Control_Request_Method="POST")
    assert other.status == 403


@pytest.mark.parametrize("path", ["/mcp", "/messages"])
async def test_a_body_has_a_size(open_site, path, autojump_clock):
    site = await open_site(harbour(limits=Limits(messages=MessageLimits(bytes_max=100))))
    rejected = await site.ask("POST", b" " * 101, path=path)
    assert rejected.status == 413
    assert "limits.messages.bytes_max" in rejected.json["error"]["message"]


async def test_a_client_that_leaves_in_the_middle_of_its_request_is_nobodys_fault(
    open_site, autojump_clock
):
    site = await open_site(harbour())
    asked = site.exchange("POST", hello("2025-11-25"))
    asked.leave()
    await site.app.respond(asked)
    assert asked.status is None
    assert len(site.runtime.sessions) == 0


async def test_the_lifespan_is_entered_once_round_all_sessions(autojump_clock):
    told = []

    @contextlib.asynccontextmanager
    async def lifespan(server):
        told.append("in")
        yield "sea"
        told.append("out")

    server = Server("harbour", lifespan=lifespan)

    @server.tool
    async def where(*, ctx: Context) -> str:
        return ctx.lifespan

    async with site_of(server) as site:
        for _ in range(2):
            client = await site.open()
            assert text((await client.ask(call("where"))).json) == "sea"
        assert text((await site.ask_stateless(call("where"))).json) == "sea"
        assert told == ["in"]
        site.runtime.close()
        await site.runtime.ended.wait()
        assert told == ["in", "out"]


async def test_all_sessions_end_with_the_runtime(open_site, ended, autojump_clock):
    site = await open_site(harbour(ended))
    clients = [await site.open() for _ in range(3)]
    asked = [client.begin(call("wait", {"seconds": 60})) for client in clients]
    listening = [client.listen() for client in clients]
    await trio.sleep(1)
    site.runtime.close()
    with trio.fail_after(10):
        await site.runtime.ended.wait()
        for exchange in [*asked, *listening]:
            assert await exchange.rest() == []
    assert ended == ["cancelled"] * 3
    assert len(site.runtime.sessions) == 0


async def test_a_runtime_does_not_wait_for_a_handler_that_shields_itself(open_site, autojump_clock):
    server = Server("harbour", limits=Limits(shutdown=ShutdownLimits(close_seconds=1)))

    @server.tool
    async def stay() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(30)

    site = await open_site(server)
    client = await site.open()
    client.begin(call("stay"))
    await trio.sleep(1)
    began = trio.current_time()
    site.runtime.close()
    await site.runtime.ended.wait()
    assert trio.current_time() - began <= 30


async def test_a_cancelled_runtime_winds_down(autojump_clock, ended):
    async with site_of(harbour(ended)) as site:
        client = await site.open()
        asked = client.begin(call("wait", {"seconds": 60}))
        await trio.sleep(1)
    assert ended == ["cancelled"]
    assert site.runtime.ended.is_set()
    assert asked.is_stream


async def test_sessions_that_would_replace_each_other_on_disk_are_not_served(tmp_path):
    with pytest.raises(ValueError, match="record to a folder"):
        await harbour().serve_http(port=0, record=tmp_path / "one.jsonl")
    with pytest.raises(ValueError, match="record to a folder"):
        harbour().asgi(record=tmp_path / "one.jsonl")


async def test_whether_a_server_is_well_may_be_asked_by_anybody(open_site, autojump_clock):
    async def verify(_head):
        return None

    site = await open_site(harbour(), verify=verify)
    assert (await site.ask("GET", path="/health")).status == 200
    assert (await site.ask("POST", hello("2025-11-25"))).status == 401
