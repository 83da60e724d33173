"""Mounts and the MCP Inspector: failures are reported, and nothing else."""

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


def client_tour(name, protocol_version, **outcomes):
    return mounts.ClientTour(mounts.TourClient(name, protocol_version, []), outcomes=outcomes)


ALL = dict.fromkeys(mounts.STEPS[:-1], "ok")


@pytest.fixture
def tour_mount(monkeypatch, tmp_path):
    """`stay(steps, ...)` of a client at a server that ends with a status."""

    def tour_mount(steps, *, status=0, name="mcp_trio", protocol_version=LEGACY, server=SERVER):
        client = mounts.TourClient(name, protocol_version, telling(**steps))
        monkeypatch.setattr(mounts, "tour_clients", lambda: [client])
        command = program(server.replace("{status}", str(status)))
        return mounts.tour_mount(mounts.Mount(name="somewhere", command=command), tmp_path)

    return tour_mount


@pytest.mark.real_time
def test_clients_report_their_steps_and_the_server_is_stopped(tour_mount, capsys):
    mount_tour = tour_mount({**ALL, "begun": "ok", "stop": "OutcomeUnknown"})
    assert mounts.report([mount_tour], 1.0)
    out = capsys.readouterr().out
    assert "1 mounts, 1 clients, 0 problems, 1 s" in out
    assert out.count(" ok") == len(ALL)
    assert " unknown" in out


@pytest.mark.real_time
def test_an_unexpected_exit_status_is_reported(tour_mount, capsys):
    assert not mounts.report([tour_mount({**ALL, "stop": "ConnectionLost"}, status=3)], 1.0)
    assert "somewhere: the server exited with 3" in capsys.readouterr().out


@pytest.mark.real_time
def test_a_server_that_does_not_start_is_reported_without_its_clients(tour_mount, capsys):
    assert not mounts.report([tour_mount({}, server="raise ValueError('no port')")], 1.0)
    out = capsys.readouterr().out
    assert "ValueError: no port" in out
    assert ", 1 problems," in out


def test_a_step_that_failed_or_was_not_run_is_reported():
    client = client_tour(
        "Python 2", LEGACY, **{**ALL, "ask": "Unexpected: no answer", "stop": "Rejected"}
    )
    del client.outcomes["resume"]
    mount_tour = mounts.MountTour(mount="somewhere", client_tours=[client], seconds=1.0, failure="")
    assert list(mounts.problems([mount_tour])) == [
        "Python 2 2025-11-25 at somewhere: ask: Unexpected: no answer",
        "Python 2 2025-11-25 at somewhere: resume: the step was not run",
    ]


def test_a_silent_client_misses_each_step():
    silent = client_tour("mcp_trio", LEGACY)
    mount_tour = mounts.MountTour(mount="somewhere", client_tours=[silent], seconds=1.0, failure="")
    assert len(list(mounts.problems([mount_tour]))) == len(mounts.STEPS)
    not_begun = attrs.evolve(mount_tour, failure="it does not serve")
    assert list(mounts.problems([not_begun])) == ["somewhere: it does not serve"]


def test_an_unknown_mount_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(mounts, "mounts", lambda: [mounts.Mount(name="native", command=[])])
    with pytest.raises(SystemExit, match="unknown mounts: nowhere"):
        mounts.tour_mounts(["native", "nowhere"], tmp_path)


@pytest.mark.parametrize(
    ("protocol_version", "excuse"),
    [(OLDEST, mounts.NO_IDS), (LEGACY, None), (NEWEST, mounts.NO_STREAMS)],
)
def test_only_where_there_is_nothing_to_resume_is_that_left_out(protocol_version, excuse):
    client = mounts.TourClient("mcp_trio", protocol_version, [])
    assert {mounts.excuse_of(client, step) for step in mounts.STEPS if step != "resume"} == {None}
    assert mounts.excuse_of(client, "resume") == excuse
    assert bool(mounts.failure_of(mounts.ClientTour(client), "resume")) is (excuse is None)


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
def test_only_our_clients_must_report_the_lost_call(name, end, is_right):
    failure = mounts.failure_of(client_tour(name, LEGACY, stop=end), "stop")
    assert bool(failure) is not is_right


class Programs:
    """An environment whose programs are all the same one."""

    def __init__(self, code):
        self.code = code

    def start(self, _program):
        return program(self.code)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("print({!r})", ""),
        ("print('nothing')", "the Inspector printed nothing\n"),
        ("print('{{\"result\": {{}}}}')", 'the Inspector printed {"result": {}}\n'),
        ("raise SystemExit('no server')", "the Inspector exited with 1: \nno server"),
    ],
)
def test_the_inspectors_output_is_compared(code, failure, monkeypatch, tmp_path):
    [call] = [each for each in inspector.REQUESTS if each.name == "tools/call"]
    result = {"content": [{"type": "text", "text": FACTS.simple_text}]}
    code = code.format(json.dumps({"result": result}))
    monkeypatch.setattr(inspector, "INSPECTOR", Programs(code))
    result = inspector.run_request(call, ("http", "legacy"), ["http://127.0.0.1:1/mcp"], tmp_path)
    assert result.failure == failure


def test_an_inspector_that_does_not_end_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(inspector, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(inspector, "INSPECTOR", Programs("import time; time.sleep(60)"))
    result = inspector.run_request(inspector.REQUESTS[0], ("sse", "legacy"), [], tmp_path)
    assert result.failure == "no end after 0.05 s"
