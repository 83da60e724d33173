"""The methods that a client knows: those of the protocol, and people's own."""

from collections.abc import Mapping
from typing import Any

from mcp_trio._protocol import METHODS, Method, custom_method


def methods_with(own: Mapping[str, Any] | None) -> Mapping[str, Method]:
    """The table of methods, with a row for each of `own`, which maps it to the type of its result.

    None for a type says that it is a notification.

    Raises:
        ValueError: The protocol has one of these methods, with a result of its own.
        TypeError: A type that msgspec cannot decode.
    """
    if not own:
        return METHODS
    taken = METHODS.keys() & own.keys()
    if taken:
        raise ValueError(f"methods of the protocol have their own results: {sorted(taken)}")
    rows = {name: custom_method(name, result=result) for name, result in own.items()}
    return {**METHODS, **rows}
