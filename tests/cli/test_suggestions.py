"""Errors about unknown names end with the name that was probably meant."""

import json
import sys
from pathlib import Path

import pytest

from mcp_trio._cli.hosts import HOSTS

SOME = Path(__file__).with_name("some_server.py")
TOOLS = "echo, mixed, broken, noisy, slow"
HOST_NAMES = ", ".join(HOSTS)
FAILING = Path(__file__).with_name("failing_server.py")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["cal"], "Error: No such command 'cal'; did you mean 'call'?"),
        (["serve"], "Error: No such command 'serve'"),
        (["--verson"], "Error: No such option '--verson'; did you mean '--version'?"),
        (["run", "--prt"], "Error: No such option '--prt'; did you mean '--port'?"),
        (["run", "--zzz"], "Error: No such option '--zzz'"),
        (
            ["install", "server.py", "--host", "cursr"],
            f"Error: Invalid value for '--host': 'cursr' is not one of {HOST_NAMES}; did you mean 'cursor'?",
        ),
        (
            ["list", SOME, "tool"],
            "Error: 'tool' is not one of tools, resources, templates, prompts; did you mean 'tools'?",
        ),
    ],
)
def test_names_of_the_command_line(invoke, arguments, line):
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert shown.stderr.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["call", SOME, "ecko"], 1, "unknown tool: ecko; did you mean 'echo'? (code -32602)"),
        (
            ["call", SOME, "ecko", "text=a"],
            2,
            f"Error: the server has no tool 'ecko'; it has: {TOOLS}; did you mean 'echo'?",
        ),
        (
            ["call", SOME, "zzz", "text=a"],
            2,
            f"Error: the server has no tool 'zzz'; it has: {TOOLS}",
        ),
        (["call", SOME, "zzz"], 1, "unknown tool: zzz (code -32602)"),
        (
            ["prompt", SOME, "greeet"],
            1,
            "unknown prompt: greeet; did you mean 'greet'? (code -32602)",
        ),
    ],
)
def test_names_of_a_server(invoke, arguments, status, line):
    shown = invoke(*arguments)
    assert shown.exit_code == status
    assert shown.stderr.splitlines()[-1] == line


def test_a_server_that_reports_unknown_tools_in_results(invoke):
    command = ["--", sys.executable, str(FAILING)]
    shown = invoke("call", "forcast", *command)
    assert (shown.exit_code, shown.stderr) == (1, "no forcast; did you mean 'forecast'?\n")
    shown = invoke("call", "forecast", *command)
    assert (shown.exit_code, shown.stderr) == (1, "no forecast\n")
    shown = invoke("call", "forcast", "--json", *command)
    assert json.loads(shown.stdout)["isError"]


def test_a_name_in_a_configuration_file(invoke, tmp_path):
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"weather": {"command": "x"}}}')
    shown = invoke("list", "wether", "--config", config)
    assert shown.stderr.splitlines()[-1] == (
        f"Error: {config} has no server 'wether'; it has: weather; did you mean 'weather'?"
    )
