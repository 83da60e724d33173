"""Which server SERVER names, and how it is talked to."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from mcp_trio._cli.call import recorded_results
from mcp_trio.errors import RecordingError

SOME = Path(__file__).with_name("some_server.py")
ODD = Path(__file__).with_name("odd_server.py")
COMMAND = [sys.executable, str(ODD)]


@pytest.fixture
def config(tmp_path):
    servers = {
        "odd": {"command": sys.executable, "args": [str(ODD)]},
        "far": {"url": "https://example.com/mcp"},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_a_target_runs_in_this_process(invoke):
    assert invoke("call", f"{SOME}:server", "echo", "text=hi").exit_code == 0


def test_a_command_stands_behind_two_dashes_and_the_server_is_left_out(invoke):
    shown = invoke("list", "tools", "--", *COMMAND)
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()] == [
        "tools:",
        "name",
        "one",
        "two",
    ]


def test_a_name_of_a_configuration_file_is_a_server(invoke, config):
    assert "one" in invoke("list", "odd", "tools", "--config", config).output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["list"], "Missing argument 'SERVER'"),
        (["list", "--"], "no COMMAND follows --"),
        (["call", "server.py"], "Missing argument 'TOOL'"),
        (
            ["list", "server.py", "nothing"],
            "'nothing' is not one of tools, resources, templates, prompts",
        ),
        (["list", "missing.py"], "missing.py: no such file"),
        (["list", "missing.py", "--timeout", "0"], "--timeout"),
    ],
)
def test_words_that_name_no_server_are_a_usage_error(invoke, arguments, text):
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert text in shown.stderr
    assert shown.stdout == ""


def test_a_name_that_is_not_in_the_file_is_told_with_those_that_are(invoke, config):
    shown = invoke("list", "even", "--config", config)
    assert shown.exit_code == 2
    assert "has no server 'even'; it has: odd, far" in shown.stderr


def test_a_file_and_a_command_are_one_too_many(invoke, config):
    shown = invoke("list", "--config", config, "--", "python")
    assert shown.exit_code == 2
    assert "name one server: with --config, or its COMMAND after --" in shown.stderr


def test_a_configuration_that_cannot_be_used_is_told_in_one_line(invoke, tmp_path):
    shown = invoke("list", "a", "--config", tmp_path / "missing.json")
    assert shown.exit_code == 2
    assert shown.stderr.count("\n") == 1
    assert "missing.json" in shown.stderr


def test_a_server_that_cannot_be_started_is_told_in_a_line(invoke):
    shown = invoke("list", "--", "/no/such/program")
    assert shown.exit_code == 1
    assert "/no/such/program" in shown.stderr


def test_a_server_that_dies_is_told_with_its_last_words(invoke):
    shown = invoke("list", "--", *COMMAND, "dies")
    assert shown.exit_code == 1
    assert "odd is here\nodd cannot go on" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.real_time
def test_a_server_that_does_not_answer_in_time_is_given_up_and_the_option_named(mcp_trio):
    begin = time.monotonic()
    done = mcp_trio("list", "--timeout", "1", "--", *COMMAND, "mute")
    assert time.monotonic() - begin < 25
    assert done.returncode == 1
    assert f"initialize: no answer from {COMMAND[0]} within the " in done.stderr
    assert "budget of 1 s; raise --timeout" in done.stderr
    assert "odd is here" in done.stderr


def test_the_stderr_of_a_command_is_passed_on_if_that_is_asked_for(mcp_trio, config):
    command = ("list", "tools", "--json")
    assert "odd is here" in mcp_trio(*command, "--stderr", "--", *COMMAND).stderr
    assert "odd is here" not in mcp_trio(*command, "--", *COMMAND).stderr
    done = mcp_trio("list", "odd", "--stderr", "--config", config)
    assert "odd is here" in done.stderr


def test_a_target_takes_the_option_stderr_as_well(invoke):
    assert invoke("call", SOME, "echo", "--stderr").exit_code == 0


def test_the_servers_log_is_printed_on_stderr_from_the_level_on(invoke):
    shown = invoke("call", SOME, "noisy", "--log-level", "info")
    assert shown.stdout == "quiet\n"
    assert "info: told by the tool\n" in shown.stderr
    assert 'error db: {"code":7}\n' in shown.stderr
    assert "told" not in invoke("call", SOME, "noisy", "--log-level", "error").stderr
    assert "told" not in invoke("call", SOME, "noisy").stderr


def test_a_server_that_offers_no_log_is_used_all_the_same(invoke):
    shown = invoke("list", "--log-level", "info", "--", *COMMAND)
    assert shown.exit_code == 0
    assert "the server does not offer logging\n" in shown.stderr


def test_what_a_server_in_this_process_prints_goes_to_stderr(invoke):
    shown = invoke("call", SOME, "noisy")
    assert (shown.stdout, shown.stderr) == ("quiet\n", "printed by the tool\n")


def test_results_that_found_no_room_are_not_made_up(write):
    path = write(("gap", {"reason": "full"}), ("gap", {"count": 3}), role="client")
    with pytest.raises(RecordingError, match="no room for the results in "):
        recorded_results(path)


def test_a_command_inherits_the_environment(mcp_trio, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; print('customized', file=sys.stderr)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = mcp_trio("list", "--stderr", "--", *COMMAND, env=environment)
    assert "customized\nodd is here" in done.stderr
