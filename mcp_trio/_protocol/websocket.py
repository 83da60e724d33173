"""Rules of MCP over WebSocket: handshake, authentication, close codes.

One text message carries one JSON-RPC message. The specification knows no such transport, so what is
not said there is as lenient as it can safely be: a client that offers no subprotocol is let in.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import attrs

from mcp_trio._protocol.http_headers import Headers, HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio.errors import ConnectionLost, OutcomeUnknown

# Subprotocols and tokens --------------------------------------------------------------------------

SUBPROTOCOL: Final = "mcp"
"""What a client offers, and the server chooses."""

SUBPROTOCOLS: Final = "Sec-WebSocket-Protocol"
_TOKEN_PREFIX: Final = "mcp.token."  # noqa: S105  no secret
_TOKEN: Final = re.compile(r"[!-~]+")
_BEARER: Final = "bearer "


def checked_token(token: str) -> str:
    """The token, if it can stand in a header.

    Raises:
        ValueError: It is empty, or has something else in it than visible ASCII.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError("token= takes visible ASCII, at least one character and no space")
    return token


def bearer_header(token: str | None) -> dict[str, str]:
    """The header in which a token goes along with a request; none without a token.

    Raises:
        ValueError: See `checked_token`.
    """
    return {} if token is None else {"Authorization": f"Bearer {checked_token(token)}"}


def offered_subprotocols(token: str | None) -> list[str]:
    """What a client offers; browsers cannot send a header, and bring their token here."""
    return [SUBPROTOCOL] if token is None else [SUBPROTOCOL, token_subprotocol(token)]


def token_subprotocol(token: str) -> str:
    """The token as a subprotocol, which the server never chooses: `mcp.token.` and Base64URL."""
    return _TOKEN_PREFIX + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def chosen_subprotocol(request: HttpRequest) -> str | None:
    """What the server answers; None: nothing of what the client offered, if anything."""
    return SUBPROTOCOL if SUBPROTOCOL in _offered(request) else None


def with_token_header(request: HttpRequest) -> HttpRequest:
    """The same head, in which a token that came as a subprotocol stands where all tokens stand.

    It is taken out of the subprotocols. A header `Authorization` that was sent is left alone.
    """
    offered = _offered(request)
    tokens = [each for each in offered if each.startswith(_TOKEN_PREFIX)]
    if not tokens:
        return request
    others = ", ".join(each for each in offered if each not in tokens)
    headers = {**request.headers, SUBPROTOCOLS.lower(): others}
    token = _decoded(tokens[0].removeprefix(_TOKEN_PREFIX)) if len(tokens) == 1 else None
    if token is not None:
        headers.setdefault("authorization", f"Bearer {token}")
    return attrs.evolve(request, headers=headers)


def _offered(request: HttpRequest) -> list[str]:
    return [
        each.strip() for each in (request.header(SUBPROTOCOLS) or "").split(",") if each.strip()
    ]


def _decoded(text: str) -> str | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def has_token(request: HttpRequest, token: str) -> bool:
    """Whether a head brings this token; that takes as long for a wrong one as for the right one."""
    sent = request.header("authorization") or ""
    is_bearer = sent[: len(_BEARER)].lower() == _BEARER
    brought = sent[len(_BEARER) :].strip() if is_bearer else ""
    is_equal = hmac.compare_digest(brought.encode(), token.encode())
    return is_equal and is_bearer and "authorization" not in request.repeated


# The upgrade --------------------------------------------------------------------------------------

_VERSION: Final = "13"
_KEY_BYTES: Final = 16


def is_websocket_upgrade(request: HttpRequest) -> bool:
    """Return whether a request wants to become a WebSocket, rightly or not."""
    return "upgrade" in request.headers and "websocket" in _elements(request, "upgrade")


def upgrade_rejection(request: HttpRequest, *, path: str) -> Rejection | None:
    """Why a request that was let through the gate becomes no WebSocket; None if it does."""
    if request.path.rstrip("/") != path.rstrip("/"):
        return Rejection(status=404, text=f"nothing is here; the WebSocket endpoint is {path}")
    if request.method != "GET":
        text = f"{request.method} is not for this endpoint"
        return Rejection(status=405, text=text, headers=[("Allow", "GET")])
    if not is_websocket_upgrade(request):
        return _upgrade_required("this endpoint speaks WebSocket and nothing else")
    if request.header("sec-websocket-version") != _VERSION:
        return _upgrade_required(f"the version of WebSocket is {_VERSION}")
    if "upgrade" not in _elements(request, "connection") or not _has_key(request):
        return Rejection(status=400, text="this is no handshake of WebSocket")
    return None


def _upgrade_required(text: str) -> Rejection:
    headers: Headers = [("Upgrade", "websocket"), ("Sec-WebSocket-Version", _VERSION)]
    return Rejection(status=426, text=text, headers=headers)


def _elements(request: HttpRequest, name: str) -> list[str]:
    return [each.strip().lower() for each in (request.header(name) or "").split(",")]


def _has_key(request: HttpRequest) -> bool:
    try:
        key = base64.b64decode(request.header("sec-websocket-key") or "", validate=True)
    except (binascii.Error, ValueError):
        return False
    return len(key) == _KEY_BYTES


# Ends ---------------------------------------------------------------------------------------------


class CloseCode(IntEnum):
    """How a WebSocket ends; the comments say when we send it."""

    DONE = 1000  # the session is over
    GOING_AWAY = 1001  # the server stops
    PROTOCOL_BROKEN = 1002  # a frame that none may send
    NOT_TEXT = 1003  # a binary message
    NO_CODE = 1005  # never sent: the peer closed without one
    BROKEN_OFF = 1006  # never sent: the connection ended without a close
    NOT_UTF8 = 1007  # text that is none
    REJECTED = 1008  # never by us: who may not come is refused before the upgrade
    TOO_LARGE = (
        1009  # never by us: what is over `limits.messages.bytes_max` is answered by an error
    )
    FAILED = 1011  # a defect of ours; a peer that is silent
    RESTARTING = 1012  # never by us
    BUSY = 1013  # never by us: who is one too many is refused before the upgrade


_IS_EOF: Final = frozenset({CloseCode.DONE, CloseCode.GOING_AWAY, CloseCode.NO_CODE})

_MEANINGS: Final[Mapping[int, str]] = {
    CloseCode.PROTOCOL_BROKEN: "says that we broke the WebSocket protocol",
    CloseCode.NOT_TEXT: "does not take the kind of message that we sent",
    CloseCode.BROKEN_OFF: "broke the connection off",
    CloseCode.NOT_UTF8: "says that our text was no UTF-8",
    CloseCode.REJECTED: "refuses us",
    CloseCode.TOO_LARGE: "does not take a message as large as ours",
    CloseCode.FAILED: "failed",
    CloseCode.RESTARTING: "restarts",
    CloseCode.BUSY: "has too much to do: try again later",
}
_UNKNOWN: Final = "closed the connection"

_FAULTS: Final[Mapping[int, str]] = {
    CloseCode.PROTOCOL_BROKEN: "broke the WebSocket protocol",
    CloseCode.NOT_TEXT: "sent a binary message: MCP goes in text messages",
    CloseCode.NOT_UTF8: "sent text that is no UTF-8",
    CloseCode.FAILED: (
        "was silent for too long"
        " (limits.websocket.ping_interval_seconds, limits.websocket.pong_seconds)"
    ),
}
_REASON_BYTES_MAX: Final = 123
_SHOWN_CHARS_MAX: Final = _REASON_BYTES_MAX


def close_reason(text: str) -> str:
    """As much of a text as a close frame has room for."""
    return text.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")


def error_of_peer_close(name: str, code: int, reason: str = "") -> ConnectionLost | None:
    """What the end means that the peer made; None: it is done, and what we sent has arrived.

    Any other leaves it open what became of the requests in flight.
    """
    if code in _IS_EOF:
        return None
    said = f": {reason[:_SHOWN_CHARS_MAX]!r}" if reason else ""
    return OutcomeUnknown(f"{name} {_MEANINGS.get(code, _UNKNOWN)} (close code {code}){said}")


def error_of_own_close(name: str, code: CloseCode, detail: str = "") -> ConnectionLost:
    """What the end means that we make because of what the peer did."""
    said = f": {detail}" if detail else ""
    return OutcomeUnknown(f"{name} {_FAULTS[code]} (close code {code:d}){said}")
