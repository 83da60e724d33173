"""The errors that this package raises. Each class says which side is at fault.

    MCPError
    ├── ProtocolError
    │   ├── LocalProtocolError         this side asked for something that the protocol forbids
    │   │   └── CapabilityMissing      the client has not announced what the handler needs
    │   └── RemoteProtocolError        the peer sent something that the protocol forbids
    ├── RequestError                   the response is a JSON-RPC error
    │   ├── AccessDenied               the sender of a request may not do this
    │   ├── RateLimited                the sender of a request has to wait
    │   ├── ResourceNotFound           no resource has this URI
    │   └── UserRejected               the client's user declined the request
    ├── RequestTimeout                 the response did not arrive in time
    ├── RequestAbandoned               a handler's thread uses a request that has ended
    ├── ConnectionLost                 the connection ended while a request was open
    │   ├── OutcomeUnknown             the request was sent, and may have been carried out
    │   └── AuthorizationError         the client could not get a token for the server
    ├── ToolError                      a tool reports a failure
    ├── ResultTypeError                a result of a tool is not of the type that was asked for
    ├── UrlElicitationRequired         a handler needs its user to visit URLs first
    ├── SchemaError                    a JSON Schema cannot be used
    ├── ConfigError                    a configuration file cannot be used
    ├── RecordingError                 a recording cannot be read or used
    ├── NothingCompared                a replay compared no request
    ├── ReplayDivergence               the replay differs from the recording
    ├── ReplayedError                  an effect failed when it was recorded
    ├── BlockedInReplay                a replayed handler tried to use external I/O
    ├── UntrackedNondeterminism        a strictly recorded handler made an untracked call
    ├── SweepUnavailable               schedules cannot be swept on this Trio or this system
    └── MockMismatch                   a client differs from the recording that a mock server plays

An indented class is a subclass of the class above, and is caught with it. `Unencodable`, a
`ValueError`, reports a value of this program that cannot be sent as JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
SERVER_BUSY: Final = -32000
USER_REJECTED: Final = -1
# Status codes of HTTP; neither JSON-RPC nor the specification reserves these codes.
FORBIDDEN: Final = 403
TOO_MANY_REQUESTS: Final = 429
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042


def _stderr_text(stderr_tail: str) -> str:
    return f"\nlast lines of its stderr:\n{stderr_tail}" if stderr_tail else ""


class MCPError(Exception):
    """The base class of all errors of this package."""


class ProtocolError(MCPError):
    """A base class: one side violated the protocol. The subclass says which side."""


class LocalProtocolError(ProtocolError):
    """This side asked for something that the protocol forbids at this time; nothing was sent."""


class CapabilityMissing(LocalProtocolError):
    """The client has not announced a capability that the handler needs; nothing was sent.

    If the handler does not catch this error, a client of protocol version 2026-07-28 or later
    receives the error "missing required client capability". Other clients receive a tool result,
    or an error, whose text names the capability.

    Attributes:
        required: The missing capabilities, as a `ClientCapabilities` object.
    """

    def __init__(self, message: str, required: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.required: dict[str, Any] = dict(required)


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids."""


class RequestError(MCPError):
    """The response to a request is a JSON-RPC error.

    A caller receives this error from the peer. A handler raises it to send it to the peer.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message
        self.data = data


class ResourceNotFound(RequestError):
    """No resource has this URI. Raise it in a function that reads resources.

    The client receives the URI, and the error code that its protocol version has for this.
    """

    def __init__(
        self,
        uri: str,
        *,
        code: int = RESOURCE_NOT_FOUND,
        message: str | None = None,
        data: Any = None,
    ) -> None:
        text = f"resource not found: {uri}" if message is None else message
        super().__init__(code, text, {"uri": uri} if data is None else data)


class AccessDenied(RequestError):
    """The sender of a request may not do what the request asks for. Raise it in a handler.

    The data of the error are `{"error": "insufficient_scope", "scope": "…"}` if another token would
    suffice, and `{"error": "access_denied"}` otherwise. The specification has no code for it; over
    HTTP the status is 403, and a challenge names the scopes, so that clients can ask the user.

    Attributes:
        scopes: All scopes that the operation needs; empty if no scope would help.
    """

    def __init__(self, message: str = "access denied", *, scopes: Iterable[str] = ()) -> None:
        self.scopes: tuple[str, ...] = tuple(sorted(scopes))
        data = {"error": "access_denied"}
        if self.scopes:
            data = {"error": "insufficient_scope", "scope": " ".join(self.scopes)}
        super().__init__(FORBIDDEN, message, data)


class RateLimited(RequestError):
    """The sender of a request has exceeded a limit. Raise it in a handler or middleware.

    The data of the error are `{"retryAfter": SECONDS}` if the time is known. The specification has
    no code for it; over HTTP the status of a stateless response is 429, with `Retry-After` (RFC
    6585, section 4).

    Attributes:
        retry_after: The seconds after which the request may be repeated; None if that depends on
            other requests.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        data = None if retry_after is None else {"retryAfter": retry_after}
        super().__init__(TOO_MANY_REQUESTS, message, data)


class UserRejected(RequestError):
    """The user declined what the server asked for. Raise it in a callback of a client."""

    def __init__(self, message: str = "the user rejected the request") -> None:
        super().__init__(USER_REJECTED, message)


class RequestTimeout(MCPError):
    """The response did not arrive in time; a cancellation was sent to the peer.

    Attributes:
        method: The method of the request.
        budget: "idle" (no response or progress report for `seconds`), or "total" (no response
            after `seconds`).
        seconds: The exceeded limit.
        setting: The option that sets this limit.
        server: During a handshake, the command of the server, or its URL without secrets.
        stderr_tail: The last lines that the server's command wrote to its standard error.
    """

    def __init__(
        self,
        method: str,
        budget: str,
        seconds: float,
        setting: str,
        *,
        server: str = "",
        stderr_tail: str = "",
    ) -> None:
        sender = f" from {server}" if server else ""
        limit = "without progress" if budget == "idle" else "in all"
        text = f"{method}: no response{sender} within {seconds:g} s {limit}"
        super().__init__(f"{text}; raise {setting}" + _stderr_text(stderr_tail))
        self.server = server
        self.method = method
        self.budget = budget
        self.seconds = seconds
        self.setting = setting
        self.stderr_tail = stderr_tail


class RequestAbandoned(MCPError):
    """A handler in a thread, a `def` function, used its context after the end of its request.

    The request was cancelled or answered, or its session has ended. The handler need not catch the
    error, because it is not reported.
    """


class ConnectionLost(MCPError):
    """The connection ended, or could not be made.

    A request that was already sent fails with the subclass `OutcomeUnknown`.

    Attributes:
        exit_status: The exit status of a subprocess; negative for a signal.
        stderr_tail: The last lines that a subprocess wrote to its standard error.
        http_status: The status code of the response with which an HTTP server rejected a request.
    """

    def __init__(
        self,
        reason: str,
        *,
        exit_status: int | None = None,
        stderr_tail: str = "",
        http_status: int | None = None,
    ) -> None:
        super().__init__(reason + _stderr_text(stderr_tail))
        self.reason = reason
        self.exit_status = exit_status
        self.stderr_tail = stderr_tail
        self.http_status = http_status


class OutcomeUnknown(ConnectionLost):
    """The connection ended after the request was sent, or the response was too large.

    The server may have carried out the request. Repeat it only if a second run does no harm.
    """


class AuthorizationError(ConnectionLost):
    """The client could not get a token for the server; the text says at which step, and why.

    No token or secret is in the text.

    Attributes:
        code: The error code of the authorization server, such as "access_denied"; "login_required"
            if a user has to log in, and the client is not allowed to ask for that.
    """

    def __init__(self, reason: str, *, code: str | None = None) -> None:
        super().__init__(reason, http_status=401)
        self.code = code


def copied(error: MCPError) -> MCPError:
    """Return a copy of an error, to raise it in another task."""
    # Without `__init__`, whose arguments differ from class to class.
    copy = type(error).__new__(type(error), *error.args)
    vars(copy).update(vars(error))
    copy.__cause__ = error.__cause__
    return copy


def copied_loss(loss: ConnectionLost, kind: type[ConnectionLost]) -> ConnectionLost:
    """Return a copy of an error, of class `kind`, to raise it in another task.

    An `AuthorizationError` keeps its class: no request was carried out.
    """
    copy: ConnectionLost
    if isinstance(loss, AuthorizationError):
        copy = AuthorizationError(loss.reason, code=loss.code)
    else:
        copy = kind(
            loss.reason,
            exit_status=loss.exit_status,
            stderr_tail=loss.stderr_tail,
            http_status=loss.http_status,
        )
    copy.__cause__ = loss.__cause__
    return copy


class ToolError(MCPError):
    """A tool failed.

    If a tool raises it, the client receives the text in a result with `isError`. If another handler
    raises it, the client receives the text in a JSON-RPC error. `Client.call_tool` raises it with
    the complete result.

    Attributes:
        result: The result that the client has received; None if this side's handler has failed.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class ResultTypeError(MCPError, TypeError):
    """The result of a tool is valid, but is not of the type that the caller asked for."""


class SchemaError(MCPError, ValueError):
    """A JSON Schema is invalid, is too large, or refers to another document."""


class UrlElicitationRequired(MCPError):
    """A handler cannot continue until its user has visited some URLs. Raise it in the handler.

    A client of protocol version 2025-11-25 receives error -32042 and may repeat its request. A
    client of 2026-07-28 or later is asked in a round of the request; if the user agrees, the
    handler is run again. For other clients the error becomes `CapabilityMissing`.

    Args:
        elicitations: One or more `UrlElicitation`s.
        message: A text for the user.

    Raises:
        ValueError: `elicitations` is empty.
    """

    def __init__(self, elicitations: Sequence[Any], message: str = "") -> None:
        super().__init__(message or "the user has to visit a URL first")
        self.elicitations: list[Any] = list(elicitations)
        if not self.elicitations:
            raise ValueError("there is no URL that the user has to visit")


class ConfigError(MCPError):
    """A configuration file cannot be used; the text names the file and the error in it."""


class RecordingError(MCPError):
    """A recording cannot be read, or cannot be used for this purpose."""


class NothingCompared(MCPError):
    """A replay compared no request, so that it shows nothing."""


class ReplayedError(MCPError):
    """An effect failed in the recording with an exception that cannot be recreated here.

    Attributes:
        type_name: The recorded exception's class, as `module.qualname`.
        reason: What keeps the exception from being recreated, and what to do about it.
    """

    def __init__(self, type_name: str, text: str, reason: str = "") -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name
        self.reason = reason


class ReplayDivergence(MCPError):
    """The replay differs from the recording; the text says at which record, and how.

    Attributes:
        record: The number of the first record that differs.
        lane: The lane that differs: `r` with the number of the request's record, or a child task.
        kind: "missing" (the replay does not do something that is recorded, or does it later),
            "extra", "argument" (the same effect with other arguments), "message" (the same
            message with other content), "order" (another order of lanes), "uncancelled" (a recorded
            cancellation did not happen), "changed" (a tool, prompt or resource that a request used
            is listed differently), "redacted" (a redacted value is needed), "blocked" (a
            handler tried to use external I/O), or "problem".
        offset_seconds: The time of the record since the start of the recording.
        ordinal: The number of the record among those of its lane.
        recorded: The recorded operation.
        replayed: The operation of the replay.
        hint: The likeliest cause, or what the difference means if there is no sign of a cause.
        causes: The likely causes, the likeliest first.
        suspended: For each lane the file and line at which it waits.
        untracked_calls: The calls before the divergence that handlers made without their context.
        follows: The record of an earlier divergence from which this one may follow, in a replay
            that finds all of them; None otherwise.
        later: The later divergences, in a replay that finds all of them.
    """

    def __init__(
        self,
        message: str,
        *,
        record: int,
        lane: str | None = None,
        kind: str = "problem",
        offset_seconds: float = 0.0,
        ordinal: int | None = None,
        recorded: str = "",
        replayed: str = "",
        hint: str = "",
        causes: Sequence[str] = (),
        suspended: Mapping[str, str] | None = None,
        untracked_calls: Sequence[object] = (),
        follows: int | None = None,
    ) -> None:
        super().__init__(message)
        self.follows = follows
        self.later: list[ReplayDivergence] = []
        self.record = record
        self.lane = lane
        self.kind = kind
        self.offset_seconds = offset_seconds
        self.ordinal = ordinal
        self.recorded = recorded
        self.replayed = replayed
        self.hint = hint
        self.causes: list[str] = list(causes)
        self.suspended: dict[str, str] = dict(suspended or {})
        self.untracked_calls: list[object] = list(untracked_calls)


class BlockedInReplay(MCPError):
    """A replayed handler tried to use external I/O; the text names the effect to use instead."""


class UntrackedNondeterminism(MCPError):
    """A strictly recorded handler made a call that a replay cannot repeat; the call was prevented.

    The text names the call, its file and line, and what to use instead.
    """


class SweepUnavailable(MCPError):
    """Schedules cannot be swept here; the text says what is missing."""


class MockMismatch(MCPError):
    """A client sent a request that was not recorded, or did not send one that was."""


class Unencodable(ValueError):
    """A value cannot be sent as JSON; the text says why."""
