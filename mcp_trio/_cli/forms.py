"""What a server wants to know while it works, asked of whoever sits at the terminal.

Everything here goes to stderr: stdout is for what the server answers. A URL is shown in full, and
never opened.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click
import trio
from msgspec import UNSET, UnsetType

from mcp_trio._cli.progress import bars_hidden
from mcp_trio._cli.terminal import echo_error, printable
from mcp_trio._protocol.forms import choices_of, mistakes_in, with_defaults
from mcp_trio._schema import ElicitParams, ElicitResult

_BOOLEANS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_PUNYCODE: Final = "xn--"
_DECLINED: Final = ElicitResult(action="decline")
_Answer = Callable[[ElicitParams], ElicitResult]


class Person:
    """Answers a server's questions, one after the other.

    With `takes_defaults` nobody is asked: forms are accepted as they come, if every member that is
    required has a default. Otherwise somebody is asked if there is a terminal; if not, everything
    is declined.
    """

    def __init__(self, *, takes_defaults: bool) -> None:
        self._answer = answer_of(takes_defaults=takes_defaults)
        self._lock = trio.Lock()

    async def answer(self, params: ElicitParams) -> ElicitResult:
        """What the person says to a form or a URL. Cancelled: nobody waits for it any more."""
        async with self._lock:
            return await trio.to_thread.run_sync(self._answer, params, abandon_on_cancel=True)


def answer_of(*, takes_defaults: bool) -> _Answer:
    """How questions are answered here."""
    if takes_defaults:
        return by_defaults
    return asked if sys.stdin.isatty() else _unasked


def _unasked(params: ElicitParams) -> ElicitResult:
    return _declined(params, "stdin is no terminal; --yes takes the defaults")


def by_defaults(params: ElicitParams) -> ElicitResult:
    """Accept a form as it is; nothing else can be accepted without a person."""
    if params.requested_schema is None:
        return _declined(params, f"nobody is there to visit {params.url}")
    content = with_defaults({}, params.requested_schema)
    mistakes = mistakes_in(content, params.requested_schema)
    if mistakes:
        return _declined(params, "; ".join(mistakes))
    return ElicitResult(action="accept", content=content)


def _declined(params: ElicitParams, why: str) -> ElicitResult:
    echo_error(f"the server asks: {params.message}\ndeclined: {why}")
    return _DECLINED


def asked(params: ElicitParams) -> ElicitResult:
    """Ask on the terminal; the end of the input (Ctrl-D) declines."""
    with bars_hidden():
        echo_error(f"the server asks: {params.message} (Ctrl-D declines)")
        try:
            if params.requested_schema is None:
                return _visited(params.url or "")
            return _filled_in(params.requested_schema)
        except click.Abort:
            click.echo(err=True)
            return _DECLINED


def _visited(url: str) -> ElicitResult:
    host = _host(url) or "no host"
    echo_error(url)
    if _PUNYCODE in host:
        echo_error("beware: this host may only look like one that you know")
    return _confirmed(f"Visit {printable(host)} in a browser, and go on?")


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _filled_in(schema: Mapping[str, Any]) -> ElicitResult:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    if not properties:
        return _confirmed("Accept?")
    required = cast("Sequence[str]", schema.get("required") or ())
    said = {name: _member(name, each, name in required) for name, each in properties.items()}
    content = {name: value for name, value in said.items() if value is not UNSET}
    return _confirmed("Send this?", content)


def _confirmed(question: str, content: dict[str, Any] | None = None) -> ElicitResult:
    if click.confirm(question, default=True, err=True):
        return ElicitResult(action="accept", content=content)
    return _DECLINED


def _member(name: str, member: Mapping[str, Any], is_required: bool) -> Any:  # noqa: FBT001  in place
    """Ask for one member until what is said fits; nothing is left out."""
    default = _text(member["default"]) if "default" in member else None if is_required else ""
    return click.prompt(
        _label(name, member),
        default=default,
        show_default=bool(default),
        value_proc=partial(_value, name, member),
        err=True,
    )


def _label(name: str, member: Mapping[str, Any]) -> str:
    """What the member is, and what may be said."""
    items = member.get("items") if member.get("type") == "array" else member
    choices = choices_of(items)
    facts = (
        member.get("description"),
        None if choices is None else f"of {', '.join(map(str, choices))}",
        _HINTS.get(str(member.get("type"))),
    )
    more = "; ".join(str(fact) for fact in facts if fact)
    label = f"{member.get('title') or name} ({more})" if more else str(member.get("title") or name)
    return printable(label)


_HINTS: Final = {"array": "with commas between them", "boolean": "y or n"}


def _value(name: str, member: Mapping[str, Any], text: str) -> Any | UnsetType:
    if not text:
        return UNSET
    value = _READERS.get(str(member.get("type")), str)(text)
    mistakes = mistakes_in({name: value}, {"properties": {name: member}})
    if mistakes:
        raise click.BadParameter(mistakes[0])
    return value


def _text(default: Any) -> str:
    """A default as one would type it."""
    if isinstance(default, list):
        return ", ".join(map(str, cast("Sequence[Any]", default)))
    return str(default).lower() if isinstance(default, bool) else str(default)


def _number(text: str) -> Any:
    """A number if it is one; what is none will be told to be a mistake."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _boolean(text: str) -> Any:
    return _BOOLEANS.get(text.lower(), text)


def _list(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": _number,
    "number": _number,
    "boolean": _boolean,
    "array": _list,
}
