"""Recordings that tests write by hand."""

from mcp_trio._journal.records import FORMAT_VERSION

# The body of the first record.
OPEN = {
    "format_version": FORMAT_VERSION,
    "transport": "memory",
    "role": "server",
    "name": "hand",
    "version": "1",
    "started": "2026-11-21T00:00:00+00:00",
}
