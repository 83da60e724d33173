"""The values that handlers keep in a session, with which another instance continues it.

They are `ctx.state`, and the entries that handlers have shown or hidden to the client. A request
that has changed them is answered when the store of the instances has them. So the instance that
takes the session has the values as of the last response.

The store has JSON. A value that would change by that, such as a tuple or an object, cannot go on: a
session with such a value ends with its owner, as one with too many bytes does.

In a recording the restored values are the outcome of an effect of the first request, and storing
them is an effect of the request. So a replay needs no store.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from mcp_trio._journal.records import encode_body
from mcp_trio._server.access import Selector, Visibility
from mcp_trio._server.effects import NO_RESULT, JsonCodec, no_arguments
from mcp_trio._session.effects import Effect, perform, perform_without_waiting
from mcp_trio._session.handlers import Handling

if TYPE_CHECKING:
    from mcp_trio._server.handlers import ServedSession

logger = logging.getLogger("mcp_trio")

VALUES_RESTORED: Final = "session.restored"
VALUES_KEPT: Final = "session.kept"

NO_VALUES: Final = b""


class SessionValues(msgspec.Struct, frozen=True):
    """The values of a session.

    Attributes:
        state: The dict of `ctx.state`, as JSON.
        visibility: The decisions of `ctx.enable` and `ctx.disable`, from the oldest to the newest.
    """

    state: msgspec.Raw
    visibility: list[tuple[Selector, bool]]


_decode: Final = msgspec.json.Decoder(SessionValues).decode


@attrs.define(eq=False, repr=False)
class KeptValues:
    """The values of one session, and their place in the store of the instances.

    Attributes:
        bytes_max: The bound of their JSON.
        is_stored: Returns whether the store has the current values.
        publish: Writes the facts about the session to the store, and waits until it has them.
        restored: The values of the lost owner, until the first request takes them.
    """

    bytes_max: int
    is_stored: Callable[[], bool]
    publish: Callable[[], Awaitable[None]]
    restored: bytes = attrs.field(default=NO_VALUES, init=False)
    _has_warned: bool = attrs.field(default=False, init=False)

    def encoded(self, state: dict[str, Any] | None, visibility: Visibility | None) -> bytes | None:
        """Return the values as JSON; None if another instance cannot have them."""
        if self.restored:
            return self.restored
        if not state and visibility is None:
            return NO_VALUES
        problem, encoded_state = "has a value that JSON cannot represent", encoded_json(state or {})
        if encoded_state is not None:
            decisions = [] if visibility is None else visibility.in_order()
            encoded = encode_body(SessionValues(msgspec.Raw(encoded_state), decisions))
            if len(encoded) <= self.bytes_max:
                return encoded
            problem = f"is too large (limits.http.session_values_bytes_max={self.bytes_max})"
        if not self._has_warned:
            self._has_warned = True
            text = "no other instance can continue a session whose ctx.state %s"
            logger.warning(text, problem)
        return None


def encoded_json(value: Any) -> bytes | None:
    """Return the JSON of a value; None if the decoded JSON would be another value."""
    try:
        if _is_plain(value):
            encoded = encode_body(value)
            if msgspec.json.decode(encoded) == value:
                return encoded
    except (RecursionError, ValueError, OverflowError, msgspec.MsgspecError):
        pass  # for example a list that contains itself, or half of a surrogate pair
    return None


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of exactly the types that JSON becomes in Python."""
    kind: Any = value.__class__  # the exact class: a subclass would become its base class
    if kind is dict:
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    return kind in (str, int, bool, NoneType) or (kind is float and math.isfinite(value))


def restore_values(handling: Handling, served: "ServedSession") -> None:
    """Give the session the values of its lost owner, at its first request; do not wait."""
    kept, lane = served.kept_values, handling.current_lane()
    if kept is None and not handling.sequencer.replays:
        return
    if kept is not None and not kept.restored:
        return
    if lane is not None and not handling.sequencer.patched(lane, VALUES_RESTORED):
        return

    def take() -> SessionValues:
        assert kept is not None  # A replay does not run the effect.
        restored, kept.restored = kept.restored, NO_VALUES
        return _decode(restored)

    codec = JsonCodec[SessionValues](SessionValues)
    effect = Effect(name="session.restore", arguments=no_arguments, run=take, codec=codec)
    values = perform_without_waiting(handling, effect)
    served.set_values(msgspec.json.decode(values.state), values.visibility)


async def keep_values(handling: Handling, served: "ServedSession") -> None:
    """Wait until the store has the values of the session, if they have changed.

    If the store does not answer, this returns after a moment; the store gets them when it is back.
    """
    kept, lane = served.kept_values, handling.current_lane()
    if kept is None and not handling.sequencer.replays:
        return
    if kept is not None and kept.is_stored():
        return
    if lane is not None and not handling.sequencer.patched(lane, VALUES_KEPT):
        return

    async def publish() -> None:
        assert kept is not None  # A replay does not run the effect.
        await kept.publish()

    effect = Effect(name="session.keep", arguments=no_arguments, run=publish, codec=NO_RESULT)
    await perform(handling, effect)
