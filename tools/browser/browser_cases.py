"""The requests that pages in a browser try, and the expected outcome of each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

Host = Literal["native", "hypercorn", "listener"]

HOSTS: Final[Sequence[Host]] = ("native", "hypercorn", "listener")
"""Who holds the connections; the last one, which is for WebSocket alone, is trio-websocket's."""

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
    "open": "who may come needs no token, and is told so by CORS",
    "token": "who may come brings a token",
    "unreadable": "there is no CORS",
    "TLS": "as open, but with TLS",
}
"""How a server is set."""

TLS_HOSTS: Final[Sequence[Host]] = ("native", "hypercorn", "listener")
H2: Final = "h2"

TOKEN: Final = "sesame/open+now?"  # in Base64 it has every character that a subprotocol must not
TOKENS: Final[Mapping[str, str | None]] = {"right": TOKEN, "wrong": f"{TOKEN}!", "none": None}

TOOL: Final = "greet"
ON_THE_WAY: Final = "on the way"


def greeting(name: str) -> str:
    return f"Hello, {name}."


@attrs.frozen(kw_only=True)
class Attempt:
    """What a page tries, wherever that can be tried.

    Attributes:
        page: Where it is from; see `PAGES`.
        client: What talks: a client that was written by hand, a forged request, or an SDK.
        transport: Over what.
        era: Of the protocol.
        setting: How the server is set.
        token: Which of `TOKENS` it brings.
        expected: What is to come of it: what the page is told, and what the browser has seen.
    """

    page: str
    client: str = "plain"
    transport: str
    era: str = "legacy"
    setting: Setting = "open"
    token: str = "none"
    expected: str = "answered"

    @property
    def hosts(self) -> Sequence[Host]:
        """Return the hosts at which it is tried."""
        hosts = HOSTS_OF[self.transport]
        return [each for each in hosts if self.setting != "TLS" or each in TLS_HOSTS]

    def scheme(self, plain: str) -> str:
        """Return the same scheme without TLS."""
        return f"{plain}s" if self.setting == "TLS" else plain


PAGES: Final[Mapping[str, str]] = {
    "allowed": "an origin that the servers' origins= names",
    "own": "the server's own origin, as if it had pages of its own",
    "other": "another origin",
    "opaque": "no origin at all: the page is in a sandbox",
    "rebound": "a name that has come to stand for this machine",
}

REJECTED: Final[Mapping[str, Mapping[str, str]]] = {
    "other": {"websocket": "closed 1006, 403", "http": "blocked, 403", "sse": "blocked, 403"},
    "opaque": {"websocket": "closed 1006, 403", "http": "blocked, 403", "sse": "blocked, 403"},
    # Of the same origin as the server, by its name: it reads why it is refused.
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
            for era in version_modes:
                yield Attempt(page=page, transport=transport, era=era)
    for client, transports in SDKS.items():
        for transport, version_modes in transports.items():
            for era in version_modes:
                yield Attempt(page="allowed", client=client, transport=transport, era=era)
    yield from _rejected()
    yield from _set_otherwise()


def _rejected() -> Iterator[Attempt]:
    for page, expected in REJECTED.items():
        for transport, version_modes in VERSIONS_OF.items():
            for era in version_modes:
                yield Attempt(page=page, transport=transport, era=era, expected=expected[transport])
    for page in ("other", "opaque"):
        yield Attempt(page=page, client="blind", transport="http", expected=FORGED)


def _set_otherwise() -> Iterator[Attempt]:
    for transport, rejected in UNVERIFIED.items():
        for era in VERSIONS_OF[transport]:
            for token in TOKENS:
                yield Attempt(
                    page="allowed",
                    transport=transport,
                    era=era,
                    setting="token",
                    token=token,
                    expected="answered" if token == "right" else rejected,
                )
    for transport, expected in UNREADABLE.items():
        yield Attempt(page="allowed", transport=transport, setting="unreadable", expected=expected)
    for page, answers in SECURED.items():
        for transport, expected in answers.items():
            for era in VERSIONS_OF[transport]:
                yield Attempt(
                    page=page, transport=transport, era=era, setting="TLS", expected=expected
                )


@attrs.frozen(kw_only=True)
class Outcome:
    """What came of an attempt at a host.

    Attributes:
        attempt: Which.
        host: Where.
        name: Whom the tool was to greet; nobody else has the same.
        has_run: Whether the tool did.
        origin: Of the page.
        told: What the browser tells: `said` in a word, the `statuses` that it has seen, the `text`
            that the page was given, what of it is `shown`, the `protocols` beneath, and what else a
            client has seen.
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
        said = str(self.page_report["said"])
        bad = sorted({status for status in self.page_report["statuses"] if status >= 400})
        return ", ".join([said, *(f"{status}" for status in bad if f"{status}" not in said)])

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
            yield f"the page is one of {self.page_report['origin']}"
        else:
            yield from _answer_faults(self) if attempt.expected == "answered" else _failures(self)


def _failures(outcome: Outcome) -> Iterator[str]:
    """Yield the failures of a page that must be rejected."""
    if outcome.has_run:
        yield "the tool has run all the same"
    page_report = outcome.page_report
    if page_report["said"] == "read 403" and "hosts=" not in page_report["text"]:
        yield f"the refusal does not name the setting: {page_report['text']}"


def _answer_faults(outcome: Outcome) -> Iterator[str]:
    page_report, right = outcome.page_report, greeting(outcome.name)
    if not (page_report["text"] == page_report["shown"] == right and outcome.has_run):
        yield f"the page shows {page_report['shown']!r} for {page_report['text']!r}"
    if page_report["heard"] != [ON_THE_WAY] and not _may_miss_progress(outcome.attempt):
        yield f"the page has heard of progress: {page_report['heard']}"
    if page_report["offered"] != [TOOL]:
        yield f"the page was offered {page_report['offered']}"
    is_secured = outcome.attempt.setting == "TLS" and outcome.attempt.transport == "http"
    if is_secured and outcome.host == "hypercorn" and H2 not in outcome.protocols:
        yield f"it went over {outcome.protocols}"
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
        if bool(page_report.get("session")) is not (attempt.era == "legacy"):
            yield f"the page sees the session id {page_report.get('session')!r}"
