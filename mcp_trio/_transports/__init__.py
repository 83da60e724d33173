"""Channels of complete messages, with the clients and listeners that open them."""
