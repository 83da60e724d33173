"""The HTTP client channel over sockets: connections are kept, closed, lost and made again."""

import gc
import signal

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import open_http_channel
from tests.transports.http.scripted_server import (
    EVENTS,
    STATELESS,
    Legacy,
    Modern,
    Reply,
    answer_to,
    asking,
    event,
    events,
    heard,
    result,
    serve,
)


async def succeed(seen):
    return result(seen, content=[], resultType="complete")


async def streamed(seen):
    return events(event(answer_to(seen, content=[], resultType="complete")))


def call(number, name="add"):
    return asking(number, "tools/call", STATELESS, name=name)


class Counted:
    """Counts the connections on which requests come, by the tasks that serve them."""

    def __init__(self, answer):
        self.answer, self.connections = answer, set()

    async def __call__(self, seen):
        self.connections.add(id(trio.lowlevel.current_task()))
        return await self.answer(seen)


@pytest.mark.parametrize("answer", [succeed, streamed])
async def test_a_connection_is_kept_for_the_next_request(nursery, answer):
    server = Counted(Modern(answers={"tools/call": answer}))
    url = await nursery.start(serve, server)
    async with Client(await open_http_channel(url)) as client:
        for _ in range(5):
            await client.call_tool("add")

    assert len(server.connections) == 1


async def test_a_connection_is_kept_after_notifications_and_rejections(nursery):
    server = Counted(Legacy(answers={"tools/call": succeed}))
    url = await nursery.start(serve, server)
    async with Client(await open_http_channel(url), roots=["file:///x"]) as client:
        for _ in range(3):
            await client.call_tool("add")
            await client.notify("notifications/roots/list_changed")

    assert len(server.connections) <= 2  # the GET that was refused has its own


@pytest.mark.real_time
async def test_a_server_that_is_killed_fails_only_the_calls_in_flight(nursery):
    async def endless(_seen):
        await trio.sleep_forever()

    server = Modern(answers={"tools/call": endless, "prompts/get": succeed})
    states = []
    life = trio.CancelScope()

    async def living(*, port=0, task_status):
        with life:
            await serve(server, port=port, task_status=task_status)

    url = await nursery.start(living)
    channel = await open_http_channel(url, on_state=lambda state, _: states.append(state))
    async with Client(channel) as client:
        async with trio.open_nursery() as calls:
            calls.start_soon(trio.testing.wait_all_tasks_blocked, 0.05)

            async def lost():
                with pytest.raises(OutcomeUnknown):
                    await client.call_tool("add")

            calls.start_soon(lost)
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked(0.05)
            life.cancel()
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await client.call_tool("add")
        assert client.is_open

        life = trio.CancelScope()
        server.answers["tools/call"] = succeed
        await nursery.start(_serve_again, server, httpx2.URL(url).port)
        assert (await client.call_tool("add")).content == []

    assert states == ["connecting", "open", "retrying", "open", "closed"]


async def _serve_again(server, port, *, task_status):
    await serve(server, port=port, task_status=task_status)


@pytest.mark.real_time
async def test_the_server_sees_the_disconnect_of_a_cancelled_stateless_call(nursery):
    left = trio.Event()

    async def endless(_seen):
        async def body():
            try:
                while True:
                    yield b": still here\n\n"
                    await trio.sleep(0.01)
            finally:
                left.set()

        return Reply(200, EVENTS, body())

    url = await nursery.start(serve, Modern(answers={"tools/call": endless}))
    async with Client(await open_http_channel(url)) as client:
        with trio.move_on_after(0.1):
            await client.call_tool("add")
        with trio.fail_after(5):
            await left.wait()
    gc.collect()  # what was left in the middle would say so here


async def test_a_body_over_the_limit_is_not_read_to_its_end(nursery):
    async def endless(_seen):
        async def body():
            while True:
                yield b"x" * 1000

        return Reply(200, {"content-type": "application/json"}, body())

    url = await nursery.start(serve, Modern(answers={"tools/call": endless}))
    channel = await open_http_channel(url, limits=Limits(messages=MessageLimits(bytes_max=10_000)))
    await channel.send([call(1)])
    with trio.fail_after(5):
        assert len(await channel.receive()) == 2
    await channel.aclose()
    gc.collect()


@pytest.mark.real_time
async def test_a_stream_that_waits_for_room_ends_when_the_channel_closes(nursery):
    async def endless(_seen):
        async def body():
            while True:
                yield event({"jsonrpc": "2.0", "method": "notifications/x"})

        return Reply(200, EVENTS, body())

    url = await nursery.start(serve, Modern(answers={"tools/call": endless}))
    channel = await open_http_channel(url, limits=Limits(messages=MessageLimits(chunk_bytes=1000)))
    await channel.send([call(1)])
    await trio.sleep(0.1)
    await channel.aclose()
    gc.collect()


async def test_the_system_s_error_is_part_of_the_message(nursery):
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
    await listener.aclose()
    channel = await open_http_channel(url)
    await channel.send([call(1)])

    lost = await heard(channel)
    await channel.aclose()

    assert url in str(lost.error)
    assert str(lost.error).count("refused") == 1


async def test_a_given_client_is_used_and_stays_open(nursery, library):
    url = await nursery.start(serve, Modern(answers={"tools/call": succeed}))
    async with library.AsyncClient(headers={"x-mine": "1"}, timeout=0.2) as http:
        channel = await open_http_channel(url, http=http)
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1
        await channel.aclose()

        assert not http.is_closed


@pytest.mark.real_time
async def test_the_read_timeout_of_a_given_client_is_ignored(nursery, library):
    async def slow(seen):
        await trio.sleep(0.3)
        return await succeed(seen)

    url = await nursery.start(serve, Modern(answers={"tools/call": slow}))
    async with library.AsyncClient(timeout=0.1) as http:
        channel = await open_http_channel(url, http=http)
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1
        await channel.aclose()


@pytest.mark.real_time
async def test_many_requests_are_in_flight_at_once(nursery):
    going = []

    async def together(seen):
        going.append(seen)
        while len(going) < 110:
            await trio.sleep(0.01)
        return await succeed(seen)

    url = await nursery.start(serve, Modern(answers={"tools/call": together}))
    channel = await open_http_channel(url)
    await channel.send([call(number) for number in range(110)])
    answered = 0
    with trio.fail_after(20):
        while answered < 110:
            answered += len(await channel.receive())
    await channel.aclose()


async def test_a_channel_outlives_the_nursery_it_was_opened_in(nursery):
    async with trio.open_nursery() as short:
        url = await nursery.start(serve, Modern(answers={"tools/call": succeed}))
        short.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            channel = await open_http_channel(url)
    await channel.send([call(1)])
    assert (await heard(channel))["id"] == 1
    await channel.aclose()


class Odd(BaseException):
    """Neither an exception nor an interrupt."""


@pytest.mark.parametrize(("fault", "signals"), [(KeyboardInterrupt, 1), (Odd, 0)])
async def test_an_interrupt_in_the_channel_s_task_is_raised_in_the_main_task(
    fault, signals, monkeypatch, caplog
):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)

    class Interrupted(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, _request):
            raise fault

    async with httpx2.AsyncClient(transport=Interrupted()) as http:
        channel = await open_http_channel("http://mcp.test/", http=http)
        await channel.send([call(1)])
        with trio.fail_after(5):
            (lost,) = await channel.receive()
            assert await channel.receive() == []
        await channel.aclose()

    assert isinstance(lost.error, OutcomeUnknown)
    assert raised == [signal.SIGINT] * signals
    assert "the HTTP channel failed" in caplog.text


def test_a_run_may_end_with_a_channel_open():
    async def main():
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, Modern(answers={"tools/call": succeed}))
            channel = await open_http_channel(url)
            await channel.send([call(1)])
            await heard(channel)
            nursery.cancel_scope.cancel()

    trio.run(main)
