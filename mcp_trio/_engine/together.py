"""The same thing done for several keys at once; exceptions arrive bare."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

Key = TypeVar("Key")
Answer = TypeVar("Answer")


async def together(
    keys: Iterable[Key],
    ask: Callable[[Key], Awaitable[Answer]],
    *,
    note: str | None = None,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> dict[Key, Answer]:
    """What `ask` gave for each key, in the order of the keys.

    A failure cancels the rest and is raised as it is, with a `note` that names its key; of several
    that came in the same moment the first in the order of the keys. It counts also if the calling
    task is cancelled by now, of which that will hear again; an interrupt is raised as it is.
    `meanwhile` is done in the calling task.
    """
    answers = dict[Key, Answer]()
    failures = dict[Key, Exception]()

    async def ask_one(key: Key) -> None:
        try:
            answers[key] = await ask(key)
        except Exception as error:
            if note is not None:
                error.add_note(note.format(key))
            failures[key] = error
            nursery.cancel_scope.cancel()

    keys = list(keys)
    try:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask_one, key)
            if meanwhile is not None:
                await meanwhile()
    except BaseExceptionGroup as group:  # of what is no failure of a key
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        if not failures or group.split(trio.Cancelled)[1] is not None:
            raise
    if failures:
        raise failures[min(failures, key=keys.index)]
    return {key: answers[key] for key in keys}
