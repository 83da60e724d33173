"""Show that limits hold under load, on one instance and on three.

    python tools/interop/instances_limits.py --seconds 10 --rate 50/second

Each run starts `mcp-trio run --rate-limit` once, or three times with a Redis. Each user has clients
at all instances, which call as fast as they can, and ignore that they should wait. The table
compares the allowed calls of a user with what was configured: the burst, and the rate for the time
of the load. The exit status is 1 if a user was allowed more than that, or less than nine tenths; or
if no call was rejected, because this machine is too slow for a load beyond the rate.
"""

import argparse
import collections
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

sys.path.append(str(Path(__file__).resolve().parents[1]))

from server_processes import RedisProcess, running_server

from mcp_trio import Client, RequestError
from mcp_trio.middleware import Rate

USERS: Final = 3
SHARE_MIN: Final = 0.9
SERVER: Final = """
from mcp_trio import Server
from mcp_trio.auth import StaticTokens

USERS = {f"token-{number}": f"user {number}" for number in range(%d)}
server = Server("adder", auth=StaticTokens(USERS))


@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""


@attrs.frozen
class UserLoad:
    """The calls of one user under load, and what the rate and its burst allow in that time."""

    user: str
    allowed: int
    rejected: int
    configured: float

    @property
    def problem(self) -> str:
        """What is wrong; "" if as many calls were allowed as the rate says, up to a tenth less."""
        if not self.rejected:
            return "too little load"
        is_right = SHARE_MIN * self.configured <= self.allowed <= self.configured
        return "" if is_right else "not as configured"


@contextmanager
def instances(folder: Path, count: int, options: Sequence[str]) -> Iterator[Sequence[str]]:
    """Run instances of the server while the block runs; yield their URLs."""
    program = folder / "adder.py"
    program.write_text(SERVER % USERS, encoding="utf-8")
    command = [sys.executable, "-m", "mcp_trio", "run", str(program), "--transport", "http"]
    command += ["--port", "0", *options]
    with ExitStack() as stack:
        yield [
            stack.enter_context(running_server(command, folder / f"{number}.log")).url
            for number in range(count)
        ]


async def load(urls: Sequence[str], rate: Rate, clients: int, seconds: float) -> list[UserLoad]:
    """Let the clients of each user call for some seconds, and count what was allowed."""
    allowed, rejected = collections.Counter[str](), collections.Counter[str]()

    async def call(user: str, client: Client, end: float) -> None:
        while trio.current_time() < end:
            try:
                await client.call_tool("add", {"a": 1, "b": 2})
                allowed[user] += 1
            except RequestError as error:
                if "retryAfter" not in (error.data or {}):
                    raise
                rejected[user] += 1

    users = [f"user {number}" for number in range(USERS)]
    async with AsyncExitStack() as stack:
        connected = [
            (user, await stack.enter_async_context(Client(url, token=f"token-{user[-1]}")))
            for user in users
            for url, _ in zip(itertools.cycle(urls), range(max(clients, len(urls))), strict=False)
        ]
        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            for user, client in connected:
                nursery.start_soon(call, user, client, begin + seconds)
        taken = trio.current_time() - begin
    configured = rate.burst + rate.per_minute / 60 * taken
    return [UserLoad(user, allowed[user], rejected[user], configured) for user in users]


async def main(options: argparse.Namespace) -> int:
    """Put the load on one instance and on three, print the tables, and return the exit status."""
    rate = Rate.parse(options.rate)
    status = 0
    print(f"{options.rate}, {options.seconds:g} s, {options.clients} clients of each user")
    with tempfile.TemporaryDirectory() as name:
        redis = RedisProcess(name)
        redis.start()
        try:
            for count, text, more in (
                (1, "one instance, its memory", ()),
                (3, "three instances, one Redis", ("--redis", redis.url)),
            ):
                arguments = ["--rate-limit", options.rate, *more]
                with instances(Path(name), count, arguments) as urls:
                    loads = await load(urls, rate, options.clients, options.seconds)
                print(f"\n{text:28} {'allowed':>8} {'configured':>10} {'rejected':>8}")
                for each in loads:
                    print(
                        f"{each.user:28} {each.allowed:8} {each.configured:10.1f}"
                        f" {each.rejected:8}  {each.problem}".rstrip()
                    )
                    status |= bool(each.problem)
        finally:
            redis.stop()
    return status


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="10/second")
    parser.add_argument("--clients", type=int, default=3, help="clients of each user")
    parser.add_argument("--seconds", type=float, default=5.0)
    raise SystemExit(trio.run(main, parser.parse_args()))
