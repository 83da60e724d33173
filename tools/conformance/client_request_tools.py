"""Tools of the "everything" server that send requests to the client.

One handler serves all protocol versions: requests of the server, and `input_required` results.
"""

# ruff: noqa: D417  # docstrings are for the model

import json
from typing import Literal

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

from mcp_trio import Context, Elicitation, Roots, Sampling, UrlElicitation
from mcp_trio.errors import UrlElicitationRequired
from mcp_trio.types import TextContent, ToolChoice, ToolResultContent, ToolUseContent

QUESTION = "How warm is it in Oslo?"


@attrs.frozen
class User:
    """Who somebody is."""

    username: str
    email: str


@attrs.frozen
class Profile:
    """More of that, which is filled in before."""

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
    """What something is about."""

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
    name = "nobody" if user.data is None else user.data.name
    return " ".join([text_of(greeting.content), f"{name}:", *(root.uri for root in roots)])


async def test_input_required_result_multi_round(*, ctx: Context) -> str:
    """Ask one thing, and then another."""
    first = await ctx.elicit("What is your name?", Named)
    second = await ctx.elicit("Your favourite colour?", Coloured)
    name = "Nobody" if first.data is None else first.data.name
    colour = "nothing" if second.data is None else second.data.color
    return f"{name} likes {colour}"


async def context_of(ctx: Context) -> str:
    """Elicit the text of a prompt or a resource."""
    answer = await ctx.elicit("What context should the prompt use?", Setting)
    return f"Context: {'nothing' if answer.data is None else answer.data.context}"


def user_answer(action: str, content: object) -> str:
    """Return the user's answer as text."""
    return f"{USER_ANSWER}{json.dumps({'action': action, 'content': content})}"


ASKING_TOOLS = (
    test_elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_elicitation_url,
    test_url_required,
    test_sampling_with_tools,
    test_input_required_result_multiple_inputs,
    test_input_required_result_multi_round,
)
