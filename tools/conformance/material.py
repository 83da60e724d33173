"""What the "everything" server is filled with; clients compare with the same facts."""

import base64
import json
from pathlib import Path
from typing import Any

from mcp_trio.types import EmbeddedResource, ResourceContents, SamplingContent, TextContent

FACTS: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "interop" / "facts.json").read_text(encoding="utf-8")
)
PIXEL = base64.b64decode(FACTS["png"])
WORDS = FACTS["words"]
SCHEMA_2020_12 = FACTS["contact_schema"]


def embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    """The contents of a resource, as a part of something else."""
    return EmbeddedResource(resource=ResourceContents(uri=uri, mime_type=mime_type, text=text))


def text_of(content: SamplingContent) -> str:
    """What a model said; an image is only named."""
    return content.text if isinstance(content, TextContent) else f"({content.mime_type})"
