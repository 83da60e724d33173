"""Objects of httpx, where those of its successor httpx2 are expected, and the other way round.

httpx2 is the HTTP client library of this package. Users may still hold clients, authentication
flows and transports of httpx. The classes of the two libraries have the same names and interfaces
but no common bases, and each library checks the classes of what it is given. The functions below
convert between the two.

httpx is never imported here: an object of httpx exists only where it has been imported already.
"""

import functools
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any, TypeAlias

import attrs
import msgspec

Library: TypeAlias = Any
"""The module `httpx2` or the module `httpx`."""


def library_of(value: object) -> Library:
    """Return the library that has a base class of `value`; None if neither has."""
    packages = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    return next((sys.modules[name] for name in ("httpx2", "httpx") if name in packages), None)


# Errors -------------------------------------------------------------------------------------------


class errors_converted_to:  # noqa: N801  a context manager; as a generator it would cost twice as much
    """Replace an error of the other library by the error of `library` with the same class name.

    The original error is the `__cause__` of its replacement.
    """

    __slots__ = ("_library",)

    def __init__(self, library: Library) -> None:
        self._library = library

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, Exception):
            return
        library, source = self._library, library_of(error)
        if source in {None, library}:
            return
        if not isinstance(error, source.RequestError | source.StreamError):
            return
        # The most specific class that the library exports; some errors have a private class.
        kind: type = next(
            each for each in type(error).__mro__ if getattr(source, each.__name__, None) is each
        )
        replacement: Any = getattr(library, kind.__name__)
        # Some constructors take other arguments than the exception has in `args`.
        converted = replacement.__new__(replacement, *error.args)
        if isinstance(error, source.RequestError):
            converted.request = None  # the client sets its own
        raise converted from error


# Requests and responses ---------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class _ConvertedPieces(AsyncIterator[bytes]):
    """The pieces of a body, whose errors are converted to those of `library`.

    An async generator would be left unfinished when a request is cancelled, which Trio warns of.
    """

    pieces: AsyncIterator[bytes]
    library: Library

    async def __anext__(self) -> bytes:
        with errors_converted_to(self.library):
            return await anext(self.pieces)


@functools.cache
def _stream_class(library: Library) -> Any:
    class Stream(library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self._stream: Any = stream

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _ConvertedPieces(aiter(self._stream), library)

        async def aclose(self) -> None:
            with errors_converted_to(library):
                await self._stream.aclose()

    return Stream


def converted_stream(library: Library, stream: AsyncIterable[bytes]) -> Any:
    """Return a body as an `AsyncByteStream` of `library`."""
    return stream if library_of(stream) is library else _stream_class(library)(stream)


def converted_request(library: Library, request: Any) -> Any:
    """Return a request as one of `library`; its body is read from the original request."""
    if library_of(request) is library:
        return request
    return library.Request(
        request.method,
        str(request.url),
        headers=request.headers.raw,
        stream=converted_stream(library, request.stream),
        extensions=request.extensions,
    )


def _decoded_response(library: Library, response: Any, **body: Any) -> Any:
    """Return a response whose body has no `Content-Encoding` any more."""
    headers = response.headers.copy()
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        headers.pop(name, None)
    return library.Response(
        response.status_code, headers=headers.raw, extensions=response.extensions, **body
    )


async def send(transport: Any, request: Any) -> Any:
    """Send a request of either library by a transport of either.

    Returns:
        The response, of the library of the request.

    Raises:
        Exception: What the transport raises; an error of its library becomes one of the library of
            the request.
    """
    library = library_of(request)
    with errors_converted_to(library):
        converted = converted_request(library_of(transport) or library, request)
        if converted is not request:
            # Now it has `content`, which a transport may read, as the original request may have.
            await converted.aread()
        response = await transport.handle_async_request(converted)
        if library_of(response) is library:
            return response
        if response.is_stream_consumed:  # by its transport, and decoded
            return _decoded_response(library, response, content=response.content)
        return library.Response(
            response.status_code,
            headers=response.headers.raw,
            stream=converted_stream(library, response.stream),
            extensions=response.extensions,
        )


# Authentication -----------------------------------------------------------------------------------


class _ReadBody(msgspec.Struct, frozen=True, eq=False):
    """The body of a response, read by the response itself, so that it can be read again."""

    response: Any

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        yield await self.response.aread()

    async def aclose(self) -> None:
        """Leave the response open, which its client closes."""


@functools.cache
def _auth_class(library: Library) -> Any:
    class ConvertedAuth(library.Auth):  # type: ignore[misc]
        def __init__(self, auth: Any) -> None:
            self._auth: Any = auth

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            """Run the flow with a copy of the request, which is sent as the flow changed it."""
            own_library = library_of(self._auth)
            flow = self._auth.async_auth_flow(converted_request(own_library, request))
            try:
                sent = await anext(flow)
                while True:
                    response = yield converted_request(library, sent)
                    body = converted_stream(own_library, _ReadBody(response))
                    converted = _decoded_response(own_library, response, stream=body, request=sent)
                    sent = await flow.asend(converted)
            except StopAsyncIteration:
                return
            finally:
                await flow.aclose()

    return ConvertedAuth


def converted_auth(library: Library, auth: Any) -> Any:
    """Return an authentication flow as an `Auth` of `library`."""
    return auth if isinstance(auth, library.Auth) else _auth_class(library)(auth)
