"""The client's end of stdio: a server as a subprocess, from its start to its stop."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Literal

import attrs
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._transports.child_process import (
    ChildProcess,
    Command,
    Folder,
    signal_name,
    start_child,
)
from mcp_trio._transports.line_channel import LineChannel
from mcp_trio._transports.stderr_tail import to_our_stderr
from mcp_trio._wire.lines import Oversized

# What a program needs to find its files and its language; never a token or a key.
INHERITED_VARIABLES: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)
_INHERITED_PREFIX: Final = "LC_"


@attrs.define(kw_only=True, eq=False)
class ProcessChannel:
    """The channel to a server that we started; made by `open_process_channel`.

    The server is the subprocess itself: when it exits, the channel ends, whatever it left running
    is killed, and `receive` and `send` raise `ConnectionLost` with its exit status and the last
    lines of its stderr, also when it exited cleanly.
    """

    transport: ClassVar[str] = "stdio"

    _name: str = attrs.field(alias="name")
    _child: ChildProcess = attrs.field(alias="child")
    _lines: LineChannel = attrs.field(alias="lines")
    _limits: Limits = attrs.field(alias="limits")
    _is_closing: bool = attrs.field(default=False, init=False)
    _closed: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the number of the signal that killed it."""
        return self._child.exit_status

    @property
    def stderr_tail(self) -> str:
        """The last lines of its stderr so far."""
        return self._child.tail.text

    @property
    def bytes_sent(self) -> int:
        """See `mcp_trio.transports.Channel`."""
        return self._lines.bytes_sent

    @property
    def is_unfinished(self) -> bool:
        """See `mcp_trio.transports.Channel`."""
        return self._lines.is_unfinished

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel.send`."""
        try:
            await self._lines.send(frames)
        except trio.BrokenResourceError:
            raise await self._loss() from None

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """See `mcp_trio.transports.Channel`; only `receive` can tell why the server is gone."""
        return self._lines.send_nowait(frames)

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel.receive`; never empty: the end raises `ConnectionLost`."""
        frames = await self._lines.receive()
        if frames:
            return frames
        raise await self._loss()

    async def aclose(self) -> None:
        """Stops the server: closes its stdin, waits, SIGTERM, waits, SIGKILL; then its group.

        Takes `close_seconds`, `terminate_seconds` and `kill_seconds` at most, and leaves no process
        and no zombie. Cancellation does not shorten it. A second call waits for the first.
        """
        with trio.CancelScope(shield=True):
            if self._is_closing:
                await self._closed.wait()
            else:
                self._is_closing = True
                await self._stop()
        await trio.lowlevel.checkpoint()

    async def _stop(self) -> None:
        child, limits = self._child, self._limits
        ladder: tuple[tuple[Callable[[], None], float], ...] = (
            (child.stdin.close, limits.close_seconds),
            (child.terminate, limits.terminate_seconds),
            (child.kill, limits.kill_seconds),
        )
        self._lines.refuse()
        child.stdout.interrupt()  # whoever receives must be gone before the rest is discarded
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._discard_stdout)
                for rung, seconds in ladder:
                    await self._climb(rung, seconds)
                nursery.cancel_scope.cancel()
        finally:
            await self._lines.aclose()
            self._closed.set()

    async def _climb(self, rung: Callable[[], None], seconds: float) -> None:
        if not self._child.ended.is_set():
            rung()
            with trio.move_on_after(seconds):
                await self._child.ended.wait()

    async def _discard_stdout(self) -> None:
        """A server that still has something to say could not see the end of its stdin otherwise."""
        while await self._child.stdout.read():
            pass

    async def _loss(self) -> ConnectionLost:
        """What is known of the end, after a short wait for the exit status and the last words."""
        with trio.move_on_after(self._limits.exit_status_seconds):
            await self._child.ended.wait()
        return ConnectionLost(
            f"{self._name} {_ending(self.exit_status)}",
            exit_status=self.exit_status,
            stderr_tail=self.stderr_tail,
        )


async def open_process_channel(
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: Folder | None = None,
    stderr: Callable[[str], None] | Literal["inherit"] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ProcessChannel:
    """Starts `command` as a server and returns the channel to it; its `aclose` stops the server.

    Of our environment it gets INHERITED_VARIABLES and the locale, or all with `inherit_env`, and
    then `env`. Its stderr is always read: the end of it is kept for error texts, and each line goes
    to `stderr`, a function that must not wait, or to our own stderr with "inherit".

    Raises:
        ConnectionLost: It could not be started; the text says why.
    """
    if isinstance(command, str) or not command:
        raise TypeError("a command is a list: the program and its arguments")
    child = await start_child(
        command,
        env=_environment(env, inherits_all=inherit_env),
        cwd=cwd,
        forward=to_our_stderr if stderr == "inherit" else stderr,
        limits=limits,
    )
    return ProcessChannel(
        name=os.fspath(command[0]),
        child=child,
        lines=LineChannel(source=child.stdout, sink=child.stdin, transport="stdio", limits=limits),
        limits=limits,
    )


def _environment(env: Mapping[str, str] | None, *, inherits_all: bool) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if inherits_all or name in INHERITED_VARIABLES or name.startswith(_INHERITED_PREFIX)
    }
    return inherited | dict(env or {})


def _ending(exit_status: int | None) -> str:
    if exit_status is None:
        return "closed its end but still runs"
    if exit_status < 0:
        return f"was killed by {signal_name(-exit_status)}"
    return f"exited with status {exit_status}"
