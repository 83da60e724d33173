"""The shares of clients: a flood of one client takes nothing from the others."""

import json
import threading

import pytest
import trio
import trio.testing

from mcp_trio import Context, Limits, Server
from mcp_trio._protocol.shares import client_key
from mcp_trio._transports.http_response import TooManyBodiesError
from mcp_trio.limits import HttpLimits, RequestLimits
from mcp_trio.recording import replay
from tests.server.http.conftest import call, harbour, hello, request, site_of, text
from tests.transports.http.scripted_exchange import ScriptedExchange

FLOOD, OTHER, THIRD = "192.0.2.1", "192.0.2.2", "2001:db8::1"
SLOW_SECONDS = 9.0
FORMS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
TOKENS = {"Bearer 1": "anna", "Bearer 2": "bert"}


@pytest.fixture(params=[False, True], ids=["", "leading"])
def leads(request):
    """Both: who answers is a task of its own, or leads."""
    return request.param


async def verify(head):
    return TOKENS.get(head.header("authorization"))


def limited(**limits):
    return {"limits": Limits(requests=RequestLimits(**limits))}


async def begin(site, message, **options):
    """Begin a call, and return its exchange when the server has received it."""
    asked = site.begin_stateless(message, **options)
    await trio.testing.wait_all_tasks_blocked()
    return asked


async def answer_of(asked):
    messages = await asked.rest()
    return messages[-1] if asked.is_stream else asked.json


async def seconds_of(site, message, **options):
    """Return how long a call takes in virtual time, and its answer."""
    began = trio.current_time()
    asked = await site.ask_stateless(message, **options)
    return trio.current_time() - began, await answer_of(asked)


@pytest.mark.parametrize("calls", [256, 1400])
async def test_a_call_starts_at_once_beside_a_flood_of_slow_calls(open_site, calls, autojump_clock):
    site = await open_site(harbour())
    slow = call("wait", {"seconds": SLOW_SECONDS})
    for _ in range(calls):
        site.begin_stateless(slow, client=FLOOD)
    await trio.testing.wait_all_tasks_blocked()
    seconds, answer = await seconds_of(site, call("tide"), client=OTHER)
    assert text(answer) == "high"
    assert seconds < 0.1 * SLOW_SECONDS


async def test_only_the_client_that_floods_is_rejected(open_site, autojump_clock):
    site = await open_site(harbour(**limited(in_flight_max=1, queued_max=1)))
    slow = call("wait", {"seconds": SLOW_SECONDS})
    asked = [await begin(site, slow, client=FLOOD) for _ in range(3)]
    _, answer = await seconds_of(site, call("tide"), client=OTHER)
    assert text(answer) == "high"
    rejected = await answer_of(asked[-1])
    assert "(limits.requests.queued_max=1)" in rejected["error"]["message"]


async def test_the_calls_of_one_client_keep_their_order(open_site, autojump_clock):
    started = []
    server = Server("harbour", **limited(in_flight_max=1, all_clients_factor=2))

    @server.tool
    async def note(name: str) -> None:
        started.append(name)
        await trio.sleep(1)

    site = await open_site(server)
    for client, letter in ((FLOOD, "a"), (OTHER, "b")):
        for number in range(4):
            await begin(site, call("note", {"name": f"{letter}{number}"}), client=client)
    await trio.sleep(20)
    for letter in "ab":
        own = [name for name in started if name[0] == letter]
        assert own == [f"{letter}{number}" for number in range(4)]


async def test_clients_are_distinguished_by_their_principals(open_site, autojump_clock):
    site = await open_site(harbour(auth=verify))
    slow = call("wait", {"seconds": SLOW_SECONDS})
    for number in range(300):
        site.begin_stateless(slow, client=f"192.0.2.{number % 200}", Authorization="Bearer 1")
    await trio.testing.wait_all_tasks_blocked()
    seconds, _ = await seconds_of(site, call("tide"), client=FLOOD, Authorization="Bearer 2")
    assert seconds < 0.1 * SLOW_SECONDS
    seconds, _ = await seconds_of(site, call("tide"), client=OTHER, Authorization="Bearer 1")
    assert seconds > 0.5 * SLOW_SECONDS


async def test_handlers_in_threads_leave_threads_to_the_others(open_site):
    released = threading.Event()
    server = Server("harbour", **limited(threads_max=2))

    @server.tool
    def block() -> None:
        assert released.wait(10)

    @server.tool
    def quick() -> str:
        return "quick"

    site = await open_site(server)
    try:
        blocked = [await begin(site, call("block"), client=FLOOD) for _ in range(20)]
        with trio.fail_after(5):
            _, answer = await seconds_of(site, call("quick"), client=OTHER)
        assert text(answer) == "quick"
    finally:
        released.set()
    with trio.fail_after(10):
        for each in blocked:
            assert "result" in await answer_of(each)


async def test_a_cancelled_call_leaves_its_turn_for_a_thread(open_site):
    released, running = threading.Event(), []
    limits = Limits(requests=RequestLimits(threads_max=1), http=HttpLimits(watch_after_seconds=0.0))
    server = Server("harbour", limits=limits)

    @server.tool
    def block(number: int) -> int:
        running.append(number)
        assert released.wait(10)
        return number

    site = await open_site(server)
    asked = [await begin(site, call("block", {"number": number})) for number in range(4)]
    asked[2].leave()
    await trio.testing.wait_all_tasks_blocked()
    released.set()
    with trio.fail_after(10):
        for number in (0, 1, 3):
            assert text(await answer_of(asked[number])) == str(number)
    assert running == [0, 1, 3]


def asking_server(**options):
    server = Server("harbour", **options)

    @server.tool
    async def steer(*, ctx: Context) -> str:
        answer = await ctx.elicit("sure?", bool)
        return f"{answer.data}"

    @server.tool
    async def wait(*, ctx: Context, seconds: float) -> str:
        await ctx.sleep(seconds)
        return f"{seconds}"

    return server


async def test_suspended_handlers_leave_places_to_the_others(open_site, autojump_clock):
    site = await open_site(asking_server(**limited(suspended_max=3)))
    for _ in range(3):
        asked = await site.ask_stateless(call("steer"), meta=FORMS, client=FLOOD)
        assert "requestState" in (await answer_of(asked))["result"]
    rejected = await site.ask_stateless(call("steer"), meta=FORMS, client=FLOOD)
    assert "(limits.requests.suspended_max=3)" in (await answer_of(rejected))["error"]["message"]
    asked = await site.ask_stateless(call("steer"), meta=FORMS, client=OTHER)
    assert "requestState" in (await answer_of(asked))["result"]


async def test_the_replies_of_one_client_do_not_push_out_those_of_another(
    open_site, autojump_clock
):
    site = await open_site(asking_server(**limited(suspended_max=1)))

    async def ask_and_answer(client):
        asked = await site.ask_stateless(call("steer"), meta=FORMS, client=client)
        state = (await answer_of(asked))["result"]["requestState"]
        answer = {"q1": {"action": "accept", "content": {"value": True}}}
        retry = call("steer", id=2, requestState=state, inputResponses=answer)
        await site.ask_stateless(retry, meta=FORMS, client=client)
        return retry

    retry = await ask_and_answer(OTHER)
    for _ in range(3):
        last = await ask_and_answer(FLOOD)
    for client, again in ((OTHER, retry), (FLOOD, last)):
        kept = await site.ask_stateless(again, meta=FORMS, client=client)
        assert text(await answer_of(kept)) == "True"


async def test_subscriptions_leave_room_to_the_others(open_site, autojump_clock):
    site = await open_site(harbour(**limited(listens_max=2)))
    listen = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    for _ in range(2):
        await begin(site, listen, client=FLOOD)
    rejected = await site.ask_stateless(listen, client=FLOOD)
    assert "(limits.requests.listens_max=2)" in (await answer_of(rejected))["error"]["message"]
    asked = site.begin_stateless(listen, client=OTHER)
    await asked.begun()
    assert asked.is_stream


# Recordings: the turns of the clients are repeated, and their addresses are not recorded.


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_lets_the_clients_take_the_same_turns(tmp_path, seed):
    options = limited(in_flight_max=1, queued_max=2, suspended_max=1, all_clients_factor=2)

    async def record():
        async with site_of(asking_server(**options), record=tmp_path) as site:
            for number in range(12):
                client = (FLOOD, FLOOD, OTHER, THIRD)[(number + seed) % 4]
                message = call("wait", {"seconds": 1 + (number * 7 + seed) % 5})
                asked = await begin(site, message, client=client)
                await begin(site, call("steer"), meta=FORMS, client=client)
                if number % 5 == 4:
                    asked.leave()
                await trio.sleep(0.3)
            await trio.sleep(60)
            site.runtime.close()
            await site.runtime.ended.wait()

    trio.run(record, clock=trio.testing.MockClock(autojump_threshold=0))
    (file,) = tmp_path.iterdir()
    recorded = file.read_text()
    records = [json.loads(line) for line in recorded.splitlines()]
    numbers = [each.get("x", {}).get("client") for each in records if each.get("k") == "in"]
    assert {1, 2} <= set(numbers)
    assert not any(address in recorded for address in (FLOOD, OTHER, THIRD))
    assert "queued_max=2" in recorded
    assert replay(file, asking_server(**options)).is_complete


# Sessions of legacy clients, and connections.


def session_limits(sessions_max):
    return {"limits": Limits(http=HttpLimits(sessions_max=sessions_max, session_unused_seconds=1))}


@pytest.mark.parametrize("has_principals", [False, True], ids=["address", "principal"])
async def test_sessions_of_one_client_leave_places_to_the_others(
    open_site, has_principals, autojump_clock
):
    options = {"auth": verify} if has_principals else {}
    site = await open_site(harbour(**session_limits(2), **options))
    flood, other = (
        {"client": FLOOD if has_principals else address, "Authorization": token}
        for address, token in zip((FLOOD, OTHER), TOKENS, strict=True)
    )
    for _ in range(2):
        await site.open(**flood)
    rejected = await site.ask("POST", hello("2025-11-25"), **flood)
    assert (rejected.status, rejected.headers["retry-after"]) == (503, "1")
    problem = "there are too many sessions (limits.http.sessions_max=2)"
    assert rejected.json["error"]["message"] == problem
    client = await site.open(**other)
    assert text((await client.ask(call("tide"))).json) == "high"
    await client.delete()
    assert site.runtime.sessions._shares.taken_by(site_key(other, has_principals)) == 0


def site_key(client, has_principals):
    name = TOKENS[client["Authorization"]] if has_principals else None
    return client_key(name, client["client"])


async def test_a_new_session_replaces_an_unused_one_of_the_same_client(open_site, autojump_clock):
    site = await open_site(harbour(**session_limits(1)))
    other = await site.open(client=OTHER, ready=False)
    oldest = await site.open(client=FLOOD, ready=False)
    newest = await site.open(client=FLOOD)
    assert (await oldest.ask(call("tide"))).status == 404
    for client in (other, newest):
        assert text((await client.ask(call("tide"))).json) == "high"


async def test_a_client_without_a_session_replaces_any_unused_one(open_site, autojump_clock):
    site = await open_site(harbour(**session_limits(1)))
    unused = [await site.open(client=client, ready=False) for client in (FLOOD, OTHER)]
    third = await site.open(client=THIRD)
    assert text((await third.ask(call("tide"))).json) == "high"
    statuses = [(await each.ask(call("tide"))).status for each in unused]
    assert statuses == [404, 200]
    rejected = await site.ask("POST", hello("2025-11-25"), client="192.0.2.4")
    problem = "there are too many sessions of all clients (limits.http.sessions_max=1, "
    assert rejected.json["error"]["message"].startswith(problem)


async def test_a_client_with_too_many_unfinished_bodies_may_try_again(open_site, monkeypatch):
    async def body(exchange, bytes_max):
        raise TooManyBodiesError("too long (limits.http.bodies_bytes_max)")

    site = await open_site(harbour())
    monkeypatch.setattr(ScriptedExchange, "body", body)
    rejected = await site.ask("POST", hello("2025-11-25"))
    assert (rejected.status, rejected.headers["retry-after"]) == (503, "1")
    assert rejected.json["error"]["message"] == "too long (limits.http.bodies_bytes_max)"
