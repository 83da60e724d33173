"""An instance of many_machines.py: `many_server.py PORT REDIS_URL LEASE_SECONDS HOST [memory]`.

Each execution of a call is written to a file, which all instances append to; the environment
variable EXECUTIONS names it. With the argument `memory`, the instance does not use Redis.
"""

import os
import sys

import trio

from mcp_trio import Context, Server
from mcp_trio.redis import RedisStores

server = Server("many", version="1.0")
executions = os.open(os.environ["EXECUTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def add(key: str) -> str:
    """Note that the call with this key was executed."""
    os.write(executions, f"{key}\n".encode())
    return key


@server.tool
async def report(key: str, *, ctx: Context) -> str:
    """Note the execution, and send three messages on the way."""
    os.write(executions, f"{key}\n".encode())
    for number in range(3):
        await ctx.info(f"{key} {number}")
        await trio.sleep(0.2)
    return key


if __name__ == "__main__":
    port, url, lease_seconds, host, *memory = sys.argv[1:]
    if memory:
        server.run("http", port=int(port), hosts=[host])
    else:
        stores = RedisStores(url, prefix="many", lease_seconds=float(lease_seconds))
        server.run("http", port=int(port), hosts=[host], stores=stores)
