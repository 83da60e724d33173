"""What the "everything" server is filled with: contents, a schema, words."""

import base64
from typing import Any

from mcp_trio.types import EmbeddedResource, ResourceContents, SamplingContent, TextContent

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)

WORDS = ("paris", "park", "party", "test", "testing", "trio")

SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    """The contents of a resource, as a part of something else."""
    return EmbeddedResource(resource=ResourceContents(uri=uri, mime_type=mime_type, text=text))


def text_of(content: SamplingContent) -> str:
    """What a model said; an image is only named."""
    return content.text if isinstance(content, TextContent) else f"({content.mime_type})"
