"""A proxy in this process, between a scripted server and a scripted host."""

import os
from contextlib import asynccontextmanager

import attrs
import msgspec
import pytest
import trio

from mcp_trio import Limits
from mcp_trio._proxy.journal import LineJournal, start_line_journal
from mcp_trio._proxy.stdio import StdioProxy
from mcp_trio._transports.descriptors import Descriptor
from mcp_trio._transports.stdio import ChildProcess, start_child
from mcp_trio.recording import Damage, Record, body_bytes, open_recording, read_recording
from tests.proxy.between import between
from tests.transports.http.conftest import certificate  # noqa: F401  a fixture


@attrs.define(kw_only=True)
class Recorded:
    """The contents of a recording."""

    records: list[Record]

    def kinds(self):
        return [record.kind for record in self.records]

    def lines(self, kind):
        return [body_bytes(record) for record in self.records if record.kind == kind]

    def stream(self, kind):
        """The bytes that passed, from their records alone."""
        return b"".join(
            body_bytes(record) + (b"\n" if (record.envelope or {}).get("lf", True) else b"")
            for record in self.records
            if record.kind == kind
        )

    def bodies(self, kind):
        return [msgspec.json.decode(line) for line in self.lines(kind)]

    def marks(self):
        return {body["name"]: body["value"] for body in self.bodies("mark")}

    @property
    def cause(self):
        (body,) = self.bodies("shut")
        return body["cause"]

    @property
    def counts(self):
        (body,) = self.bodies("end")
        return body["counts"]


@pytest.fixture(scope="session")
def recorded():
    """Read a recording without damage."""

    def read(path):
        items = list(read_recording(open_recording(path)))
        assert not [item for item in items if isinstance(item, Damage)]
        return Recorded(records=items)

    return read


@attrs.define(kw_only=True)
class Host:
    """The test's side of a proxy that runs."""

    stdin: Descriptor
    stdout: Descriptor
    server: ChildProcess
    journal: LineJournal
    proxy: StdioProxy
    kill: object
    ended: trio.Event

    async def read_all(self):
        chunks = []
        while chunk := await self.stdout.read():
            chunks.append(chunk)
        return b"".join(chunks)


def pipe(limits):
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return (Descriptor(fd=fd, chunk_bytes=limits.messages.chunk_bytes) for fd in (read, write))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "session.mcprec.jsonl"


@asynccontextmanager
async def open_proxy(command, path, *, limits=None, parent_pid=None):
    """Leaving the block waits for the proxy's end."""
    limits = limits or Limits()
    journal = start_line_journal(path, command, limits=limits)
    server = await start_child(command, env=dict(os.environ), inherits_stderr=True, limits=limits)
    (host_in, stdin), (stdout, host_out) = pipe(limits), pipe(limits)
    kill, signals = trio.open_memory_channel(10)
    proxy = StdioProxy(
        host_in=host_in, host_out=host_out, server=server, journal=journal, limits=limits
    )
    host = Host(
        stdin=stdin,
        stdout=stdout,
        server=server,
        journal=journal,
        proxy=proxy,
        kill=kill.send_nowait,
        ended=trio.Event(),
    )

    async def run():
        await proxy.run(signals, parent_pid=os.getppid() if parent_pid is None else parent_pid)
        host.ended.set()

    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                yield host
    finally:
        for end in (stdin, stdout, host_in, host_out):
            end.close()


@pytest.fixture(name="open_proxy", scope="session")
def open_proxy_fixture():
    return open_proxy


@pytest.fixture(name="between", scope="session")
def between_fixture():
    return between


@pytest.fixture(scope="session")
def all_in(recorded):
    """Reads all recordings of a folder, in the order in which they began."""

    def number(file):
        return int(file.name.removesuffix(".mcprec.jsonl").rpartition("-")[2])

    return lambda folder: [recorded(file) for file in sorted(folder.iterdir(), key=number)]


@pytest.fixture
def files(tmp_path, all_in):
    """Reads those of the test's folder."""
    return lambda: all_in(tmp_path)
