"""What two peers agree on, seen from between them."""

from collections.abc import Mapping
from typing import Final

import attrs
import msgspec
from msgspec import Raw

from mcp_trio._wire import ErrorResponse, Message, Request, Response

_NOTHING: Final = Raw(b"null")


@attrs.define(eq=False)
class Handshake:
    """Finds the answer to the latest `initialize` among the messages that pass."""

    _asked: Request | None = attrs.field(default=None, init=False)

    def to_server(self, message: Message) -> None:
        """Looks at what the client says."""
        if isinstance(message, Request) and message.method == "initialize":
            self._asked = message

    def to_client(self, message: Message) -> Mapping[str, Raw] | None:
        """Looks at what the server says; the facts, if it is the answer that settles them."""
        asked = self._asked
        if asked is None or not isinstance(message, Response | ErrorResponse):
            return None
        if message.id != asked.id:
            return None
        self._asked = None
        return _facts(asked, message) if isinstance(message, Response) else None


def _facts(asked: Request, answer: Response) -> Mapping[str, Raw]:
    """As the mark of a session of our own has them, and the server's besides."""
    params, result = _members(asked.params), _members(answer.result)
    return {
        "revision": result.get("protocolVersion", _NOTHING),
        "peer": params.get("clientInfo", _NOTHING),
        "capabilities": params.get("capabilities", _NOTHING),
        "server": result.get("serverInfo", _NOTHING),
        "server_capabilities": result.get("capabilities", _NOTHING),
    }


def _members(body: Raw | None) -> dict[str, Raw]:
    return {} if body is None else msgspec.json.decode(body, type=dict[str, Raw])
