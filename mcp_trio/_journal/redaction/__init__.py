"""Redaction: what is secret never reaches a recording, and the recording replays all the same."""

from mcp_trio._journal.redaction.names import DEFAULT_SECRET_NAMES
from mcp_trio._journal.redaction.redactor import Redaction, Redactor, redactor_of
from mcp_trio._journal.redaction.tokens import KEY_BYTES

__all__ = ["DEFAULT_SECRET_NAMES", "KEY_BYTES", "Redaction", "Redactor", "redactor_of"]
