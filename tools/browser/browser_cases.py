"""The requests that pages in a browser try, and the expected outcome of each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

Host = Literal["native", "hypercorn", "listener"]

HOSTS: Final[Sequence[Host]] = ("native", "hypercorn", "listener")
"""The implementations that serve connections; the last, trio-websocket, has only WebSocket."""

HOSTS_OF: Final[Mapping[str, Sequence[Host]]] = {
    "websocket": HOSTS,
    "http": ("native", "hypercorn"),
    "sse": ("native", "hypercorn"),
}
"""By transport."""

PATHS: Final[Mapping[str, str]] = {"websocket": "/ws", "http": "/mcp", "sse": "/sse"}

VERSIONS_OF: Final[Mapping[str, Sequence[str]]] = {
    "websocket": ("legacy", "stateless"),
    "http": ("legacy", "stateless"),
    "sse": ("legacy",),
}

Setting = Literal["open", "token", "unreadable", "TLS"]

SETTINGS: Final[Mapping[Setting, str]] = {
    "open": "no token is needed, and CORS is allowed",
    "token": "a token is needed, and CORS is allowed",
    "unreadable": "no CORS",
    "TLS": "as open, with TLS",
}
"""Settings of a server."""

TLS_HOSTS: Final[Sequence[Host]] = ("native", "hypercorn", "listener")
H2: Final = "h2"

TOKEN: Final = "sesame/open+now?"  # its Base64 has every character that is invalid in a subprotocol
TOKENS: Final[Mapping[str, str | None]] = {"right": TOKEN, "wrong": f"{TOKEN}!", "none": None}

TOOL: Final = "greet"
ON_THE_WAY: Final = "on the way"


def greeting(name: str) -> str:
    return f"Hello, {name}."


@attrs.frozen(kw_only=True)
class Attempt:
    """A request of a page, made at every host that supports it.

    Attributes:
        page: The page's origin, of `PAGES`.
        client: The page's own client ("plain"), a forged request ("blind"), or an SDK.
        transport: The transport.
        mode: The version mode, legacy or stateless.
        setting: The server's setting.
        token: The token, of `TOKENS`.
        expected: The outcome in the page, and the statuses of errors in the browser.
    """

    page: str
    client: str = "plain"
    transport: str
    mode: str = "legacy"
    setting: Setting = "open"
    token: str = "none"
    expected: str = "answered"

    @property
    def hosts(self) -> Sequence[Host]:
        """Return the hosts at which it is made."""
        hosts = HOSTS_OF[self.transport]
        return [each for each in hosts if self.setting != "TLS" or each in TLS_HOSTS]

    def scheme(self, plain: str) -> str:
        """Return the scheme, with TLS where the setting has TLS."""
        return f"{plain}s" if self.setting == "TLS" else plain


PAGES: Final[Mapping[str, str]] = {
    "allowed": "an origin that the servers' origins= names",
    "own": "the server's own origin",
    "other": "another origin",
    "opaque": "an opaque origin: the page is in a sandbox",
    "rebound": "a foreign name that resolves to this machine",
}

REJECTED: Final[Mapping[str, Mapping[str, str]]] = {
    "other": {"websocket": "closed 1006, 403", "http": "blocked, 403", "sse": "blocked, 403"},
    "opaque": {"websocket": "closed 1006, 403", "http": "blocked, 403", "sse": "blocked, 403"},
    # The page and the server have the same origin, so the page can read the rejection.
    "rebound": {"websocket": "closed 1006, 403", "http": "read 403", "sse": "blocked, 403"},
}
"""By page and transport."""

FORGED: Final = "opaque, 403"
UNVERIFIED: Final[Mapping[str, str]] = {"websocket": "closed 1006, 401", "http": "read 401"}
UNREADABLE: Final[Mapping[str, str]] = {"websocket": "answered", "http": "blocked, 403"}
# HTTP first: a WebSocket may share its connection, over HTTP/2.
SECURED: Final[Mapping[str, Mapping[str, str]]] = {
    "allowed": {"http": "answered", "websocket": "answered"},
    "own": {"http": "answered", "websocket": "answered"},
    "other": {"http": "blocked, 403", "websocket": "closed 1006, 403"},
}
SDKS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "TypeScript 1": {"websocket": ("legacy",), "http": ("legacy",), "sse": ("legacy",)},
    "TypeScript 2": {"http": ("legacy", "stateless"), "sse": ("legacy",)},
}


def attempts() -> Iterator[Attempt]:
    """Yield all attempts."""
    for page in ("allowed", "own"):
        for transport, version_modes in VERSIONS_OF.items():
            for mode in version_modes:
                yield Attempt(page=page, transport=transport, mode=mode)
    for client, transports in SDKS.items():
        for transport, version_modes in transports.items():
            for mode in version_modes:
                yield Attempt(page="allowed", client=client, transport=transport, mode=mode)
    yield from _rejected()
    yield from _in_other_settings()


def _rejected() -> Iterator[Attempt]:
    for page, expected in REJECTED.items():
        for transport, version_modes in VERSIONS_OF.items():
            for mode in version_modes:
                yield Attempt(
                    page=page, transport=transport, mode=mode, expected=expected[transport]
                )
    for page in ("other", "opaque"):
        yield Attempt(page=page, client="blind", transport="http", expected=FORGED)


def _in_other_settings() -> Iterator[Attempt]:
    for transport, rejected in UNVERIFIED.items():
        for mode in VERSIONS_OF[transport]:
            for token in TOKENS:
                yield Attempt(
                    page="allowed",
                    transport=transport,
                    mode=mode,
                    setting="token",
                    token=token,
                    expected="answered" if token == "right" else rejected,
                )
    for transport, expected in UNREADABLE.items():
        yield Attempt(page="allowed", transport=transport, setting="unreadable", expected=expected)
    for page, answers in SECURED.items():
        for transport, expected in answers.items():
            for mode in VERSIONS_OF[transport]:
                yield Attempt(
                    page=page, transport=transport, mode=mode, setting="TLS", expected=expected
                )


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of an attempt at a host.

    Attributes:
        attempt: The attempt.
        host: The host.
        name: The unique name that the tool greets.
        has_run: Whether the tool has run.
        origin: The page's origin.
        page_report: The report of the browser: the `result` in a word, the `statuses` of responses,
            the received `text`, the `shown` text, the HTTP `protocols`, and what the client saw.
    """

    attempt: Attempt
    host: Host
    name: str
    has_run: bool
    origin: str
    page_report: Mapping[str, Any]

    @property
    def observed(self) -> str:
        """Return the outcome in a word, with the statuses of errors."""
        result = str(self.page_report["result"])
        bad = sorted({status for status in self.page_report["statuses"] if status >= 400})
        return ", ".join([result, *(f"{status}" for status in bad if f"{status}" not in result)])

    @property
    def protocols(self) -> Sequence[str]:
        """Return the HTTP versions of the requests, such as `H2`."""
        protocols: Sequence[str] = self.page_report["protocols"]
        return protocols

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each difference from what is expected."""
        attempt = self.attempt
        if self.observed != attempt.expected:
            yield f"{self.observed} instead of {attempt.expected}"
        elif self.page_report["origin"] != self.origin:
            yield f"the page's origin is {self.page_report['origin']}"
        else:
            yield from _answer_problems(self) if attempt.expected == "answered" else _failures(self)


def _failures(outcome: Outcome) -> Iterator[str]:
    """Yield the failures of a page that must be rejected."""
    if outcome.has_run:
        yield "the tool has run"
    page_report = outcome.page_report
    if page_report["result"] == "read 403" and "hosts=" not in page_report["text"]:
        yield f"the rejection does not name the setting: {page_report['text']}"


def _answer_problems(outcome: Outcome) -> Iterator[str]:
    page_report, right = outcome.page_report, greeting(outcome.name)
    if not (page_report["text"] == page_report["shown"] == right and outcome.has_run):
        yield f"the page shows {page_report['shown']!r} for {page_report['text']!r}"
    if page_report["progress"] != [ON_THE_WAY] and not _may_miss_progress(outcome.attempt):
        yield f"the page received the progress {page_report['progress']}"
    if page_report["offered"] != [TOOL]:
        yield f"the page was offered {page_report['offered']}"
    is_secured = outcome.attempt.setting == "TLS" and outcome.attempt.transport == "http"
    if is_secured and outcome.host == "hypercorn" and H2 not in outcome.protocols:
        yield f"the requests went over {outcome.protocols}"
    if outcome.attempt.client == "plain":
        yield from _connection_failures(outcome.attempt, page_report)


def _may_miss_progress(attempt: Attempt) -> bool:
    """Return whether an SDK drops progress that arrives together with the answer."""
    return attempt.client in SDKS and attempt.transport != "websocket"


def _connection_failures(attempt: Attempt, page_report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the page observed of its connection and should not."""
    if attempt.transport == "websocket" and page_report["subprotocol"] != "mcp":
        yield f"the subprotocol is {page_report['subprotocol']!r}"
    if attempt.transport == "http":
        if page_report["types"][-1] != "text/event-stream":
            yield f"the answer came as {page_report['types'][-1]}"
        if bool(page_report.get("session")) is not (attempt.mode == "legacy"):
            yield f"the page sees the session id {page_report.get('session')!r}"
