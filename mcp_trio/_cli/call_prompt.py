"""The prompt of `mcp-trio inspect --call`: calls of one session, typed one after the other.

The main thread reads the lines, because Python raises `KeyboardInterrupt` only there, and Ctrl-C
interrupts the `readline` library only there. The session runs in a thread of its own, so it goes on
while a line is typed: pings are answered, and log messages are printed. `readline` has all that is
needed to edit and complete a line, so no other library is used.
"""

import contextlib
import itertools
import re
import shlex
import signal
import sys
import threading
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from operator import attrgetter
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, cast

import attrs
import click
import msgspec
import outcome
import trio

from mcp_trio._cli.call import (
    SessionChoices,
    call_tool,
    client_of,
    connected,
    fetch_lists,
    get_prompt,
    option_hints,
    print_prompt_result,
    print_tool_result,
)
from mcp_trio._cli.elicitation import answer_function
from mcp_trio._cli.output import (
    echo_error,
    echo_peer_text,
    echo_text,
    printable,
    prints_to_stderr,
    resource_text,
)
from mcp_trio._cli.tool_arguments import (
    alternatives,
    listed_values,
    parse_arguments,
    prompt_arguments,
    properties_of,
    resolved,
    schema_types,
)
from mcp_trio._client.client import Client
from mcp_trio._journal.texts import json_text
from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio._system import state_folder
from mcp_trio.errors import ConfigError, MCPError
from mcp_trio.types import ElicitParams, ElicitResult

if TYPE_CHECKING:
    import io

# The session, in a thread.

_Value = TypeVar("_Value")

# Python handles a signal that arrives just before it begins to wait only when it stops waiting.
_SIGNALS_SECONDS: Final = 0.5


class _Question(msgspec.Struct, frozen=True):
    """An elicitation that the main thread has to answer, and the function that takes the answer."""

    params: ElicitParams
    reply: Callable[[ElicitResult], None]


class SessionThread:
    """A session with a server in a thread of its own; a context manager for the main thread.

    At the end of the block the connection is closed.

    Raises:
        click.UsageError: The choices name no server, or contradict each other.
        TargetUsageError: SERVER is a TARGET that names no server.
        MCPError: The connection failed.
        KeyboardInterrupt: The user pressed Ctrl-C while the connection was made.
    """

    def __init__(self, choices: SessionChoices) -> None:
        self._choices = choices
        self._answer = answer_function(accepts_defaults=choices.yes)
        self._events = SimpleQueue[_Question | outcome.Outcome[Any]]()
        self._thread = threading.Thread(target=self._run_session, name="mcp_trio session")
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._is_calling = False
        self.have_lists_changed = False

    def __enter__(self) -> Self:
        with prints_to_stderr(), option_hints(self._choices):
            self._client = client_of(self._choices, self._ask, list_changed=self._list_changed)
            self._thread.start()
            self._token: trio.lowlevel.TrioToken = self._next_event().unwrap()
            try:
                self._next_event().unwrap()  # the connection is made
            except BaseException:
                self._end()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, function: Callable[[Client], Awaitable[_Value]]) -> _Value:
        """Call a function with the client; meanwhile, answer the elicitations of the server.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C; the function was cancelled.
            Exception: The error of the function.
        """
        scope = trio.CancelScope()
        self._is_calling = True
        with prints_to_stderr(), option_hints(self._choices):
            try:
                # A `KeyboardInterrupt` could come when the function has started, and leave it
                # running, or after an event is taken, and lose it.
                with _on_interrupt(lambda _, __: self._token.run_sync_soon(scope.cancel)):
                    assert self._nursery is not None
                    self._token.run_sync_soon(self._nursery.start_soon, self._call, function, scope)
                    event = self._next_event()
            finally:
                self._is_calling = False
            value: _Value = event.unwrap()
        return value

    def _next_event(self) -> outcome.Outcome[Any]:
        """Answer questions until a function of the session has ended; return how it ended."""
        while True:
            try:
                event = self._events.get(timeout=_SIGNALS_SECONDS)
            except Empty:
                continue
            if not isinstance(event, _Question):
                return event
            handler = signal.getsignal(signal.SIGINT)
            try:
                with _on_interrupt(signal.default_int_handler):
                    answer = self._answer(event.params)
            except KeyboardInterrupt:
                if callable(handler):  # the call ends, and with it the elicitation
                    handler(signal.SIGINT, None)
                answer = ElicitResult(action="cancel")
            event.reply(answer)

    def _end(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    # In the thread of the session.

    def _run_session(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # raised in the main thread
            self._events.put(outcome.Error(error))

    async def _serve(self) -> None:
        self._events.put(outcome.Value(trio.lowlevel.current_trio_token()))
        with self._scope:
            async with (
                connected(self._client, self._choices),
                trio.open_nursery() as self._nursery,
            ):
                self._events.put(outcome.Value(None))
                await trio.sleep_forever()

    async def _call(
        self, function: Callable[[Client], Awaitable[Any]], scope: trio.CancelScope
    ) -> None:
        ended: outcome.Outcome[Any] = outcome.Error(KeyboardInterrupt())
        with scope:
            try:
                ended = outcome.Value(await function(self._client))
            except Exception as error:  # raised in the main thread
                ended = outcome.Error(error)
        self._events.put(ended)

    async def _ask(self, params: ElicitParams) -> ElicitResult:
        """Let the main thread answer; without a call, it reads a line and cannot."""
        if not self._is_calling:
            echo_error(f"the server asks: {params.message}\ndeclined: no call is running")
            return ElicitResult(action="decline")
        answers: list[ElicitResult] = []
        answered = trio.Event()

        def take(answer: ElicitResult) -> None:
            answers.append(answer)
            answered.set()

        def reply(answer: ElicitResult) -> None:
            self._token.run_sync_soon(take, answer)

        self._events.put(_Question(params, reply))
        await answered.wait()
        return answers[0]

    def _list_changed(self, _kind: str) -> None:
        self.have_lists_changed = True


@contextlib.contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], object]) -> Generator[None]:
    """Within this context, Ctrl-C calls this handler of the signal."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# Lines and their completion.

_Lists: TypeAlias = Mapping[str, Sequence[Any]]

# The attribute that names an item of a list to the user, if that is not its name.
_NAMES: Final[Mapping[str, str]] = {"resources": "uri", "templates": "uri_template"}

QUIT: Final = "/quit"
COMMANDS: Final[Mapping[str, str]] = {
    "/prompt": "/prompt NAME argument=text…: get a prompt",
    "/read": "/read URI: read a resource",
    "/list": "/list: list what the server offers",
    "/help": "/help: show this help",
    QUIT: "/quit: end; so does Ctrl-D",
}
HELP: Final = "\n".join(
    (
        "TOOL argument=value…: call a tool; argument:=json for JSON, {…} or @FILE for all of them",
        *COMMANDS.values(),
        "Words with spaces need quotes, as in a shell. Ctrl-C cancels a call. Tab completes.",
    )
)

Complete: TypeAlias = Callable[[str, str, str, Mapping[str, str]], Iterable[str]]
"""Requests completions: of a prompt or URI template, an argument, its value, and other values."""


@attrs.frozen
class Completer:
    """Completes lines: names of tools, prompts and resources, arguments, and their values.

    Attributes:
        lists: The lists of the server, by the names in `LISTS`.
        complete: Asks the server for values of the arguments of prompts and URI templates.
    """

    lists: _Lists
    complete: Complete

    def candidates(self, line: str) -> list[str]:
        """Return the words that can stand in place of the last word of a line."""
        *before, last = re.split(r"\s+", line.lstrip())
        with contextlib.suppress(ValueError):  # a quote is open
            words = shlex.split(" ".join(before))
            if not words:
                names = [*self._names("tools"), *COMMANDS]
                return [f"{name} " for name in names if name.startswith(last)]
            match words[0], words[1:]:
                case "/prompt", []:
                    names = self._names("prompts")
                    return [f"{shlex.quote(name)} " for name in names if name.startswith(last)]
                case "/prompt", [name, *given]:
                    return self._prompt_argument_candidates(name, given, last)
                case "/read", []:
                    uris = [each.uri for each in self.lists.get("resources", ())]
                    found = [f"{uri} " for uri in uris if uri.startswith(last)]
                    for template in self.lists.get("templates", ()):
                        found += self._uri_candidates(template.uri_template, last)
                    return list(dict.fromkeys(found))
                case tool, given:
                    return self._tool_argument_candidates(tool, given, last)
        return []

    def _names(self, kind: str) -> list[str]:
        return [item.name for item in self.lists.get(kind, ())]

    def _tool_argument_candidates(self, name: str, given: Sequence[str], last: str) -> list[str]:
        schemas = {tool.name: tool.input_schema for tool in self.lists.get("tools", ())}
        schema: Mapping[str, Any] = schemas.get(name, {})
        properties = properties_of(schema)
        return _candidates_for_argument(
            properties,
            given,
            last,
            lambda argument, _: _values(properties.get(argument), schema),
        )

    def _prompt_argument_candidates(self, name: str, given: Sequence[str], last: str) -> list[str]:
        prompts = (each for each in self.lists.get("prompts", ()) if each.name == name)
        arguments = [each.name for prompt in prompts for each in prompt.arguments or ()]
        others = dict(each.split("=", 1) for each in given if "=" in each)
        return _candidates_for_argument(
            arguments,
            given,
            last,
            lambda argument, value: self.complete(name, argument, value, others),
        )

    def _uri_candidates(self, template: str, text: str) -> list[str]:
        """Return URIs that begin with the text, up to the next variable of the template."""
        # Literals and variables in turn; `re.split` keeps what the group matches.
        parts: list[str] = re.split(r"\{(\w+)\}", template)
        matched, others = parts[0], dict[str, str]()
        if not text.startswith(matched):
            return [matched] if matched.startswith(text) else []
        for variable, literal in zip(parts[1::2], parts[2::2], strict=True):
            value, end, rest = text[len(matched) :].partition(literal or "\0")
            if not end:
                is_last = variable == parts[-2]
                ending = f"{literal} " if is_last else literal
                values = self.complete(template, variable, value, others)
                return [f"{matched}{each}{ending}" for each in values if each.startswith(value)]
            others[variable] = value
            matched = text.removesuffix(rest)
        return [f"{text} "] if matched == text else []


def _candidates_for_argument(
    names: Collection[str],
    given: Iterable[str],
    last: str,
    values_of: Callable[[str, str], Iterable[str]],
) -> list[str]:
    """Return the arguments that are not given yet and begin with `last`, or the values of one.

    `values_of` returns the values of an argument, which may begin with a text.
    """
    argument, equals, value = last.partition("=")
    if not equals:
        there = {re.split(":?=", each, maxsplit=1)[0] for each in given}
        return [f"{name}=" for name in names if name not in there and name.startswith(last)]
    values = values_of(argument, value) if argument in names else ()
    return [f"{argument}={shlex.quote(each)} " for each in values if each.startswith(value)]


def _values(schema: object, root: Mapping[str, Any]) -> list[str]:
    """Return the values that a schema lists, as a user types them."""
    members = resolved(schema, root)
    values = listed_values(members)
    if "boolean" in schema_types(schema, root):
        values += [True, False]
    for alternative in alternatives(members):
        values += listed_values(resolved(alternative, root))
    texts = (each if isinstance(each, str) else json_text(each) for each in values)
    return list(dict.fromkeys(texts))


# The prompt.

_COMPLETION_SECONDS: Final = 2.0  # a line can be typed on after that
_HISTORY_LINES: Final = 1000


def run_prompt(choices: SessionChoices) -> int:
    """Read lines and run them until their end; return the exit status.

    On a terminal that is 0. Elsewhere it is 1 if a line failed.

    Raises:
        click.UsageError, TargetUsageError, MCPError: As `SessionThread`.
    """
    with SessionThread(choices) as session:
        prompt = CallPrompt(session)
        # A line that is not UTF-8 fails when it is sent, and the next lines are run.
        cast("io.TextIOWrapper[Any]", sys.stdin).reconfigure(errors="surrogateescape")
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            lines = itertools.takewhile(lambda line: line.strip() != QUIT, sys.stdin)
            statuses = [prompt.run_line(line) for line in lines]
            return int(not all(statuses))
        echo_error(prompt.greeting())
        with _editing(prompt.candidates):
            while True:
                try:
                    line = input("> ")
                except KeyboardInterrupt:  # the line is given up
                    click.echo()
                except EOFError:
                    click.echo()
                    return 0
                else:
                    if line.strip() == QUIT:
                        return 0
                    prompt.run_line(line)


class CallPrompt:
    """Runs lines in a session, and completes them."""

    def __init__(self, session: SessionThread) -> None:
        self._session = session
        self._lists: _Lists = session.run(fetch_lists)

    def greeting(self) -> str:
        """Return a line about the server."""
        counts = ", ".join(f"{len(items)} {kind}" for kind, items in self._lists.items())
        return f"{counts or 'the server offers nothing'}; /help shows what can be typed"

    def run_line(self, line: str) -> bool:
        """Run a line, and print the result or the error; return whether it succeeded."""
        if not line.strip() or line.lstrip().startswith("#"):
            return True
        try:
            return self._run(line)
        except KeyboardInterrupt:
            echo_error("cancelled")
        except click.UsageError as error:
            echo_error(error.format_message())
        except MCPError as error:
            echo_error(str(error))
        return False

    def _run(self, line: str) -> bool:
        name, *after = line.split(maxsplit=1)
        rest = after[0] if after else ""
        try:
            # A JSON object needs no quotes around it.
            words = [rest] if rest.lstrip().startswith("{") else shlex.split(rest)
        except ValueError as error:
            raise click.UsageError(f"{error}: quote words as in a shell") from error
        if words == ["-"]:
            raise click.UsageError("the lines come from stdin: write the arguments here, or @FILE")
        match name, words:
            case "/help", _:
                click.echo(HELP)
            case "/list", _:
                self._refresh()
                for kind, items in self._lists.items():
                    name_of = attrgetter(_NAMES.get(kind, "name"))
                    names = ", ".join(printable(name_of(each)) for each in items)
                    echo_text(f"{kind}: {names or 'none'}")
            case "/read", [uri]:
                result = self._session.run(lambda client: client.read_resource(uri))
                for contents in result.contents:
                    echo_peer_text(resource_text(contents))
            case "/prompt", [prompt, *arguments]:
                given = prompt_arguments(parse_arguments(arguments))
                got = self._session.run(lambda client: get_prompt(client, prompt, given))
                print_prompt_result(got)
            case (("/read" | "/prompt"), _):  # without a name, or with too many words
                raise click.UsageError(COMMANDS[name])
            case _ if name.startswith("/"):
                raise click.UsageError(f"no command {name}{did_you_mean(name, COMMANDS)}")
            case _:
                parsed = parse_arguments(words)
                called = self._session.run(lambda client: call_tool(client, name, parsed))
                print_tool_result(called)
                return not called.is_error
        return True

    def _refresh(self) -> None:
        if self._session.have_lists_changed:
            self._session.have_lists_changed = False
            try:
                self._lists = self._session.run(fetch_lists)
            except BaseException:
                self._session.have_lists_changed = True
                raise

    def candidates(self, line: str) -> list[str]:
        """Return the words that can stand in place of the last word of a line."""
        self._refresh()
        return Completer(self._lists, self._complete).candidates(line)

    def _complete(
        self, reference: str, argument: str, value: str, others: Mapping[str, str]
    ) -> Iterable[str]:
        """Ask the server for values; a server that has none, or is slow, gives none."""

        async def complete(client: Client) -> Sequence[str]:
            with trio.move_on_after(_COMPLETION_SECONDS):
                result = await client.complete(reference, argument, value, context=others)
                return result.completion.values
            return ()

        try:
            return self._session.run(complete)
        except (MCPError, KeyboardInterrupt):
            return ()


@contextlib.contextmanager
def _editing(candidates: Callable[[str], list[str]]) -> Generator[None]:
    """Within this context, `input` completes words, and has the history of earlier sessions.

    Without `readline`, as on Windows, nothing is completed.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        import readline
    except ImportError:  # This Python was built without it.
        yield
        return

    found: list[str] = []

    def complete(_word: str, number: int) -> str | None:
        if number == 0:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            found[:] = candidates(line)
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n")
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    with contextlib.suppress(OSError, ConfigError):  # there is no history yet, or no home folder
        readline.read_history_file(state_folder() / "history")
    try:
        yield
    finally:
        readline.set_completer(None)
        # A history that cannot be kept is no reason to fail.
        with contextlib.suppress(OSError, ConfigError):
            file = state_folder() / "history"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # arguments may be secrets
            readline.set_history_length(_HISTORY_LINES)
            readline.write_history_file(file)
