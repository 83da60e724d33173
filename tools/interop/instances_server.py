"""One of several instances: `instances_server.py PORT REDIS_URL LEASE_SECONDS HOST [memory]`.

Each execution of a call is written to a file, which all instances append to; the environment
variable EXECUTIONS names it. With the argument `memory`, the instance does not use Redis. With the
variable REPLAYABLE, calls go on in another instance when their own is lost.
"""

import os
import sys

from mcp_trio import Context, Server, ThreadContext, effect
from mcp_trio.redis import RedisStores

server = Server("many", version="1.0", replayable="REPLAYABLE" in os.environ)
executions = os.open(os.environ["EXECUTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@effect
async def note(key: str) -> None:
    """Note an execution."""
    os.write(executions, f"{key}\n".encode())


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def add(key: str) -> str:
    """Note that the call with this key was executed."""
    await note(key)
    return key


@server.tool
async def count(key: str, *, ctx: Context) -> int:
    """Note the execution, take some time, and return the number of such calls in this session."""
    number: int = ctx.state.get("count", 0) + 1
    await note(key)
    await ctx.sleep(0.5)
    ctx.state["count"] = number
    return number


@server.tool
def count_in_thread(key: str, *, ctx: ThreadContext) -> int:
    """Do the same as `count`, in a thread."""
    number: int = ctx.state.get("count", 0) + 1
    ctx.effect(note, key)
    ctx.sleep(0.5)
    ctx.state["count"] = number
    return number


@server.tool
async def report(key: str, *, ctx: Context) -> str:
    """Note the execution, and send three messages on the way."""
    await note(key)
    for number in range(3):
        await ctx.info(f"{key} {number}")
        await ctx.sleep(0.2)
    return key


if __name__ == "__main__":
    port, url, lease_seconds, host, *memory = sys.argv[1:]
    if memory:
        server.run("http", port=int(port), hosts=[host])
    else:
        stores = RedisStores(url, prefix="many", lease_seconds=float(lease_seconds))
        server.run("http", port=int(port), hosts=[host], stores=stores)
