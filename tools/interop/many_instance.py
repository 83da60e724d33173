"""One instance of many_server.py: `many_instance.py PORT REDIS_URL LEASE_SECONDS ALLOWED_HOST`."""

import sys

from many_server import server

from mcp_trio.redis import RedisStores

port, url, lease_seconds, host = sys.argv[1:5]
stores = RedisStores(url, prefix="many", lease_seconds=float(lease_seconds))
server.run("http", port=int(port), stores=stores, hosts=[host])
