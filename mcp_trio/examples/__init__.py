"""Runnable examples; each module is a server of its own."""
