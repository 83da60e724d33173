"""The server of many_machines.py, which writes each execution of a call to a file.

The environment variable EXECUTIONS names the file, which all instances append to.
"""

import os

import trio

from mcp_trio import Context, Server

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
