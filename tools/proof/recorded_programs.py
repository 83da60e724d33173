"""Record generated programs in real time, with real threads and a real web server.

`python tools/proof/recorded_programs.py FOLDER VERSION FIRST COUNT [--raw]` records the seeds from
FIRST on, with a client of that protocol version: several sessions at once, each in its own file,
with the final state of the server's memory beside it.
"""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx2
import msgspec
import trio
from generated_client import ScriptedClient
from generated_server import server_of
from latency_server import start_latency_server
from programs import Program, program_of

from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio._session.session import Session
from mcp_trio.recording import TickClock
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair

SESSIONS_AT_ONCE: Final = 4
SUFFIX: Final = ".mcprec.jsonl"
ENDS_SECONDS_MAX: Final = 30.0


def recording_of(folder: Path, seed: int) -> Path:
    return folder / f"{seed}{SUFFIX}"


def state_of(folder: Path, seed: int) -> Path:
    """Return the file with the final state of the server's memory."""
    return folder / f"{seed}.state.json"


async def record_programs(
    folder: Path, protocol_version: ProtocolVersion, programs: Sequence[Program]
) -> None:
    limiter = trio.CapacityLimiter(SESSIONS_AT_ONCE)
    async with trio.open_nursery() as web:
        url = await start_latency_server(web)
        await _warm_up(url)
        async with trio.open_nursery() as nursery:
            for program in programs:
                nursery.start_soon(_record, folder, protocol_version, program, url, limiter)
        web.cancel_scope.cancel()


async def _warm_up(url: str) -> None:
    """Make a request, so that imports do not delay the first sessions."""
    with suppress(httpx2.HTTPError):
        async with httpx2.AsyncClient() as client:
            await client.get(url)


async def _record(
    folder: Path,
    protocol_version: ProtocolVersion,
    program: Program,
    url: str,
    limiter: trio.CapacityLimiter,
) -> None:
    served = server_of(program)
    async with limiter:
        ours, theirs = memory_pair()
        peer = WirePeer(theirs)
        with trio.fail_after(ENDS_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                path = recording_of(folder, program.seed)

                async def serve(*, task_status: trio.TaskStatus[Session]) -> None:
                    await served.server.serve(ours, record=path, task_status=task_status)

                session = await nursery.start(serve)
                await ScriptedClient(program, protocol_version, peer, url).run()
                if program.ending == "closed":
                    session.shut("closed")
                await peer.aclose()
    state_of(folder, program.seed).write_bytes(msgspec.json.encode(served.shared.state()))


def main() -> None:
    logging.getLogger("mcp_trio").setLevel(logging.CRITICAL)  # handlers that fail on purpose
    folder, protocol_version, first, count, *raw = sys.argv[1:]
    seeds = range(int(first), int(first) + int(count))
    programs = [program_of(seed, raw=bool(raw)) for seed in seeds]
    trio.run(
        record_programs,
        Path(folder),
        PROTOCOL_VERSIONS[protocol_version],
        programs,
        clock=TickClock(),
    )


if __name__ == "__main__":
    main()
