"""Tools of the "everything" server that request input from their client.

Most serve all protocol versions with one handler: requests of the server, and `input_required`
results. Those that return `InputRequiredResult` themselves request input under the keys that the
official suite expects; legacy clients get requests instead. Other tools use what a stateless
request contains about its client.
"""

# ruff: noqa: D417, PT028  # docstrings are for the model, and what is named test_ is no test

import json
from typing import Annotated, Any, Final, Literal

import attrs
from fixed_content import (
    CHOICES,
    MODEL_ANSWER,
    PAGE,
    USER_ANSWER,
    WEATHER,
    WEATHER_TOOL,
    text_of,
)
from msgspec import Meta

from mcp_trio import Context, Elicitation, Roots, Sampling, UrlElicitation
from mcp_trio.errors import UrlElicitationRequired
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
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)

QUESTION = "How warm is it in Oslo?"


@attrs.frozen
class User:
    """A user of the client."""

    username: str
    email: str


@attrs.frozen
class Profile:
    """A user, in a form with default values."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


@attrs.frozen
class Named:
    """A name."""

    name: str


@attrs.frozen
class Coloured:
    """A colour, in the suite's word."""

    color: str


@attrs.frozen
class Setting:
    """The context of a prompt or a resource."""

    context: str


async def test_elicitation(message: str, *, ctx: Context) -> str:
    """Ask the client's user.

    Args:
        message: The question.
    """
    answer = await ctx.elicit(message, User)
    return user_answer(answer.action, None if answer.data is None else attrs.asdict(answer.data))


async def test_elicitation_sep1034_defaults(*, ctx: Context) -> str:
    """Ask the client's user, with a form that is filled in before."""
    answer = await ctx.elicit("Who are you?", Profile)
    return user_answer(answer.action, None if answer.data is None else attrs.asdict(answer.data))


async def test_elicitation_sep1330_enums(*, ctx: Context) -> str:
    """Let the client's user choose one or several, of names or of titles."""
    answer = await ctx.elicit("Choose.", CHOICES)
    return user_answer(answer.action, answer.data)


async def test_elicitation_url(*, ctx: Context) -> str:
    """Send the client's user to a page, and tell when that is done."""
    answer = await ctx.elicit_url("Sign in.", PAGE)
    await ctx.elicitation_complete(answer.elicitation_id)
    return user_answer(answer.action, None)


async def test_url_required() -> str:
    """Refuse, and say on which page the user has to be first."""
    raise UrlElicitationRequired([UrlElicitation("Sign in.", PAGE)])


async def test_sampling_with_tools(*, ctx: Context) -> str:
    """Ask the client's model, lend it a tool, and tell it what came of that."""
    tools = [WEATHER_TOOL]
    first = await ctx.sample(
        QUESTION, tools=tools, tool_choice=ToolChoice(mode="auto"), max_tokens=100
    )
    content = first.content if isinstance(first.content, list) else [first.content]
    outcomes = [
        ToolResultContent(tool_use_id=use.id, content=[TextContent(text=WEATHER)])
        for use in content
        if isinstance(use, ToolUseContent)
    ]
    second = await ctx.sample([QUESTION, first, outcomes], tools=tools, max_tokens=100)
    return f"{MODEL_ANSWER}{text_of(second.content)}"


async def test_input_required_result_multiple_inputs(*, ctx: Context) -> str:
    """Ask three things at once."""
    user, greeting, roots = await ctx.ask_all(
        Elicitation("What is your name?", Named),
        Sampling("Generate a greeting", max_tokens=50),
        Roots(),
    )
    name = "no name" if user.data is None else user.data.name
    return " ".join([text_of(greeting.content), f"{name}:", *(root.uri for root in roots)])


async def test_input_required_result_multi_round(*, ctx: Context) -> str:
    """Ask one thing, and then another."""
    first = await ctx.elicit("What is your name?", Named)
    second = await ctx.elicit("Your favourite colour?", Coloured)
    name = "A user without a name" if first.data is None else first.data.name
    colour = "nothing" if second.data is None else second.data.color
    return f"{name} likes {colour}"


async def context_of(ctx: Context) -> str:
    """Elicit the text of a prompt or a resource."""
    answer = await ctx.elicit("What context should the prompt use?", Setting)
    return f"Context: {'nothing' if answer.data is None else answer.data.context}"


def user_answer(action: str, content: object) -> str:
    """Return the user's answer as text."""
    return f"{USER_ANSWER}{json.dumps({'action': action, 'content': content})}"


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
    """Ask the client's user for a name, and greet the user."""
    answer = ctx.input_responses.get("user_name")
    if not isinstance(answer, ElicitResult):
        return InputRequiredResult(input_requests={"user_name": WHO})
    return f"Hello, {(answer.content or {}).get('name', 'stranger')}!"


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
    """Log a message, which is sent only if the request has a log level."""
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


INPUT_REQUEST_TOOLS: Final = (
    test_elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_elicitation_url,
    test_url_required,
    test_sampling_with_tools,
    test_input_required_result_multiple_inputs,
    test_input_required_result_multi_round,
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
