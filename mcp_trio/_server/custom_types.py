"""The types that msgspec does not know: how they look in JSON, and the way there and back.

A row in `CUSTOM_SCHEMAS` makes a type and its subclasses known to schemas, a structure hook in
`_converter` to decoding, `unstructure` to encoding. cattrs is loaded at the first such value.
"""

import functools
import pathlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import cattrs

CUSTOM_SCHEMAS: Final[dict[type, dict[str, Any]]] = {pathlib.PurePath: {"type": "string"}}


def custom_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type that msgspec does not know: its `schema_hook`.

    Raises:
        TypeError: the type has no row.
    """
    for base in getattr(kind, "__mro__", ()):
        if base in CUSTOM_SCHEMAS:
            return CUSTOM_SCHEMAS[base]
    raise TypeError(f"the type {kind!r} has no JSON form")


def structure(kind: type[Any], value: Any) -> Any:
    """The value of such a type, from plain JSON: the `dec_hook` of msgspec."""
    return _converter().structure(value, kind)


def unstructure(value: Any) -> Any:
    """The plain JSON of such a value: the `enc_hook` of msgspec.

    Raises:
        TypeError: the value's type is unknown here too.
    """
    if isinstance(value, pathlib.PurePath):
        return str(value)
    raise TypeError(f"the type {type(value)!r} has no JSON form")


@functools.cache
def _converter() -> "cattrs.Converter":
    import cattrs

    converter = cattrs.Converter()
    converter.register_structure_hook(pathlib.PurePath, _structure_path)
    # cattrs brings a hook of its own for this one, whose errors speak of Python and not of JSON.
    converter.register_structure_hook(pathlib.Path, _structure_path)
    return converter


def _structure_path(value: Any, kind: type[pathlib.PurePath]) -> pathlib.PurePath:
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return kind(value)
