"""HTTP: who holds the connection, and a client's channel. The rules are in `_protocol.http`."""
