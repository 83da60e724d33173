"""Runnable examples: servers, and modules that they use."""
