"""Which era servers turned out to be of, for clients that come back to them.

To find it out costs a legacy server a question that it does not know, and one that is silent about
that `probe_seconds`. So what was found out at an address of the web is kept, by default for as long
as the run of Trio, and not asked again (VER-08). A memory that proves wrong costs one refusal: it
is forgotten, and everything is tried from the beginning, once (VER-09).
"""

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import attrs
import trio

from mcp_trio._errors import ConnectionLost, MCPError, RemoteProtocolError, RequestError
from mcp_trio._limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    import httpx

Era: TypeAlias = Literal["modern", "legacy", "HTTP+SSE"]
"""How a server is talked to: without a handshake, with one, or with one over the old transport."""

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_PORTS: Final = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Who is talked to, and by whom: another client may be led elsewhere, or speak other revisions.

    Nothing secret of the URL is in it. `http` is a weak reference, so that nobody is kept alive.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    http: "weakref.ref[httpx.AsyncClient] | None"
    revisions: tuple[str, ...]


def address_of(
    url: str, *, http: "httpx.AsyncClient | None", revisions: tuple[str, ...]
) -> Address | None:
    """What is remembered of `url` belongs here; None if it is no URL, as who opens it will say."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    reference = None if http is None else weakref.ref(http)
    return Address(parts.scheme, parts.hostname or "", port, parts.path, reference, revisions)


@attrs.define(eq=False, repr=False)
class EraMemory:
    """Which era the servers at URLs are of; the one that was noted first is forgotten first.

    One is there for each run of Trio. Make another, for `Client(eras=…)`, to keep clients apart, or
    with `servers_max=0` to have each of them find out for itself.
    """

    servers_max: int = attrs.field(default=DEFAULT_LIMITS.eras_remembered_max, kw_only=True)
    _eras: OrderedDict[Address | None, Era] = attrs.field(
        factory=OrderedDict[Address | None, Era], init=False
    )

    def recall(self, address: Address | None) -> Era | None:
        """The era of a server; None if it is not known."""
        return self._eras.get(address)

    def note(self, address: Address | None, era: Era) -> None:
        """This is what a server turned out to be."""
        self._eras[address] = era
        self._eras.move_to_end(address)
        while len(self._eras) > self.servers_max:
            self._eras.popitem(last=False)

    def forget(self, address: Address | None) -> None:
        """It turned out to be something else."""
        self._eras.pop(address, None)


_ours: Final = trio.lowlevel.RunVar[EraMemory]("eras")


def eras_of_this_run() -> EraMemory:
    """The memory of those who were given none; another run of Trio knows nothing of it."""
    try:
        return _ours.get()
    except LookupError:
        memory = EraMemory()
        _ours.set(memory)
        return memory


def tells_of_another_era(error: MCPError) -> bool:
    """Whether a server that refuses so is there, but may be another one than it was.

    One that cannot be reached, or does not know who we are, tells nothing.
    """
    if not isinstance(error, ConnectionLost):
        return isinstance(error, RequestError | RemoteProtocolError)
    status = error.http_status or 0
    return status // 100 == 4 and status not in (_UNAUTHORIZED, _FORBIDDEN)  # noqa: PLR2004
