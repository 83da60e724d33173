"""Tools of the "everything" server that request input from stateless clients.

Some request input under the keys that the official suite expects; legacy clients get requests
instead. Other tools use what a stateless request contains about its client.
"""

# ruff: noqa: PT028  # what is named test_ is no test

from typing import Annotated, Any, Final

from client_request_tools import Named
from fixed_content import text_of
from msgspec import Meta

from mcp_trio import Context, Elicitation, Roots, Sampling
from mcp_trio.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)

CONFIRMING: Final = "confirming"
CONNECTION_SECONDS: Final = 5.0
LATE_SECONDS: Final = 0.5


def form(message: str, name: str, kind: str) -> InputRequest:
    """Return an elicitation with a single field."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": kind}},
        "required": [name],
    }
    params = ElicitParams(message=message, requested_schema=schema)
    return InputRequest(method="elicitation/create", params=params)


WHO: Final = form("What is your name?", "name", "string")
SURE: Final = form("Please confirm", "ok", "boolean")
CAPITAL: Final = InputRequest(
    method="sampling/createMessage",
    params=CreateMessageParams(
        messages=[
            SamplingMessage(role="user", content=TextContent(text="What is the capital of France?"))
        ],
        max_tokens=100,
    ),
)
ROOTS: Final = InputRequest(method="roots/list")


async def test_input_required_result_elicitation(*, ctx: Context) -> InputRequiredResult | str:
    """Greet the client's user, who is asked for a name."""
    answer = ctx.input_responses.get("user_name")
    if not isinstance(answer, ElicitResult):
        return InputRequiredResult(input_requests={"user_name": WHO})
    return f"Hello, {(answer.content or {}).get('name', 'whoever you are')}!"


async def test_input_required_result_sampling(*, ctx: Context) -> InputRequiredResult | str:
    """Tell what the client's model says."""
    answer = ctx.input_responses.get("capital_question")
    if not isinstance(answer, CreateMessageResult):
        return InputRequiredResult(input_requests={"capital_question": CAPITAL})
    return text_of(answer.content)


async def test_input_required_result_list_roots(*, ctx: Context) -> InputRequiredResult | str:
    """Tell what the client's roots are, one a line."""
    answer = ctx.input_responses.get("client_roots")
    if not isinstance(answer, ListRootsResult):
        return InputRequiredResult(input_requests={"client_roots": ROOTS})
    return "\n".join(root.uri for root in answer.roots)


async def test_input_required_result_request_state(*, ctx: Context) -> InputRequiredResult | str:
    """Keep a state of its own with the client, while its user confirms something."""
    if ctx.request_state != CONFIRMING or "confirm" not in ctx.input_responses:
        return InputRequiredResult(input_requests={"confirm": SURE}, request_state=CONFIRMING)
    return "state-ok"


async def test_input_required_result_tampered_state(*, ctx: Context) -> InputRequiredResult | str:
    """Do the same once more: its state is sealed, so that one that was changed is refused."""
    return await test_input_required_result_request_state(ctx=ctx)


async def test_input_required_result_capabilities(*, ctx: Context) -> str:
    """Ask the client for whatever it can be asked for."""
    questions = {
        "sampling": Sampling("What is the capital of France?", max_tokens=100),
        "elicitation": Elicitation("What is your name?", Named),
        "roots": Roots(),
    }
    asked = [name for name in questions if ctx.client_can(name)]
    await ctx.ask_all(*(questions[name] for name in asked))
    return f"Asked for: {', '.join(asked) or 'nothing'}"


async def test_streaming_elicitation(*, ctx: Context) -> str:
    """Ask the client's user in the middle of a call."""
    answer = await ctx.elicit("What is your name?", Named)
    return f"The user has chosen to {answer.action}."


async def test_missing_capability(*, ctx: Context) -> str:
    """Ask the client's model; a client that has none is told what it lacks."""
    answer = await ctx.sample("Are you there?", max_tokens=10)
    return text_of(answer.content)


async def test_logging_tool(*, ctx: Context) -> str:
    """Log a message, if the request wants to hear of it."""
    await ctx.info("This is a log message")
    return "Logged."


async def test_reconnection(*, ctx: Context) -> str:
    """Take longer than one connection may: the client has to come back for the answer."""
    await ctx.sleep(CONNECTION_SECONDS + LATE_SECONDS)
    return "Reconnection test completed successfully"


async def test_x_mcp_header(
    region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})] = "anywhere",
) -> str:
    """Take an argument that stands in the head of the request, too.

    Args:
        region: Where.
    """
    return f"The region is {region}."


ROUND_TOOLS: Final = (
    test_input_required_result_elicitation,
    test_input_required_result_sampling,
    test_input_required_result_list_roots,
    test_input_required_result_request_state,
    test_input_required_result_tampered_state,
    test_input_required_result_capabilities,
    test_streaming_elicitation,
    test_missing_capability,
    test_logging_tool,
    test_reconnection,
    test_x_mcp_header,
)
