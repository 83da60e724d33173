"""How a server that is cancelled winds down in its own order."""

import trio


async def set_when_cancelled(stopping: trio.Event) -> None:
    """For a nursery outside of a shield: tells those inside of it."""
    try:
        await trio.sleep_forever()
    finally:
        stopping.set()
