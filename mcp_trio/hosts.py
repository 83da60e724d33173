"""Helpers for hosts: configuration files, display names, tool hints, icons, model choice."""

from mcp_trio._client.config import ServerConfig, read_config
from mcp_trio._client.connect import VersionMemory
from mcp_trio._client.hosts import (
    ModelTraits,
    ToolHints,
    choose_model,
    display_name,
    showable_icons,
    tool_hints,
)

__all__ = [
    "ModelTraits",
    "ServerConfig",
    "ToolHints",
    "VersionMemory",
    "choose_model",
    "display_name",
    "read_config",
    "showable_icons",
    "tool_hints",
]
