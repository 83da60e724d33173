"""The "everything" server, fresh for each test, with every message of a session held to the schema."""

import functools
import importlib.util
import json
import sys
from pathlib import Path

import attrs
import jsonschema
import pytest

from mcp_trio import Client

OLDEST = "2024-11-05"
SERVER = Path(__file__).parents[2] / "tools" / "conformance" / "server.py"


@attrs.define(eq=False)
class Tap:
    """A channel of the server that keeps a copy of all messages, each with its sender."""

    inner: object
    messages: list
    transport: str = "memory"

    async def send(self, frames):
        self.messages.extend(("server", json.loads(frame)) for frame in frames)
        await self.inner.send(frames)

    async def receive(self):
        frames = await self.inner.receive()
        self.messages.extend(("client", json.loads(frame)) for frame in frames)
        return frames

    async def aclose(self):
        await self.inner.aclose()


@attrs.define(eq=False)
class Tapped:
    """A server whose messages are kept."""

    server: object
    messages: list = attrs.field(factory=list)
    record: Path | None = None

    async def serve(self, channel):
        await self.server.serve(Tap(channel, self.messages), record=self.record)


class Published:
    """The published schema of a protocol version, which messages have to match."""

    def __init__(self, path):
        document = json.loads(path.read_text("utf-8"))
        self.document = document
        self.keyword = "$defs" if "$defs" in document else "definitions"
        self.definitions = document[self.keyword]
        self.names = {
            definition["properties"]["method"].get("const"): name
            for name, definition in self.definitions.items()
            if "method" in definition.get("properties", {})
        }

    def check(self, messages):
        """Fail if a message of a session is not as published."""
        methods = {}
        for sender, message in messages:
            self.validate("JSONRPCMessage", message)
            if "method" in message:
                methods[sender, message.get("id")] = message["method"]
                self.validate(self.names[message["method"]], message)
            elif "result" in message:
                asker = {"client": "server", "server": "client"}[sender]
                asks_for_more = message["result"].get("resultType") == "input_required"
                name = self.result_name(methods[asker, message["id"]])
                self.validate("InputRequiredResult" if asks_for_more else name, message["result"])

    def result_name(self, method):
        name = self.names[method].replace("Request", "Result")
        return name if name in self.definitions else "EmptyResult"

    def validate(self, name, value):
        validator = jsonschema.validators.validator_for(self.document)
        schema = {**self.definitions[name], self.keyword: self.definitions}
        validator(schema).validate(value)


@pytest.fixture(scope="session")
def published():
    """The published schema of a protocol version."""
    folder = Path(__file__).parents[1] / "published_schemas"

    @functools.cache
    def published(protocol_version):
        return Published(folder / f"{protocol_version}.json")

    return published


@pytest.fixture
def load(monkeypatch):
    """Import the server anew, with nothing that it remembers."""
    monkeypatch.syspath_prepend(SERVER.parent)

    def load():
        for beside in ("fixed_content", "input_request_tools"):
            monkeypatch.delitem(sys.modules, beside, raising=False)
        spec = importlib.util.spec_from_file_location("conformance_server", SERVER)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.server

    return load


@pytest.fixture
def serve(published, load):
    """The server in memory; at the end all messages are checked by the published schema."""
    tapped, wanted = Tapped(load()), []

    def serve(protocol_version, *, record=None):
        wanted.append(protocol_version)
        tapped.record = record
        return tapped

    yield serve
    assert tapped.messages
    (protocol_version,) = wanted
    published(protocol_version).check(tapped.messages)


@pytest.fixture
def connect(serve):
    """A client of the server with the oldest protocol version."""

    def connect(*, record=None, **options):
        return Client(serve(OLDEST, record=record), protocol_versions=[OLDEST], **options)

    return connect
