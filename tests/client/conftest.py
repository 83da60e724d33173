"""Servers to connect to: in memory with tools of the test, scripted, and as subprocesses."""

import contextlib

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, Server
from mcp_trio import types as t
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio._session.session import Session
from mcp_trio.limits import ShutdownLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.processes import python

OLD = ("2024-11-05",)
"""The protocol versions of tests with the oldest one only."""

QUICK = Limits(
    shutdown=ShutdownLimits(close_seconds=0.2, terminate_seconds=0.2, exit_status_seconds=2)
)

EVERYTHING = t.ServerCapabilities(
    logging={},
    tools=t.ToolsCapability(list_changed=True),
    prompts=t.PromptsCapability(list_changed=True),
    resources=t.ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)


def text(content):
    return t.CallToolResult(content=[t.TextContent(text=content)])


@attrs.define(eq=False)
class Bench:
    """A server object; `tools` are async functions that get the `Handling`.

    `answers` to other methods are results, or functions that get the params.
    """

    tools: dict = attrs.field(factory=dict)
    answers: dict = attrs.field(factory=dict)
    capabilities: t.ServerCapabilities = EVERYTHING
    protocol_versions: tuple = ALL_PROTOCOL_VERSIONS
    notifications: list = attrs.field(factory=list)
    sessions: list = attrs.field(factory=list)
    instructions: str = "be kind"

    def tool(self, function):
        self.tools[function.__name__] = function
        return function

    async def serve(self, channel):
        connection = Connection(
            our_role=Role.SERVER,
            our_info=t.Implementation(name="bench", version="7"),
            our_capabilities=self.capabilities,
            instructions=self.instructions,
            protocol_versions=self.protocol_versions,
        )
        session = Session(channel, connection, self)
        self.sessions.append(session)
        await session.run()

    async def handle(self, handling):
        request = handling.request
        if request.method.name == "tools/call":
            return await self.tools[request.params.name](handling)
        answer = self.answers[request.method.name]
        return answer(request.params) if callable(answer) else answer

    def on_session_restart(self):
        pass

    sends_error_texts = False

    def failure_result(self, _request, _text):
        return None

    def handles_notification(self, method):  # noqa: ARG002  the interface
        return True

    async def notified(self, method, _params):
        self.notifications.append(method.name)

    def on_session_open(self, _session):
        pass

    def on_session_close(self):
        pass


@pytest.fixture
def bench():
    bench = Bench()

    @bench.tool
    async def hello(handling):
        return text("hello")

    @bench.tool
    async def forever(handling):
        await trio.sleep_forever()

    return bench


@pytest.fixture
def server():
    """A server that offers everything, with a template."""
    made = Server("harbour", offers={"tools", "prompts", "resources"})

    @made.resource("harbour://{port}")
    async def tide(port: str) -> str:
        return port

    return made


async def nothing():
    pass


ALL = {
    "logging": {},
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
}


@pytest.fixture
def scripted():
    """A channel for a client, and the server at its other end, played by hand."""
    ours, theirs = memory_pair()
    return ours, WirePeer(theirs)


async def connected(scripted, nursery, *, capabilities=ALL, **options):
    """A client behind the handshake, and its server."""
    channel, server = scripted
    client = Client(channel, **options)
    nursery.start_soon(client.__aenter__)
    await server.answer_initialize(capabilities=capabilities)
    await trio.testing.wait_all_tasks_blocked()
    return client, server


@pytest.fixture
def connect(scripted, nursery):
    """Connect a client with some protocol version; gives it, its server, and what it announced."""

    async def start(*, protocol_version="2025-11-25", **options):
        channel, server = scripted
        client = Client(channel, protocol_versions=(protocol_version,), **options)
        nursery.start_soon(client.__aenter__)
        hello = await server.answer_initialize(protocol_version=protocol_version)
        await trio.testing.wait_all_tasks_blocked()
        return client, server, hello["params"]["capabilities"]

    return start


@pytest.fixture
def reply(connect):
    """Ask a new client one thing; gives its result, or its error."""

    async def ask(method, params, **options):
        client, server, _ = await connect(**options)
        await server.send_request(method, params, id="q")
        message = await server.receive()
        await client.aclose()
        return message.get("result") or message["error"]

    return ask


@contextlib.asynccontextmanager
async def call_that_is_lost(call_tool, name, *, match):
    """A call is in flight in the block, and ends as a lost connection before the block is left."""

    async def call():
        with pytest.raises(ConnectionLost, match=match):
            await call_tool(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        yield


PROGRAM = """
import json, os, subprocess, sys, time

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def answer(message, text):
    send(id=message["id"], result={"content": [{"type": "text", "text": text}]})

def die(message):
    print("the tide\\nhas turned", file=sys.stderr, flush=True)
    os._exit(3)

def spawn(message):
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    answer(message, str(child.pid))

def junk(message):
    print("one\\ntwo\\nthree", flush=True)
    answer(message, "after the junk")

def variables(message):
    answer(message, json.dumps(dict(os.environ)))

TOOLS = {
    "die": die,
    "spawn": spawn,
    "junk": junk,
    "variables": variables,
    "hang": lambda message: None,
    "pid": lambda message: answer(message, str(os.getpid())),
}

for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        capabilities = {"tools": {}}
        info = {"name": "program", "version": "1"}
        version = message["params"]["protocolVersion"]
        send(
            id=message["id"],
            result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": info},
        )
    elif message["method"] == "tools/call":
        TOOLS[message["params"]["name"]](message)
    elif "id" in message:
        send(id=message["id"], error={"code": -32601, "message": "method not found"})
"""


@pytest.fixture
def program():
    """The command of a server without any of our code; see PROGRAM."""
    return python(PROGRAM)


def text_of_result(result):
    """The text of a tool's result."""
    return result.content[0].text


def running_tasks():
    """Return the number of tasks in this Trio run."""

    def count(task):
        return 1 + sum(
            count(child) for nursery in task.child_nurseries for child in nursery.child_tasks
        )

    return count(trio.lowlevel.current_root_task())
