"""`mcp-trio inspect --call`: lines from stdin and from a terminal, and their completion."""

import re
import sys
from pathlib import Path

import pytest

from mcp_trio._cli.call_prompt import COMMANDS, HELP, Completer
from mcp_trio.types import Prompt, PromptArgument, Resource, ResourceTemplate, Tool
from tests.cli.conftest import Terminal

SOME = Path(__file__).with_name("some_server.py")
ASKING = Path(__file__).with_name("asking_server.py")


def typed(invoke, server, *lines, options=()):
    return invoke("inspect", server, "--call", *options, input="".join(f"{x}\n" for x in lines))


# Lines from stdin.


def test_lines_call_tools_with_typed_arguments(invoke):
    shown = typed(invoke, SOME, "echo text=5 count=2", 'echo {"text": "a b"}', "slow steps=1")
    first, second, third = shown.stdout.splitlines()
    assert '"text":"5","count":2' in first
    assert '"text":"a b","count":1' in second
    assert (third, shown.exit_code) == ("done", 0)


def test_lines_get_prompts_and_resources(invoke):
    shown = typed(invoke, SOME, "/prompt greet name='Ada L' tone=dry", "/read some://Oslo/now")
    assert shown.stdout.splitlines() == [
        "user:",
        "Greet Ada L in a dry way.\x1b",
        "[resource: some://Oslo/now, text/plain]",
        "Oslo",
    ]
    assert shown.exit_code == 0


def test_an_error_is_reported_and_the_next_lines_are_run(invoke):
    shown = typed(
        *(invoke, SOME, "broken", "eco text=a", "echo count=many", "echo", "echo a=1 'b"),
        *("/red x", "/read", "/read some://none", "echo -", "/prompt gret name=Ada", "noisy"),
    )
    errors = shown.stderr.splitlines()
    assert errors[0] == "out of \\x1border"
    assert errors[1].startswith("the server has no tool 'eco'; it has: echo")
    assert errors[2] == "count: the tool expects integer, not 'many'"
    assert errors[3] == "No closing quotation: quote words as in a shell"
    assert errors[4] == "no command /red; did you mean '/read'?"
    assert errors[5] == COMMANDS["/read"]
    assert "some://none" in errors[6]
    assert errors[7].startswith("the lines come from stdin")
    assert errors[8].endswith("did you mean 'greet'? (code -32602)")
    assert errors[9:] == ["printed by the tool"]
    assert shown.stdout.splitlines()[-1] == "quiet"
    assert shown.exit_code == 1


def test_a_line_that_is_not_utf8_is_reported_and_the_next_lines_are_run(invoke):
    shown = invoke("inspect", SOME, "--call", input=b"echo text=\xff\necho\xff\necho text=ok\n")
    assert shown.stderr.count("surrogates not allowed") == 2
    assert '"text":"ok"' in shown.stdout
    assert shown.exit_code == 1


def test_an_error_of_a_call_names_the_option_that_helps(invoke):
    shown = typed(invoke, SOME, "slow steps=100000", options=["--timeout", "0.1"])
    assert "--timeout" in shown.stderr


def test_a_tab_ends_the_first_word_as_well(invoke):
    shown = typed(invoke, SOME, "echo\ttext=a", "/prompt\tgreet\tname=Ada")
    assert '"text":"a"' in shown.stdout
    assert "Greet Ada" in shown.stdout


def test_comments_and_empty_lines_are_skipped_and_quit_ends(invoke):
    shown = typed(invoke, SOME, "# a comment", "", "/list", "/help", "/quit", "broken")
    lines = shown.stdout.splitlines()
    assert lines[0] == "tools: echo, mixed, broken, noisy, slow"
    assert lines[2:4] == ["templates: some://{name}/now", "prompts: greet"]
    assert lines[4:] == HELP.splitlines()
    assert (shown.exit_code, shown.stderr) == (0, "")


def test_forms_are_filled_in_with_defaults_or_declined(invoke):
    accepted = typed(invoke, ASKING, "easy", options=["--yes"])
    assert accepted.stdout == "accept: Easy(level='low')\n"
    declined = typed(invoke, ASKING, "easy")
    assert declined.stdout == "decline: None\n"
    assert "stdin is not a terminal" in declined.stderr


CHANGING = """
from mcp_trio import Server

server = Server("changing", version="1")

@server.tool
async def add(name: str) -> str:
    server.tool(name=name)(lambda: "late")
    return "added"
"""


def test_a_tool_that_is_added_meanwhile_can_be_called(invoke, tmp_path):
    (tmp_path / "changing.py").write_text(CHANGING)
    shown = typed(invoke, tmp_path / "changing.py", "add name=later", "later", "/list")
    assert shown.stdout.splitlines() == ["added", "late", "tools: add, later"]


FAILING_ONCE = f"""{CHANGING}
from mcp_trio import RequestError
lists = []

@server.middleware
async def fail_second_list(request, call_next):
    if request.method == "tools/list":
        lists.append(request)
        if len(lists) == 2:
            raise RequestError(-32000, "not now")
    return await call_next(request)
"""


def test_lists_that_could_not_be_fetched_are_fetched_again(invoke, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING_ONCE)
    shown = typed(
        *(invoke, tmp_path / "failing.py"),
        *('add {"name": "later"}', "later {}", "/list", "/list"),
    )
    assert shown.stdout.splitlines() == ["added", "late", "tools: add, later"]
    assert "not now" in shown.stderr


def test_a_server_that_cannot_be_reached_is_an_error(invoke, tmp_path):
    shown = typed(invoke, "http://127.0.0.1:1/mcp", "a")
    assert shown.exit_code == 1
    assert shown.stderr.count("\n") == 1
    assert typed(invoke, tmp_path / "missing.py").exit_code == 2
    assert typed(invoke, SOME, options=["--json"]).exit_code == 2


def test_a_lost_server_is_reported_for_each_line(invoke):
    code = """
from mcp_trio import Server
import os
server = Server("ends", version="1")
@server.tool
def end() -> None:
    os._exit(3)
server.run()
"""
    command = ["--", sys.executable, "-c", code]
    shown = invoke("inspect", "--call", *command, input="end\nend\n")
    assert shown.exit_code == 1
    assert shown.stderr.count("status 3") >= 1


# Completion.


TOOLS = [
    Tool(
        name="forecast",
        input_schema={
            "type": "object",
            "properties": {
                "city": {"$ref": "#/$defs/City"},
                "days": {"type": "integer"},
                "quick": {"type": "boolean"},
                "unit": {"anyOf": [{"enum": ["K", "F"]}, {"type": "null"}]},
            },
            "$defs": {"City": {"enum": ["Oslo", "Oman", "New York"]}},
        },
    ),
    Tool(name="format", input_schema={}),
]
PROMPTS = [Prompt(name="plan", arguments=[PromptArgument(name="city"), PromptArgument(name="day")])]
LISTS = {
    "tools": TOOLS,
    "prompts": PROMPTS,
    "resources": [Resource(uri="data://all", name="all")],
    "templates": [ResourceTemplate(uri_template="data://{city}/{day}/now", name="now")],
}


def completed(line):
    asked = []

    def complete(reference, argument, value, others):
        asked.append((reference, argument, value, dict(others)))
        return ["Oslo", "Ordu", "Lima"]

    return Completer(LISTS, complete).candidates(line), asked


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("fo", ["forecast ", "format "]),
        ("  for", ["forecast ", "format "]),
        ("/p", ["/prompt "]),
        ("forecast ", ["city=", "days=", "quick=", "unit="]),
        ("forecast days=3 c", ["city="]),
        ("forecast days:=3 d", []),
        ("forecast city=O", ["city=Oslo ", "city=Oman "]),
        ("forecast city=N", ["city='New York' "]),
        ("forecast quick=", ["quick=true ", "quick=false "]),
        ("forecast unit=", ["unit=K ", "unit=F "]),
        ("forecast none=", []),
        ("unknown ", []),
        ("forecast 'a", []),
        ("/prompt ", ["plan "]),
        ("/prompt plan ", ["city=", "day="]),
        ("/prompt plan none=", []),
        ("/read da", ["data://all ", "data://"]),
        ("/read data://Oslo/O", ["data://Oslo/Oslo/now ", "data://Oslo/Ordu/now "]),
        ("/read data://Oslo/Ordu/now", ["data://Oslo/Ordu/now "]),
        ("/read other", []),
    ],
)
def test_words_are_completed(line, found):
    assert completed(line)[0] == found


@pytest.mark.requirement("COMP-04")
def test_the_server_is_asked_for_values_with_the_other_arguments():
    found, asked = completed("/prompt plan day=3 city=O")
    assert (found, asked) == (["city=Oslo ", "city=Ordu "], [("plan", "city", "O", {"day": "3"})])
    found, asked = completed("/read data://O")
    assert found == ["data://Oslo/", "data://Ordu/"]
    assert asked == [("data://{city}/{day}/now", "city", "O", {})]
    _, asked = completed("/read data://Oslo/x")
    assert asked == [("data://{city}/{day}/now", "day", "x", {"city": "Oslo"})]


# On a terminal.


SERVER = """
import trio
from mcp_trio import Context, Server

server = Server("there", version="1")

@server.tool
async def forecast(city: str, *, ctx: Context) -> str:
    return f"sun in {city}"

@server.tool
async def wait(*, ctx: Context) -> str:
    await ctx.report_progress(1, 2, "waiting")
    await trio.sleep_forever()

@server.tool
async def ask(*, ctx: Context) -> str:
    answer = await ctx.elicit("How many?", int)
    return f"{answer.action}: {answer.data}"

@server.prompt
def plan(city: str) -> str:
    return f"Plan {city}"

@server.completion(plan, "city")
async def cities(value: str) -> list[str]:
    return ["Bergen", "Bern"]
"""


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "there.py").write_text(SERVER)
    arguments = ["inspect", str(tmp_path / "there.py"), "--call"]
    with Terminal(*arguments, XDG_STATE_HOME=str(tmp_path)) as terminal:
        assert "3 tools, 1 prompts" in terminal.wait_for("> ")
        yield terminal


def test_a_line_at_a_terminal_may_have_any_bytes():
    with Terminal("inspect", SOME, "--call", PYTHONIOENCODING="utf-8:strict") as terminal:
        terminal.wait_for("> ")
        terminal.type(b"echo text=\xff\n".decode(errors="surrogateescape"))
        terminal.wait_for("surrogates not allowed")
        terminal.type("/quit\n")
        assert terminal.process.wait(20) == 0


@pytest.mark.slow
@pytest.mark.requirement("CANC-01")
def test_a_terminal_completes_cancels_asks_and_keeps_the_history(terminal, tmp_path):
    terminal.type("for\tci\tOslo\n")
    assert "forecast city=Oslo" in terminal.wait_for("sun in Oslo")
    terminal.wait_for("> ")
    terminal.type("/prompt plan city=Berg")
    terminal.complete("en ")
    terminal.type("\n")
    terminal.wait_for("Plan Bergen")
    terminal.wait_for("> ")

    terminal.type("wait\n")
    terminal.wait_for("waiting")
    terminal.interrupt("cancelled")
    terminal.wait_for("> ")

    terminal.type("ask\n")
    terminal.wait_for("value: ")
    terminal.type("3\n")
    terminal.wait_for("[Y/n]")
    terminal.type("y\n")
    terminal.wait_for("accept: 3")
    terminal.wait_for("> ")
    terminal.type("ask\n")
    terminal.wait_for("value: ")
    terminal.interrupt("cancelled")
    terminal.wait_for("> ")

    terminal.type("half a line")
    terminal.wait_for("half a line")
    terminal.interrupt("> ")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0
    history = tmp_path / "mcp-trio" / "history"
    assert "forecast city=Oslo" in history.read_text()
    assert re.fullmatch("0o100600", oct(history.stat().st_mode))
