"""The content that the "everything" server returns, and that clients check."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from mcp_trio.types import (
    AudioContent,
    EmbeddedResource,
    Icon,
    ImageContent,
    ResourceContents,
    SamplingBlock,
    SamplingContent,
    TextContent,
    Tool,
)

FACTS: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "interop" / "facts.json").read_text(encoding="utf-8")
)
PIXEL = base64.b64decode(FACTS["png"])
WORDS = FACTS["words"]
SCHEMA_2020_12 = FACTS["contact_schema"]
SOUND = base64.b64decode(FACTS["wav"])
TITLE = FACTS["tool_title"]
ICON = msgspec.convert(FACTS["icon"], Icon)
STRUCTURED = FACTS["structured"]
PROGRESS = FACTS["progress"]
USER_ANSWER = FACTS["user_answer"]
MODEL_ANSWER = FACTS["model_answer"]
PAGE = FACTS["url"]
WEATHER = FACTS["weather"]
WEATHER_TOOL = msgspec.convert(FACTS["weather_tool"], Tool)

_TITLED = [{"const": const, "title": title} for const, title in FACTS["titled_options"]]
CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": FACTS["options"]},
        "titledSingle": {"type": "string", "oneOf": _TITLED},
        "legacyEnum": {"type": "string", **FACTS["named_options"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": FACTS["options"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
    },
}


def embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=ResourceContents(uri=uri, mime_type=mime_type, text=text))


def text_of(content: SamplingContent) -> str:
    """Return the text of a sampling result, or the type of other content."""
    blocks = content if isinstance(content, list) else [content]
    return " ".join(_words_of(block) for block in blocks)


def _words_of(block: SamplingBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return f"({block.mime_type})"
    return "(a tool)"
