"""How those are told that have to wind down in their own order when they are cancelled."""

from collections.abc import Callable

import trio


async def tell_when_cancelled(told: Callable[[], object]) -> None:
    """For a nursery beside or outside of them; `told` is called at once, and must be quick."""
    try:
        await trio.sleep_forever()
    finally:
        told()
