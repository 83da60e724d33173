"""Handlers that people give to methods themselves, known to the protocol or not."""

from typing import Any, Final

import attrs
import msgspec

from mcp_trio._protocol import METHODS, Input, Method, Role, custom_method
from mcp_trio._schema import EmptyResult, Result
from mcp_trio._server.ordering import JsonWriter
from mcp_trio._server.registered import Registered
from mcp_trio._server.whole import WholeSignature

_OF_THE_ENGINE: Final = frozenset({Input.INITIALIZE, Input.PING, Input.REFERENCE})


@attrs.frozen(kw_only=True, eq=False)
class RegisteredMethod(Registered):
    """The handler of a method, and the method's row, whose params are what the handler takes."""

    row: Method


def check_name(name: str) -> None:
    """Refuse a method that no handler of a server's can ever get.

    Raises:
        ValueError: The engine itself answers it, or clients do not send it.
    """
    known = METHODS.get(name)
    if known is not None and known.input in _OF_THE_ENGINE:
        raise ValueError(f"{name} is the engine's own affair")
    if known is not None and Role.CLIENT not in known.senders:
        raise ValueError(f"a client does not send {name}")


def row_of(name: str, signature: WholeSignature) -> Method:
    """The row of a method, with the params that its handler is annotated with.

    Raises:
        TypeError: The annotation cannot be resolved or decoded; or the handler of a notification
            wants a context, which only requests have.
    """
    known, kind = METHODS.get(name), signature.whole_type
    kind = known.params if known is not None and kind is Any else kind
    row = custom_method(name, params=kind)
    if not row.is_request and signature.context_parameter is not None:
        raise TypeError(f"{name} is a notification: its handler gets no context")
    return row


def method_result(value: Any, writer: JsonWriter) -> msgspec.Struct | msgspec.Raw:
    """The result of a method whose handler returned `value`: None is an empty object.

    Raises:
        TypeError: It has no JSON form, or is no object there.
    """
    if value is None:
        return EmptyResult()
    if isinstance(value, Result):
        return value
    encoded = writer.encode(value)
    if not encoded.startswith(b"{"):
        raise TypeError(f"a result is an object, and not a {type(value).__name__}")
    return msgspec.Raw(encoded)
