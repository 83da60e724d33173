"""The same thing done for several servers, or questions, at once; exceptions arrive bare."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

Key = TypeVar("Key")
Answer = TypeVar("Answer")


async def together(
    keys: Iterable[Key],
    ask: Callable[[Key], Awaitable[Answer]],
    *,
    note: str = "this was the server {!r}",
) -> dict[Key, Answer]:
    """What `ask` gave for each key, in the order of the keys.

    The first failure cancels the rest, and is raised as it is, with a `note` that names its key; an
    interrupt is raised as it is, too.
    """
    answers = dict[Key, Answer]()
    failures: list[Exception] = []

    async def ask_one(key: Key) -> None:
        try:
            answers[key] = await ask(key)
        except Exception as error:
            error.add_note(note.format(key))
            failures.append(error)
            nursery.cancel_scope.cancel()

    keys = list(keys)
    try:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask_one, key)
    except BaseExceptionGroup as group:  # no failure is in it: those are kept apart
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from None
    if failures:
        raise failures[0]
    return {key: answers[key] for key in keys}
