"""Metrics in Prometheus' format, read by its own parser, and the health of a served application."""

from functools import partial
from types import SimpleNamespace

import httpx2
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from mcp_trio import Client, Context, RequestError, Server
from mcp_trio._server.http_sessions import MemoryChanges
from mcp_trio._session.observing import OpenSessions
from mcp_trio.http import HttpStores, MemoryInstances
from mcp_trio.limits import Limits, RequestLimits
from mcp_trio.observers import Activity, Metrics, Outcome
from mcp_trio.recording import RecordOptions, RecordPolicy
from tests.server.http.conftest import harbour as plain_harbour
from tests.server.http.conftest import hello, site_of


def harbour(**options):
    server = Server("harbour", **options)

    @server.tool
    async def moor(ship: str, *, ctx: Context) -> str:
        await ctx.sleep(1)
        return ship

    return server


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def count(found, method, name="", error=""):
    labels = (("error", error), ("method", method), ("name", name))
    return found.get(("mcp_request_seconds_count", *labels), 0)


async def test_requests_are_measured_and_gauges_are_of_now(autojump_clock):
    metrics = Metrics()

    def now():
        return samples(metrics.text().decode())

    async with Client(harbour(observers=[metrics])) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "moor", {"ship": "cog"})
            await trio.sleep(0.5)
            assert now()["mcp_handlers_running",] == 1
        for name in ("sink", "burn"):
            with pytest.raises(RequestError):
                await client.call_tool(name)
        found = now()
        assert found["mcp_handlers_running",] == 0
        assert found["mcp_sessions",] == 1
        assert count(found, "tools/call", "moor") == 1
        # Clients cannot make series: unknown tools have none of their own.
        assert count(found, "tools/call", "", "protocol") == 2
        assert "sink" not in metrics.text().decode()
        effect = ("mcp_effect_seconds_count", ("effect", "ctx.sleep"), ("error", ""))
        assert found[effect] == 1
    assert now()["mcp_sessions",] == 0


async def test_a_cancelled_request_for_an_unknown_tool_makes_no_series(autojump_clock):
    metrics = Metrics()
    limits = Limits(requests=RequestLimits(in_flight_max=1))
    async with Client(harbour(observers=[metrics], limits=limits)) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "moor", {"ship": "cog"})
            await trio.sleep(0.1)
            with trio.move_on_after(0.1):
                await client.call_tool("sink")  # it waits for a place
        with trio.move_on_after(0.5):
            await client.call_tool("moor", {"ship": "hulk"})
        await client.ping()
    found = samples(metrics.text().decode())
    assert count(found, "tools/call", "", "cancelled") == 1
    assert count(found, "tools/call", "moor", "cancelled") == 1
    assert "sink" not in metrics.text().decode()


def test_lost_records_of_a_recording_that_several_sessions_share_are_counted_once():
    class Recorder:
        lost_records = 0
        waiting_bytes = 0
        is_paused = False

    class Channelless:
        handler_counts = (0, 0, 0)

        def __init__(self, recorder):
            self.sequencer = SimpleNamespace(recorder=recorder)
            self.send_queue = SimpleNamespace(queued_bytes=0)

    recorder, sessions = Recorder(), OpenSessions()
    for lost in (5, 7):
        session = Channelless(recorder)
        end = sessions.begin(Activity(kind="session", name="stdio", session=session))
        recorder.lost_records = lost
        assert sessions.load().lost_records == lost
        end(Outcome())
        assert sessions.load().lost_records == lost


@pytest.mark.parametrize("recording", [RecordOptions, RecordPolicy])
async def test_the_end_of_a_recorded_session_is_counted(tmp_path, caplog, recording):
    metrics = Metrics()
    (tmp_path / "days").mkdir()
    async with Client(harbour(observers=[metrics], record=recording(tmp_path / "days"))) as client:
        await client.ping()
        assert samples(metrics.text().decode())["mcp_sessions",] == 1
    assert samples(metrics.text().decode())["mcp_sessions",] == 0
    assert not caplog.records


async def test_the_number_of_names_is_bounded(autojump_clock, monkeypatch):
    monkeypatch.setattr("mcp_trio._observers.metrics._NAMES_MAX", 3)
    metrics, server = Metrics(), Server("many", observers=[])
    server.observers = [metrics]
    for name in "abcde":

        async def tool() -> str:
            return "done"

        server.tool(name=name)(tool)
    async with Client(server) as client:
        for name in "abcde":
            await client.call_tool(name)
    found = samples(metrics.text().decode())
    assert count(found, "tools/call", "a") == 1
    assert count(found, "tools/call", "other") == 2


async def test_the_port_of_the_metrics_serves_nothing_else(caplog):
    caplog.set_level("INFO")
    server = harbour()
    async with trio.open_nursery() as nursery, httpx2.AsyncClient() as http:
        url = await nursery.start(partial(server.serve_http, port=0, metrics_port=0))
        (at,) = [
            r.args[0]
            for r in caplog.records
            if str(r.msg) == "serving %s" and "metrics" in r.args[0]
        ]
        async with Client(url) as client:
            await client.list_tools()
        answer = await http.get(at)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert count(samples(answer.text), "tools/list") == 1
        base = at.removesuffix("/metrics")
        assert (await http.get(f"{base}/health")).json() == {"status": "ok"}
        assert (await http.get(f"{base}/ready")).json() == {"status": "ready"}
        assert (await http.post(f"{base}/mcp", json=hello("2025-11-25"))).status_code == 404
        assert (await http.get(at, headers={"Host": "evil.example"})).status_code == 403
        assert (await http.get(url.replace("/mcp", "/metrics"))).status_code == 404
        nursery.cancel_scope.cancel()


async def test_a_server_is_ready_until_it_stops(autojump_clock):
    async with site_of(plain_harbour()) as site:
        answer = await site.ask("GET", path="/ready")
        assert (answer.status, answer.json) == (200, {"status": "ready"})
        site.app.runtime.close()
        answer = await site.ask("GET", path="/ready")
        assert (answer.status, answer.json["reasons"]) == (503, ["the server is stopping"])


async def test_a_server_that_hands_its_sessions_over_is_not_ready(autojump_clock):
    stores = HttpStores(instances=MemoryInstances())
    async with (
        site_of(plain_harbour(), stores=stores) as site,
        site_of(plain_harbour(), stores=stores),
    ):
        runtime = site.app.runtime
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.hand_over)
            await runtime.leaving.wait()
            answer = await site.ask("GET", path="/ready")
        assert (answer.status, answer.json["reasons"]) == (503, ["the server is stopping"])


class Store(MemoryChanges):
    """A store on another machine; the server calls no method of a `LimitStore` here."""

    seconds = 0.0
    error = None

    async def check(self):
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("name", ["changes", "limits"])
@pytest.mark.parametrize("fault", [{"seconds": 60}, {"error": OSError("away")}])
async def test_a_server_whose_store_is_away_is_not_ready(fault, name, autojump_clock):
    store = Store()
    async with site_of(plain_harbour(), stores=HttpStores(**{name: store})) as site:
        assert (await site.ask("GET", path="/ready")).status == 200
        store.seconds, store.error = fault.get("seconds", 0), fault.get("error")
        answer = await site.ask("GET", path="/ready")
        assert answer.status == 503
        assert answer.json["reasons"] == [f"the store of {name} cannot be reached"]


async def test_the_readiness_check_needs_no_authorization(autojump_clock):
    async with site_of(plain_harbour(), token="t" * 16) as site:
        assert (await site.ask("GET", path="/ready")).status == 200


async def test_a_route_of_the_server_may_have_the_path_of_the_readiness_check(autojump_clock):
    server = plain_harbour()

    @server.route("/ready")
    async def ready(_):
        return {"mine": True}

    async with site_of(server) as site:
        assert (await site.ask("GET", path="/ready")).json == {"mine": True}


async def test_a_disk_that_fails_shows_in_health_and_metrics(tmp_path, autojump_clock):
    policy, metrics = RecordPolicy(tmp_path / "recordings"), Metrics()
    server = harbour(observers=[metrics], record=policy)
    async with site_of(server) as site:
        assert (await site.ask("GET", path="/health")).json == {"status": "ok"}
        policy.status.report("cannot write to the disk: no space left")
        policy.status.lost_records += 3
        answer = await site.ask("GET", path="/health")
        assert (answer.status, answer.json) == (200, {"status": "ok", "recording": "degraded"})
        metrics.record_status = site.app.runtime.record_status
        found = samples(metrics.text().decode())
        assert found["mcp_recording_degraded",] == 1
        assert found["mcp_recording_lost_records_total",] == 3
        assert found["mcp_recording_upload_degraded",] == 0
        policy.status.report_upload("the store is away")
        policy.status.count_upload(512)
        policy.status.held_bytes = 700
        found = samples(metrics.text().decode())
        assert found["mcp_recording_upload_degraded",] == 1
        assert found["mcp_recording_uploads_total",] == 1
        assert found["mcp_recording_held_bytes",] == 700


def test_workers_have_no_common_metrics():
    with pytest.raises(ValueError, match="workers=1"):
        harbour().run("http", workers=2, metrics_port=9090)
