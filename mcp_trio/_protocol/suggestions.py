"""Suggest the name that was probably meant in place of an unknown one."""

from collections.abc import Iterable
from typing import Final

# That of difflib, 0.6, would find "sweep" close to "serve".
_SIMILARITY_MIN: Final = 0.7


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error text about an unknown name, such as `; did you mean 'port'?`.

    Returns:
        The end of the text with the known name that is closest; empty if none is close.
    """
    import difflib  # only an error needs it

    close = difflib.get_close_matches(name, known, 1, _SIMILARITY_MIN)
    return f"; did you mean {close[0]!r}?" if close else ""
