"""Messages with secrets, and a redactor with a key."""

import json

import msgspec

from mcp_trio import Limits
from mcp_trio._journal.redaction import Redactor
from mcp_trio.recording import Record, Redaction

KEY = b"a key of thirty-two bytes, about"

# Not a secret by its shape.
SECRET = "Abc123Xyz789Qrs456Tuv7890"


def redactor(*, key=KEY, schemas=None, limits=None, **rules):
    return Redactor(Redaction(**rules), key=key, schemas=schemas, limits=limits or Limits())


def encoded(value):
    return json.dumps(value).encode()


def call(**arguments):
    params = {"name": "login", "arguments": arguments, "_meta": {"progressToken": "token"}}
    return encoded({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def result(text, **more):
    content = [{"type": "text", "text": text}]
    return encoded({"jsonrpc": "2.0", "id": 1, "result": {"content": content, **more}})


def arguments_of(frame):
    return json.loads(frame)["params"]["arguments"]


def text_of(frame):
    return json.loads(frame)["result"]["content"][0]["text"]


def hidden(value, **rules):
    return arguments_of(redactor(**rules).redact("in", call(password=value)))["password"]


def record(kind, body, number=0):
    return Record(number=number, kind=kind, time_ns=0, body=msgspec.Raw(body))
