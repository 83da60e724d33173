"""Messages of hand-written conversations, and short forms of reports."""

STATELESS = "2026-07-28"
VERSION = "io.modelcontextprotocol/protocolVersion"
TAG = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
META = {VERSION: STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}


def call(id_, name="x", **params):
    """Return a legacy client's tool call."""
    return {"id": id_, "method": "tools/call", "params": {"name": name, **params}}


def stateless_request(id_, method, **params):
    meta = META | params.pop("_meta", {})
    return {"id": id_, "method": method, "params": {**params, "_meta": meta}}


def stateless_call(id_, name="x", **params):
    return stateless_request(id_, "tools/call", name=name, **params)


def note(method, **params):
    return {"method": f"notifications/{method}", "params": params}


def result(id_, **members):
    return {"id": id_, "result": members}


def without_jsonrpc(messages):
    return [{name: value for name, value in each.items() if name != "jsonrpc"} for each in messages]


async def exchange(peer, *messages):
    """Send messages; return the messages that come back until all tasks wait."""
    await peer.send(*messages)
    return without_jsonrpc(await peer.receive_available())


async def answer(peer, **members):
    """Answer the next request; return the request."""
    asked = await peer.receive()
    await peer.send_result(asked, members)
    return asked


def differences_of(report):
    """Return kind, subject and path of each difference."""
    return [(each.kind, each.subject, each.path) for each in report.differences]
