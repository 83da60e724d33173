"""Which arguments of our own tools clients repeat in the head of an HTTP request."""

from collections.abc import Mapping
from typing import Any

from mcp_trio._protocol.http.mirrored import parameter_paths


def mirrored_by(schema: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """The path of each argument that is mirrored, by its field (HDR-08).

    Raises:
        ValueError: An `x-mcp-header` breaks a rule (HDR-10 to HDR-15), or stands at a secret, which
            heads would carry into logs (HDR-35).
    """
    paths = parameter_paths(schema)
    for field, path in paths.items():
        if _property_at(schema, path).get("format") == "password":
            name = ".".join(path)
            raise ValueError(f"x-mcp-header {field!r} stands at {name!r}, which is a secret")
    return paths


def _property_at(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    for step in path:
        schema = schema["properties"][step]
    return schema
