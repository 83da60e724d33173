"""A neutral load generator for HTTP: raw requests over as many connections as are asked for.

Every server gets the same bytes, and each of its answers is decoded and checked. The result is the
server's CPU time; see `load.py`. Each connection has its own session, if the server has sessions,
and at most one request in flight.
"""

import itertools
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Self

import attrs
import msgspec
from http_wire import ANSWER_SECONDS, EVENT_STREAM, HttpConnection, Response, request_bytes
from load import (
    CLOSE_SECONDS,
    METADATA,
    NEWEST_LEGACY,
    STATELESS_VERSION,
    Cost,
    Message,
    Start,
    checked_id,
    cpu_seconds_of,
    initialize_request,
    rss_mib_of,
)
from server_processes import connected, free_port
from socket_wires import tcp_socket

_SESSION_ID: Final = "Mcp-Session-Id"
_VERSION: Final = "MCP-Protocol-Version"
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "User-Agent": "bench",
}

# The id in the constant answer of the minimal servers; see `server_minimal.py`.
_CONSTANT_ID: Final = 1


@attrs.frozen(kw_only=True)
class Form:
    """A form of calls and answers.

    Attributes:
        name: The name in the servers' `--form` option.
        title: The name in tables.
        is_stateless: Whether requests need no session.
        media_type: The required media type of answers; empty for any.
    """

    name: str
    title: str
    is_stateless: bool = False
    media_type: str = ""


JSON_ANSWERS: Final = Form(name="json", title="JSON", media_type="application/json")
SSE_ANSWERS: Final = Form(name="sse", title="SSE", media_type=EVENT_STREAM)
STATELESS: Final = Form(name="stateless", title="stateless", is_stateless=True)
FORMS: Final = (JSON_ANSWERS, SSE_ANSWERS, STATELESS)


class HttpServerUnderLoad:
    """A server process while the block runs."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        form: Form,
        *,
        is_floor: bool = False,
    ) -> None:
        self._form = form
        self._is_floor = is_floor
        self._has_sessions = not (is_floor or form.is_stateless)
        self._port = free_port()
        self._last_id = 0
        self._sessions: list[str] = []
        self._turns: Iterator[Mapping[str, str]] = iter(())
        self._decode = msgspec.json.Decoder(Message).decode
        self._begin = time.perf_counter()
        address = ["--port", str(self._port), "--form", form.name]
        self._process = subprocess.Popen([*command, *address], env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the server, or kill it."""
        with self._process:
            self._process.terminate()
            try:
                self._process.wait(timeout=CLOSE_SECONDS)
            finally:
                self._process.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self._process.pid)

    def rss_kib(self) -> float:
        return rss_mib_of(self._process.pid) * 1024

    def start(self) -> Start:
        """Wait for the first answer."""
        connected(lambda: tcp_socket(self._port), self._process).close()
        with self._link() as link:
            if self._has_sessions:
                self._sessions.append(self._open_session(link))
            else:
                self._call(link, self._headers(), "add", {"a": 1, "b": 1}, id_=1)
        wall_seconds = time.perf_counter() - self._begin
        return Start(self.cpu_seconds(), wall_seconds)

    # Calls

    def call(self, tool: str, **arguments: int) -> str:
        """Return a tool's answer, with no other call in flight."""
        with self._link() as link:
            answer = self._call(link, self._headers(0), tool, arguments, id_=self._next_id())
        assert answer.result
        return answer.result.content[0].text

    def _call(
        self,
        link: HttpConnection,
        headers: Mapping[str, str],
        tool: str,
        arguments: Mapping[str, int],
        *,
        id_: int,
    ) -> Message:
        return self._answer(link.ask(self._request(headers, tool, arguments, id_)))

    def add(self, *, connections: int, seconds: float, sessions: Sequence[str] = ()) -> Cost:
        """Keep one call of `add` in flight on each of so many connections, for so long.

        The connections are new, as servers close those that were quiet; each has made a call
        before anything is measured. Each has a session of its own, unless `sessions` are given,
        which take turns on all of them.
        """
        with ExitStack() as stack:
            lanes = list(self._lanes(connections, stack))
            self._turns = itertools.cycle([self._headers_in(each) for each in sessions])
            for lane in lanes:
                checked_id(self._answer(lane.link.ask(self._next_add(lane))))
            return self._drive(lanes, seconds)

    def _lanes(self, connections: int, stack: ExitStack) -> "Iterator[_Lane]":
        for number in range(connections):
            link = stack.enter_context(self._link())
            if self._has_sessions and number == len(self._sessions):
                self._sessions.append(self._open_session(link))
            yield _Lane(link, self._headers(number))

    def _drive(self, lanes: "Sequence[_Lane]", seconds: float) -> Cost:
        call_seconds: list[float] = []
        with selectors.DefaultSelector() as selector:
            for lane in lanes:
                selector.register(lane.link.socket, selectors.EVENT_READ, lane)
            cpu_seconds, begin = self.cpu_seconds(), time.perf_counter()
            for lane in lanes:
                self._send_add(lane)
            in_flight = len(lanes)
            while in_flight:
                for lane in _readable(selector):
                    response = lane.link.receive()
                    if response is None:
                        continue
                    now = time.perf_counter()
                    call_seconds.append(now - lane.sent_at)
                    checked_id(self._answer(response))
                    if now < begin + seconds:
                        self._send_add(lane)
                    else:
                        in_flight -= 1
            wall_seconds = time.perf_counter() - begin
            return Cost(self.cpu_seconds() - cpu_seconds, wall_seconds, call_seconds)

    def _send_add(self, lane: "_Lane") -> None:
        request = self._next_add(lane)
        lane.sent_at = time.perf_counter()
        lane.link.send(request)

    def _next_add(self, lane: "_Lane") -> bytes:
        id_ = self._next_id()
        return self._request(next(self._turns, lane.headers), "add", {"a": id_, "b": 1}, id_)

    def call_once_in_each(self, sessions: Sequence[str]) -> None:
        """Make a call in each of these sessions, one after the other."""
        with self._link() as link:
            for session in sessions:
                arguments = {"a": 1, "b": 1}
                self._call(link, self._headers_in(session), "add", arguments, id_=self._next_id())

    def _next_id(self) -> int:
        if self._is_floor:
            return _CONSTANT_ID
        self._last_id += 1
        return self._last_id

    # Sessions

    def open_sessions(self, count: int) -> Sequence[str]:
        """Open so many sessions one after the other, and return their ids."""
        with self._link() as link:
            return [self._open_session(link) for _ in range(count)]

    def close_sessions(self, sessions: Sequence[str]) -> None:
        """Close the sessions one after the other, by DELETE."""
        with self._link() as link:
            for session in sessions:
                headers = {_SESSION_ID: session, _VERSION: NEWEST_LEGACY}
                response = link.ask(request_bytes("DELETE", self._port, headers))
                if response.status not in (200, 202, 204):
                    raise RuntimeError(f"a session was not ended: {response}")

    def _open_session(self, link: HttpConnection) -> str:
        response = link.ask(
            request_bytes("POST", self._port, _HEADERS, initialize_request(NEWEST_LEGACY))
        )
        self._answer(response)
        session = response.headers[_SESSION_ID.lower()]
        ready = _encoded({"method": "notifications/initialized"})
        headers = {**_HEADERS, _VERSION: NEWEST_LEGACY, _SESSION_ID: session}
        status = link.ask(request_bytes("POST", self._port, headers, ready)).status
        if status != 202:
            raise RuntimeError(f"a notification was answered with {status}")
        return session

    # The parts of a request, and of an answer

    def _link(self) -> HttpConnection:
        return HttpConnection(self._port)

    def _headers(self, number: int = 0) -> Mapping[str, str]:
        if self._form.is_stateless:
            return {**_HEADERS, _VERSION: STATELESS_VERSION, "Mcp-Method": "tools/call"}
        if self._has_sessions:
            return self._headers_in(self._sessions[number])
        return {**_HEADERS, _VERSION: NEWEST_LEGACY}

    def _headers_in(self, session: str) -> Mapping[str, str]:
        return {**_HEADERS, _VERSION: NEWEST_LEGACY, _SESSION_ID: session}

    def _request(
        self, headers: Mapping[str, str], tool: str, arguments: Mapping[str, int], id_: int
    ) -> bytes:
        params: dict[str, object] = {"name": tool, "arguments": arguments}
        if self._form.is_stateless:
            params["_meta"] = METADATA
            headers = {**headers, "Mcp-Name": tool}
        body = _encoded({"id": id_, "method": "tools/call", "params": params})
        return request_bytes("POST", self._port, headers, body)

    def _answer(self, response: Response) -> Message:
        """Return the single message of a response."""
        media_type = response.headers.get("content-type", "")
        messages = [self._decode(each) for each in response.messages()]
        if response.status != 200 or not media_type.startswith(self._form.media_type):
            raise RuntimeError(f"a request failed: {response}")
        if len(messages) != 1 or messages[0].result is None:
            raise RuntimeError(f"there is no answer: {response}")
        return messages[0]


@attrs.define(eq=False)
class _Lane:
    """A connection under load, the fixed part of its requests, and the last request's time."""

    link: HttpConnection
    headers: Mapping[str, str]
    sent_at: float = attrs.field(default=0.0, init=False)


def _readable(selector: selectors.BaseSelector) -> Iterator[_Lane]:
    """Return the connections with received data; raise RuntimeError if there are none in time."""
    events = selector.select(ANSWER_SECONDS)
    if not events:
        raise RuntimeError("the server does not answer")
    for key, _ in events:
        yield key.data


def _encoded(message: Mapping[str, object]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", **message})
