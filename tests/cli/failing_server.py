"""A server over stdio whose calls all fail, also of unknown tools, with a result as some SDKs do."""

import json
import sys

RESULTS = {
    "initialize": {
        "protocolVersion": "2024-11-05",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "failing", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "forecast", "inputSchema": {}}]},
}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        method = message["method"]
        if method == "tools/call":
            content = [{"type": "text", "text": f"no {message['params']['name']}"}]
            answer = {"result": {"content": content, "isError": True}}
        elif method in RESULTS:
            answer = {"result": RESULTS[method]}
        else:
            answer = {"error": {"code": -32601, "message": f"no {method}"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"]} | answer), flush=True)
