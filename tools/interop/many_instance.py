"""One instance of many_server.py: `many_instance.py PORT REDIS_URL LEASE_SECONDS HOST`.

A further argument `memory` leaves Redis out.
"""

import sys

from many_server import server

from mcp_trio.redis import RedisStores

port, url, lease_seconds, host, *memory = sys.argv[1:]
if memory:
    server.run("http", port=int(port), hosts=[host])
else:
    stores = RedisStores(url, prefix="many", lease_seconds=float(lease_seconds))
    server.run("http", port=int(port), hosts=[host], stores=stores)
