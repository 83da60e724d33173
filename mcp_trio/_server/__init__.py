"""Servers: what users register, and how it is served."""
