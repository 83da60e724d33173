"""Visits of URLs that one side has asked the other for, until they are over."""

from typing import Any

import attrs


@attrs.define(eq=False)
class OpenElicitations:
    """The ids of those whose end may still be told, at most `ids_max`, the newest.

    Each session has its own, so that nobody hears of what another client has started (ELIC-32).
    """

    ids_max: int
    _ids: dict[str, Any] = attrs.field(factory=dict[str, Any], init=False)

    def begin(self, elicitation_id: str) -> None:
        """The client was asked."""
        self._ids[elicitation_id] = None
        if len(self._ids) > self.ids_max:
            del self._ids[next(iter(self._ids))]

    def end(self, elicitation_id: str) -> bool:
        """The visit is over; False if it was before, or if the client was never asked."""
        if elicitation_id not in self._ids:
            return False
        del self._ids[elicitation_id]
        return True
