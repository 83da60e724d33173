"""The tour of the mounts, and what the Inspector sees: what is wrong is told, and nothing else."""

import json
import sys

import attrs
import inspector
import mounts
import pytest
from facts import FACTS

pytestmark = pytest.mark.slow

OLDEST, NEWEST = FACTS.protocol_versions[0], FACTS.protocol_versions[-1]
LEGACY = "2025-11-25"

SERVER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
print("serving http://127.0.0.1:1/mcp", flush=True)
time.sleep(60)
"""


def program(code):
    return [sys.executable, "-c", code]


def telling(**steps):
    lines = [f"{step}: {outcome}" for step, outcome in steps.items()]
    return program(f"print({chr(10).join(lines)!r})")


def visit(name, protocol_version, **told):
    return mounts.Visit(mounts.Tourist(name, protocol_version, []), told=told)


ALL = dict.fromkeys(mounts.STEPS[:-1], "ok")


@pytest.fixture
def stay(monkeypatch, tmp_path):
    """`stay(steps, ...)` of a client at a server that ends with a status."""

    def stay(steps, *, status=0, name="mcp_trio", protocol_version=LEGACY, server=SERVER):
        tourist = mounts.Tourist(name, protocol_version, telling(**steps))
        monkeypatch.setattr(mounts, "tourists", lambda: [tourist])
        command = program(server.replace("{status}", str(status)))
        return mounts.stay(mounts.Mount(name="somewhere", command=command), tmp_path)

    return stay


@pytest.mark.real_time
def test_what_the_clients_tell_is_taken_in_and_the_server_is_stopped(stay, capsys):
    stayed = stay({**ALL, "begun": "ok", "stop": "OutcomeUnknown"})
    assert mounts.report([stayed], 1.0)
    out = capsys.readouterr().out
    assert "1 mounts, 1 clients, 0 complaints, 1 s" in out
    assert out.count(" ok") == len(ALL)
    assert " unknown" in out


@pytest.mark.real_time
def test_a_server_that_ends_as_it_should_not_is_told(stay, capsys):
    assert not mounts.report([stay({**ALL, "stop": "ConnectionLost"}, status=3)], 1.0)
    assert "somewhere: it ended with 3" in capsys.readouterr().out


@pytest.mark.real_time
def test_a_server_that_does_not_begin_is_told_and_its_clients_are_not(stay, capsys):
    assert not mounts.report([stay({}, server="raise ValueError('no port')")], 1.0)
    out = capsys.readouterr().out
    assert "ValueError: no port" in out
    assert ", 1 complaints," in out


def test_a_step_that_failed_or_was_not_taken_is_told():
    tourist = visit(
        "Python 2", LEGACY, **{**ALL, "ask": "Unexpected: no answer", "stop": "Rejected"}
    )
    del tourist.told["resume"]
    stayed = mounts.Stay(mount="somewhere", visits=[tourist], seconds=1.0, fault="")
    assert list(mounts.complaints([stayed])) == [
        "Python 2 2025-11-25 at somewhere: ask: Unexpected: no answer",
        "Python 2 2025-11-25 at somewhere: resume: it was not taken",
    ]


def test_where_no_client_tells_anything_each_step_is_missed():
    silent = visit("mcp_trio", LEGACY)
    stayed = mounts.Stay(mount="somewhere", visits=[silent], seconds=1.0, fault="")
    assert len(list(mounts.complaints([stayed]))) == len(mounts.STEPS)
    not_begun = attrs.evolve(stayed, fault="it does not serve")
    assert list(mounts.complaints([not_begun])) == ["somewhere: it does not serve"]


def test_a_mount_that_there_is_not_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(mounts, "mounts", lambda: [mounts.Mount(name="native", command=[])])
    with pytest.raises(SystemExit, match="no mounts: nowhere"):
        mounts.stay_everywhere(["native", "nowhere"], tmp_path)


@pytest.mark.parametrize(
    ("protocol_version", "excuse"),
    [(OLDEST, mounts.NO_IDS), (LEGACY, None), (NEWEST, mounts.NO_STREAMS)],
)
def test_only_where_there_is_nothing_to_resume_is_that_left_out(protocol_version, excuse):
    tourist = mounts.Tourist("mcp_trio", protocol_version, [])
    assert {mounts.excuse_of(tourist, step) for step in mounts.STEPS if step != "resume"} == {None}
    assert mounts.excuse_of(tourist, "resume") == excuse
    assert bool(mounts.fault_of(mounts.Visit(tourist), "resume")) is (excuse is None)


@pytest.mark.parametrize(
    ("name", "end", "is_right"),
    [
        ("mcp_trio", "OutcomeUnknown", True),
        ("mcp_trio", "ConnectionLost", True),
        ("mcp_trio", "answered", False),
        ("mcp_trio", "Cancelled", False),
        ("TypeScript 2", "Error", True),
    ],
)
def test_how_the_call_in_flight_ends_is_our_affair_and_not_that_of_peers(name, end, is_right):
    fault = mounts.fault_of(visit(name, LEGACY, stop=end), "stop")
    assert bool(fault) is not is_right


class Programs:
    """An environment whose programs are all the same one."""

    def __init__(self, code):
        self.code = code

    def start(self, _program):
        return program(self.code)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("print({!r})", ""),
        ("print('nothing')", "it printed nothing\n"),
        ("print('{{\"result\": {{}}}}')", 'it printed {"result": {}}\n'),
        ("raise SystemExit('no server')", "it exited with 1: \nno server"),
    ],
)
def test_what_the_inspector_sees_is_compared(code, fault, monkeypatch, tmp_path):
    [call] = [each for each in inspector.ERRANDS if each.name == "tools/call"]
    result = {"content": [{"type": "text", "text": FACTS.simple_text}]}
    code = code.format(json.dumps({"result": result}))
    monkeypatch.setattr(inspector, "INSPECTOR", Programs(code))
    sight = inspector.see(call, ("http", "legacy"), ["http://127.0.0.1:1/mcp"], tmp_path)
    assert sight.fault == fault


def test_an_inspector_that_does_not_end_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(inspector, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(inspector, "INSPECTOR", Programs("import time; time.sleep(60)"))
    sight = inspector.see(inspector.ERRANDS[0], ("sse", "legacy"), [], tmp_path)
    assert sight.fault == "no end after 0.05 s"
