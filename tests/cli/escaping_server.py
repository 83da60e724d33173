"""A server over stdio, all of whose texts contain control sequences for terminals."""

import json
import sys

BAD = "\x1b]0;title\x07\x9b31m\x7f\u202e\U000e0041\r!"


def send(**members):
    print(json.dumps({"jsonrpc": "2.0", **members}, ensure_ascii=False), flush=True)


def receive():
    return json.loads(sys.stdin.readline())


def outcome(message):
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": BAD}}}
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": BAD, "version": "1"},
            }
        case "logging/setLevel":
            return {}
        case "tools/list":
            return {
                "tools": [{"name": "ask", "title": BAD, "description": BAD, "inputSchema": schema}]
            }
        case "tools/call" if message["params"]["name"] == "ask":
            params = {"message": BAD, "requestedSchema": schema}
            send(id=1, method="elicitation/create", params=params)
            answer = receive()
            return {"content": [{"type": "text", "text": json.dumps(answer["result"])}]}
        case "tools/call":
            send(method="notifications/message", params={"level": "info", "data": BAD})
            print(BAD, flush=True)
            return {"content": [{"type": "text", "text": BAD}]}


while line := sys.stdin.readline():
    if "id" in (message := json.loads(line)):
        result = outcome(message)
        if result is None:
            send(id=message["id"], error={"code": -32601, "message": BAD})
        else:
            send(id=message["id"], result=result)
