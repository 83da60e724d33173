"""Several mistakes in one value, told by whoever read it."""

from collections.abc import Sequence


class Faults(ValueError):  # noqa: N818 - one error, many faults
    """All that is wrong with one value, as pairs of a path inside of it and a text."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        path, text = faults[0]
        super().__init__(f"{text} - at `${path}`" if path else text)
        self.faults = faults
