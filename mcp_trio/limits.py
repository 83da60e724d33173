"""Every limit of the engine, in groups by subject; each option is named with its unit.

An error that a limit causes names the option in full, for example `limits.http.connections_max`.

    Limits(messages=MessageLimits(bytes_max=1_000_000), http=HttpLimits(sessions_max=100))
"""

import math

import msgspec

KIB = 1024
MIB = 1024 * KIB

# The least values of options that have a minimum above 0.
_LEAST = {"all_clients_factor": 2, "chunk_bytes": 1, "send_queue_bytes_max": 1}


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """A base class that checks its options, and whose `repr()` shows only those that were changed.

    Raises:
        TypeError: An option is no number, or no group of limits.
        ValueError: A number is too small, or NaN.
    """

    def __post_init__(self) -> None:
        for name, kind in type(self).__annotations__.items():
            value, least = getattr(self, name), _LEAST.get(name, 0)
            error: Exception
            if isinstance(kind, type) and issubclass(kind, _Options):
                if isinstance(value, kind):
                    continue
                error = TypeError(f"write {name}={kind.__name__}(...)")
            elif isinstance(value, int | float):
                if value >= least:
                    continue
                error = ValueError(f"it has to be at least {least}")
            elif value is None and kind not in (int, float):
                continue
            else:
                error = TypeError("it has to be a number")
            raise type(error)(f"{type(self).__name__}({name}={value!r}): {error}")

    def __repr__(self) -> str:
        default = msgspec.structs.asdict(type(self)())
        changed = [
            f"{name}={value!r}"
            for name, value in msgspec.structs.asdict(self).items()
            if value != default[name]
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


class MessageLimits(_Options, frozen=True, kw_only=True):
    """Limits on single messages, on what they contain, and on how they are read and written."""

    bytes_max: int = 32 * MIB
    """Bytes of one JSON-RPC message, in either direction, and of the body of an HTTP request."""

    json_depth_max: int = 512
    """Levels to which the objects and arrays of a message may be nested."""

    long_exponents_max: int = 1000
    """Numbers of a message whose exponents have three digits or more, such as `1e300`. Reading one
    may take 20 microseconds."""

    batch_size_max: int = 1000
    """Messages in one JSON-RPC batch, which only protocol version 2025-03-26 has."""

    chunk_bytes: int = 64 * KIB
    """Bytes that are read from a descriptor or socket, or written to it, at once."""

    send_queue_bytes_max: int = 16 * MIB
    """Bytes of messages that wait to be sent; no more is read while responses fill the queue."""

    write_stall_seconds: float = 30.0
    """Seconds after which a write without progress ends the session."""

    notifications_queued_max: int = 1024
    """Notifications that wait for the user's callbacks; more are dropped."""

    progress_queued_max: int = 1024
    """Progress reports, and notifications of subscriptions, which the client's code has not read
    yet; more are dropped."""

    error_text_chars_max: int = 300
    """Characters of the text of an exception or of a peer's response that an error quotes."""

    uri_chars_max: int = 4 * KIB
    """Characters of a URI that is matched against the templates of a server's resources."""

    icon_chars_max: int = MIB
    """Characters of an icon that is given as a `data:` URI."""

    validation_errors_max: int = 32
    """Validation errors that are listed for one value."""

    validation_error_chars_max: int = 200
    """Characters of one listed validation error."""

    validation_error_depth_max: int = 8
    """Levels of a value that are searched for the causes of a validation error."""

    validation_error_members_max: int = 1000
    """Members of a value that are searched for the causes of a validation error."""

    schema_depth_max: int = 64
    """Levels to which a JSON Schema may be nested."""

    schema_objects_max: int = 10_000
    """Objects and arrays in a JSON Schema."""

    schema_nesting_max: int = 256
    """Subschemas that apply within one another when a value is checked against a JSON Schema."""

    schema_steps_max: int = 100_000
    """Steps, each of about 0.2 microseconds, to read a JSON Schema or to check one value by it.

    A result whose check needs more is passed on unchecked; any other value is rejected.
    """


class RequestLimits(_Options, frozen=True, kw_only=True):
    """Limits on requests in both directions, their handlers, and what they leave in memory."""

    # Requests that are received.
    in_flight_max: int = 256
    """Handlers of one client that run at the same time in one session; more requests are queued.
    Also the input requests of one result that a client answers at the same time."""

    queued_max: int = 1024
    """Requests of one client that wait in one session, for a handler to start or, as a repeated
    retry, for the response to the first one; more are rejected."""

    queued_bytes_max: int = 8 * MIB
    """Bytes of the requests that `queued_max` counts; more are rejected."""

    threads_max: int = 40
    """Threads for `def` handlers of one client in one session."""

    all_clients_factor: int = 4
    """All clients that share one session, by stateless requests over HTTP, may together use this
    multiple of each limit that counts for one client. A client that has `n` of something, such as
    running handlers, gets another one only while more than `n` are free."""

    first_request_seconds: float = 60.0
    """Seconds in which a client on WebSocket, Unix or TCP has to send its first request."""

    page_items_max: int = 1000
    """Items in one page of a list that a server sends."""

    listens_max: int = 64
    """Open `subscriptions/listen` requests of one client."""

    subscriptions_max: int = 1024
    """Resources to which one client is subscribed."""

    mount_connections_max: int = 16
    """Connections of one session to a mounted server. All stateless requests over HTTP together
    count as one session. At the limit, a new connection replaces one that no request uses."""

    # Handlers that ask their client.
    sent_per_handler_max: int = 256
    """Requests that one handler may send to its client."""

    elicitations_remembered_max: int = 1024
    """URL elicitations whose completion is still reported; older ones are forgotten."""

    suspended_max: int = 256
    """Handlers of one client that wait for the next round of their request (`input_required`)."""

    suspended_seconds: float = 600.0
    """Seconds for which a handler waits for the next round of its request."""

    replies_kept_bytes_max: int = 8 * MIB
    """Bytes of replies that are kept for one client, which may repeat a round."""

    state_bytes_max: int = 8 * KIB
    """Bytes of a sealed `requestState`, as it is sent."""

    state_plain_bytes_max: int = 256 * KIB
    """Bytes of a `requestState` before it is compressed and sealed."""

    state_seconds: float = 600.0
    """Seconds for which a sealed `requestState` is valid."""

    state_chain_seconds: float = 3600.0
    """Seconds for which all rounds of one request together may take, by its `requestState`."""

    effect_bytes_max: int = 32 * MIB
    """Bytes of the result of one effect, as JSON."""

    http_effect_bytes_max: int = 16 * MIB
    """Bytes of a response that a handler's HTTP request receives."""

    # Requests that are sent.
    initialize_seconds: float = 30.0
    """Seconds for the handshake (`initialize`)."""

    probe_seconds: float = 5.0
    """Seconds in which a server has to answer `server/discover`, or to name an SSE endpoint."""

    idle_seconds: float = 60.0
    """Seconds without a response or a progress report after which a request fails."""

    total_seconds: float = 600.0
    """Seconds after which a request without a response fails."""

    ended_remembered_max: int = 1024
    """Ended requests that are remembered, so that their late responses are recognised."""

    ping_interval_seconds: float | None = None
    """Seconds between two pings of a session; None sends none."""

    ping_response_seconds: float = 10.0
    """Seconds in which a ping has to be answered."""

    rounds_max: int = 32
    """Rounds of one request in which a server may ask its client (`input_required`)."""

    round_pause_seconds: float = 0.25
    """Seconds before a round for which the server asked nothing; doubled with each such round."""

    round_pause_seconds_max: float = 8.0
    """The longest pause between two rounds, in seconds."""

    pages_max: int = 1000
    """Pages of one list that a client reads."""

    cache_entries_max: int = 1024
    """Results that a client caches."""

    cache_bytes_max: int = 16 * MIB
    """Bytes of the results that a client caches."""

    servers_remembered_max: int = 1024
    """Servers whose protocol version is remembered for the next connection."""


class HttpLimits(_Options, frozen=True, kw_only=True):
    """Limits on HTTP connections, requests, sessions and event streams, of servers and clients."""

    # Connections, and requests on them.
    connections_max: int = 4096
    """Open connections of one client address to a listener, also for WebSocket, Unix and TCP."""

    all_clients_factor: int = 2
    """All clients together may have this multiple of `connections_max`, `handshakes_max`,
    `bodies_bytes_max` and `sessions_max`. A client that has `n` of something, such as connections,
    gets another one only while more than `n` are free."""

    handshakes_max: int = 256
    """TLS handshakes of one client address that a listener does at the same time; more wait."""

    headers_bytes_max: int = 32 * KIB
    """Bytes of a request line and its headers."""

    headers_seconds: float = 10.0
    """Seconds for the headers of a request or WebSocket handshake, and for a TLS handshake."""

    bodies_bytes_max: int = 64 * MIB
    """Bytes of the unfinished request bodies and messages, over WebSocket, TCP and Unix sockets, of
    one client address: 503, close code 1013, or the end of the connection, for more. A single one
    may in any case have `limits.messages.bytes_max`."""

    body_seconds: float = 60.0
    """Seconds in which each further `limits.messages.chunk_bytes` of a body have to arrive."""

    idle_seconds: float = 75.0
    """Seconds after which a connection without a request is closed."""

    unsent_bytes_max: int = 8 * MIB
    """Bytes of one response that wait for a client that reads slowly."""

    watch_after_seconds: float = 0.25
    """Seconds that a request runs before the server watches for a disconnect of its client."""

    clients_remembered_max: int = 4096
    """Addresses of clients without a principal that a server tells apart in stateless requests."""

    # Sessions, and their event streams.
    sessions_max: int = 10_000
    """Open sessions of one client of a server: of a principal, or of an address without one."""

    session_idle_seconds: float = 1800.0
    """Seconds after which a session without requests and streams is closed."""

    session_values_bytes_max: int = MIB
    """Bytes of the values that handlers keep in one session (`ctx.state`), as JSON, with which
    another instance can continue it. A session with more ends with its instance."""

    kept_call_bytes_max: int = 8 * MIB
    """Bytes of the finished operations of one call, with which another instance can continue it. A
    call with more has an unknown outcome if its instance is lost."""

    session_unused_seconds: float = 60.0
    """Seconds after which a session in which nothing has followed `initialize` is closed."""

    streams_max: int = 64
    """Open event streams of one session."""

    unconfirmed_bytes_max: int = 64 * MIB
    """Bytes of the messages to one other instance that it has not confirmed. With more, the other
    instance counts as lost: requests that one of the two has forwarded to the other fail. So large
    requests are rejected if those that the other has not begun to answer have half of the bytes."""

    stream_after_seconds: float = 0.25
    """Seconds after which an unfinished request is answered with an event stream."""

    stream_seconds_max: float = math.inf
    """Seconds after which a resumable event stream is closed for the client to reconnect."""

    events_kept_max: int = 1024
    """Events of one session that are kept for streams that are resumed."""

    events_kept_bytes_max: int = 8 * MIB
    """Bytes of the events of one session that are kept for streams that are resumed."""

    sse_keep_alive_seconds: float = 15.0
    """Seconds without an event after which a comment is sent, to keep the stream open."""

    sse_retry_ms: int = 1000
    """Milliseconds after which a client should reconnect (the field `retry` of an event)."""

    restart_seconds: float = 0.1
    """Seconds before a worker process that has failed, or the session of stateless requests, starts
    again; doubled with each failure."""

    restart_seconds_max: float = 30.0
    """The longest of these pauses before a new start, in seconds."""

    # Clients.
    get_stream_seconds: float = 1.0
    """Seconds for which a new session waits for its event stream (GET) to be accepted."""

    reconnects_max: int = 5
    """Failed attempts in a row to reopen a broken stream."""

    reconnect_seconds_max: float = 30.0
    """The longest pause before a stream is reopened, in seconds."""

    resume_seconds: float = 10.0
    """Seconds without a connection after which an unanswered request fails."""


class WebSocketLimits(_Options, frozen=True, kw_only=True):
    """Limits on WebSocket connections, and on a peer that is silent."""

    ping_interval_seconds: float = 20.0
    """Seconds without a frame from the peer after which a ping is sent."""

    pong_seconds: float = 20.0
    """Seconds in which the pong has to arrive."""

    fragments_max: int = 10_000
    """Fragments of one message; more close the connection (1009)."""


class RecordingLimits(_Options, frozen=True, kw_only=True):
    """Limits on writing, reading and redacting recordings."""

    write_ms_max: float = 250.0
    """Milliseconds of one write above which records are buffered and written by a thread."""

    unwritten_bytes_max: int = 256 * KIB
    """Bytes of records that a session collects before it hands them over to be written."""

    buffer_bytes_max: int = 8 * MIB
    """Bytes of records that wait for a slow disk."""

    retry_seconds: float = 1.0
    """Seconds before a failed write is repeated."""

    close_seconds: float = 2.0
    """Seconds in which a recording has to be written completely when it is closed."""

    line_bytes_max: int = 64 * MIB
    """Bytes of one line of a recording that is read."""

    secrets_max: int = 1000
    """Secret values that are known and masked wherever they occur."""

    secrets_chars_max: int = MIB
    """Characters of all known secret values together."""

    secret_searches_max: int = 5_000_000
    """Searches for secrets in one record; a microsecond for one secret and 256 characters."""


class ShutdownLimits(_Options, frozen=True, kw_only=True):
    """Limits on the end of sessions, listeners, subprocesses and workers."""

    drain_seconds: float = 1.5
    """Seconds in which open requests are finished after the peer has closed its side."""

    close_seconds: float = 2.0
    """Seconds for each other step of closing: a peer, a lifespan, the listener's connections."""

    terminate_seconds: float = 2.0
    """Seconds after SIGTERM in which a subprocess has to exit."""

    kill_seconds: float = 2.0
    """Seconds after SIGKILL in which the process group has to be gone."""

    exit_status_seconds: float = 0.5
    """Seconds for which an error waits for the exit status of a subprocess, to report it."""

    stderr_tail_bytes: int = 8 * KIB
    """Bytes from the end of a subprocess's standard error that are reported with its exit."""

    parent_poll_seconds: float = 1.0
    """Seconds between two checks that the parent process of a stdio server still runs."""

    exit_seconds: float = 10.0
    """Seconds after SIGINT or SIGTERM in which `Server.run` ends; after that, the process exits."""

    hand_over_seconds: float = 5.0
    """Seconds in which the requests of an HTTP session may finish before another instance of the
    server continues the session."""

    last_request_seconds: float = 6.0
    """Seconds for which an instance that shuts down keeps idle connections open, so that their
    clients can send one more request. Most HTTP clients close connections that were idle for 4 or 5
    seconds."""

    workers_seconds: float = 15.0
    """Seconds in which the worker processes of an HTTP server have to stop."""


class ReplayLimits(_Options, frozen=True, kw_only=True):
    """Limits on waits in real time during a replay."""

    thread_seconds: float = 10.0
    """Seconds for which a replay waits for the thread of a `def` handler."""

    unrequested_seconds: float = 1.0
    """Seconds for which a live replay waits for a message that answers no request."""


class AuthorizationLimits(_Options, frozen=True, kw_only=True):
    """Limits on how a client gets and renews tokens."""

    document_bytes_max: int = 256 * KIB
    """Bytes of a metadata document, or of another response during authorization."""

    request_seconds: float = 30.0
    """Seconds for one HTTP request of the authorization, such as that of a token."""

    login_seconds: float = 300.0
    """Seconds that a user has for a login, and that other processes wait for its token."""

    renew_before_seconds: float = 60.0
    """Seconds before its expiry at which a token is renewed, at most a fifth of its lifetime."""

    new_tokens_max: int = 3
    """New tokens for one request that the server rejects again and again."""

    redirect_bytes_max: int = 16 * KIB
    """Bytes of an HTTP request to the listener for the redirect of the browser."""

    redirect_connections_max: int = 16
    """Connections to the listener for the redirect at the same time."""


class Limits(_Options, frozen=True, kw_only=True):
    """The limits of a server or client, in groups.

    A group that is not given has its defaults. To change a single option of existing limits, use
    `replace(limits, http=replace(limits.http, sessions_max=100))` with `msgspec.structs.replace`.
    """

    messages: MessageLimits = MessageLimits()
    requests: RequestLimits = RequestLimits()
    http: HttpLimits = HttpLimits()
    websocket: WebSocketLimits = WebSocketLimits()
    recording: RecordingLimits = RecordingLimits()
    shutdown: ShutdownLimits = ShutdownLimits()
    replay: ReplayLimits = ReplayLimits()
    authorization: AuthorizationLimits = AuthorizationLimits()


DEFAULT_LIMITS = Limits()
