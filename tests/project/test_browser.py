"""The visits of pages in a browser: what is tried, and what of it must not be, without a browser."""

import importlib
import shutil
import sys
from pathlib import Path
from urllib.request import urlopen

import attrs
import pytest
import trio

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "tools" / "browser"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return [
        importlib.import_module(name)
        for name in ("browser_cases", "run_browser", "browser_servers")
    ]


@pytest.fixture
def visits(modules):
    return modules[0]


@pytest.fixture
def visiting(modules):
    return modules[1]


@pytest.fixture
def places(modules):
    return modules[2]


@pytest.fixture
def planned(visits, visiting):
    hosts = [(host, setting) for host in visits.HOSTS for setting in visits.SETTINGS]
    addresses = {place: f"127.0.0.1:{8000 + number}" for number, place in enumerate(hosts)}
    origins = {"allowed": "http://127.0.0.1:1", "other": "http://127.0.0.1:2"}
    return list(visiting.visits_to(addresses, visits.attempts(), **origins))


# The planned visits.


def test_every_page_tries_every_transport_and_protocol_version_at_every_host(visits, planned):
    tried = {
        (visit.attempt.page, visit.attempt.transport, visit.attempt.mode, visit.host)
        for visit in planned
        if visit.attempt.setting == "open"
    }
    places = [
        (transport, mode, host)
        for transport, modes in visits.VERSIONS_OF.items()
        for mode in modes
        for host in visits.HOSTS_OF[transport]
    ]
    assert tried == {(page, *place) for page in visits.PAGES for place in places}


def test_only_pages_of_allowed_origins_with_the_required_token_are_answered(
    visits,
):
    answered = {each for each in visits.attempts() if each.expected == "answered"}
    assert {each.page for each in answered} == {"allowed", "own"}
    assert {each.token for each in answered if each.setting == "token"} == {"right"}
    assert {each.transport for each in answered if each.setting == "unreadable"} == {"websocket"}
    assert not any(each.client == "blind" for each in answered)


def test_no_two_visits_have_the_same_name_and_no_two_attempts_are_the_same(visits, planned):
    assert len({visit.name for visit in planned}) == len(planned)
    attempts = list(visits.attempts())
    assert len(set(attempts)) == len(attempts)


def test_a_page_of_a_rebound_name_talks_to_where_it_seems_to_be_from(planned):
    rebound = [visit for visit in planned if visit.attempt.page == "rebound"]
    for visit in rebound:
        assert visit.origin.startswith("http://evil.test:800")
        assert visit.page.startswith(f"{visit.origin}/page/")
        assert visit.url.partition("://")[2].startswith(visit.origin.partition("://")[2])
    assert {visit.url.partition(":")[0] for visit in rebound} == {"ws", "http"}


def test_the_browser_gets_the_url_of_the_page_and_its_task(planned):
    first = planned[0].order()
    assert first == {
        "name": "001-allowed-plain-websocket-legacy-native",
        "page": "http://127.0.0.1:1/page/index.html",
        "isFulfilled": False,
        "task": {
            "url": "ws://127.0.0.1:8000/ws",
            "client": "plain",
            "transport": "websocket",
            "mode": "legacy",
            "token": None,
            "name": "001-allowed-plain-websocket-legacy-native",
        },
    }
    fulfilled = {visit.attempt.page for visit in planned if visit.order()["isFulfilled"]}
    assert fulfilled == {"own", "rebound"}
    schemes = {(visit.url.partition("://")[0], visit.host) for visit in planned}
    assert {scheme for scheme, _ in schemes} == {"ws", "http", "wss", "https"}
    assert {host for scheme, host in schemes if scheme == "https"} == {"native", "hypercorn"}
    brought = {visit.order()["task"]["token"] for visit in planned}
    assert brought == {None, "sesame/open+now?", "sesame/open+now?!"}


# The outcome of visits.


@pytest.fixture
def answered(visits):
    """Over HTTP, as it should be."""
    page_report = {
        "result": "answered",
        "statuses": [204, 200],
        "protocols": ["http/1.1"],
        "text": "Hello, Ada.",
        "shown": "Hello, Ada.",
        "progress": ["on the way"],
        "offered": ["greet"],
        "origin": "http://127.0.0.1:1",
        "types": ["application/json", "text/event-stream"],
        "session": "s",
    }
    return visits.Outcome(
        attempt=visits.Attempt(page="allowed", transport="http"),
        host="native",
        name="Ada",
        has_run=True,
        origin="http://127.0.0.1:1",
        page_report=page_report,
    )


@pytest.fixture
def rejected(visits, answered):
    """Over HTTP, of a page that could read why."""
    text = "Host 'evil.test' is not allowed here: see the server's setting hosts="
    page_report = {
        "result": "read 403",
        "statuses": [403],
        "text": text,
        "shown": text,
        "origin": "null",
    }
    page_report["protocols"] = ["h2"]
    attempt = visits.Attempt(page="rebound", transport="http", expected="read 403")
    return attrs.evolve(
        answered, attempt=attempt, page_report=page_report, has_run=False, origin="null"
    )


def with_page_report(outcome, **more):
    return attrs.evolve(outcome, page_report={**outcome.page_report, **more})


def test_an_expected_outcome_of_a_page_is_no_problem(visiting, answered, rejected, capsys):
    assert [*answered.problems(), *rejected.problems()] == []
    assert visiting.report([answered, rejected], 1.0)
    out = capsys.readouterr().out
    assert "2 visits, a login, 0 problems, 1 s" in out
    assert out.count("read 403") == 2  # expected and observed
    assert "read 403, h2" in out


@pytest.mark.parametrize(
    ("page_report", "problem"),
    [
        ({"result": "blocked", "statuses": [403]}, "blocked, 403 instead of answered"),
        ({"statuses": [200, 500]}, "answered, 500 instead of answered"),
        ({"origin": "null"}, "the page's origin is null"),
        ({"shown": "not begun"}, "the page shows 'not begun' for 'Hello, Ada.'"),
        ({"text": "no", "shown": "no"}, "the page shows 'no' for 'no'"),
        ({"progress": []}, "the page received the progress []"),
        ({"offered": []}, "the page was offered []"),
        ({"types": ["application/json"]}, "the answer came as application/json"),
        ({"session": None}, "the page sees the session id None"),
    ],
)
def test_an_incomplete_answer_is_reported(answered, page_report, problem, visiting, capsys):
    outcome = with_page_report(answered, **page_report)
    assert list(outcome.problems()) == [problem]
    assert not visiting.report([outcome], 1.0)
    assert f"Ada: {problem}" in capsys.readouterr().out


def test_a_session_id_of_a_stateless_server_is_reported(visits, answered):
    attempt = visits.Attempt(page="allowed", transport="http", mode="stateless")
    outcome = attrs.evolve(answered, attempt=attempt)
    assert list(outcome.problems()) == ["the page sees the session id 's'"]


def test_requests_with_tls_that_do_not_go_over_http_2_at_hypercorn_are_reported(visits, answered):
    attempt = visits.Attempt(page="own", transport="http", setting="TLS")
    assert list(attrs.evolve(answered, attempt=attempt, host="native").problems()) == []
    outcome = attrs.evolve(answered, attempt=attempt, host="hypercorn")
    assert list(outcome.problems()) == ["the requests went over ['http/1.1']"]
    assert list(with_page_report(outcome, protocols=["h2"]).problems()) == []


def test_a_websocket_without_its_subprotocol_is_reported(visits, answered):
    attempt = visits.Attempt(page="allowed", transport="websocket")
    outcome = with_page_report(attrs.evolve(answered, attempt=attempt), subprotocol="")
    assert list(outcome.problems()) == ["the subprotocol is ''"]


@pytest.mark.parametrize(("transport", "is_missed"), [("websocket", True), ("sse", False)])
def test_only_where_the_sdks_may_lose_progress_is_it_not_missed(
    visits, answered, transport, is_missed
):
    attempt = visits.Attempt(page="allowed", client="TypeScript 1", transport=transport)
    outcome = with_page_report(attrs.evolve(answered, attempt=attempt), progress=[])
    assert bool(list(outcome.problems())) is is_missed


def test_a_missing_rejection_or_one_without_a_reason_is_reported(rejected):
    assert list(attrs.evolve(rejected, has_run=True).problems()) == ["the tool has run"]
    assert list(with_page_report(rejected, text="no").problems()) == [
        "the rejection does not name the setting: no"
    ]


def test_a_missing_visit_is_reported(visiting, rejected):
    outcome = attrs.evolve(rejected, page_report=visiting.SILENT)
    assert list(outcome.problems()) == ["nothing instead of read 403"]


# The browser and its pages.


class RequestDriver:
    """Tells of a visit, and fails."""

    def start(self, _program):
        code = 'print(\'{"name": "Ada"}\', flush=True); raise SystemExit(1)'
        return [sys.executable, "-S", "-c", code]


@pytest.mark.real_time
def test_the_output_of_a_browser_that_fails_is_kept(visiting, monkeypatch):
    monkeypatch.setattr(visiting, "DRIVER", RequestDriver())
    assert trio.run(visiting.drive_browser, {"visits": []}) == {"Ada": {"name": "Ada"}}


def test_a_missing_browser_is_reported_with_what_to_install(visiting, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(SystemExit, match="`apt-get install chromium`"):
        visiting.visit_all_pages(tmp_path, [])


def test_pages_are_served_and_where_asked_for_in_a_sandbox(places, tmp_path):
    shutil.copytree(FOLDER / "page", tmp_path / "page")
    with places.pages_of(tmp_path) as origin:
        with urlopen(origin + places.PAGE) as plain, urlopen(origin + places.SANDBOXED) as inside:
            assert plain.read() == inside.read() == (FOLDER / "page" / "index.html").read_bytes()
        header = "Content-Security-Policy"
        assert plain.headers[header] is None
        assert inside.headers[header] == "sandbox allow-scripts"
