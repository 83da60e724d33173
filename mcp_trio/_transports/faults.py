"""What went wrong with a connection, in words."""

from typing import cast


def words_of(error: BaseException) -> str:
    """What an exception says, and what the system said if it was wrapped again and again."""
    first = error
    while (earlier := first.__cause__ or first.__context__) is not None:
        first = earlier
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    words = str(error) or type(error).__name__
    if not isinstance(first, OSError) or str(first) in words:
        return words
    return f"{words} ({first})"
