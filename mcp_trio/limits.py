"""Every limit of the engine, named with its unit: the one place where a bound is written down."""

import math

import attrs

KIB = 1024
MIB = 1024 * KIB


@attrs.frozen(kw_only=True)
class Limits:
    """What a session may cost; each refusal names the field that it ran into."""

    # One message.
    frame_bytes_max: int = 32 * MIB
    json_depth_max: int = 512
    batch_messages_max: int = 1000
    fault_text_chars_max: int = 300
    chunk_bytes: int = 64 * KIB

    # One message's arguments and URI.
    argument_errors_max: int = 32
    argument_error_chars_max: int = 200
    argument_error_depth_max: int = 8
    argument_error_members_max: int = 1000
    uri_chars_max: int = 4 * KIB

    # A JSON Schema that somebody gave, and one value that it checks.
    schema_depth_max: int = 64
    schema_objects_max: int = 10_000
    schema_steps_max: int = 200_000

    # Requests taken from the peer.
    handlers_in_flight_max: int = 256
    requests_queued_max: int = 1024
    requests_queued_bytes_max: int = 8 * MIB
    threads_max: int = 40

    # What a client may ask to hear of.
    listens_max: int = 64
    subscriptions_max: int = 1024

    # What one handler asks its client, as in a loop of a model with tools.
    questions_max: int = 256

    # Visits of URLs whose end the client may hear of; older ones are forgotten.
    elicitations_remembered_max: int = 1024

    # Handlers that wait for their client's next round.
    handlers_suspended_max: int = 256
    suspended_seconds: float = 600.0
    replies_kept_bytes_max: int = 8 * MIB

    # What a modern request's rounds take along.
    state_bytes_max: int = 8 * KIB
    state_plain_bytes_max: int = 256 * KIB
    state_seconds: float = 600.0
    chain_seconds: float = 3600.0

    # What comes back from the outside.
    effect_bytes_max: int = 32 * MIB
    http_body_bytes_max: int = 16 * MIB

    # Messages on their way to the peer.
    outbound_bytes_max: int = 16 * MIB
    write_stall_seconds: float = 30.0

    # Requests sent to the peer.
    initialize_seconds: float = 30.0
    probe_seconds: float = 5.0
    request_idle_seconds: float = 60.0
    request_total_seconds: float = 600.0
    requests_remembered_max: int = 1024
    ping_interval_seconds: float | None = None
    ping_answer_seconds: float = 10.0

    # Rounds, in which a server asks by its answer.
    rounds_max: int = 32
    round_pause_seconds: float = 0.25
    round_pause_seconds_max: float = 8.0

    # What a client keeps of its server's answers, and of which era servers are.
    cache_entries_max: int = 1024
    cache_bytes_max: int = 16 * MIB
    eras_remembered_max: int = 1024

    # A picture that stands in its own URI.
    icon_chars_max: int = MIB

    # What people's callbacks have not yet looked at.
    notifications_queued_max: int = 1024
    progress_queued_max: int = 1024

    # HTTP: one connection to a listener, and one request on it.
    http_connections_max: int = 4096
    http_head_bytes_max: int = 32 * KIB
    http_head_seconds: float = 10.0
    http_body_seconds: float = 60.0
    http_idle_seconds: float = 75.0
    http_write_bytes_max: int = 8 * MIB

    # HTTP: sessions and their streams.
    http_sessions_max: int = 10_000
    http_session_idle_seconds: float = 1800.0
    http_session_unused_seconds: float = 60.0
    http_streams_max: int = 64
    http_stream_seconds_max: float = math.inf
    http_events_kept_max: int = 1024
    http_bytes_kept_max: int = 8 * MIB
    http_keep_alive_seconds: float = 15.0
    http_retry_ms: int = 1000
    http_stream_after_seconds: float = 0.25
    http_watch_after_seconds: float = 0.25

    # HTTP: what ended by itself begins again; several processes end.
    http_restart_seconds: float = 0.1
    http_restart_seconds_max: float = 30.0
    workers_stop_seconds: float = 15.0

    # HTTP: a client that listens, and one that comes back.
    http_listen_seconds: float = 1.0
    http_reconnects_max: int = 5
    http_resume_seconds: float = 10.0
    http_reconnect_seconds_max: float = 30.0

    # WebSocket, Unix and TCP: how long a connection may say nothing that counts.
    first_request_seconds: float = 60.0

    # WebSocket: a peer of which nothing is heard.
    websocket_ping_seconds: float = 20.0
    websocket_pong_seconds: float = 20.0

    # Lists.
    page_items_max: int = 1000
    pages_max: int = 1000

    # Endings.
    drain_seconds: float = 1.5
    close_seconds: float = 2.0
    terminate_seconds: float = 2.0
    kill_seconds: float = 2.0
    exit_status_seconds: float = 0.5
    parent_poll_seconds: float = 1.0
    stderr_tail_bytes: int = 8 * KIB

    # For how long a live server that a recording drives may keep what nobody asks for.
    drive_unasked_seconds: float = 1.0

    # What a replay waits for in reality.
    replay_thread_seconds: float = 10.0

    # Recording.
    journal_write_ms_max: float = 250.0
    journal_unwritten_bytes_max: int = 256 * KIB
    journal_buffer_bytes_max: int = 8 * MIB
    journal_retry_seconds: float = 1.0
    journal_close_seconds: float = 2.0
    recording_line_bytes_max: int = 64 * MIB
    redaction_values_max: int = 1000
    redaction_chars_max: int = MIB


DEFAULT_LIMITS = Limits()
