"""Channels of whole messages: memory, and stdio from both ends."""
