"""The facts of a session that is recorded."""

FACTS = {"role": "server", "transport": "memory", "name": "a / weather!", "version": "1.0"}
