"""Server, logging: the severities of RFC 5424."""

from typing import Any, Literal, TypeAlias

from mcp_trio._schema.base import Params

LoggingLevel: TypeAlias = Literal[
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
]
"""From the least severe to the most."""


class SetLevelParams(Params, kw_only=True):
    """The least severe level that the client wants to hear of."""

    level: LoggingLevel


class LoggingMessageParams(Params, kw_only=True):
    """One log message; `data` is any JSON value."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
