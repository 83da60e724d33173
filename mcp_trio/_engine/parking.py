"""Which handlers wait for their client's next round, and with which state it may come back."""

import attrs

from mcp_trio._engine.handling import Handling
from mcp_trio._engine.rounds import Rounds, Stage, binding_of
from mcp_trio._limits import Limits
from mcp_trio._protocol import TheirRequest
from mcp_trio._protocol.request_state import PARKED, invalid_state


def is_retry(request: TheirRequest) -> bool:
    """Whether a request that may have rounds is the retry of a handler which is parked here.

    Any other state is the business of the handler's application.
    """
    state = request.params.request_state
    return state is not None and state.startswith(PARKED)


@attrs.define(eq=False)
class Parking:
    """The rounds of a session's handlers; bounded in number, bytes and, by their keepers, in time.

    `is_closed` says that no retry will come any more.
    """

    limits: Limits
    is_closed: bool = attrs.field(default=False, init=False)
    _rounds: dict[Handling, Rounds] = attrs.field(factory=dict[Handling, Rounds], init=False)
    _waiting: dict[Rounds, None] = attrs.field(factory=dict[Rounds, None], init=False)
    _states: dict[str, Rounds] = attrs.field(factory=dict[str, Rounds], init=False)
    _known: dict[Rounds, list[str]] = attrs.field(factory=dict[Rounds, list[str]], init=False)

    @property
    def parked(self) -> list[Handling]:
        """The handlers that have no request, and are not over."""
        return [rounds.handling for rounds in self._waiting if not rounds.is_open]

    @property
    def is_empty(self) -> bool:
        """Whether no handler waits for a retry, and none would get a reply that is kept."""
        return not (self._rounds or self._known)

    @property
    def handlings(self) -> list[Handling]:
        """The handlers that have asked, and are not over."""
        return list(self._rounds)

    def close(self) -> None:
        """No retry will come any more: who waits for one is cancelled, and no reply is kept."""
        self.is_closed = True
        for rounds in [*self._known]:
            rounds.forget()
            self._learn(rounds)
        for rounds in self._waiting:
            if rounds.stage is Stage.PARKED:
                rounds.give_up()

    def of(self, handling: Handling) -> Rounds | None:
        """The rounds of a handler; None if it has not asked."""
        return None if handling.rounds is None else self._rounds.get(handling)

    def enter(self, rounds: Rounds) -> Rounds:
        """A handler is about to ask for the first time."""
        rounds.handling.rounds = self._rounds[rounds.handling] = rounds
        return rounds

    def leave(self, rounds: Rounds) -> None:
        """A handler is over."""
        del self._rounds[rounds.handling]
        self.update(rounds)

    def refusal(self, rounds: Rounds) -> str | None:
        """Why a handler cannot ask, naming the setting; None when there is room."""
        handlers_max = self.limits.handlers_parked_max
        if rounds in self._waiting or len(self._waiting) < handlers_max:
            return None
        if not handlers_max:
            return (
                "no handler waits for answers here, but for resumable ones (handlers_parked_max=0)"
            )
        return f"too many handlers wait for answers (handlers_parked_max={handlers_max})"

    def found(self, request: TheirRequest) -> Rounds:
        """The rounds that a retry belongs to.

        Raises:
            RequestError: Its state is none of ours, or belongs to another request.
        """
        rounds = self._states.get(request.params.request_state)
        if rounds is None or rounds.binding != binding_of(request):
            raise invalid_state()
        return rounds

    def update(self, rounds: Rounds) -> None:
        """Something has changed about a handler's rounds."""
        if rounds.is_waiting:
            self._waiting[rounds] = None
        else:
            self._waiting.pop(rounds, None)
        self._learn(rounds)
        self._forget_the_oldest()

    def _learn(self, rounds: Rounds) -> None:
        for state in self._known.pop(rounds, ()):
            del self._states[state]
        if rounds.states:
            self._known[rounds] = rounds.states
            self._states.update(dict.fromkeys(rounds.states, rounds))

    def _forget_the_oldest(self) -> None:
        """Give up replies that are kept, from the oldest, until the others are not too many."""
        keeping = [rounds for rounds in self._known if rounds.kept_bytes]
        size_bytes = sum(rounds.kept_bytes for rounds in keeping)
        over = len(keeping) - self.limits.handlers_parked_max
        for rounds in keeping:
            if over <= 0 and size_bytes <= self.limits.replies_kept_bytes_max:
                return
            size_bytes -= rounds.kept_bytes
            over -= 1
            rounds.forget()
            self._learn(rounds)
