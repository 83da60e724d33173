"""A build farm: workers behind memory channels, retries, races, events between requests.

One of the servers whose source `mutated_servers.py` changes. All external calls are effects.
"""

from typing import Literal

import attrs
import trio

from mcp_trio import Context, RequestError, Server, ToolError, effect

server: Server = Server("builds", version="2.1")

WORKERS = 2
ATTEMPTS_MAX = 3
NOT_FOUND = -32002


class FlakyError(Exception):
    """A step that may succeed when it is repeated."""


@attrs.define
class Farm:
    """The builds that have ended, and the requests that wait for them."""

    ended: dict[str, str] = attrs.field(factory=dict[str, str])
    waiting: dict[str, trio.Event] = attrs.field(factory=dict[str, trio.Event])
    changed: trio.Condition = attrs.field(factory=trio.Condition)
    slots: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(1))
    running: int = 0


farm: Farm = Farm()


# Effects.


@effect
async def compile_file(name: str, *, level: int = 1) -> str:
    """Compile a file; long names take longer."""
    await trio.sleep(0.001 * len(name))
    if name.startswith("bad"):
        raise SyntaxError(f"{name}: invalid syntax")
    return f"{name}.o{level}"


@effect
async def fetch_source(package: str, attempt: int) -> str:
    """Fetch a package, which fails at first for some."""
    await trio.sleep(0.002)
    if package == "broken" or (package.startswith("flaky") and attempt < 3):
        raise FlakyError(f"attempt {attempt} of {package}", attempt)
    return f"source of {package}"


@effect
async def fetch_from(mirror: str, package: str) -> str:
    """Fetch a package from a mirror, some of which are slow."""
    await trio.sleep(0.003 if mirror == "near" else 0.2)
    return f"{package} from {mirror}"


@effect
async def upload(package: str, digest: str) -> int:
    """Upload a result; return its revision."""
    await trio.sleep(0.002)
    return len(package) + len(digest)


@effect
async def remove_files(package: str) -> None:
    """Clean up after a build that was cancelled."""
    await trio.sleep(0.0001 * len(package))


# Handlers.


@server.tool
async def build(package: str, files: list[str], level: int = 1, *, ctx: Context) -> dict[str, int]:
    """Compile all files of a package with a few workers."""
    farm.waiting.setdefault(package, trio.Event())
    farm.running += 1
    objects: list[str] = []
    try:
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[str](1)

            async def work() -> None:
                async for file in receive:
                    objects.append(await compile_file(file, level=level))
                    await ctx.report_progress(len(objects), len(files))

            for _ in range(WORKERS):
                nursery.start_soon(work)
            async with send:
                for file in files:
                    await send.send(file)
        revision = await upload(package, ",".join(sorted(objects)))
    except* SyntaxError as errors:
        text = str(errors.exceptions[0])
        await ctx.error(text)
        raise ToolError(text) from None
    except* trio.Cancelled:
        with trio.CancelScope(shield=True):
            await remove_files(package)
        raise
    finally:
        farm.running -= 1
    await finish(package, "built")
    await ctx.info(f"{package} is revision {revision}")
    return {"objects": len(objects), "revision": revision}


async def finish(package: str, state: str) -> None:
    """Note the end of a build, and wake the requests that wait for it."""
    async with farm.changed:
        farm.ended[package] = state
        farm.changed.notify_all()
    farm.waiting[package].set()


@server.tool
async def wait_for(package: str, seconds: float = 0.1, *, ctx: Context) -> str:
    """Wait until a package is built."""
    event = farm.waiting.setdefault(package, trio.Event())
    with trio.move_on_after(seconds) as limit:
        await event.wait()
    if limit.cancelled_caught:
        await ctx.warning(f"{package} takes longer than {seconds:g} s")
        return "not yet"
    return farm.ended[package]


@server.tool
async def wait_for_count(count: int, *, ctx: Context) -> list[str]:
    """Wait until so many builds have ended."""
    async with farm.changed:
        while len(farm.ended) < count:
            await farm.changed.wait()
        names = sorted(farm.ended)
    await ctx.info(f"{len(names)} of {count}")
    return names[:count]


@server.tool
async def fetch(package: str, *, ctx: Context) -> str:
    """Fetch a package, and again if that fails."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            with ctx.timeout(0.05):
                return await fetch_source(package, attempt)
        except FlakyError as error:
            await ctx.debug(f"again: {error.args[0]}")
            await ctx.sleep(0.001 * 2**attempt * (1 + ctx.random.random()))
    raise ToolError(f"{package} cannot be fetched")


@server.tool
async def fetch_fastest(
    package: str, order: Literal["near", "far"] = "near", *, ctx: Context
) -> str:
    """Ask two mirrors at once, and take the first answer."""
    answers: list[str] = []
    mirrors = ["near", "far"] if order == "near" else ["far", "near"]

    async def ask(mirror: str) -> None:
        answers.append(await fetch_from(mirror, package))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for mirror in mirrors:
            nursery.start_soon(ask, mirror)
    await ctx.info(f"{len(answers)} of {len(mirrors)} mirrors have answered")
    return answers[0]


@server.tool
async def deploy(package: str, hosts: int = 2, *, ctx: Context) -> list[str]:
    """Deploy a package, one request at a time."""
    done: list[str] = []
    async with farm.slots:
        for host in range(hosts):
            await ctx.sleep(0.003)
            done.append(f"{package} on host {host}")
            await ctx.report_progress(host + 1, hosts)
        async with ctx.lock("registry"):
            await upload(package, done[-1])
    return done


@server.resource("build://{package}/state")
async def state_of(package: str) -> str:
    """The state of a build."""
    if package not in farm.ended:
        raise RequestError(NOT_FOUND, f"no build of {package} has ended")
    return farm.ended[package]
