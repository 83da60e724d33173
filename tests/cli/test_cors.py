"""Pages of other origins: what a browser is told by whatever listens over HTTP."""

from pathlib import Path

import httpx2
import pytest

from mcp_trio import Server
from tests.cli.conftest import serving

WEATHER = Path(__file__).parents[2] / "recordings" / "weather.mcprec.jsonl"
PAGE = "https://app.example"
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}
HTTP = ("--transport", "http", "--port", "0")

# What stands before the options, and behind them.
COMMANDS = {
    "run": (["run", "mcp_trio.examples.weather", *HTTP], []),
    "run by hypercorn": (["run", "mcp_trio.examples.weather", *HTTP, "--server", "hypercorn"], []),
    "mock": (["mock", WEATHER, *HTTP], []),
    "record": (["record", "--listen", "127.0.0.1:0", "-o", "all"], ["--", "true"]),
    "bridge": (["bridge", "http://127.0.0.1:0"], ["--", "true"]),
}
ALLOWED = ("--allow-origin", PAGE)
ANSWERS = {
    "another origin": ((), 403, "origins="),
    "no word of reading": (ALLOWED, 403, "allows_cors="),
    "all is said": ((*ALLOWED, "--allow-cors"), 204, ""),
}


def ask(url):
    """What a browser asks before it lets a page send something."""
    return httpx2.options(url, headers=ASKS)


@pytest.mark.parametrize("said", ANSWERS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_may_read_what_is_answered_if_that_is_said(
    while_listening, tmp_path, monkeypatch, command, said
):
    monkeypatch.chdir(tmp_path)
    before, upstream = COMMANDS[command]
    options, status, words = ANSWERS[said]
    _, answer = while_listening(ask, *before, *options, *upstream)
    assert answer.status_code == status
    assert words in answer.text
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed == (PAGE if status == 204 else None)


@pytest.mark.parametrize("allows_cors", [True, False])
@pytest.mark.parametrize("command", ["record", "bridge"])
def test_who_may_read_the_answers_of_a_server_over_http_it_says_itself(
    while_listening, tmp_path, command, allows_cors
):
    with serving(Server("there"), origins=[PAGE], allows_cors=allows_cors) as url:
        arguments = {
            "record": ["record", "-o", tmp_path, "--listen", "127.0.0.1:0", "--to", url],
            "bridge": ["bridge", "http://127.0.0.1:0", url],
        }
        _, answer = while_listening(ask, *arguments[command], *ALLOWED)
    assert answer.status_code == (204 if allows_cors else 403)
    assert answer.headers.get("access-control-allow-origin") == (PAGE if allows_cors else None)


def test_a_page_may_ask_without_the_token_and_send_only_with_it(while_listening):
    def use(url):
        sent = httpx2.post(url, json={}, headers=ASKS)
        return ask(url).status_code, sent.status_code

    with serving(Server("there"), origins=[PAGE], allows_cors=True) as url:
        given = ("bridge", "http://127.0.0.1:0", url, *ALLOWED, "--token", "t")
        _, statuses = while_listening(use, *given)
    assert statuses == (204, 401)
