"""The parts of a session with which another instance continues it: its values and its calls.

A session with a handshake lives in its *owner*, the instance that runs its handlers
(`instances.py`). The owner stores what another instance needs to continue the session. When the
owner is lost, the instance that takes the session restores its values and runs its calls again.

A replay has no store. Therefore the restored values, the earlier operations of a call, and storing
the values are effects of the request. A mark before each of them tells a replay that the effect
follows.
"""

import functools
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import trio
from trio.lowlevel import in_trio_task

from mcp_trio._journal.records import encode_body
from mcp_trio._jsonrpc.messages import encode_request
from mcp_trio._server.access import Selector, Visibility
from mcp_trio._server.effects import JsonCodec, no_arguments, perform_plain
from mcp_trio._server.instances import Instance, StoreUnavailableError
from mcp_trio._session.effects import Effect, perform_without_waiting
from mcp_trio._session.exceptions import sole_exception
from mcp_trio._session.handler_journal import FinishedOperation, HandlerJournal, OperationId
from mcp_trio._session.handlers import Handling, lane_of_caller
from mcp_trio._session.input_required import DivergedError, run_kept
from mcp_trio._session.json_forms import decode_value, encode_value
from mcp_trio._session.recorded_errors import encoded_error
from mcp_trio.errors import INTERNAL_ERROR, SERVER_BUSY, OutcomeUnknown, RequestError
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

if TYPE_CHECKING:
    from mcp_trio._server.handlers import ServedSession

logger = logging.getLogger("mcp_trio")


def _has_mark(handling: Handling, name: str) -> bool:
    """Return whether the recording of a request has a mark; a live session makes the mark."""
    lane = lane_of_caller(handling)
    return lane is None or handling.sequencer.patched(lane, name)


# Values -----------------------------------------------------------------------------------------
#
# The values are `ctx.state`, and the entries that handlers have shown to the client or hidden from
# it. A request that has changed them is answered only when the store of the instances has them. So
# another instance continues the session with the values as of the last response.
#
# The store has JSON (`_session/json_forms.py`). A session with a value that has no JSON form, such
# as a function, ends with its owner, and so does a session with too many bytes.

NO_VALUES: Final = b""


class SessionValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of a session.

    Attributes:
        state: The dict of `ctx.state`, as JSON.
        visibility: The decisions of `ctx.enable` and `ctx.disable`, from the oldest to the newest.
        mounted: The same for handlers of mounted servers, by `ServerSessions.mounted_by_name`.
    """

    state: msgspec.Raw
    visibility: list[tuple[Selector, bool]]
    mounted: dict[str, list[tuple[Selector, bool]]] = {}

    def decoded_state(self) -> Any:
        """Return the dict of `ctx.state`; raise `ValueError` if it cannot be decoded here."""
        return decode_value(bytes(self.state))


@attrs.define(eq=False, repr=False)
class KeptValues:
    """The values of one session, and their place in the store of the instances.

    Attributes:
        is_stored: Returns whether the store has the current values.
        publish: Stores these values, with all else that another instance needs to continue the
            session, and waits until the store has them.
        restored: The values of the lost owner, until the first request takes them.
    """

    bytes_max: int
    is_stored: Callable[[], bool]
    publish: Callable[[], Awaitable[None]]
    restored: bytes = attrs.field(default=NO_VALUES, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)

    def encoded(
        self,
        state: dict[str, Any] | None,
        visibility: Visibility | None,
        mounted: Mapping[str, Visibility],
    ) -> bytes | None:
        """Return the values as JSON; None if another instance cannot have them."""
        if self.restored:
            return self.restored
        if not state and visibility is None and not mounted:
            return NO_VALUES
        try:
            encoded_state = encode_value(state or {})
        except ValueError as error:  # Its text begins with "of the type", for example.
            self._warn(f"has a value {error}")
            return None
        values = SessionValues(
            msgspec.Raw(encoded_state),
            [] if visibility is None else visibility.in_order(),
            {name: each.in_order() for name, each in mounted.items()},
        )
        encoded = encode_body(values)
        if len(encoded) <= self.bytes_max:
            return encoded
        self._warn(f"is too large (limits.http.session_values_bytes_max={self.bytes_max})")
        return None

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            logger.warning("no other instance can continue a session whose ctx.state %s", problem)
        self._has_warned = True


def load_values(served: "ServedSession", values: bytes) -> None:
    """Take the values of a session's lost owner, which `restore_values` sets at the first request.

    Raises:
        ValueError: The values cannot be decoded here.
    """
    assert served.kept_values is not None
    if values:
        decoded = msgspec.json.decode(values, type=SessionValues)
        decoded.decoded_state()  # only to check it
        if missing := decoded.mounted.keys() - served.shared.mounted_by_name().keys():
            raise ValueError(f"no server {min(missing)!r} is mounted here")
    served.kept_values.restored = values


def restore_values(handling: Handling, served: "ServedSession") -> None:
    """Give the session the values of its lost owner, at its first request. This does not wait."""
    # A session without instances has no `kept_values`, and neither has a replay.
    kept = served.kept_values
    may_restore = handling.sequencer.replays if kept is None else bool(kept.restored)
    if not (may_restore and _has_mark(handling, "session.restored")):
        return

    def take() -> SessionValues:
        assert kept is not None  # A replay does not run the effect.
        restored, kept.restored = kept.restored, NO_VALUES
        return msgspec.json.decode(restored, type=SessionValues)

    codec = JsonCodec[SessionValues](SessionValues)
    effect = Effect(name="session.restore", arguments=no_arguments, run=take, codec=codec)
    served.set_values(perform_without_waiting(handling, effect))


async def keep_values(handling: Handling, served: "ServedSession") -> None:
    """Wait until the store has the values of the session, if they have changed.

    If the store does not answer, this returns after a moment; the store gets them when it is
    available again.
    """
    kept = served.kept_values
    may_keep = handling.sequencer.replays if kept is None else not kept.is_stored()
    if not (may_keep and _has_mark(handling, "session.kept")):
        return

    async def publish() -> None:
        assert kept is not None  # A replay does not run the effect.
        await kept.publish()

    await perform_plain(handling, "session.keep", None, publish)


# Calls ------------------------------------------------------------------------------------------
#
# The owner stores each call of a resumable handler, and each one of a replayable server, with the
# operations that it has finished, as entries with numbers: entry 0 is the request, and each
# operation has one. The instance that takes the session runs the handler again from its beginning,
# and each finished operation has its stored outcome. `HandlerJournal` identifies operations.
#
# Before an effect of the user runs, its entry is in the store. If it has no outcome there when the
# session is taken, it may have been carried out: it raises `OutcomeUnknown` in the handler, unless
# it is repeatable. So an effect that is not repeatable runs once. A `def` effect that runs in the
# event loop cannot wait for the store; it may run again if its instance dies in the same moment.
#
# A call is not continued if entries are missing, because the store has lost data, if they were too
# large, or if the handler has another version or is not resumable: its outcome is unknown, and it
# is removed from the store. The outcome is also unknown if the handler does something else when it
# runs again, or finds another `ctx.state`.

_UNKNOWN: Final = "the instance that ran this {} was lost: its outcome is unknown"
_BEGUN: Final = "cmd"  # the kind of an operation without an outcome


class KeptRequest(msgspec.Struct, frozen=True, array_like=True):
    """Entry 0 of a call: its encoded request, the version of its handler, and a seed."""

    message: bytes
    version: str
    seed: str


class EarlierCall(msgspec.Struct, frozen=True):
    """The beginning of a call on another instance; without operations, the call begins here.

    Attributes:
        seed: The seed of the handler's random numbers.
        operations: The finished operations, and the effects that raise `OutcomeUnknown`.
        has_unknown: Whether there are such effects.
    """

    seed: str
    operations: Sequence[FinishedOperation] = ()
    has_unknown: bool = False


@attrs.define(eq=False, repr=False)
class KeptCalls:
    """The calls of one session, in the store of the instances.

    Attributes:
        session_id: The session.
        instance: This instance, which owns the session.
        limits: The bound of an error that the store keeps.
        has_left: Whether another instance has the session; nothing more is stored then.
        requests: The requests that are to be continued here, by their ids.
    """

    session_id: str
    instance: Instance
    limits: Limits
    has_left: bool = attrs.field(default=False, init=False)
    requests: dict[RequestId, bytes] = attrs.field(factory=dict[RequestId, bytes], init=False)
    _earlier: dict[RequestId, tuple[KeptRequest, Sequence[FinishedOperation]]] = attrs.field(
        factory=dict[Any, Any], init=False
    )

    def load(self, stored: Mapping[str, Mapping[int, bytes]]) -> None:
        """Read the calls that the lost owner has stored; remove those with missing entries."""
        for call, entries in list(stored.items()):
            numbers = range(len(entries))
            if all(number in entries for number in numbers):
                request = msgspec.json.decode(entries[0], type=KeptRequest)
                operations = [
                    msgspec.json.decode(entries[number], type=FinishedOperation)
                    for number in numbers[1:]
                ]
                request_id = msgspec.json.decode(call, type=RequestId)
                self._earlier[request_id] = request, operations
                self.requests[request_id] = request.message
            else:
                self.instance.forget_call(self.session_id, call, max(entries) + 1)

    def is_continued(self, request_id: RequestId) -> bool:
        """Return whether the lost owner has begun a call, which goes on here."""
        return request_id in self._earlier

    def begin(self, handling: Handling, version: str | None) -> "tuple[EarlierCall, _Entries]":
        """Begin or continue a call; return its earlier operations.

        `version` is that of the handler, or None if its calls cannot be continued.

        Raises:
            RequestError: The handler of the lost owner had another version: the outcome is unknown.
        """
        request_id = handling.request.id
        call = encode_body(request_id).decode()
        request, operations = self._earlier.pop(request_id, (None, ()))
        entries = _Entries(self, call, operations)
        if request is None:
            assert version is not None
            method, params = handling.request.method.name, handling.request.params
            depth_max = handling.limits.messages.json_depth_max
            message = encode_request(request_id, method, params, json_depth_max=depth_max)
            request = KeptRequest(message, version, secrets.token_hex(16))
            self.instance.post_call_entry(self.session_id, call, 0, encode_body(request))
        elif request.version != version:
            entries.forget()
            raise RequestError(INTERNAL_ERROR, _UNKNOWN.format("request"))
        earlier = EarlierCall(
            request.seed,
            [self._with_outcome(operation) for operation in operations],
            has_unknown=any(operation.kind == _BEGUN for operation in operations),
        )
        return earlier, entries

    def _with_outcome(self, operation: FinishedOperation) -> FinishedOperation:
        """Return an operation with its outcome; that of an effect without one is unknown."""
        if operation.kind != _BEGUN:
            return operation
        error = OutcomeUnknown(_UNKNOWN.format(f"effect {operation.id.name!r}"))
        body = encoded_error(error, bytes_max=self.limits.requests.effect_bytes_max)
        return msgspec.structs.replace(operation, kind="err", body=msgspec.Raw(body))


@attrs.define(eq=False, repr=False)
class _Entries:
    """The entries of one call."""

    calls: KeptCalls
    call: str
    earlier: Iterable[FinishedOperation]
    _numbers: dict[tuple[str, int], int] = attrs.field(factory=dict[Any, int], init=False)
    _size: int = attrs.field(default=0, init=False)
    _is_forgotten: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        for operation in self.earlier:
            self._number(operation.id)
            self._size += len(operation.body)

    def _number(self, operation: OperationId) -> int:
        key = (operation.lane, operation.ordinal)
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    async def begin(self, operation: OperationId) -> None:
        """Store that an effect begins.

        Raises:
            RequestError: The store does not answer, or another instance has taken the session
                (server busy); the effect must not run.
        """
        if self._is_forgotten:
            return
        calls, entry = self.calls, encode_body(FinishedOperation(operation, _BEGUN))
        number = self._number(operation)
        try:
            await calls.instance.store_call_entry(calls.session_id, self.call, number, entry)
        except StoreUnavailableError as error:
            # The client does not get the error, which may have the address of the store.
            text = f"{operation.name} did not run, because it cannot be stored now"
            logger.warning("%s: %s", text, error)
            raise RequestError(SERVER_BUSY, text) from error

    def keep(self, operation: FinishedOperation) -> None:
        """Store the outcome of an operation, soon; may be called in the thread of the handler.

        If all outcomes of the call have too many bytes, the call is forgotten.
        """
        if not in_trio_task():
            trio.from_thread.run_sync(self.keep, operation)
            return
        calls, bytes_max = self.calls, self.calls.limits.http.kept_call_bytes_max
        if calls.has_left or self._is_forgotten:
            return
        self._size += len(operation.body)
        if self._size > bytes_max:
            text = "no other instance can continue request %s: its effects have too many bytes (%s)"
            logger.warning(text, self.call, f"limits.http.kept_call_bytes_max={bytes_max}")
            self.forget()
            return
        number, entry = self._number(operation.id), encode_body(operation)
        calls.instance.post_call_entry(calls.session_id, self.call, number, entry)

    def forget(self) -> None:
        """Remove the call, which has ended or is too large, from the store."""
        if self._is_forgotten:
            return
        self._is_forgotten = True
        if not self.calls.has_left:
            count = len(self._numbers) + 1
            self.calls.instance.forget_call(self.calls.session_id, self.call, count)


def is_kept(handling: Handling, served: "ServedSession") -> bool:
    """Return whether another instance can continue the call, or this one continues it.

    In a replay: whether that was so in the recording.
    """
    calls = served.calls
    if not handling.request.has_rounds:
        return False
    # If the lost owner has begun the call, a handler that is not resumable here must not begin it.
    is_continued = (
        handling.sequencer.replays if calls is None else calls.is_continued(handling.request.id)
    )
    may_keep = is_continued or _kept_version(handling, served) is not None
    return may_keep and _has_mark(handling, "call.kept")


def _kept_version(handling: Handling, served: "ServedSession") -> str | None:
    """Return the version of the handler; None if its calls cannot be continued."""
    entry = served.entry(handling.request)
    return None if entry is None else entry.kept_version(served.server)


async def run_kept_call(handling: Handling, served: "ServedSession") -> Any:
    """Return the result of a call that another instance can continue.

    If this is cancelled because the session goes on in another instance, the call stays stored. An
    unknown outcome, or an unavailable store, is a `RequestError`.
    """
    calls, entries, earlier = served.calls, list[_Entries](), EarlierCall("")

    def begin() -> EarlierCall:
        assert calls is not None  # A replay does not run the effect.
        begun, stored = calls.begin(handling, _kept_version(handling, served))
        entries.append(stored)
        return begun

    try:
        earlier = await perform_plain(handling, "call.begin", EarlierCall, begin)
        journal = HandlerJournal(earlier.seed, is_kept=True)
        journal.add_earlier(earlier.operations)
        for each in entries:
            journal.on_begin, journal.on_finished = each.begin, each.keep
        handle = functools.partial(served.handle_in_session, handling)
        return await run_kept(handling, journal, handle)
    except Exception as error:
        unknown = sole_exception(error)
        if isinstance(unknown, OutcomeUnknown if earlier.has_unknown else DivergedError):
            raise RequestError(INTERNAL_ERROR, unknown.reason) from error
        raise
    finally:
        for each in entries:
            each.forget()
