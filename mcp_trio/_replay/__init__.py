"""Running handlers again against a recording."""

from mcp_trio._replay.replay import ReplayReport, replay, replay_async

__all__ = ["ReplayReport", "replay", "replay_async"]
