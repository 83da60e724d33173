"""Clients: connecting to a server and calling it."""
