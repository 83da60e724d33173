"""Answer a server's elicitations: on the terminal, with default values, or by declining.

Everything is printed to stderr, because stdout is for results. URLs are shown completely, and never
opened.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click
import trio
from msgspec import UNSET, UnsetType

from mcp_trio._cli.output import echo_error, hidden_bars, printable
from mcp_trio._cli.tool_arguments import array_items
from mcp_trio._protocol.client_features import choices_of, form_errors, form_members, with_defaults
from mcp_trio.types import ElicitParams, ElicitResult

_DECLINED: Final = ElicitResult(action="decline")


def elicitation_callback(
    *, accepts_defaults: bool
) -> Callable[[ElicitParams], Awaitable[ElicitResult]]:
    """Return a callback that answers forms and URLs, one at a time; see `answer_function`.

    If the callback is cancelled, the question stays on the terminal.
    """
    answer = answer_function(accepts_defaults=accepts_defaults)
    lock = trio.Lock()

    async def answer_in_turn(params: ElicitParams) -> ElicitResult:
        async with lock:
            return await trio.to_thread.run_sync(answer, params, abandon_on_cancel=True)

    return answer_in_turn


def answer_function(*, accepts_defaults: bool) -> Callable[[ElicitParams], ElicitResult]:
    """Return the function that answers elicitations in this process.

    With `accepts_defaults`, a form is accepted if every required member has a default. Otherwise
    the user is asked if stdin is a terminal, and everything is declined if it is not.
    """
    if accepts_defaults:
        return accept_defaults
    if sys.stdin.isatty():
        return ask
    return partial(_declined, reason="stdin is not a terminal; --yes accepts the defaults")


def accept_defaults(params: ElicitParams) -> ElicitResult:
    """Accept a form with its default values; decline a URL, which the user has to confirm."""
    if params.requested_schema is None:
        return _declined(params, f"only a user at a terminal can confirm opening {params.url}")
    content = with_defaults({}, params.requested_schema)
    errors = form_errors(content, params.requested_schema)
    if errors:
        return _declined(params, f"--yes needs a default value for each field: {'; '.join(errors)}")
    return ElicitResult(action="accept", content=content)


def _declined(params: ElicitParams, reason: str) -> ElicitResult:
    echo_error(f"the server asks: {params.message}\ndeclined: {reason}")
    return _DECLINED


def ask(params: ElicitParams) -> ElicitResult:
    """Ask the user on the terminal; the end of the input (Ctrl-D) declines."""
    host = "no host"
    with hidden_bars():
        echo_error(f"the server asks: {params.message} (Ctrl-D declines)")
        try:
            if params.requested_schema is None:
                url = params.url or ""
                with suppress(ValueError):
                    host = urlsplit(url).hostname or host
                echo_error(url)
                if "xn--" in host:  # Punycode, whose letters may look like others
                    echo_error("warning: this host name may imitate another one")
                return _confirm(f"Open {printable(host)} in a browser and continue?")
            members = form_members(params.requested_schema)
            if not members:
                return _confirm("Accept?")
            required = array_items(params.requested_schema.get("required"))
            content: dict[str, Any] = {}
            for name, member in members.items():
                value = _ask_for_member(name, member, is_required=name in required)
                if value is not UNSET:
                    content[name] = value
            return _confirm("Send this?", content)
        except click.Abort as error:
            click.echo(err=True)
            if isinstance(error.__context__, KeyboardInterrupt):  # only in the main thread
                raise KeyboardInterrupt from None
            return _DECLINED


def _confirm(question: str, content: dict[str, Any] | None = None) -> ElicitResult:
    if click.confirm(question, default=True, err=True):
        return ElicitResult(action="accept", content=content)
    return _DECLINED


_HINTS: Final = {"array": "separated by commas", "boolean": "y or n"}


def _ask_for_member(name: str, member: Mapping[str, Any], *, is_required: bool) -> Any:
    """Ask for a member's value until it is valid; UNSET if the user leaves it out."""
    choices = choices_of(member.get("items") if member.get("type") == "array" else member)
    facts = (
        member.get("description"),
        None if choices is None else f"one of {', '.join(map(str, choices))}",
        _HINTS.get(str(member.get("type"))),
    )
    details = "; ".join(str(fact) for fact in facts if fact)
    title = str(member.get("title") or name)
    label = printable(f"{title} ({details})" if details else title)

    default = None if is_required else ""
    value = member.get("default")
    if value is not None:  # as a user would type it
        if isinstance(value, list):
            default = ", ".join(map(str, cast("Sequence[Any]", value)))
        else:
            default = str(value).lower() if isinstance(value, bool) else str(value)
        label += f" [{printable(default)}]"  # click would print it with its control characters
    return click.prompt(
        label,
        default=default,
        show_default=False,
        value_proc=partial(_parse_answer, name, member),
        err=True,
    )


_BOOLEANS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


def _parse_answer(name: str, member: Mapping[str, Any], text: str) -> Any | UnsetType:
    if not text:
        return UNSET
    kind = member.get("type")
    value: Any = text  # validation rejects a text that should be a number or a boolean
    if kind == "array":
        value = [each.strip() for each in text.split(",")]
    elif kind == "boolean":
        value = _BOOLEANS.get(text.lower(), text)
    elif kind in ("integer", "number"):
        with suppress(ValueError):
            value = float(text)
        with suppress(ValueError):
            value = int(text)
    errors = form_errors({name: value}, {"properties": {name: member}})
    if errors:
        raise click.BadParameter(printable(errors[0]))
    return value
