"""Names of FastMCP and of the official SDK, with what to write in their place.

The tables have the names of FastMCP 2 to 4 and of the official SDK that we have not; the value is
the end of an error text. The module is imported when there is such an error. The page "Names of
FastMCP and the official SDK" lists the tables, and `nox -s port` checks them against FastMCP.
"""

from collections.abc import Mapping
from typing import Final

_TASKS: Final = "tasks are not implemented"
_BY_CLIENT: Final = "call it with a client: `async with Client(server) as client`"
_RUN: Final = 'give it to the transport: `server.run("http", …)`, `serve_http` or `asgi`'
_VERSIONED: Final = "entries have no versions; register another name"
_APPS: Final = "describe an app in `meta=`"
_AUTH: Final = "write `scopes=` or `access=`"
_ENABLED: Final = "write `server.disable(…)`"
_LOG: Final = {
    "message": "write `data`, which may be any value",
    "logger_name": "write `logger=`",
    "extra": 'log one value: `ctx.info({"text": …, "extra": …})`',
}
_SELECTION: Final = {
    "components": "write `kinds=`",
    "keys": "write the names as positional arguments, before `tags=`",
    "match_all": "leave it out: entries with at least one of the tags are meant",
    "names": "write the names as positional arguments, before `tags=`",
    "version": _VERSIONED,
}
_SKILLS: Final = "skills are not implemented; read their resources with `read_resource`"

CONTEXT: Final[Mapping[str, str]] = {
    "client_extension_settings": "read `ctx.client_capabilities.extensions`",
    "client_id": "write `ctx.principal`, or `ctx.auth.client`",
    "client_supports_extension": "read `ctx.client_capabilities.extensions`",
    "close_sse_stream": "leave it out: clients resume broken streams by themselves",
    "delete_state": "write `del ctx.state[key]`",
    "disable_components": "write `await ctx.disable(…)`",
    "enable_components": "write `await ctx.enable(…)`",
    "fastmcp": "write `ctx.server`",
    "get_prompt": "call the function of the prompt",
    "get_state": "write `ctx.state.get(key)`",
    "is_background_task": _TASKS,
    "lifespan_context": "write `ctx.lifespan`",
    "list_prompts": "call it with a client: `async with Client(ctx.server) as client`",
    "list_resources": "call it with a client: `async with Client(ctx.server) as client`",
    "mcp_server": "write `ctx.server`",
    "notify_progress": "write `await ctx.report_progress(…)`",
    "origin_request_id": _TASKS,
    "progress": "write `await ctx.report_progress(…)`",
    "request_context": "the context itself has its members, such as `ctx.request_id`",
    "reset_visibility": "write `await ctx.enable(…)` or `await ctx.disable(…)`",
    "send_notification": (
        "the server notifies its clients of changed lists; write"
        " `ctx.server.resource_updated(uri)` for a resource"
    ),
    "send_prompt_list_changed": "leave it out: the server notifies its clients itself",
    "send_resource_list_changed": "leave it out: the server notifies its clients itself",
    "send_tool_list_changed": "leave it out: the server notifies its clients itself",
    "session": (
        "the context itself has its methods: `ctx.sample`, `ctx.elicit`, `ctx.list_roots`,"
        " `ctx.log`, `ctx.client_info`"
    ),
    "session_id": "what belongs to a session is in `ctx.state`",
    "set_state": "write `ctx.state[key] = value`",
    "task_id": _TASKS,
    "transport": "handlers are the same for all transports",
}
"""Attributes and methods of a handler's context."""

THREAD_CONTEXT: Final[Mapping[str, str]] = {
    **CONTEXT,
    "http": "a `def` handler has none: write `async def`",
    "timeout": "a `def` handler has none: write `async def`, or `@server.tool(timeout=…)`",
    "to_thread": "a `def` handler runs in a thread: call the function, marked with `@effect`",
}
"""Attributes and methods of the context of a `def` handler; the last are those of `Context`."""

CONTEXT_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "elicit": {
        "response_type": "write `ctx.elicit(message, kind)`",
        "schema": "write `ctx.elicit(message, kind)`",
        "response_title": 'write `Annotated[int, Field(title="…")]` in the form',
        "response_description": 'write `Annotated[int, "…"]` in the form',
    },
    "debug": _LOG,
    "info": _LOG,
    "warning": _LOG,
    "error": _LOG,
    "log": _LOG,
    "sample": {
        "messages": "write `ctx.sample(prompt)`; the prompt may be a list",
        "result_type": "parse the text of the result",
        "tool_concurrency": "call the tools in a nursery",
    },
}
"""Arguments of the methods of a context."""

SERVER: Final[Mapping[str, str]] = {
    "add_completion_handler": 'write `@server.completion(prompt, "argument")`',
    "add_extension": "write `capabilities=` of `Server`, and `@server.method(…)`",
    "add_middleware": "write `server.middleware(function)`",
    "add_prompt": "write `server.prompt(function)`",
    "add_provider": "write `server.mount(other, prefix=…)`",
    "add_resource": "write `server.resource(uri)(function)`",
    "add_resource_prefix": "write `server.mount(other, prefix=…)`",
    "add_template": "write `server.resource(template)(function)`",
    "add_tool": "write `server.tool(function)`",
    "add_tool_transformation": "write `server.transform_tool(tool, …)`",
    "add_transform": "write `server.transform_tool(tool, …)` or `server.mount(other, prefix=…)`",
    "as_proxy": "write `server.mount(target, prefix=None)`",
    "call_tool": _BY_CLIENT,
    "custom_route": "write `@server.route(path)`",
    "docket": _TASKS,
    "from_client": "write `server.mount(client, prefix=None)`",
    "from_fastapi": "write `Server.from_openapi(app.openapi(), client=…)`",
    "generate_name": 'give the server a name: `Server("name")`',
    "get_app_tool": _BY_CLIENT,
    "get_prompt": _BY_CLIENT,
    "get_prompts": _BY_CLIENT,
    "get_resource": _BY_CLIENT,
    "get_resource_template": _BY_CLIENT,
    "get_resource_templates": _BY_CLIENT,
    "get_resources": _BY_CLIENT,
    "get_tasks": _TASKS,
    "get_tool": _BY_CLIENT,
    "get_tool_by_hash": _BY_CLIENT,
    "get_tools": _BY_CLIENT,
    "http_app": "write `server.asgi()`",
    "import_server": "write `server.mount(other, prefix=…)`",
    "list_prompts": _BY_CLIENT,
    "list_resource_templates": _BY_CLIENT,
    "list_resources": _BY_CLIENT,
    "list_tools": _BY_CLIENT,
    "local_provider": "the server has its methods, such as `server.remove_tool(name)`",
    "providers": "write `server.mount(other, prefix=…)`",
    "read_resource": _BY_CLIENT,
    "render_prompt": _BY_CLIENT,
    "required_extensions": "write `capabilities=` of `Server`",
    "run_async": "write `await server.serve_stdio()`, or `serve_http` and others",
    "run_http_async": "write `await server.serve_http()`",
    "run_sse_async": "write `await server.serve_http()`, which serves HTTP+SSE as well",
    "run_stdio_async": "write `await server.serve_stdio()`",
    "run_streamable_http_async": "write `await server.serve_http()`",
    "settings": _RUN,
    "sse_app": "write `server.asgi()`, which serves HTTP+SSE as well",
    "streamable_http_app": "write `server.asgi()`",
    "transforms": "write `server.transform_tool(tool, …)` or `server.mount(other, prefix=…)`",
    "wrap_transform": "write `server.transform_tool(tool, …)` or `server.mount(other, prefix=…)`",
}
"""Attributes and methods of a server."""

SERVER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "__init__": {
        "auth_server_provider": "write `auth=AuthorizationServer(…)`",
        "cache_ttl": "write `list_ttl_seconds=`",
        "client_log_level": "the client chooses the level: `Client(log_level=…)`",
        "debug": "configure `logging`",
        "dereference_schemas": "leave it out: schemas keep their `$ref`",
        "event_store": _RUN,
        "exclude_tags": "write `server.disable(tags=…)`",
        "experimental_capabilities": "write `capabilities=`",
        "host": _RUN,
        "include_tags": "write `server.disable(…)` for the others",
        "json_response": "leave it out: a response that is ready soon is JSON",
        "list_page_size": "write `limits=Limits(requests=RequestLimits(page_items_max=…))`",
        "log_level": "configure `logging`",
        "mask_error_details": 'write `errors="message"` for False; True is the default',
        "middleware": "write `server.middleware(function)`",
        "mount_path": _RUN,
        "on_duplicate": "leave it out: a name that is registered twice is an error",
        "on_duplicate_prompts": "leave it out: a name that is registered twice is an error",
        "on_duplicate_resources": "leave it out: a URI that is registered twice is an error",
        "on_duplicate_tools": "leave it out: a name that is registered twice is an error",
        "port": _RUN,
        "providers": "write `server.mount(other, prefix=…)`",
        "request_state_security": "write `keys=` and `states=`",
        "resource_security": "leave it out: values that could lead out of their path are rejected",
        "sampling_handler": "a client answers: `Client(sampling=…)`",
        "session_state_store": "leave it out: `ctx.state` is in memory",
        "stateless_http": "leave it out: one endpoint serves both kinds of clients",
        "streamable_http_path": _RUN,
        "strict_input_validation": "leave it out: arguments are checked strictly",
        "tasks": _TASKS,
        "token_verifier": "write `auth=`",
        "tool_serializer": "return the text from the function",
        "tools": "write `server.tool(function)`",
        "transforms": "write `server.transform_tool(tool, …)`",
    },
    "run": {
        "allowed_hosts": "write `hosts=`",
        "allowed_origins": "write `origins=`",
        "host_origin_protection": "leave it out: hosts and origins are checked",
        "json_response": "leave it out: a response that is ready soon is JSON",
        "log_level": "configure `logging`",
        "middleware": "mount `server.asgi()` into an application that has it",
        "mount_path": "write `path=`",
        "show_banner": "leave it out: there is no banner",
        "sockets": "mount `server.asgi()` into an application, and serve that",
        "stateless": "leave it out: one endpoint serves both kinds of clients",
        "stateless_http": "leave it out: one endpoint serves both kinds of clients",
        "transport_security": "write `hosts=` and `origins=`",
        "uvicorn_config": 'write `server="hypercorn"`, or mount `server.asgi()`',
    },
    "tool": {
        "app": _APPS,
        "auth": _AUTH,
        "enabled": _ENABLED,
        "exclude_args": "write `server.transform_tool(tool, arguments={name: Fixed(value)})`",
        "run_in_thread": "write `thread=`",
        "serializer": "return the text from the function",
        "structured_output": "write `structured=`",
        "task": _TASKS,
        "version": _VERSIONED,
    },
    "resource": {
        "app": _APPS,
        "auth": _AUTH,
        "enabled": _ENABLED,
        "security": "leave it out: values that could lead out of their path are rejected",
        "task": _TASKS,
        "version": _VERSIONED,
    },
    "prompt": {
        "auth": _AUTH,
        "enabled": _ENABLED,
        "task": _TASKS,
        "version": _VERSIONED,
    },
    "enable": _SELECTION,
    "disable": _SELECTION,
    "mount": {
        "as_proxy": "leave it out: a mounted `Server` has its own lifespan and middleware",
        "namespace": "write `prefix=`",
        "server": "write `server.mount(other, prefix=…)`",
        "tool_names": "write `transform_tool(tool, name=…)` of the other server",
    },
    "route": {
        "include_in_schema": "leave it out: routes are in no schema",
        "name": "leave it out: routes have no names",
    },
}
"""Arguments of `Server` and its methods."""

CLIENT: Final[Mapping[str, str]] = {
    "call_tool_mcp": 'write `call_tool(…)`, or `request("tools/call", …)`',
    "cancel": "leave the cancel scope around the call: `with trio.CancelScope()`",
    "close": "write `await client.aclose()`",
    "complete_mcp": "write `complete(…)`",
    "generate_name": "write `Client(target, name=…)`",
    "get_prompt_mcp": "write `get_prompt(…)`",
    "get_skill": _SKILLS,
    "get_skill_mcp": _SKILLS,
    "initialize": "leave it out: `async with Client(target) as client` connects",
    "initialize_result": (
        "write `client.server_info`, `server_capabilities`, `instructions` or `protocol_version`"
    ),
    "is_connected": "write `client.is_open`",
    "list_prompts_mcp": "write `list_prompts()`",
    "list_resource_templates_mcp": "write `list_resource_templates()`",
    "list_resources_mcp": "write `list_resources()`",
    "list_skill_resources": _SKILLS,
    "list_skills": _SKILLS,
    "list_skills_mcp": _SKILLS,
    "list_tools_mcp": "write `list_tools()`",
    "new": "make another one: `Client(target)`",
    "prior_discover": "write `Client(target, version_memory=…)`",
    "read_resource_mcp": "write `read_resource(uri)`",
    "read_skill": _SKILLS,
    "send_ping": "write `await client.ping()`",
    "send_progress_notification": "the second parameter of a callback for sampling does that",
    "send_request": "write `await client.request(method, params)`",
    "send_roots_list_changed": "write `await client.notify_roots_changed()`",
    "session": "the client has its methods; `client.request` sends any other request",
    "set_elicitation_callback": "write `Client(target, elicitation=…)`",
    "set_logging_level": "write `await client.set_log_level(level)`",
    "set_sampling_callback": "write `Client(target, sampling=…)`",
    "subscribe_resource": "write `await client.subscribe(uri)`",
    "transport": "write `client.target`",
    "unsubscribe_resource": "write `await client.unsubscribe(uri)`",
}
"""Attributes and methods of a client."""

CLIENT_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "__init__": {
        "auto_initialize": "leave it out: `async with Client(target) as client` connects",
        "client_info": "write `name=` and `version=`",
        "elicitation_callback": "write `elicitation=`",
        "elicitation_handler": "write `elicitation=`",
        "init_timeout": "write `limits=Limits(requests=RequestLimits(total_seconds=…))`",
        "input_required_max_rounds": "write `limits=Limits(requests=RequestLimits(rounds_max=…))`",
        "keep_alive": "leave it out: the client closes what it has started",
        "list_roots_callback": "write `roots=`",
        "log_handler": "write `log=`",
        "logging_callback": "write `log=`",
        "message_handler": "write `list_changed=` or `resource_updated=`",
        "mode": "write `protocol_versions=`",
        "prior_discover": "write `version_memory=`",
        "progress_handler": "write `progress=`",
        "raise_exceptions": "leave it out: the log has the exception",
        "raise_on_error": "write `raise_tool_errors=`",
        "read_timeout_seconds": "write `limits=Limits(requests=RequestLimits(total_seconds=…))`",
        "result_claims": "write `methods=`, the types of results by method",
        "sampling_callback": "write `sampling=`",
        "sampling_capabilities": "write `sampling_tools=`",
        "sampling_handler": "write `sampling=`",
        "timeout": "write `limits=Limits(requests=RequestLimits(total_seconds=…))`",
        "transport": "the first argument is the target: `Client(target)`",
        "verify": "write `http=httpx2.AsyncClient(verify=…)`",
    },
    "call_tool": {
        "meta": 'write `request("tools/call", …)` with `_meta`',
        "progress_callback": "write `progress=`",
        "progress_handler": "write `progress=`",
        "raise_on_error": "write `raise_tool_errors=`",
        "read_timeout_seconds": "write `total_seconds=`",
        "task": _TASKS,
        "timeout": "write `total_seconds=`",
        "version": _VERSIONED,
    },
}
"""Arguments of `Client` and its methods."""

PACKAGE: Final[Mapping[str, str]] = {
    "AcceptedElicitation": "the answer of `ctx.elicit` has `action` and `data`",
    "CancelledElicitation": "the answer of `ctx.elicit` has `action` and `data`",
    "ClientSession": "write `Client`",
    "CurrentContext": "annotate the parameter: `ctx: Context`",
    "DeclinedElicitation": "the answer of `ctx.elicit` has `action` and `data`",
    "Depends": "call the function, or let the lifespan make the value",
    "FastMCP": "write `Server`",
    "MCPServer": "write `Server`",
    "Message": "write `PromptMessage` of `mcp_trio.types`; a text is a message of the user",
    "Middleware": "write an `async def` function for `@server.middleware`",
    "PromptError": "write `ToolError`, which works in every handler",
    "ResourceError": "write `ToolError`, which works in every handler",
    "StdioServerParameters": 'a command is a list: `Client(["python", "server.py"])`',
    "ToolResult": "write `CallToolResult` of `mcp_trio.types`",
    "get_access_token": "write `ctx.auth`",
    "get_http_headers": "let `Server(auth=…)` read the headers; `ctx.auth` has what it returns",
    "get_http_request": "let `Server(auth=…)` read the headers; `ctx.auth` has what it returns",
    "stdio_client": 'write `Client(["python", "server.py"])`',
    "streamable_http_client": 'write `Client("http://host/mcp")`',
}
"""Names that users import."""

ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "Context": CONTEXT,
    "ThreadContext": THREAD_CONTEXT,
    "Server": SERVER,
    "Client": CLIENT,
}
"""The attributes and methods by class."""

OPTIONS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "Context": CONTEXT_OPTIONS,
    "Server": SERVER_OPTIONS,
    "Client": CLIENT_OPTIONS,
}
"""The arguments by class and method."""
