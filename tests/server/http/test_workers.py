"""Several processes that serve one address."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import httpx2
import pytest

from mcp_trio import Server
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio.http import MemoryStore
from mcp_trio.recording import SharedRecording
from tests.server.http.conftest import call, hello, request, text
from tests.server.http.test_http_serve import ACCEPT, HOSTS, SECONDS, stateless

pytestmark = pytest.mark.slow

PROGRAM = """
import logging
import os
import trio
from mcp_trio import Context, Server

server = Server("harbour")

@server.tool
async def where() -> int:
    return os.getpid()

@server.tool(resumable=True)
async def sealed(*, ctx: Context) -> str:
    answer = await ctx.elicit("sure?", bool)
    return f"{answer.data} {os.getpid()}"

@server.tool
async def suspended(*, ctx: Context) -> None:
    await ctx.elicit("sure?", bool)

@server.tool
async def stay() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(60)

if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    server.run("http", port=0, workers=2)
"""
FAULTY = """
from contextlib import asynccontextmanager
from mcp_trio import Server

@asynccontextmanager
async def lifespan(server):
    raise KeyError("sunk")
    yield

server = Server("harbour", lifespan=lifespan)
"""
FORMS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
STATELESS_ONLY = ["2026-07-28"]


@attrs.define
class Served:
    """Two workers, and the process that holds them."""

    parent: subprocess.Popen
    url: str

    def ask(self, message, **meta):
        """What one of them answers: each request comes on a connection of its own."""
        message["params"] = {**message.get("params", {}), "_meta": meta}
        return httpx2.post(self.url, **stateless(message), timeout=SECONDS)

    def where(self):
        """Who has answered."""
        return int(text(self.ask(call("where")).json()))

    def pids(self, but=()):
        """Both of them."""
        seen, patience = set(), time.monotonic() + SECONDS
        while len(seen) < 2:
            assert time.monotonic() < patience, f"only {seen} answer"
            with contextlib.suppress(httpx2.TransportError):  # one of them was just killed
                seen.add(self.where())
            seen -= {*but}
        return seen

    def ended(self, *numbers):
        """The status with which the parent ends after signals, and what it has said."""
        for number in numbers:
            self.parent.send_signal(number)
            time.sleep(0.5 if len(numbers) > 1 else 0)
        said = self.parent.communicate(timeout=SECONDS)[1]
        return self.parent.returncode, said


@pytest.fixture
def served(tmp_path):
    """Serve a program until the test ends."""
    with contextlib.ExitStack() as stack:

        def served(*options, program=PROGRAM, command=("-m", "mcp_trio", "run")):
            (tmp_path / "there.py").write_text(program)
            by_us = ("--transport", "http", "--port", "0", "--workers", "2")
            options = [*by_us, *options] if command else []
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            parent = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *command, "there.py", *options],
                    cwd=tmp_path,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                    start_new_session=True,
                )
            )
            stack.callback(kill_all, parent)
            line = parent.stderr.readline()
            words = line.split()
            assert words[:1] == ["serving"], line + parent.stderr.read()
            return Served(parent, words[1])

        yield served


def kill_all(parent):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(parent.pid, signal.SIGKILL)


def are_gone(pids):
    patience = time.monotonic() + SECONDS
    while time.monotonic() < patience:
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.real_time
@pytest.mark.parametrize("host", HOSTS)
def test_workers_answer_stateless_requests_and_end_with_their_parent(served, host):
    there = served("--server", host)
    pids = there.pids()
    assert there.parent.pid not in pids
    assert httpx2.get(there.url.replace("/mcp", "/health")).status_code == 200
    said = there.ask(request("server/discover")).json()
    assert said["result"]["supportedVersions"] == STATELESS_ONLY
    rejected = httpx2.post(there.url, json=hello("2025-11-25"), headers=ACCEPT)
    assert (rejected.status_code, rejected.json()["error"]["data"]) == (
        400,
        {"supported": STATELESS_ONLY},
    )
    assert "workers" in rejected.json()["error"]["message"]
    status, words = there.ended(signal.SIGTERM)
    assert (status, words) == (128 + signal.SIGTERM, "")
    assert are_gone(pids)


@pytest.mark.real_time
@pytest.mark.requirement("SUB-14")
@pytest.mark.parametrize("host", HOSTS)
def test_a_signal_to_the_process_group_ends_streams_as_their_protocol_requires(served, host):
    there = served("--server", host)
    wish = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "a")
    asked = httpx2.stream("POST", there.url, **stateless(wish), timeout=SECONDS)
    with asked as subscribed:
        lines = subscribed.iter_lines()
        while "acknowledged" not in next(lines):
            pass
        os.killpg(there.parent.pid, signal.SIGINT)  # to all of them, as a terminal does
        [last] = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert last["result"]["_meta"][SUBSCRIPTION_ID] == "a"
    assert there.ended() == (128 + signal.SIGINT, "")


@pytest.mark.real_time
def test_a_worker_that_dies_is_replaced(served):
    there = served()
    killed, other = there.pids()
    os.kill(killed, signal.SIGKILL)
    assert other in there.pids(but=[killed])
    status, words = there.ended(signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert f"worker {killed} ended with status -9; a new worker starts" in words


@pytest.mark.real_time
def test_workers_end_when_their_parent_dies(served):
    there = served()
    pids = there.pids()
    there.parent.kill()
    assert are_gone(pids)


@pytest.mark.real_time
def test_a_second_signal_kills_workers_that_do_not_stop(served):
    there = served(command=())
    pids = there.pids()
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(there.url, **stateless(call("stay")), timeout=1)
    status, words = there.ended(signal.SIGTERM, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert re.search(r"worker \d+ did not stop in time and is killed", words)
    assert are_gone(pids)


@pytest.mark.real_time
def test_a_state_sealed_by_one_worker_is_opened_by_another(served):
    there = served()
    seen, patience = set(), time.monotonic() + SECONDS
    while len(seen) < 2:
        assert time.monotonic() < patience
        state = there.ask(call("sealed"), **FORMS).json()["result"]["requestState"]
        answers = {"q1": {"action": "accept", "content": {"value": True}}}
        retry = call("sealed", requestState=state, inputResponses=answers)
        answer, pid = text(there.ask(retry, **FORMS).json()).split()
        assert answer == "True"
        seen.add(pid)
    rejected = there.ask(call("suspended"), **FORMS).json()["error"]["message"]
    assert "limits.requests.suspended_max" in rejected
    assert "resumable" in rejected


@pytest.mark.real_time
def test_each_worker_records_to_files_of_its_own(served, tmp_path):
    (tmp_path / "files").mkdir()
    there = served("--record", "files")
    pids = there.pids()
    there.ended(signal.SIGTERM)
    names = [file.name for file in (tmp_path / "files").iterdir()]
    assert sorted(int(name.split("-")[-2]) for name in names) == sorted(pids)


@pytest.mark.real_time
def test_workers_that_fail_at_their_start_are_not_restarted(tmp_path):
    (tmp_path / "there.py").write_text(FAULTY)
    options = ["--transport", "http", "--port", "0", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "mcp_trio", "run", "there.py", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "KeyError: 'sunk'" in done.stderr
    assert "never served" in done.stderr
    assert "serving http" not in done.stderr
    assert done.stderr.count("a new worker starts") == 0


# What is refused before anybody is forked.


def test_workers_need_a_stateless_protocol_version():
    with pytest.raises(ValueError, match="stateless"):
        Server("harbour", protocol_versions=["2025-11-25"]).run("http", port=0, workers=2)


def test_in_memory_state_is_rejected_with_several_workers(tmp_path):
    with pytest.raises(ValueError, match="states"):
        Server("harbour", states=MemoryStore()).run("http", port=0, workers=2)
    with (
        SharedRecording(tmp_path / "one.mcprec.jsonl") as shared,
        pytest.raises(ValueError, match="SharedRecording"),
    ):
        Server("harbour").run("http", port=0, workers=2, record=shared)
    with pytest.raises(ValueError, match="record to a folder"):
        Server("harbour").run("http", port=0, workers=2, record=tmp_path / "one.jsonl")


def test_zero_workers_are_rejected():
    with pytest.raises(ValueError, match="workers"):
        Server("harbour").run("http", port=0, workers=0)
