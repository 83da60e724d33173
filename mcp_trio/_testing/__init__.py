"""Fakes and checks for people who test against the engine."""
