"""How long a request may take, as facts: whoever has a clock asks."""

import attrs


@attrs.define(kw_only=True)
class Budget:
    """A request's budgets: `idle_seconds` from the last sign of life, `total_seconds` in all.

    Either may be `math.inf`. Times are seconds on whatever clock the caller uses consistently.
    """

    started: float
    idle_seconds: float
    total_seconds: float
    last_sign: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.last_sign = self.started

    @property
    def deadline(self) -> float:
        """When the first of the two budgets runs out."""
        return min(self.last_sign + self.idle_seconds, self.started + self.total_seconds)

    def sign_of_life(self, now: float) -> None:
        """Something was heard about the request: the idle budget starts again."""
        self.last_sign = now

    def expired(self, now: float) -> str | None:
        """Which budget has run out at `now`: "total", "idle" or None."""
        if now >= self.started + self.total_seconds:
            return "total"
        if now >= self.last_sign + self.idle_seconds:
            return "idle"
        return None
