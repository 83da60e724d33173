"""The values that handlers keep in a session, with which another instance continues it.

They are `ctx.state`, and the entries that handlers have shown to the client or hidden from it. A
request that has changed them is answered only when the store of the instances has them. So if the
instance that runs the session, its *owner*, is lost, another one continues the session with the
values as of the last response.

The store has JSON (`_session/json_forms.py`). A session with a value that has no JSON form, such as
a function, ends with its owner, and so does a session with too many bytes.

In a recording the restored values are the outcome of an effect of the first request, and storing
them is an effect of the request. A mark before each of these effects tells a replay, which has no
store, that the effect follows.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from mcp_trio._journal.records import encode_body
from mcp_trio._server.access import Selector, Visibility
from mcp_trio._server.effects import NO_RESULT, JsonCodec, no_arguments
from mcp_trio._session.effects import Effect, perform, perform_without_waiting
from mcp_trio._session.handlers import Handling
from mcp_trio._session.json_forms import decode_value, encode_value

if TYPE_CHECKING:
    from mcp_trio._server.handlers import ServedSession

logger = logging.getLogger("mcp_trio")

# The names of the marks.
VALUES_RESTORED: Final = "session.restored"
VALUES_KEPT: Final = "session.kept"

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


_decode: Final = msgspec.json.Decoder(SessionValues).decode


@attrs.define(eq=False, repr=False)
class KeptValues:
    """The values of one session, and their place in the store of the instances.

    Attributes:
        bytes_max: The most bytes that their JSON may have.
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
            self._has_warned = True
            text = "no other instance can continue a session whose ctx.state %s"
            logger.warning(text, problem)


def load_values(served: "ServedSession", values: bytes) -> None:
    """Take the values of a session's lost owner, which `restore_values` sets at the first request.

    Raises:
        ValueError: The values cannot be decoded here.
    """
    assert served.kept_values is not None
    if values:
        decoded = _decode(values)
        decode_value(bytes(decoded.state))  # only to check it
        if missing := decoded.mounted.keys() - served.shared.mounted_by_name().keys():
            raise ValueError(f"no server {min(missing)!r} is mounted here")
    served.kept_values.restored = values


def restore_values(handling: Handling, served: "ServedSession") -> None:
    """Give the session the values of its lost owner, at its first request. This does not wait."""
    # A session without instances has no `kept_values`, and neither has a replay.
    kept, lane = served.kept_values, handling.current_lane()
    if kept is None and not handling.sequencer.replays:
        return
    if kept is not None and not kept.restored:
        return
    # A live session makes the mark and goes on; a replay returns here if the mark is not recorded.
    if lane is not None and not handling.sequencer.patched(lane, VALUES_RESTORED):
        return

    def take() -> SessionValues:
        assert kept is not None  # A replay does not run the effect.
        restored, kept.restored = kept.restored, NO_VALUES
        return _decode(restored)

    codec = JsonCodec[SessionValues](SessionValues)
    effect = Effect(name="session.restore", arguments=no_arguments, run=take, codec=codec)
    values = perform_without_waiting(handling, effect)
    served.set_values(decode_value(bytes(values.state)), values.visibility, values.mounted)


async def keep_values(handling: Handling, served: "ServedSession") -> None:
    """Wait until the store has the values of the session, if they have changed.

    If the store does not answer, this returns after a moment; the store gets them when it is
    available again.
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
