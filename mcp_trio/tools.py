"""Transformed tools: the types of `Server.transform_tool`."""

from mcp_trio._server.transforms import Argument, CallTool, Fixed

__all__ = ["Argument", "CallTool", "Fixed"]
