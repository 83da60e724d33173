"""Which arguments of which tools a client repeats in headers: learnt from lists that pass by."""

import logging
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import msgspec
from msgspec import Raw

from mcp_trio._limits import DEFAULT_LIMITS
from mcp_trio._protocol.http.mirrored import AnnotationError, parameter_paths

logger = logging.getLogger("mcp_trio")

Paths: TypeAlias = Mapping[str, tuple[str, ...]]


class _Tool(msgspec.Struct, rename="camel", gc=False):
    name: str
    input_schema: dict[str, Any]


class _Frame(msgspec.Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    id: int | str
    result: dict[str, Raw]


@attrs.define(eq=False)
class ToolHeaders:
    """What is known of the tools of one server, from the newest lists (HDR-33).

    At most `tools_max` that have such arguments: of those that were listed longest ago nothing is
    known any more, whether the server has them still or not.
    """

    _tools_max: int = DEFAULT_LIMITS.cache_entries_max
    _paths: dict[str, Paths] = attrs.field(factory=dict[str, Paths], init=False)

    def paths_of(self, tool: str | None) -> Paths | None:
        """Where the arguments are that have a header; None when nothing is known (HDR-34)."""
        return None if tool is None else self._paths.get(tool)

    def learn(self, frame: bytes) -> bytes:
        """Take note of a page of tools; returns it without those that break a rule (HDR-16).

        What is no page of tools comes back as it is, for who knows its type to refuse it.
        """
        try:
            answer = msgspec.json.decode(frame, type=_Frame)
            tools = msgspec.json.decode(answer.result["tools"], type=list[Raw])
        except (msgspec.MsgspecError, KeyError):
            return frame
        kept = [tool for tool in tools if self._is_usable(tool)]
        if len(kept) == len(tools):
            return frame
        answer.result["tools"] = Raw(msgspec.json.encode(kept))
        return msgspec.json.encode(answer)

    def _is_usable(self, raw: Raw) -> bool:
        try:
            tool = msgspec.json.decode(raw, type=_Tool)
        except msgspec.MsgspecError:
            return True
        self._paths.pop(tool.name, None)
        try:
            paths = parameter_paths(tool.input_schema)
        except AnnotationError as error:
            logger.warning("the tool %r is left out: %s", tool.name, error)
            return False
        if paths:
            self._paths[tool.name] = paths
            if len(self._paths) > self._tools_max:
                del self._paths[next(iter(self._paths))]
        return True
