"""Attack a server and a client by JSON Schemas: `python tools/attacks/schema_attacks.py`.

Each attack runs in a process of its own. There, a server over HTTP gets a body from an attacker, or
a client calls a tool of a hostile server, whose output schema and result the attacker chose. Prints
for how long the event loop was held and the memory above rest; the exit status is 1 if it was held
for more than 50 ms, if more than 100 MiB were used, or if an undocumented error was raised.

The first call, which imports the engine of regular expressions, counts.
"""

import argparse
import functools
import http.client
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import trio
from attacked_process import AttackCost, cost_in_process, cost_of, print_cost

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("interop", "bench")]

from interop_command import new_table, show
from load import initialize_request

from mcp_trio import Client, RequestError, Server
from mcp_trio.errors import MCPError

ATTACK_SECONDS_MAX: Final = 30.0
CALLS: Final = 3


@attrs.frozen
class SchemaAttack:
    """A JSON Schema, and the value that is checked by it."""

    schema: Mapping[str, Any]
    value: Any


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema with 2 ** levels paths through its references."""
    definitions: dict[str, Any] = {
        f"d{it}": {"allOf": [{"$ref": f"#/$defs/d{it + 1}"}] * 2} for it in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "string"}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def nested(levels: int, keyword: str, **others: Any) -> dict[str, Any]:
    """Return a schema with a keyword within itself."""
    start: dict[str, Any] = {"type": "string"}
    return functools.reduce(lambda it, _: {keyword: [it, {}], **others}, range(levels), start)


UNIQUE: Final = {
    "type": "object",
    "properties": {"it": {"type": "array", "uniqueItems": True}},
}

ON_SERVERS: Final[Mapping[str, SchemaAttack]] = {
    "uniqueItems, 12 KB": SchemaAttack(UNIQUE, {"it": [{"a": it} for it in range(1150)]}),
    "uniqueItems, 51 KB": SchemaAttack(UNIQUE, {"it": [{"a": it} for it in range(4600)]}),
    "uniqueItems, 600 KB": SchemaAttack(UNIQUE, {"it": [{"a": it} for it in range(50_000)]}),
    "uniqueItems, integers of one hash": SchemaAttack(
        UNIQUE, {"it": [(2**61 - 1) * it for it in range(10**6, 10**6 + 20_000)]}
    ),
    "pattern ^(a+)+$": SchemaAttack(
        {"type": "object", "properties": {"it": {"pattern": "^(a+)+$"}}}, {"it": "a" * 60 + "b"}
    ),
    "pattern with 1,000 states": SchemaAttack(
        {"type": "object", "properties": {"it": {"pattern": "[01]*1[01]{1000}x"}}},
        {"it": "0110100110010110" * 200},
    ),
}

ON_CLIENTS: Final[Mapping[str, SchemaAttack]] = {
    "pattern ^(a+)+$": SchemaAttack({"pattern": "^(a+)+$"}, "a" * 60 + "b"),
    "1,000 patterns": SchemaAttack({"patternProperties": {f"^{it}": {} for it in range(1000)}}, {}),
    "uniqueItems, 6,000 objects": SchemaAttack(
        {"uniqueItems": True}, [{"a": it} for it in range(6000)]
    ),
    "uniqueItems, 1,000 times": SchemaAttack(
        {"allOf": [{"uniqueItems": True} for _ in range(1000)]}, [[it] for it in range(6000)]
    ),
    "1,000 unevaluatedProperties": SchemaAttack(
        {"allOf": [{"unevaluatedProperties": {"type": "integer"}} for _ in range(1000)]},
        {str(it): it for it in range(1000)},
    ),
    "unevaluatedProperties, nested": SchemaAttack(
        nested(24, "anyOf", unevaluatedProperties={}), {str(it): it for it in range(10)}
    ),
    "2 ** 30 paths": SchemaAttack(doubling(30), "x"),
    "2 ** 30 paths, invalid value": SchemaAttack(doubling(30), 3),
    "anyOf, nested": SchemaAttack(nested(30, "anyOf"), 3),
    "$ref to itself": SchemaAttack({"$ref": "#"}, 3),
    "recursion with two branches": SchemaAttack(
        {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "type": "array"} for _ in range(2)]},
        functools.reduce(lambda it, _: {"a": it}, range(100), dict[str, Any]()),
    ),
    "enum of 100,000": SchemaAttack({"items": {"enum": list(range(100_000))}}, [-1] * 1000),
    "const, 3,000 times": SchemaAttack(
        {"items": {"anyOf": [{"const": it} for it in range(3000)]}}, [["x" * 1000]] * 1000
    ),
    "multipleOf 10 ** 400": SchemaAttack({"multipleOf": 10**400}, 3),
    "multipleOf 1e-300": SchemaAttack({"items": {"multipleOf": 1e-300}}, [1e20] * 100_000),
    "$id http://[::1": SchemaAttack({"$id": "http://[::1"}, 3),
    "$ref #/minimum/0": SchemaAttack({"$ref": "#/minimum/0", "minimum": 3}, 3),
    "$dynamicRef to nowhere": SchemaAttack({"$dynamicRef": "#/x"}, 3),
    "remote $ref": SchemaAttack({"$ref": "http://127.0.0.1:9/x"}, 3),
    "pattern that is none": SchemaAttack({"pattern": "("}, "x"),
    "pattern with look-ahead": SchemaAttack({"pattern": "(?=a)"}, "x"),
    "10,000 objects": SchemaAttack(
        {"properties": {str(it): {"type": "string", "minLength": 1} for it in range(9990)}}, {}
    ),
    "9,000 references": SchemaAttack(
        {"$defs": {str(it): {"$ref": f"#/$defs/{(it + 1) % 9000}"} for it in range(9000)}}, 3
    ),
    "9,000 $id": SchemaAttack({"$defs": {str(it): {"$id": f"a{it}"} for it in range(9000)}}, 3),
    "100,000 required": SchemaAttack({"required": [str(it) for it in range(100_000)]}, {}),
    "30,000 more members": SchemaAttack(
        {"additionalProperties": False}, {str(it): it for it in range(30_000)}
    ),
    "2,000 errors with a large value": SchemaAttack(
        {"allOf": [{"type": "string"} for _ in range(2000)]}, ["x" * 1000] * 2000
    ),
}

# In the attacked process.


async def attack_server(attack: SchemaAttack) -> AttackCost:
    """Serve a tool over HTTP, and post the arguments; the outcome is the answer."""
    server = Server("attacked")

    async def sail(arguments: dict[str, Any]) -> str:  # noqa: ARG001 - the arguments are checked
        return "sailed"

    server.tool(name="sail", input_schema=attack.schema)(sail)
    params = {"name": "sail", "arguments": attack.value}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    async with trio.open_nursery() as nursery:
        url = urlsplit(await nursery.start(functools.partial(server.serve_http, port=0)))
        version = "2025-06-18"

        def post(text: str, **headers: str) -> tuple[http.client.HTTPResponse, str]:
            connection = http.client.HTTPConnection(url.hostname or "", url.port)
            kinds = {
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
            }
            connection.request("POST", url.path, text.encode(), kinds | headers)
            response = connection.getresponse()
            return response, response.read().decode()

        opened, _ = await trio.to_thread.run_sync(post, initialize_request(version).decode())
        headers = {
            "Mcp-Session-Id": opened.headers["Mcp-Session-Id"],
            "MCP-Protocol-Version": version,
        }
        call = functools.partial(post, body, **headers)

        async def repeat() -> str:
            for _ in range(CALLS - 1):
                await trio.to_thread.run_sync(call)
            _, answer = await trio.to_thread.run_sync(call)
            return answer.partition("data: {")[2][:200] or answer[:200]

        cost = await cost_of(repeat)
        nursery.cancel_scope.cancel()
    return cost


async def attack_client(name: str) -> AttackCost:
    """Call the tool of a hostile server; the outcome is the result's or error's text."""
    async with Client([sys.executable, __file__, "--serve", name]) as client:
        await client.list_tools()

        async def repeat() -> str:
            outcome = ""
            for _ in range(CALLS):
                try:
                    outcome = str(await client.call_tool("sail"))
                except (MCPError, RequestError) as error:
                    outcome = f"{type(error).__name__}: {error}"
            return outcome[:200]

        return await cost_of(repeat)


def serve(attack: SchemaAttack) -> None:
    """Answer on stdio as a server whose tool has the schema, and returns the value."""
    tool = {"name": "sail", "inputSchema": {"type": "object"}, "outputSchema": attack.schema}
    results = {
        "tools/list": json.dumps({"tools": [tool]}),
        "tools/call": json.dumps({"content": [], "structuredContent": attack.value}),
    }
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        start = f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, '
        method = message["method"]
        if method == "initialize":
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
            print(start + f'"result": {json.dumps(result)}}}', flush=True)
        elif method in results:
            print(start + f'"result": {results[method]}}}', flush=True)
        else:
            error = {"code": -32601, "message": "no such method"}
            print(start + f'"error": {json.dumps(error)}}}', flush=True)


# In the measuring process.


def problems_of(cost: AttackCost) -> Iterator[str]:
    yield from cost.problems()
    if "Traceback" in cost.outcome or "internal error" in cost.outcome.lower():
        yield cost.outcome


def measure(side: str, name: str) -> AttackCost:
    """Run one attack in a process of its own."""
    arguments = ("--side", side, "--attack", name)
    return cost_in_process(__file__, *arguments, seconds_max=ATTACK_SECONDS_MAX)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Attack by JSON Schemas.")
    parser.add_argument("--attack", metavar="NAME", help="only this one")
    parser.add_argument("--side", choices=("server", "client"), help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        serve(ON_CLIENTS[options.serve])
        return 0
    if options.side == "server":
        print_cost(trio.run(attack_server, ON_SERVERS[options.attack]))
        return 0
    if options.side == "client":
        print_cost(trio.run(attack_client, options.attack))
        return 0
    table = new_table("side", "attack", "outcome", right=("loop held, ms", "memory, MiB"))
    problems: list[str] = []
    for side, attacks in (("server", ON_SERVERS), ("client", ON_CLIENTS)):
        for name in attacks:
            if (options.attack or name) != name:
                continue
            cost = measure(side, name)
            if any(problems_of(cost)):  # other processes slow the processor down as well
                cost = min(cost, measure(side, name), key=lambda it: it.held_ms)
            problems += (f"{side}, {name}: {problem}" for problem in problems_of(cost))
            figures = (f"{cost.held_ms:.1f}", f"{cost.memory_mib:.1f}")
            table.add_row(side, name, cost.outcome[:60], *figures)
    return 0 if show(table, problems, "{}") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
