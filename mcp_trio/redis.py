"""Stores on Redis 7 or newer, or Valkey, for an HTTP server with several instances."""

from mcp_trio._redis.stores import RedisLimits, RedisStates, RedisStores

__all__ = ["RedisLimits", "RedisStates", "RedisStores"]
