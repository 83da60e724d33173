"""A server over stdio that answers from a table: with pages, unknown members, and errors."""

import json
import sys
import time

RESULTS = {
    "initialize": {
        "protocolVersion": "2024-11-05",
        "capabilities": {"tools": {}, "resources": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    },
    "resources/list": {"resources": []},
    "tools/call": {"content": [], "structuredContent": {"n": 1.0}, "isError": False},
    "resources/read": {
        "contents": [
            {"uri": "odd://a", "text": "a text"},
            {"uri": "odd://b", "mimeType": "x/y", "blob": "not base64"},
        ]
    },
}
PAGES = {
    None: {"tools": [{"name": "one", "title": "The One", "inputSchema": {}}], "nextCursor": "2"},
    "2": {"tools": [{"name": "two", "inputSchema": {}}]},
}


def outcome(method, params):
    if method == "tools/list":
        return {"result": PAGES[params.get("cursor")]}
    if method in RESULTS:
        return {"result": RESULTS[method]}
    return {"error": {"code": -32601, "message": f"no {method}"}}


print("odd is here", file=sys.stderr, flush=True)
if "mute" in sys.argv:
    time.sleep(30)
if "dies" in sys.argv:
    sys.exit("odd cannot go on")
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        head = {"jsonrpc": "2.0", "id": message["id"]}
        print(json.dumps(head | outcome(message["method"], message.get("params", {}))), flush=True)
