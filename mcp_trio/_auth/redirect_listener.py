"""A listener on the loopback interface for the redirect of a browser at the end of a login.

https://www.rfc-editor.org/rfc/rfc8252#section-7.3
"""

import hmac
from contextlib import suppress
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

import attrs
import h11
import trio

from mcp_trio.errors import AuthorizationError
from mcp_trio.limits import AuthorizationLimits

DEFAULT_PATH: Final = "/callback"
_HOST: Final = "127.0.0.1"
_REQUEST_SECONDS: Final = 10.0

# The client exchanges the code for a token later, and that may still fail.
_DONE: Final = "The program that started the login goes on with it. You can close this page."
_UNRELATED: Final = "This page is not part of the login that was started. Nothing has changed."
_FAILED: Final = "The login has failed. The program that started it says why."


@attrs.define(kw_only=True, eq=False, repr=False)
class RedirectListener:
    """A listener for the redirect URI of one login.

    A request with another path or `state` is rejected and changes nothing, so that no web page or
    program can end a login of the user.
    """

    redirect_uri: str
    _socket: trio.SocketListener = attrs.field(alias="socket")
    _limits: AuthorizationLimits = attrs.field(alias="limits")
    _redirected: str | None = attrs.field(default=None, init=False)
    _received: trio.Event = attrs.field(factory=trio.Event, init=False)

    @classmethod
    async def open(cls, redirect_uri: str | None, limits: AuthorizationLimits) -> Self:
        """Listen at a loopback redirect URI, or at any free port if it is None.

        Raises:
            AuthorizationError: The address cannot be bound.
        """
        uri = redirect_uri or f"http://{_HOST}:0{DEFAULT_PATH}"
        parts = urlsplit(uri)
        host = _HOST if parts.hostname in (None, "localhost") else parts.hostname
        port = 80 if parts.port is None else parts.port
        try:
            listener, *others = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise AuthorizationError(
                f"no redirect can be received at {uri}: {error.strerror}; end the program that uses"
                " this address, or choose another one by redirect="
            ) from error
        for other in others:  # without a checkpoint, at which a cancellation would leave some open
            other.socket.close()
        if redirect_uri is None:
            bound: int = listener.socket.getsockname()[1]
            redirect_uri = f"http://{_HOST}:{bound}{DEFAULT_PATH}"
        return cls(redirect_uri=redirect_uri, socket=listener, limits=limits)

    async def aclose(self) -> None:
        """Stop listening."""
        await self._socket.aclose()

    async def wait(self, state: str) -> str:
        """Return the URL to which the browser was redirected, with this `state`.

        Cancelled: the listener can be used again.
        """
        limiter = trio.Semaphore(self._limits.redirect_connections_max)

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                try:
                    with trio.move_on_after(_REQUEST_SECONDS):
                        await self._answer(stream, state)
                except (trio.BrokenResourceError, h11.ProtocolError):
                    pass  # the peer is gone, or does not speak HTTP/1.1
                finally:
                    limiter.release()

        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                while True:
                    await limiter.acquire()
                    nursery.start_soon(serve, await self._socket.accept())

            nursery.start_soon(accept)
            await self._received.wait()
            nursery.cancel_scope.cancel()
        assert self._redirected is not None
        return self._redirected

    async def _answer(self, stream: trio.SocketStream, state: str) -> None:
        connection = h11.Connection(
            h11.SERVER, max_incomplete_event_size=self._limits.redirect_bytes_max
        )
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(self._limits.redirect_bytes_max))
        if not isinstance(event, h11.Request):
            return
        query = self._redirected_query(event, state)
        if query is None:
            status, text = 400, _UNRELATED
        else:
            status, text = 200, _FAILED if "error" in parse_qs(query) else _DONE
        body = f"<!doctype html><meta charset=utf-8><title>mcp_trio</title><p>{text}</p>".encode()
        headers = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", "default-src 'none'"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        response = connection.send(h11.Response(status_code=status, headers=headers))
        with suppress(trio.BrokenResourceError):  # the browser may be gone by now
            await stream.send_all(response + connection.send(h11.Data(data=body)))
        if query is not None and self._redirected is None:
            self._redirected = self.redirect_uri.partition("?")[0] + f"?{query}"
            self._received.set()

    def _redirected_query(self, request: h11.Request, state: str) -> str | None:
        """Return the query of the redirect with this `state`; None for any other request."""
        try:
            parts = urlsplit(request.target.decode("ascii"))
        except ValueError:  # "//[" is a valid request target, but not a valid URL
            return None
        states = parse_qs(parts.query).get("state", [])
        is_redirect = (
            request.method == b"GET"
            and parts.path == (urlsplit(self.redirect_uri).path or "/")
            and len(states) == 1
            and hmac.compare_digest(states[0].encode(), state.encode())
        )
        return parts.query if is_redirect else None
