"""The errors of the engine, named by whose fault it was.

    MCPError
    ├── ProtocolError
    │   ├── LocalProtocolError     our side asked for something the protocol forbids
    │   │   └── CapabilityMissing  the client has not announced what the server needs
    │   └── RemoteProtocolError    the peer sent something the protocol forbids
    ├── RequestError               the request was answered with a JSON-RPC error
    │   ├── ResourceNotFound       there is nothing to read at a URI
    │   └── UserRejected           a person refused what was asked for
    ├── RequestTimeout             the answer did not come within a budget
    ├── RequestAbandoned           a handler's thread acts for a request that is over
    ├── ConnectionLost             the channel ended while somebody needed it
    ├── UrlElicitationRequired     a handler needs its user to visit URLs before it can go on
    ├── ToolError                  the tool itself reports a failure, in words for the model
    ├── SchemaError                a JSON Schema cannot be used
    ├── ConfigError                a file of settings cannot be used
    ├── RecordingError             a recording cannot be used
    ├── BlockedInReplay            a replayed handler reached for the outside world
    ├── StrayNondeterminism        a handler, strictly recorded, went past its context
    ├── SweepUnavailable           this Trio, or this system, cannot be swept on
    ├── ReplayedError              an effect failed when it was recorded
    ├── ReplayDivergence           the replay differs from the recording
    └── MockMismatch               a client and the recording that is mocked do not fit

JSON-RPC codes are chosen in the pure core only; the shell passes them on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
SERVER_BUSY: Final = -32000
USER_REJECTED: Final = -1
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042


def _last_words(stderr_tail: str) -> str:
    return f"\nlast lines of its stderr:\n{stderr_tail}" if stderr_tail else ""


class MCPError(Exception):
    """The root of all errors that this package raises on purpose."""


class ProtocolError(MCPError):
    """One side broke the rules of the protocol; catch a child to know which."""


class LocalProtocolError(ProtocolError):
    """Our side asked for something that the protocol forbids now; nothing was sent."""


class CapabilityMissing(LocalProtocolError):
    """The client has not announced what a handler wants to ask it for; nothing was sent.

    `required` is what it would have had to announce, as an object of capabilities. Where nobody
    catches it, a client that speaks a modern revision is told that (ERR-14); another one gets a
    tool's result, or an error, whose text names what it lacks.
    """

    def __init__(self, message: str, required: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.required: dict[str, Any] = dict(required)


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids."""


class RequestError(MCPError):
    """A request ends with a JSON-RPC error.

    Raised to a caller when the peer answered so; raised by a handler to answer so.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message
        self.data = data


class ResourceNotFound(RequestError):
    """Raised by a reader of resources: there is nothing at this URI.

    The client gets the code that its revision has for that, and the URI (ERR-02, ERR-03, ERR-04).
    """

    def __init__(
        self,
        uri: str,
        *,
        code: int = RESOURCE_NOT_FOUND,
        message: str | None = None,
        data: Any = None,
    ) -> None:
        said = f"resource not found: {uri}" if message is None else message
        super().__init__(code, said, {"uri": uri} if data is None else data)


class UserRejected(RequestError):
    """Raised by a client's callback: the user says no to what the server asks (ERR-18)."""

    def __init__(self, message: str = "the user rejected the request") -> None:
        super().__init__(USER_REJECTED, message)


class RequestTimeout(MCPError):
    """The answer did not come in time; the peer has been told that nobody waits any more.

    `budget` is "idle" (nothing heard for `seconds`), or "total" (unfinished after `seconds`), and
    `setting` what to raise. Who does not shake hands is named as `server`, by a URL without what
    may be secret in it, or by a command, whose `stderr_tail` is known then.
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
        whose = f" from {server}" if server else ""
        text = f"{method}: no answer{whose} within the {budget} budget of {seconds:g} s"
        super().__init__(f"{text}; raise {setting}" + _last_words(stderr_tail))
        self.server = server
        self.method = method
        self.budget = budget
        self.seconds = seconds
        self.setting = setting
        self.stderr_tail = stderr_tail


class RequestAbandoned(MCPError):
    """The request of this `def` handler is over: cancelled, answered, or lost with its session.

    Raised in the handler's thread by each call of its context; let it out, nobody hears it.
    """


class ConnectionLost(MCPError):
    """The channel ended; the request's outcome is unknown unless it was never sent.

    `exit_status` (negative: the signal's number) and `stderr_tail` are known for subprocesses, and
    `http_status` where a server over HTTP has refused.
    """

    def __init__(
        self,
        reason: str,
        *,
        exit_status: int | None = None,
        stderr_tail: str = "",
        http_status: int | None = None,
    ) -> None:
        super().__init__(reason + _last_words(stderr_tail))
        self.reason = reason
        self.exit_status = exit_status
        self.stderr_tail = stderr_tail
        self.http_status = http_status


class OutcomeUnknown(ConnectionLost):
    """The request had gone out when its connection broke, or the response was too large.

    It may have been carried out, or not. Repeat it only if doing so twice does no harm.
    """


def loss_as(kind: type[ConnectionLost], loss: ConnectionLost) -> ConnectionLost:
    """The same loss for one more who hears of it: `OutcomeUnknown` if they had sent something."""
    own = kind(
        loss.reason,
        exit_status=loss.exit_status,
        stderr_tail=loss.stderr_tail,
        http_status=loss.http_status,
    )
    own.__cause__ = loss.__cause__
    return own


class ToolError(MCPError):
    """A tool failed and says why.

    Raised by a tool, its text goes to the peer as a result with `isError`; raised by any other
    handler, as that of an error. Raised by a client, `result` is that whole result.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class SchemaError(MCPError, ValueError):
    """A JSON Schema is invalid, too large, or says nothing without what lies outside of it."""


class UrlElicitationRequired(MCPError):
    """Raised by a handler that cannot go on until its user has visited some URLs.

    `elicitations` are `UrlElicitation`s. A client of 2025-11-25 gets them as error -32042, and
    calls again when it likes; a modern one is asked in a round, and the handler is run again if the
    user agrees. Others cannot be asked: `CapabilityMissing` (ERR-16, ERR-17).

    Raises:
        ValueError: There are none.
    """

    def __init__(self, elicitations: Sequence[Any], message: str = "") -> None:
        super().__init__(message or "the user has to visit a URL first")
        self.elicitations: list[Any] = list(elicitations)
        if not self.elicitations:
            raise ValueError("there is no URL that the user has to visit")


class ConfigError(MCPError):
    """A file of settings cannot be used; one line names it, and what in it is wrong."""


class RecordingError(MCPError):
    """A recording cannot be read, or cannot serve the purpose that was asked of it."""


class ReplayedError(MCPError):
    """An effect failed in the recording, with an exception that cannot be made again here.

    `type_name` is its class, as `module.qualname`; the text is its text.
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}")
        self.type_name = type_name


class ReplayDivergence(MCPError):
    """The replay did something else than the recording; the text tells where and what.

    Attributes:
        record: The number of the first record that differs.
        lane: Who did it: `r` and the number of the request's record, or a task below that.
        kind: "missing" (what is recorded is not done here: no longer, or later), "extra",
            "argument" (the same effect with others), "frame" (the same message with something else
            in it), "order" (a lane does before another what it did after it), "uncancelled" (a
            recorded cancellation never came), "redacted" (it depends on a value that was taken
            out), "blocked" (the code reached for the outside) or "problem".
        offset_seconds: When the record was made, from the beginning of the recording.
        ordinal: Which operation of the lane it is.
        recorded: What the recording holds.
        replayed: What the replay did instead.
        hint: What that means.
        parked: Where each lane waits, as file and line.
        strays: The calls that went past the context before that.
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
        suspended: Mapping[str, str] | None = None,
        untracked_calls: Sequence[object] = (),
    ) -> None:
        super().__init__(message)
        self.record = record
        self.lane = lane
        self.kind = kind
        self.offset_seconds = offset_seconds
        self.ordinal = ordinal
        self.recorded = recorded
        self.replayed = replayed
        self.hint = hint
        self.suspended: dict[str, str] = dict(suspended or {})
        self.untracked_calls: list[object] = list(untracked_calls)


class BlockedInReplay(MCPError):
    """A replayed handler reached for the outside world; the text names the effect to write."""


class UntrackedNondeterminism(MCPError):
    """A handler that is strictly recorded did what a replay cannot repeat; the call was not done.

    The text names the call, its file and line, and what to use instead.
    """


class SweepUnavailable(MCPError):
    """Schedules cannot be swept here; the text says what is missing."""


class MockMismatch(MCPError):
    """A client asked a mocked server what was not recorded, or did not ask all that was."""


class Unencodable(ValueError):
    """A value cannot be sent as JSON; the text says why."""
