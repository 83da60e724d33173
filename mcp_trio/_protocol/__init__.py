"""The rules of the protocol, as state machines and tables. Pure."""
