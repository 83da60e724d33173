"""Our "everything" server, dialling out: `python our_dialler.py --record PATH URL`."""

import argparse
import signal
import sys
from pathlib import Path

import trio

sys.path.append(str(Path(__file__).resolve().parent.parent / "conformance"))

from server import server


async def main(url: str, record: str | None) -> None:
    """Dial again and again, until SIGTERM."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial, url, record)
            await anext(signals)
            nursery.cancel_scope.cancel()


async def dial(url: str, record: str | None) -> None:
    await server.dial(url, record=record)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record")
    parser.add_argument("url")
    options = parser.parse_args()
    trio.run(main, options.url, options.record)
