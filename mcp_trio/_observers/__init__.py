"""Observers: traces, metrics, request logs and audit logs of sessions."""
