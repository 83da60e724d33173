"""Sessions for the tests: a server of named tools or a client, each with a raw peer."""

import functools
import io
import logging
from types import SimpleNamespace

import attrs
import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import types as s
from mcp_trio._journal.records import MarkBody, OpenBody, StepsBody, decode_body, encode_body
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import INITIALIZED, Role
from mcp_trio._recorder.writer import Recorder
from mcp_trio._session.calls import Question
from mcp_trio._session.input_required import ask_all
from mcp_trio._session.journal import Recording, Sequencer
from mcp_trio._session.session import Session
from mcp_trio.limits import DEFAULT_LIMITS
from mcp_trio.recording import Record, body_bytes, read_recording
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.session.fake_channels import DirectFakeChannel

SERVER_CAPABILITIES = s.ServerCapabilities(tools=s.ToolsCapability(list_changed=True), logging={})
CLIENT_CAPABILITIES = s.ClientCapabilities(roots=s.RootsCapability(list_changed=True))


HANDSHAKE = (
    {
        "id": "handshake",
        "method": "initialize",
        "params": {
            "protocolVersion": "2024-11-05",
            "capabilities": {"roots": {"listChanged": True}},
            "clientInfo": {"name": "theirs", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
)


@attrs.define(eq=False)
class Tools:
    """An application of named functions; `tools/call` runs one, other requests run one by method."""

    tools: dict
    notifications: list = attrs.field(factory=list)
    beside: object = None

    async def handle(self, handling):
        request = handling.request
        name = request.params.name if request.method.name == "tools/call" else request.method.name
        result = await self.tools[name](handling)
        if isinstance(result, msgspec.Struct):
            return result
        return s.CallToolResult(content=[s.TextContent(text=str(result))])

    def on_session_restart(self):
        pass

    sends_error_texts = False

    def failure_result(self, _request, _text):
        return None

    def handles_notification(self, method):
        return method.name != INITIALIZED

    async def notified(self, method, params):
        if method.name != INITIALIZED:
            self.notifications.append((method.name, params))
        if method.name in self.tools:
            await self.tools[method.name](params)

    def on_session_open(self, session):
        if self.beside is not None:
            session.start_actor(functools.partial(self.beside, session))

    def on_session_close(self):
        pass


@attrs.define(eq=False)
class MemorySink:
    """A recording in memory; `fail` makes every write fail."""

    content: bytearray = attrs.field(factory=bytearray)
    writes: int = 0
    fail: bool = False
    is_closed: bool = False

    def write(self, data):
        if self.fail:
            raise OSError("the disk is full")
        self.writes += 1
        self.content += data

    def close(self):
        self.is_closed = True

    def records(self):
        return list(read_recording(io.BytesIO(self.content)))


def make_connection(role, limits=DEFAULT_LIMITS):
    return Connection(
        our_role=role,
        our_info=s.Implementation(name="ours", version="1"),
        our_capabilities=SERVER_CAPABILITIES if role is Role.SERVER else CLIENT_CAPABILITIES,
        limits=limits,
    )


@pytest.fixture
def make_session():
    """A session over any channel, that does not run yet."""

    def make(channel, tools=None, *, role=Role.SERVER, limits=DEFAULT_LIMITS, sequencer=None):
        return Session(
            channel, make_connection(role, limits), Tools(tools or {}), sequencer or Sequencer()
        )

    return make


@pytest.fixture
def serve(nursery, make_session):
    """Start a server of named tools; returns it and a peer that has shaken hands."""

    async def start(tools=None, *, limits=DEFAULT_LIMITS, sequencer=None, handshake=True, **pair):
        ours, theirs = memory_pair(**pair)
        session = make_session(ours, tools, limits=limits, sequencer=sequencer)
        peer = WirePeer(theirs)
        await nursery.start(session.run)
        if handshake:
            await peer.handshake(capabilities={"roots": {"listChanged": True}})
        return session, peer

    return start


@pytest.fixture
def serve_fake(nursery, make_session, handshake):
    """Start a server over a fake channel; returns both after the handshake."""

    async def start(tools=None, *, channel=None, limits=DEFAULT_LIMITS, sequencer=None):
        channel = channel or DirectFakeChannel()
        session = make_session(channel, tools, limits=limits, sequencer=sequencer)
        await nursery.start(session.run)
        channel.feed(*handshake)
        await trio.testing.wait_all_tasks_blocked()
        channel.writes.clear()
        channel.sends = 0
        return session, channel

    return start


@pytest.fixture
def handshake(message):
    """The messages that a client sends to begin a session."""
    return [message(**shape) for shape in HANDSHAKE]


@pytest.fixture
def message():
    """Return the encoded message with these members."""

    def make(**members):
        return msgspec.json.encode({"jsonrpc": "2.0", **members})

    return make


@pytest.fixture
def dial(nursery, make_session):
    """Start a client that has shaken hands; returns it and the peer that plays its server."""

    async def start(tools=None, *, limits=DEFAULT_LIMITS, sequencer=None, handshake=True):
        ours, theirs = memory_pair()
        session = make_session(ours, tools, role=Role.CLIENT, limits=limits, sequencer=sequencer)
        peer = WirePeer(theirs)
        await nursery.start(session.run)
        if handshake:
            async with trio.open_nursery() as shaking:
                shaking.start_soon(session.initialize)
                capabilities = {"tools": {"listChanged": True}, "logging": {}}
                await peer.answer_initialize(capabilities=capabilities)
        return session, peer

    return start


class Recorded(Recording):
    """A recording in memory."""

    def records(self):
        """Return the records written so far."""
        return self.recorder._sink.records()

    def story(self, *, since=0):
        """Kind, lane and ordinal of each record; of a mark, the name; of a step, the lanes."""
        self.flush()
        records = [r for r in self.records() if isinstance(r, Record) and r.number >= since]
        return [
            f"{r.kind} {r.lane} {r.ordinal}" if r.lane else f"{r.kind}{_detail_of(r)}"
            for r in records
        ]


def _detail_of(record):
    if record.kind == "step":
        lanes = decode_body(record, StepsBody).lanes
        return "".join(f" {lane}" for lane in lanes if isinstance(lane, str))
    return f" {decode_body(record, MarkBody).name}" if record.kind == "mark" else ""


@pytest.fixture
def make_recording():
    """Sequencers that record to memory."""

    class Clock:
        @property
        def ns(self):
            return int(trio.current_time() * 1e9) if trio.lowlevel.in_trio_run() else 0

    def make(limits=DEFAULT_LIMITS):
        recorder = Recorder(MemorySink(), clock=Clock(), limits=limits)
        body = OpenBody(transport="memory", role="server", name="ours", version="1", started="-")
        recorder.record("open", encode_body(body))
        return Recorded(recorder)

    return make


@pytest.fixture
def recording(make_recording):
    """A sequencer that records to memory."""
    return make_recording()


@pytest.fixture
def call():
    """The message of a `tools/call`."""

    def make(name, request_id, *, token=None):
        params = {"name": name}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return {"id": request_id, "method": "tools/call", "params": params}

    return make


@pytest.fixture
def text_of():
    """The text in the answer of a tool."""

    def text(answer):
        return answer["result"]["content"][0]["text"]

    return text


@pytest.fixture
def small():
    """Limits that are soon reached."""

    def make(**limits):
        return msgspec.structs.replace(DEFAULT_LIMITS, **limits)

    return make


@pytest.fixture
def logged(caplog):
    """The messages that were logged from `level` on, as texts."""
    caplog.set_level(logging.DEBUG, logger="mcp_trio")

    def texts(level=logging.WARNING):
        return [record.getMessage() for record in caplog.records if record.levelno >= level]

    return texts


@pytest.fixture
def echo():
    """A tool that answers at once."""

    async def tool(handling):
        return "echo"

    return tool


@pytest.fixture
def story(recording):
    """Return kind and body of each record of a lane, without answers, by lane."""

    def records_by_lane():
        recording.flush()
        records = {}
        for record in recording.records():
            is_deed = isinstance(record, Record) and record.lane and record.ordinal
            if is_deed and record.kind != "out":
                assert record.ordinal == len(records.setdefault(record.lane, [])) + 1
                records[record.lane].append((record.kind, body_bytes(record)))
        return records

    return records_by_lane


@pytest.fixture
def handle(serve, call):
    """Return the result or exception of a handler, as the only one of a session."""

    async def run(handler, **options):
        done = []

        async def tool(handling):
            try:
                done.append(await handler(handling))
            except Exception as error:
                done.append(error)
            return ""

        _, peer = await serve({"tool": tool}, **options)
        await peer.send(call("tool", 1))
        await peer.receive()
        return done[0]

    return run


# A stateless client, which answers in rounds.

PREFIX = "io.modelcontextprotocol/"
METADATA = {
    f"{PREFIX}protocolVersion": "2026-07-28",
    f"{PREFIX}clientCapabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
    f"{PREFIX}clientInfo": {"name": "theirs", "version": "1"},
}


@pytest.fixture
def dock(serve):
    """Start a server of named tools; returns it and a peer that has sent nothing yet."""
    return functools.partial(serve, handshake=False)


def _stateless(name, request_id, state=None, *, port="Bergen", token=None, **responses):
    meta = METADATA if token is None else {**METADATA, "progressToken": token}
    params = {"name": name, "arguments": {"port": port}, "_meta": meta}
    if state is not None:
        params["requestState"] = state
    if responses:
        params["inputResponses"] = responses
    return {"id": request_id, "method": "tools/call", "params": params}


def _accepted(**content):
    return {"action": "accept", "content": content}


def _form(message, **options):
    params = s.ElicitParams(message=message, requested_schema={"type": "object", "properties": {}})
    return Question(method="elicitation/create", params=params, **options)


def _asking(*messages):
    async def tool(handling):
        found = []
        for message in messages:
            (answer,) = await ask_all(handling, [_form(message)])
            found.append(answer.content)
        return found

    return tool


async def _wanted(peer, request_id):
    answer = await peer.receive()
    assert answer["id"] == request_id
    assert answer["result"]["resultType"] == "input_required"
    asked = answer["result"]["inputRequests"]
    messages = {key: each["params"].get("message") for key, each in asked.items()}
    return messages, answer["result"]["requestState"]


@pytest.fixture
def rounds(text_of):
    """The messages of stateless clients and of the tools that ask them.

    `call` is the message of a `tools/call`: with a state it is a retry, with answers by key.
    `accepted` is the answer of a user with a completed form. `form` is a question to the user.
    `asking` is a tool that asks one after the other, and answers with what the forms held. `wanted`
    receives an answer that asks: what it asks by key, and its state. `text_of` is that of a result.
    """
    return SimpleNamespace(
        call=_stateless,
        accepted=_accepted,
        form=_form,
        asking=_asking,
        wanted=_wanted,
        text_of=text_of,
    )
