"""The journal: its records, how they are encoded, read, compared, exported and redacted. Pure."""
