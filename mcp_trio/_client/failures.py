"""What errors and failed results say to whoever looks closer."""

from typing import Any

import msgspec

from mcp_trio import _schema as s
from mcp_trio._errors import INVALID_PARAMS, RESOURCE_NOT_FOUND, RequestError


class _Elicitations(msgspec.Struct):
    elicitations: list[s.ElicitParams]


def elicitation_ids(data: Any) -> list[str]:
    """The visits to URLs that an error names, which its server will say to be over."""
    try:
        named = msgspec.convert(data, _Elicitations).elicitations
    except msgspec.ValidationError:
        return []
    return [params.elicitation_id for params in named if params.elicitation_id is not None]


def is_of_missing_resource(error: RequestError) -> bool:
    """Whether it says that there is nothing at a URI.

    Its code is one of its own, or, the newer way, that of bad params with the URI.
    """
    if error.code == INVALID_PARAMS:
        data: Any = error.data
        return isinstance(data, dict) and "uri" in data
    return error.code == RESOURCE_NOT_FOUND


def error_text(name: str, result: s.CallToolResult) -> str:
    """Why a tool failed, in its own words."""
    texts = [part.text for part in result.content if isinstance(part, s.TextContent)]
    return "\n".join(texts) or f"the tool {name} failed and did not say why"
