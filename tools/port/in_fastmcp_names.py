"""Print the public names of FastMCP's classes, and the arguments that users type, as JSON."""

import inspect
import json

from fastmcp import Client, Context, FastMCP

METHODS = {
    FastMCP: ("__init__", "tool", "resource", "prompt", "mount", "run_http_async"),
    Client: ("__init__", "call_tool"),
    Context: ("elicit", "log", "info"),
}
# The names of these in mcp_trio. `run` passes its options on to `run_http_async`.
OURS = {FastMCP: "Server", Client: "Client", Context: "Context", "run_http_async": "run"}

print(
    json.dumps(
        {
            OURS[kind]: {
                "": [name for name in dir(kind) if not name.startswith("_")],
                **{
                    OURS.get(method, method): [
                        parameter.name
                        for parameter in inspect.signature(
                            getattr(kind, method)
                        ).parameters.values()
                        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
                    ]
                    for method in methods
                },
            }
            for kind, methods in METHODS.items()
        }
    )
)
