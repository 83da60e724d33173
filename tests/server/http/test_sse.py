"""Revision 2024-11-05 over HTTP: one stream, and a place to post to."""

import pytest
import trio

from tests.server.http.conftest import call, harbour, hello, notes, notification, text


async def begin(site, **headers):
    """A stream, and where to post to."""
    stream = site.begin("GET", path="/sse", accept="text/event-stream", **headers)
    event = await stream.event()
    assert event.name == "endpoint"
    return stream, "/" + event.data.decode()


async def opened(site, protocol_version="2024-11-05", **headers):
    stream, path = await begin(site, **headers)
    assert (await site.ask("POST", hello(protocol_version), path=path, **headers)).status == 202
    assert (await stream.message())["result"]["protocolVersion"] == protocol_version
    await site.ask("POST", notification("notifications/initialized"), path=path, **headers)
    return stream, path


@pytest.mark.requirement("SSE-01", "SSE-02", "SSE-04", "SSE-08", "TRAP-43")
async def test_answers_take_the_stream(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, path = await opened(site)
    assert stream.headers["content-type"] == "text/event-stream"
    for id_, name in ((1, "log"), (2, "tide")):
        said = await site.ask("POST", call(name, id=id_), path=path)
        assert (said.status, said.answer_body) == (202, b"")
    messages = [await stream.message() for _ in range(4)]
    assert notes(messages) == ["one", "two"]
    assert [text(each) for each in messages if "id" in each] == ["high", "logged"]


async def test_a_batch_is_answered_message_by_message(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, path = await opened(site, "2025-03-26")
    await site.ask("POST", [call("tide", id=1), call("tide", id=2)], path=path)
    assert {(await stream.message())["id"], (await stream.message())["id"]} == {1, 2}


async def test_a_session_lives_as_long_as_its_stream(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, path = await opened(site)
    await trio.sleep(10_000)
    assert (await site.ask("POST", call("tide"), path=path)).status == 202
    stream.leave()
    await trio.sleep(1)
    assert len(site.runtime.sessions) == 0
    assert (await site.ask("POST", call("tide"), path=path)).status == 404


async def test_the_stream_ends_when_the_server_closes(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, _path = await opened(site)
    site.runtime.close()
    assert await stream.rest() == []


@pytest.mark.parametrize("path", ["/messages", "/messages?session_id=none", "/messages?x=1"])
async def test_a_session_that_is_not_there_is_not_found(open_site, path, autojump_clock):
    site = await open_site(harbour())
    assert (await site.ask("POST", call("tide"), path=path)).status == 404


@pytest.mark.requirement("HTTP-32")
async def test_the_sessions_of_one_form_are_none_of_the_other(open_site, autojump_clock):
    site = await open_site(harbour())
    _stream, path = await opened(site)
    client = await site.open()
    posted = await site.ask("POST", call("tide"), path=f"/messages?session_id={client.id}")
    assert posted.status == 404
    client.id = path.partition("=")[2]
    assert (await client.ask(call("tide"))).status == 404


@pytest.mark.requirement("SSE-07", "HTTP-61")
async def test_a_stream_belongs_to_who_began_it(open_site, autojump_clock):
    async def verify(head):
        return head.header("authorization")

    site = await open_site(harbour(), verify=verify)
    assert (await site.ask("GET", path="/sse")).status == 401
    _stream, path = await opened(site, Authorization="me")
    rejected = await site.ask("POST", call("tide"), path=path, Authorization="you")
    assert rejected.status == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/sse"), ("GET", "/messages")])
async def test_each_endpoint_has_one_method(open_site, method, path, autojump_clock):
    site = await open_site(harbour())
    rejected = await site.ask(method, path=path)
    assert (rejected.status, rejected.headers["allow"]) == (
        405,
        "GET" if method == "POST" else "POST",
    )


async def test_what_is_no_message_is_a_bad_request(open_site, autojump_clock):
    site = await open_site(harbour())
    _stream, path = await opened(site)
    rejected = await site.ask("POST", b"{", path=path)
    assert (rejected.status, rejected.json["error"]["code"]) == (400, -32700)


@pytest.mark.requirement("SSE-05", "TRAP-44")
@pytest.mark.parametrize(("method", "path"), [("GET", "/sse"), ("POST", "/messages")])
async def test_a_page_of_somebody_else_is_not_let_in(open_site, method, path, autojump_clock):
    site = await open_site(harbour())
    rejected = await site.ask(method, path=path, Origin="http://evil.example")
    assert rejected.status == 403
    assert len(site.runtime.sessions) == 0


async def test_the_two_endpoints_may_be_left_out(open_site, autojump_clock):
    site = await open_site(harbour(), has_sse=False)
    assert (await site.ask("GET", path="/sse")).status == 404
