"""Rules of MCP over WebSocket: handshake, authentication, close codes.

A text message carries one JSON-RPC message. The specification has no such transport, so the rules
are lenient where that is safe: a client that offers no subprotocol is accepted.

https://www.rfc-editor.org/rfc/rfc6455
"""

import base64
import contextlib
import hmac
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import attrs

from mcp_trio._protocol.http_headers import Headers, HttpRequest
from mcp_trio._protocol.http_requests import Rejection, not_allowed
from mcp_trio.errors import ConnectionLost, OutcomeUnknown

# Subprotocols and tokens.

SUBPROTOCOL: Final = "mcp"
"""The subprotocol that a client offers and the server chooses."""

SUBPROTOCOLS: Final = "Sec-WebSocket-Protocol"
_TOKEN_PREFIX: Final = "mcp.token."  # noqa: S105  no secret
_TOKEN: Final = re.compile(r"[!-~]+")
_BEARER: Final = "bearer "


def checked_token(token: str) -> str:
    """Return the token.

    Raises:
        ValueError: The token is empty, or has a character that is not visible ASCII.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError("token= takes visible ASCII, at least one character and no space")
    return token


def bearer_header(token: str | None) -> dict[str, str]:
    """Return the header that carries a token; none without a token.

    Raises:
        ValueError: The token is empty, or has other characters than visible ASCII.
    """
    return {} if token is None else {"Authorization": f"Bearer {checked_token(token)}"}


def offered_subprotocols(token: str | None) -> list[str]:
    """Return the subprotocols that a client offers; browsers can send a token only here."""
    return [SUBPROTOCOL] if token is None else [SUBPROTOCOL, token_subprotocol(token)]


def token_subprotocol(token: str) -> str:
    """Return a token as a subprotocol, `mcp.token.` and Base64URL, which servers never choose."""
    return _TOKEN_PREFIX + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def chosen_subprotocol(request: HttpRequest) -> str | None:
    """Return the subprotocol that the server chooses; None if the client does not offer it."""
    return SUBPROTOCOL if SUBPROTOCOL in _elements(request, SUBPROTOCOLS) else None


def with_token_header(request: HttpRequest) -> HttpRequest:
    """Return the request with a token from its subprotocols moved to `Authorization`.

    An existing `Authorization` is kept.
    """
    offered = _elements(request, SUBPROTOCOLS)
    tokens = [each for each in offered if each.startswith(_TOKEN_PREFIX)]
    if not tokens:
        return request
    others = ", ".join(each for each in offered if each not in tokens)
    headers = {**request.headers, SUBPROTOCOLS.lower(): others}
    if len(tokens) == 1:
        text = tokens[0].removeprefix(_TOKEN_PREFIX)
        padded = text + "=" * (-len(text) % 4)
        with contextlib.suppress(ValueError):  # no Base64URL, or no UTF-8
            token = base64.b64decode(padded, b"-_", validate=True).decode()
            headers.setdefault("authorization", f"Bearer {token}")
    return attrs.evolve(request, headers=headers)


def has_token(request: HttpRequest, token: str) -> bool:
    """Return whether a request has this token, in a time that does not depend on the token sent."""
    sent = request.header("authorization") or ""
    is_bearer = sent[: len(_BEARER)].lower() == _BEARER
    given = sent[len(_BEARER) :].strip() if is_bearer else ""
    is_equal = hmac.compare_digest(given.encode(), token.encode())
    return is_equal and is_bearer and "authorization" not in request.repeated


# The upgrade.

_VERSION: Final = "13"
_KEY_BYTES: Final = 16


def is_websocket_upgrade(request: HttpRequest) -> bool:
    """Return whether a request asks for an upgrade to WebSocket, valid or not."""
    has_upgrade = "upgrade" in request.headers
    return has_upgrade and "websocket" in map(str.lower, _elements(request, "upgrade"))


def upgrade_rejection(request: HttpRequest, *, path: str) -> Rejection | None:
    """Return the rejection of a WebSocket handshake; None if it is valid."""
    if request.path.rstrip("/") != path.rstrip("/"):
        return Rejection(
            status=404, text=f"there is no such path; the WebSocket endpoint is {path}"
        )
    if request.method != "GET":
        return not_allowed(request.method, "GET")
    if not is_websocket_upgrade(request):
        return _upgrade_required("this endpoint accepts only WebSocket")
    if request.header("sec-websocket-version") != _VERSION:
        return _upgrade_required(f"the version of WebSocket must be {_VERSION}")
    try:
        key = base64.b64decode(request.header("sec-websocket-key") or "", validate=True)
    except ValueError:
        key = b""
    connection = map(str.lower, _elements(request, "connection"))
    if "upgrade" not in connection or len(key) != _KEY_BYTES:
        return Rejection(status=400, text="the WebSocket handshake is invalid")
    return None


def _upgrade_required(text: str) -> Rejection:
    headers: Headers = [("Upgrade", "websocket"), ("Sec-WebSocket-Version", _VERSION)]
    return Rejection(status=426, text=text, headers=headers)


def _elements(request: HttpRequest, name: str) -> list[str]:
    """Return the elements of the list in a header, without empty ones."""
    return [each.strip() for each in (request.header(name) or "").split(",") if each.strip()]


# The end of a connection.


class CloseCode(IntEnum):
    """The close codes of RFC 6455, section 7.4.1, and when this package sends them."""

    NORMAL_CLOSURE = 1000  # the session has ended
    GOING_AWAY = 1001  # the server stops
    PROTOCOL_ERROR = 1002  # the peer sent an invalid frame
    UNSUPPORTED_DATA = 1003  # the peer sent a binary message
    NO_STATUS_RECEIVED = 1005  # never sent: the peer closed without a code
    ABNORMAL_CLOSURE = 1006  # never sent: the connection ended without a close frame
    INVALID_PAYLOAD = 1007  # the peer sent text that is not UTF-8
    POLICY_VIOLATION = 1008  # the token has expired; others are rejected before the upgrade
    MESSAGE_TOO_BIG = 1009  # too many fragments; a message with too many bytes gets an error
    INTERNAL_ERROR = 1011  # an error in this package, or a peer that does not respond
    SERVICE_RESTART = 1012  # never sent
    TRY_AGAIN_LATER = 1013  # the client's unfinished messages are too long


_NORMAL_ENDS: Final = frozenset(
    {CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RECEIVED}
)

_MEANINGS: Final[Mapping[int, str]] = {
    CloseCode.PROTOCOL_ERROR: "reports an error in the WebSocket protocol",
    CloseCode.UNSUPPORTED_DATA: "does not accept this kind of message",
    CloseCode.ABNORMAL_CLOSURE: "closed the connection without a close frame",
    CloseCode.INVALID_PAYLOAD: "reports text that is not UTF-8",
    CloseCode.POLICY_VIOLATION: "rejected the connection",
    CloseCode.MESSAGE_TOO_BIG: "does not accept a message of this size",
    CloseCode.INTERNAL_ERROR: "failed",
    CloseCode.SERVICE_RESTART: "is restarting",
    CloseCode.TRY_AGAIN_LATER: "is overloaded: try again later",
}
_UNKNOWN: Final = "closed the connection"

_VIOLATIONS: Final[Mapping[int, str]] = {
    CloseCode.PROTOCOL_ERROR: "violated the WebSocket protocol",
    CloseCode.UNSUPPORTED_DATA: "sent a binary message; MCP uses text messages",
    CloseCode.INVALID_PAYLOAD: "sent text that is not UTF-8",
    CloseCode.MESSAGE_TOO_BIG: "sent a message in too many fragments",
    CloseCode.TRY_AGAIN_LATER: "sent too many unfinished messages",
    CloseCode.INTERNAL_ERROR: (  # sent if the peer does not answer a ping
        "did not respond in time"
        " (limits.websocket.ping_interval_seconds, limits.websocket.pong_seconds)"
    ),
}
_REASON_BYTES_MAX: Final = 123
_SHOWN_CHARS_MAX: Final = 123


def close_reason(text: str) -> str:
    """Return the beginning of a text, as much as a close frame can carry."""
    return text.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")


def error_of_peer_close(name: str, code: int, reason: str = "") -> ConnectionLost | None:
    """Return the error for a connection that the peer has closed.

    Returns:
        None if the peer has closed it normally. After any other end, requests in flight may have
        been carried out or not.
    """
    if code in _NORMAL_ENDS:
        return None
    quoted = f": {reason[:_SHOWN_CHARS_MAX]!r}" if reason else ""
    return OutcomeUnknown(f"{name} {_MEANINGS.get(code, _UNKNOWN)} (close code {code}){quoted}")


def error_of_own_close(name: str, code: CloseCode, detail: str = "") -> ConnectionLost:
    """Return the error for a connection that this side closes because of the peer."""
    more = f": {detail}" if detail else ""
    return OutcomeUnknown(f"{name} {_VIOLATIONS[code]} (close code {code:d}){more}")
