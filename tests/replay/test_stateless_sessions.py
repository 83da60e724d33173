"""Replay of multi round-trip requests: unchanged, changed and cut."""

import attrs
import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION, SUBSCRIPTION_ID
from mcp_trio.errors import ReplayDivergence
from mcp_trio.limits import RequestLimits, ShutdownLimits
from mcp_trio.recording import replay, sweep

METADATA = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "io.modelcontextprotocol/logLevel": "debug",
}
LIMITS = Limits(
    requests=RequestLimits(suspended_seconds=10), shutdown=ShutdownLimits(drain_seconds=0.05)
)


async def book(ctx):
    boat = await ctx.elicit("Which boat?", str)
    await ctx.sleep(0.2)
    await ctx.info("found")
    day = await ctx.elicit("When?", str)
    return f"{boat.data} {day.data}"


def make_server(handler=book):
    server = Server("harbour", limits=LIMITS)

    @server.tool(name="book")
    async def tool(*, ctx: Context) -> str:
        return await handler(ctx)

    return server


@attrs.define
class Talk:
    """A stateless client; `states` are those that it was given, by the id of its request."""

    peer: object
    states: dict = attrs.field(factory=dict)

    async def call(self, request_id, *, answered=None, value="x"):
        """Call, or come back to an earlier call; receives up to the answer."""
        params = {"name": "book", "arguments": {}, "_meta": METADATA}
        if answered is not None:
            state, keys = self.states[answered]
            answer = {"action": "accept", "content": {"value": value}}
            params |= {"requestState": state, "inputResponses": dict.fromkeys(keys, answer)}
        await self.peer.send({"id": request_id, "method": "tools/call", "params": params})
        while (message := await self.peer.receive()).get("id") != request_id:
            pass
        result = message.get("result", {})
        if result.get("resultType") == "input_required":
            self.states[request_id] = result["requestState"], list(result["inputRequests"])
        return message


async def talk(peer, _session):
    client = Talk(peer)
    await client.call(1)
    await client.call(2)
    await client.call(4, answered=1, value="reed")
    await client.call(6, answered=4, value="noon")
    await client.call(7, answered=4, value="noon")
    await trio.sleep(11)  # the second one is given up, and the replies are
    answer = await client.call(9, answered=4)
    assert answer["error"]["code"] == -32602
    await client.call(10)


@pytest.fixture
def path_multi_round_trip_requests(world, tmp_path):
    """A recording of it."""
    return world.record(make_server(), tmp_path / "a.mcprec.jsonl", talk)


@pytest.mark.parametrize("number", range(3))
def test_multi_round_trip_requests_replay_with_their_recorded_states(
    world, path_multi_round_trip_requests, number
):
    replayed = world.replayed(path_multi_round_trip_requests, make_server(), number=number)
    assert replayed.sent_messages == world.sent_frames(path_multi_round_trip_requests)
    assert replayed.ordered == world.played(path_multi_round_trip_requests)
    report = replay(path_multi_round_trip_requests, make_server())
    assert (report.requests, report.untracked_calls) == (3, ())


def test_multi_round_trip_requests_replay_in_outbound_mode(world, path_multi_round_trip_requests):
    replayed = world.replayed(path_multi_round_trip_requests, make_server(), mode="outbound")
    assert replayed.sent_messages == world.sent_frames(path_multi_round_trip_requests)


@pytest.mark.parametrize("lines", range(5, 38, 3))
def test_a_recording_with_multi_round_trip_requests_cut_anywhere_replays(
    world, path_multi_round_trip_requests, tmp_path, lines
):
    cut = world.rewrite(
        path_multi_round_trip_requests, tmp_path / "cut.mcprec.jsonl", lambda all_: all_[:lines]
    )
    assert not replay(cut, make_server()).is_complete


async def another_question(ctx):
    boat = await ctx.elicit("Which ship?", str)
    return boat.data


async def no_question(ctx):
    return "reed"


async def later(ctx):
    await ctx.sleep(1)
    return await book(ctx)


async def no_second_question(ctx):
    boat = await ctx.elicit("Which boat?", str)
    await ctx.sleep(0.2)
    await ctx.info("found")
    return boat.data


async def one_more_word(ctx):
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.elicit, "Which boat?", str)
            await trio.sleep(0)
            await ctx.info("asking")
        assert not scope.cancelled_caught
    return ""


@pytest.mark.parametrize(
    ("handler", "lane"),
    [
        (another_question, "r1"),
        (no_question, "r1"),
        (later, "r1"),
        (no_second_question, "r1"),
        (one_more_word, "r1.0"),
    ],
)
def test_a_handler_with_another_input_request_diverges(
    path_multi_round_trip_requests, handler, lane
):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path_multi_round_trip_requests, make_server(handler))
    assert caught.value.lane == lane


@pytest.mark.parametrize("handler", [no_question, no_second_question])
def test_a_round_without_an_input_request_diverges_at_the_response(
    path_multi_round_trip_requests, handler
):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path_multi_round_trip_requests, make_server(handler), mode="outbound")
    assert caught.value.lane == "r1.ask"


@pytest.mark.parametrize("schedules", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_a_sweep_runs_the_rounds_of_a_suspended_handler(path_multi_round_trip_requests, schedules):
    report = sweep(
        path_multi_round_trip_requests, make_server, schedules=schedules, strategy="depth-first"
    )
    assert report.is_clean
    assert report.schedules > 1


def test_a_sweep_finds_a_round_without_an_input_request(path_multi_round_trip_requests):
    for changed in (no_question, no_second_question):
        (difference, *_) = sweep(
            path_multi_round_trip_requests,
            lambda changed=changed: make_server(changed),
            schedules=5,
        ).differences
        assert difference.schedule == 0


# Replay of sessions with subscriptions whose changes come from their own handlers.


META = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourceSubscriptions": ["fair://pie"],
}


async def nothing():
    pass


def make_server_subscribed_sessions(*, prompt=True):
    server = Server(
        "fair",
        offers={"tools", "resources", "prompts"},
        limits=Limits(shutdown=ShutdownLimits(drain_seconds=0.05)),
    )

    @server.resource("fair://{stall}")
    async def stall(stall: str) -> str:
        return stall

    @server.tool
    async def grow(number: int, *, ctx: Context) -> int:
        for each in range(3):
            ctx.server.tool(name=f"t{number}.{each}")(nothing)
            await ctx.sleep(0.001 * each)
        await ctx.report_progress(1)
        ctx.server.remove_tool(f"t{number}.0")
        if prompt:
            ctx.server.prompt(name=f"p{number}")(nothing)
        ctx.server.resource_updated("fair://pie")
        return number

    return server


def request(id_, method, **params):
    return {"id": id_, "method": method, "params": {**params, "_meta": META}}


def listen(id_, **wishes):
    return request(id_, "subscriptions/listen", notifications=wishes)


def grow(id_):
    return request(id_, "tools/call", name="grow", arguments={"number": id_})


def cancel(id_):
    return {"method": "notifications/cancelled", "params": {"requestId": id_}}


async def talk_subscribed_sessions(peer, _session):
    await peer.send(listen("all", **EVERYTHING), listen("tools", toolsListChanged=True))
    await peer.send(*(grow(number) for number in range(3)))
    await trio.sleep(0.0025)
    await peer.send(cancel("tools"), listen("late", promptsListChanged=True), grow(3))
    await trio.sleep(0.01)
    await peer.send(grow(4), cancel("late"))
    await trio.sleep(0.01)


async def leave(peer, _session):
    await peer.send(listen("all", **EVERYTHING), grow(1))
    while "result" not in await peer.receive():
        pass


async def closed(peer, session):
    await peer.send(listen("all", **EVERYTHING), listen("tools", toolsListChanged=True), grow(1))
    await trio.sleep(0.0025)
    session.shut("closed")
    await peer.receive_end()


CLIENTS = [talk_subscribed_sessions, leave, closed]


@pytest.fixture
def recorded(world, tmp_path):
    def make(client, number=0, server=None):
        path = tmp_path / f"{number}.mcprec.jsonl"
        return world.record(
            server or make_server_subscribed_sessions(), path, client, number=number
        )

    return make


def subscription_notifications(world, path):
    """Return the notifications of subscriptions, each with its lane."""
    return [
        (record["l"], record["f"]["method"])
        for record in world.records(path)
        if record["k"] == "out"
        and SUBSCRIPTION_ID in record["f"].get("params", {}).get("_meta", {})
    ]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("client", CLIENTS)
def test_notifications_of_subscriptions_replay_byte_for_byte(world, recorded, client, number):
    path = recorded(client, number)
    for other in range(3):
        replayed = world.replayed(path, make_server_subscribed_sessions(), number=other)
        assert replayed.sent_messages == world.sent_frames(path)
        assert replayed.ordered == world.played(path)


def test_each_subscription_notifies_in_the_lane_of_its_request(world, recorded):
    lanes = {
        lane for lane, _ in subscription_notifications(world, recorded(talk_subscribed_sessions))
    }
    asked = [
        f"r{record['n']}"
        for record in world.records(recorded(talk_subscribed_sessions, 1))
        if record["k"] == "in" and record["f"].get("method") == "subscriptions/listen"
    ]
    assert lanes == set(asked)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_recording_with_subscriptions_cut_anywhere_replays_up_to_the_cut(
    world, recorded, tmp_path, client
):
    path = recorded(client)
    first = world.place_of(path, lambda r: r.get("l", "").startswith("r"))
    for cut in range(first + 1, len(world.records(path)), 3):
        part = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda lines, c=cut: lines[:c])
        replay(part, make_server_subscribed_sessions())


def test_a_missing_change_is_a_divergence(desk, recorded):
    divergence = desk.assert_diverges(
        recorded(talk_subscribed_sessions), make_server_subscribed_sessions(prompt=False)
    )
    assert "subscriptions/listen" in str(divergence)


def test_an_additional_change_is_a_divergence(desk, recorded):
    path = recorded(talk_subscribed_sessions, server=make_server_subscribed_sessions(prompt=False))
    divergence = desk.assert_diverges(path, make_server_subscribed_sessions())
    assert "recorded:  step" in str(divergence)


async def close_at_a_change(peer, session):
    await peer.send(
        listen("all", **EVERYTHING), request("b", "tools/call", name="bake", arguments={})
    )
    await trio.sleep(1)
    # The subscription sends the change of `bake` now, before or after it sees the shutdown.
    await trio.lowlevel.checkpoint()
    session.shut("closed")


@pytest.mark.requirement("SUB-14")
def test_a_subscription_that_ends_without_a_wait_replays_one_that_had_waited(world, recorded):
    """In a replay all tasks see the shutdown before the subscription sends its last change."""

    def make_bakery():
        server = make_server_subscribed_sessions()

        @server.tool
        async def bake(*, ctx: Context) -> None:
            await ctx.sleep(1)
            ctx.server.resource_updated("fair://pie")

        return server

    have_waited = 0
    for number in range(8):
        path = recorded(close_at_a_change, number, make_bakery())
        kinds = " ".join(record["k"] for record in world.records(path))
        # The last change, the wait, and the end of the subscription.
        have_waited += kinds.endswith("mark out step mark out out mark end")
        replayed = world.replayed(path, make_bakery())
        assert replayed.sent_messages == world.sent_frames(path)
        assert replayed.ordered == world.played(path)
    assert have_waited
