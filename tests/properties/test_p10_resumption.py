"""Property 10: a handler resumed on new instances does the same as a handler that waits.

A program is a list of steps and questions. Its handler runs once without interruption, for a legacy
client that gets requests, and once in rounds, each on a new server and in a new Trio run that share
only the key. Both return, ask and do the same.
"""

import functools
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio import Context, Elicitation, KeyRing, Server
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION

pytestmark = pytest.mark.slow

some = settings(max_examples=settings().max_examples // 3)

KEYS = KeyRing([b"k" * 32])
NOT_VALID = {"code": -32602, "message": "the request state is not valid"}
CAN = {"elicitation": {}}
STATELESS = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: CAN}

letters = st.sampled_from("abc")
simple = st.one_of(
    st.tuples(st.just("step"), letters),
    st.tuples(st.just("fail"), letters),
    st.tuples(st.just("ask"), letters),
    st.tuples(st.just("ask all"), st.lists(letters, min_size=1, max_size=3)),
    st.tuples(st.just("read"), st.sampled_from(["now", "monotonic", "random", "patched"])),
    st.tuples(st.just("sleep"), st.integers(0, 100)),
    st.tuples(st.just("give up"), st.integers(0, 100)),
)
programs = st.lists(simple, max_size=6)
forks = st.tuples(st.just("fork"), st.lists(st.lists(simple, max_size=3), min_size=1, max_size=3))
forked_programs = st.lists(simple | forks, max_size=4)


@attrs.define
class Story:
    """The events outside of a handler, and the values that it read at each step."""

    done: list = attrs.field(factory=list)
    asked: list = attrs.field(factory=list)
    read: dict = attrs.field(factory=dict)
    runs: int = 0


@attrs.define
class Running:
    """A handler at its program; `known` is what it has learnt, and makes all that it does next."""

    ctx: Context
    story: Story
    known: list = attrs.field(factory=list)
    place: tuple = ()

    async def run(self, program):
        outer = self.place
        for number, (name, value) in enumerate(program):
            self.place = (*outer, number)
            await getattr(self, name.replace(" ", "_"))(value)
        return self.known

    async def step(self, value):
        self.known.append(await self.ctx.effect(self._done, f"{value}{len(self.known)}"))

    def _done(self, value: str) -> str:
        self.story.done.append(value)
        return value * 2

    async def fail(self, value):
        def fail(value: str) -> None:
            self._done(value)
            raise ValueError(value)

        try:
            await self.ctx.effect(fail, value)
        except ValueError as error:
            self.known.append(f"failed: {error}")

    async def ask(self, value):
        answer = await self.ctx.elicit(f"{value} {self.known}?", str)
        self.known.append(answer.data)

    async def ask_all(self, values):
        questions = (Elicitation(f"{value} {self.known}?", str) for value in values)
        self.known += [answer.data for answer in await self.ctx.ask_all(*questions)]

    async def read(self, value):
        reading = {
            "now": lambda: str(self.ctx.now()),
            "monotonic": self.ctx.monotonic,
            "random": lambda: (self.ctx.random.random(), str(self.ctx.uuid4())),
            "patched": lambda: self.ctx.patched("new"),
        }
        self.story.read.setdefault(self.place, set()).add(reading[value]())

    async def sleep(self, seconds):
        await self.ctx.sleep(seconds)

    async def give_up(self, seconds):
        async def long() -> None:
            self._done(f"long {seconds}")
            await trio.sleep_forever()

        with trio.move_on_after(seconds):
            await self.ctx.effect(long)
        self.known.append("gave up")

    async def fork(self, programs):
        running = [
            Running(self.ctx, self.story, [*self.known], (*self.place, number))
            for number in range(len(programs))
        ]
        async with trio.open_nursery() as nursery:
            for each, program in zip(running, programs, strict=True):
                nursery.start_soon(each.run, program)
        self.known += [each.known for each in running]


def make_server(program, story, **options):
    server = Server("p10", version="1", keys=KEYS)

    @server.tool(resumable=True)
    async def it(*, ctx: Context) -> str:
        story.runs += 1
        return json.dumps(await Running(ctx, story).run(program))

    return server


def answer_to(request, story):
    story.asked.append(request["params"]["message"])
    value = f"<{request['params']['message']}>"
    return {"action": "accept", "content": {"value": value[:40]}}


def suspended(stage, program, seed):
    """Return the answer for a legacy client, and the events."""
    story, answers = Story(), []

    async def talk(peer, _session):
        await peer.handshake(protocol_version="2025-11-25", capabilities=CAN)
        await peer.send_request("tools/call", {"name": "it"}, id=1)
        while not answers:
            message = await peer.receive()
            if "method" in message:
                await peer.send_result(message, answer_to(message, story))
            else:
                answers.append(message)

    stage.play(make_server(program, story), talk, seed=seed)
    return answers[0]["result"], story


def once(stage, program, story, seed, **members):
    """One round, on an instance of its own."""
    answers = []

    async def talk(peer, _session):
        params = {"name": "it", "_meta": STATELESS, **members}
        await peer.send_request("tools/call", params, id=1)
        answers.append(await peer.receive())

    stage.play(make_server(program, story), talk, seed=seed)
    return answers[0]


def resumed(stage, program, seed):
    """Return the last answer of a chain of rounds, the events, and the states."""
    story, states = Story(), []
    result = once(stage, program, story, seed)["result"]
    while result["resultType"] == "input_required":
        states.append(result["requestState"])
        requests = result["inputRequests"].items()
        answers = {key: answer_to(request, story) for key, request in requests}
        answer = once(stage, program, story, seed, requestState=states[-1], inputResponses=answers)
        result = answer["result"]
    return result, story, states


@pytest.mark.requirement("MRTR-09")
@some
@given(programs, st.integers(0, 99))
def test_a_resumed_handler_does_the_same_as_a_suspended_one(stage, program, seed):
    waited, its_story = suspended(stage, program, seed)
    result, story, _ = resumed(stage, program, seed)

    assert result["content"] == waited["content"]
    assert sorted(story.asked) == sorted(its_story.asked)
    assert story.done == its_story.done
    assert all(len(values) == 1 for values in story.read.values())


@some
@given(forked_programs, st.integers(0, 99))
def test_concurrent_tasks_are_resumed(stage, program, seed):
    waited, its_story = suspended(stage, program, seed)
    result, story, _ = resumed(stage, program, seed)

    assert result["content"] == waited["content"]
    assert sorted(story.asked) == sorted(its_story.asked)
    assert all(len(values) == 1 for values in story.read.values())


@some
@given(programs, st.integers(0, 99))
def test_a_state_is_rejected_for_another_request(stage, program, seed):
    _, _, states = resumed(stage, [*program, ("ask", "a")], seed)

    for state in states[-2:]:
        changed = bytearray(urlsafe_b64decode(state + "=="))
        changed[seed % len(changed)] ^= 1
        tampered = urlsafe_b64encode(changed).rstrip(b"=").decode()
        retry = functools.partial(once, stage, program, Story(), seed)
        assert retry(requestState=tampered)["error"] == NOT_VALID
        assert retry(requestState=state, arguments={})["error"] == NOT_VALID


def test_without_the_context_actions_are_repeated_in_each_round(stage, count):
    rounds_max = 5
    for rounds in range(rounds_max):
        _, story, _ = resumed(stage, [("ask", "a")] * rounds, 0)
        assert story.runs == rounds + 1
    count(rounds_max)
