"""Servers behind the HTTP application, with clients that send scripted exchanges."""

import contextlib
import functools
import itertools
import json

import attrs
import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION
from mcp_trio._server.http_app import HttpApp
from mcp_trio._server.http_serve import app_of
from mcp_trio._session.leader_followers import TaskPool
from tests.transports.http.scripted_exchange import PATIENCE_SECONDS, ScriptedExchange

BOTH = "application/json, text/event-stream"
STATELESS = "2026-07-28"
INFO = {"name": "buoy", "version": "1"}


def hello(protocol_version, capabilities=None, **more):
    params = {
        "protocolVersion": protocol_version,
        "capabilities": capabilities or {},
        "clientInfo": INFO,
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params, **more}


def request(method, params=None, id=1):  # noqa: A002 - as on the wire
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return message if params is None else message | {"params": params}


def notification(method, params=None):
    message = request(method, params)
    del message["id"]
    return message


def call(name, arguments=None, *, id=1, **params):  # noqa: A002 - as on the wire
    return request("tools/call", {"name": name, "arguments": arguments or {}, **params}, id)


@attrs.define(eq=False)
class Site:
    """A served application, and clients of it.

    By `tasks` it is served as natively, by leader/followers. Without them each answer has one task.
    """

    app: HttpApp
    nursery: trio.Nursery
    tasks: TaskPool | None = None

    @property
    def runtime(self):
        return self.app.runtime

    def exchange(
        self, method="POST", message=None, *, path="/mcp", accept=BOTH, client=None, **headers
    ):
        """An exchange that is not answered yet; headers by names with `_` for `-`."""
        fields = {"Accept": accept, **{name.replace("_", "-"): it for name, it in headers.items()}}
        body = b""
        if message is not None:
            fields.setdefault("Content-Type", "application/json")
            body = message if isinstance(message, bytes) else json.dumps(message).encode()
        pairs = [(name, value) for name, value in fields.items() if value is not None]
        return ScriptedExchange.of(method, path, body=body, headers=pairs, client=client)

    async def ask(self, *args, **options):
        """An exchange that was answered wholly."""
        return await self.answered(self.exchange(*args, **options))

    def begin(self, *args, **options):
        """An exchange that is being answered."""
        return self.answering(self.exchange(*args, **options))

    async def answered(self, exchange):
        """The exchange, when the application is done with it."""
        done = trio.Event()
        self.answering(exchange, done.set)
        with trio.fail_after(PATIENCE_SECONDS):
            await done.wait()
        return exchange

    def answering(self, exchange, on_answered=lambda: None):
        """The exchange, with which the application begins now."""

        async def respond():
            await self.app.respond(exchange)
            on_answered()

        if self.tasks is None:
            self.nursery.start_soon(respond)
        else:
            exchange.may_lead = True
            self.tasks.start_leader(respond)
        return exchange

    async def open(
        self, protocol_version="2025-11-25", capabilities=None, *, ready=True, **headers
    ):
        """A legacy client behind the handshake."""
        answer = await self.ask("POST", hello(protocol_version, capabilities), **headers)
        assert answer.status == 200, answer.answer_body
        message = (await answer.rest())[0] if answer.is_stream else answer.json
        client = Legacy(self, answer.headers["mcp-session-id"], protocol_version, message, headers)
        if ready:
            message = await client.ask(notification("notifications/initialized"))
            assert (message.status, message.answer_body) == (202, b"")
        return client

    def stateless(self, message, *, meta=None, name=None, accept=BOTH, **headers):
        """An exchange as a stateless client makes it, which is not answered yet."""
        params = dict(message.get("params", {}))
        params["_meta"] = {
            PROTOCOL_VERSION: STATELESS,
            CLIENT_CAPABILITIES: {},
            CLIENT_INFO: INFO,
            **params.get("_meta", {}),
            **(meta or {}),
        }
        named = name or params.get("name") or params.get("uri")
        fields = {
            "MCP_Protocol_Version": STATELESS,
            "Mcp_Method": message["method"],
            "Mcp_Name": named if isinstance(named, str) else None,
            **headers,
        }
        return self.exchange("POST", message | {"params": params}, accept=accept, **fields)

    async def ask_stateless(self, message, **options):
        return await self.answered(self.stateless(message, **options))

    def begin_stateless(self, message, **options):
        return self.answering(self.stateless(message, **options))


@attrs.define(eq=False)
class Legacy:
    """A client of one session."""

    site: Site
    id: str
    protocol_version: str
    hello: dict
    headers: dict
    _ids: itertools.count = attrs.field(factory=functools.partial(itertools.count, 1))

    def _fields(self, headers):
        fields = {"Mcp_Session_Id": self.id, "MCP_Protocol_Version": self.protocol_version}
        return fields | self.headers | headers

    async def ask(self, message=None, *, method="POST", **headers):
        return await self.site.ask(method, message, **self._fields(headers))

    def begin(self, message=None, *, method="POST", **headers):
        return self.site.begin(method, message, **self._fields(headers))

    def listen(self, last_event_id=None, **headers):
        return self.begin(
            method="GET", accept="text/event-stream", Last_Event_ID=last_event_id, **headers
        )

    async def delete(self):
        return await self.ask(method="DELETE")


def harbour(ended=None, **options):
    """Tools that answer at once, late, with notes, and with questions."""
    server = Server("harbour", **options)
    ended = [] if ended is None else ended
    numbers = itertools.count(1)

    @server.tool
    async def tide() -> str:
        return "high"

    @server.tool
    async def wait(*, seconds: float = 1.0) -> str:
        try:
            await trio.sleep(seconds)
        finally:
            ended.append("cancelled" if trio.current_effective_deadline() < 0 else "done")
        return "waited"

    @server.tool
    async def log(*, ctx: Context, seconds: float = 5.0) -> str:
        await ctx.warning("one")
        await trio.sleep(seconds)
        await ctx.warning("two")
        return "logged"

    @server.tool
    async def ask(*, ctx: Context) -> str:
        answer = await ctx.sample("which way?", max_tokens=5)
        return answer.content.text

    @server.tool
    async def flood(*, ctx: Context, count: int, size: int = 10) -> str:
        for number in range(count):
            await ctx.warning(f"{number}".ljust(size))
        return "flooded"

    @server.tool
    async def ebb() -> None:
        server.tool(nothing, name=f"ebb{next(numbers)}")

    return server


async def nothing():
    pass


def text(message):
    return message["result"]["content"][0]["text"]


def notes(messages):
    return [each["params"]["data"] for each in messages if "method" in each]


@pytest.fixture
def ended():
    """The outcomes of the handlers of `wait`."""
    return []


@pytest.fixture
def leads():
    """True if leader/followers answer; modules that test both ways have a fixture of their own."""
    return False


@pytest.fixture
def open_site(nursery, leads):
    """Serve a server to scripted clients until the test ends."""

    async def open_site(server, **options):
        app = app_of(server._sessions, options, [("127.0.0.1", 80)])
        await nursery.start(app.runtime.run)
        return Site(app, nursery, TaskPool(nursery) if leads else None)

    return open_site


def has_received_nothing(exchange):
    return not [event for event in exchange._events if event.data]


@pytest.fixture
def opened(open_site, ended):
    async def opened(protocol_version="2025-11-25", capabilities=None, *, limits=None, **options):
        server = harbour(ended, **({} if limits is None else {"limits": Limits(**limits)}))
        site = await open_site(server, **options)
        return await site.open(protocol_version, capabilities)

    return opened


@contextlib.asynccontextmanager
async def site_of(server, *, leads=False, **options):
    """The same, in a block."""
    async with trio.open_nursery() as nursery:
        app = app_of(server._sessions, options, [("127.0.0.1", 80)])
        await nursery.start(app.runtime.run)
        yield Site(app, nursery, TaskPool(nursery) if leads else None)
        nursery.cancel_scope.cancel()
