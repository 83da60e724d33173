"""`list`, `call`, `read` and `prompt`: what a person sees, what a program gets, and the status."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_trio._cli.options import records_of
from mcp_trio.recording import body_bytes

SOME = Path(__file__).with_name("some_server.py")
ODD = ["--", sys.executable, str(Path(__file__).with_name("odd_server.py"))]
RUN = [sys.executable, "-m", "mcp_trio", "run", str(SOME)]


# list


def test_list_shows_a_table_of_each_kind(invoke):
    lines = invoke("list", SOME).output.splitlines()
    assert lines[0] == "tools: 5"
    assert lines[1].split() == ["name", "arguments", "description"]
    assert lines[2].split()[:3] == ["echo", "[text=string]", "[count=integer]"]
    assert lines[2].endswith("  Give back what came.")
    shown = [" ".join(line.split()) for line in lines]
    assert "resources: 2" in shown
    assert "some://text text text/plain A text." in shown
    assert "some://{name}/now now" in [line.removesuffix(" text/plain") for line in shown]
    assert "greet name [tone] Greet somebody." in shown


def test_list_shows_only_the_kinds_that_are_asked_for(invoke):
    shown = invoke("list", SOME, "prompts", "templates").output
    assert re.findall(r"^(\w+): \d", shown, re.MULTILINE) == ["templates", "prompts"]


def test_list_as_json_has_all_pages_and_what_no_type_knows(invoke):
    shown = invoke("list", "--json", *ODD)
    assert json.loads(shown.stdout) == {
        "tools": [
            {"name": "one", "title": "The One", "inputSchema": {}},
            {"name": "two", "inputSchema": {}},
        ],
        "resources": [],
    }
    assert shown.stdout.count("\n") == 1


def test_list_tells_of_an_empty_list_and_passes_over_a_kind_that_a_server_does_not_know(invoke):
    shown = invoke("list", *ODD)
    assert shown.exit_code == 0
    assert shown.output.endswith("\nresources: none\n")
    assert "templates" not in shown.output


@pytest.mark.parametrize(
    ("kind", "text"),
    [("templates", "no resources/templates/list (code -32601)"), ("prompts", "prompts/list needs")],
)
def test_list_says_why_a_kind_that_was_asked_for_is_missing(invoke, kind, text):
    shown = invoke("list", kind, *ODD)
    assert shown.exit_code == 1
    assert text in shown.stderr
    assert shown.stderr.count("\n") == 1


# call


def test_call_takes_the_arguments_in_the_types_of_the_schema(invoke):
    shown = invoke(
        *("call", SOME, "echo", "text=5", "count=5", "ratio=1.5", 'point={"x":1}'),
        *('words=["a"]', "level=high", "anything=[1]"),
    )
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == {
        "text": "5",
        "count": 5,
        "ratio": 1.5,
        "point": {"x": 1, "y": 0},
        "words": ["a"],
        "level": "high",
        "anything": [1],
    }


def test_call_takes_an_object_as_it_is(invoke):
    shown = invoke("call", SOME, "echo", '{"text": "a b", "count": 2}')
    assert json.loads(shown.stdout)["text"] == "a b"


def test_call_shows_texts_as_they_are_and_of_the_rest_what_it_is(invoke):
    shown = invoke("call", SOME, "mixed")
    assert shown.stdout == (
        "line \x1b[31mone\nline two\n[image: image/png, 2.0 KiB]\n"
        "[resource: result:bytes, application/octet-stream, 5 bytes]\n"
    )


def test_call_as_json_is_the_result_to_the_byte(invoke):
    shown = invoke("call", "one", "--json", *ODD)
    assert shown.stdout == '{"content": [], "structuredContent": {"n": 1.0}, "isError": false}\n'


def test_a_tool_that_failed_says_so_on_stderr_and_by_the_status(invoke):
    shown = invoke("call", SOME, "broken")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "", "out of \\x1border\n")
    shown = invoke("call", SOME, "broken", "--json")
    assert (shown.exit_code, shown.stderr) == (1, "")
    assert json.loads(shown.stdout)["isError"] is True


def test_a_rejection_of_the_server_is_one_line_and_status_1(invoke):
    shown = invoke("call", SOME, "missing")
    assert shown.exit_code == 1
    assert shown.stderr.count("\n") == 1
    assert "(code -32602)" in shown.stderr


def test_a_tool_that_the_server_does_not_list_is_told_with_those_that_it_does(invoke):
    shown = invoke("call", SOME, "ecco", "text=a")
    assert shown.exit_code == 2
    assert "no tool 'ecco'; it has: echo, mixed, broken, noisy, slow" in shown.stderr


def test_progress_is_shown_elsewhere_than_on_a_screen_only_if_that_is_asked_for(invoke):
    shown = invoke("call", SOME, "slow", "steps=2", "--progress")
    assert shown.stderr == "progress: 1 of 2\nprogress: 2 of 2\n"
    shown = invoke("call", SOME, "slow", "steps=1", "total=false", "--progress")
    assert shown.stderr == "progress: 1\n"
    assert invoke("call", SOME, "slow", "steps=2").stderr == ""


def test_on_a_screen_progress_is_a_bar_that_goes_away(on_a_screen):
    shown = on_a_screen("call", SOME, "slow", "steps=20")
    assert "━" in shown
    assert " of 20 " in shown
    assert shown.rstrip().splitlines()[-1].endswith("done")


def test_on_a_screen_a_servers_text_cannot_steer_the_terminal(on_a_screen):
    shown = on_a_screen("call", SOME, "mixed")
    assert "line \\x1b[31mone\r\nline two\r\n" in shown


def test_ctrl_c_cancels_the_call_at_the_server_and_ends_with_130(tmp_path):
    recording = tmp_path / "server.mcprec.jsonl"
    command = [sys.executable, "-m", "mcp_trio", "call", "slow", "--progress", "--", *RUN]
    with subprocess.Popen(
        [*command, "--record", str(recording)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr.readline() == "progress: 1 of 100\n"
        process.send_signal(signal.SIGINT)
        *_, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    frames = [body_bytes(item) or b"" for item in records_of(recording) if item.kind == "in"]
    assert b"notifications/cancelled" in frames[-1]


# read


def test_read_gives_a_pipe_the_bytes_as_they_are(invoke):
    assert invoke("read", SOME, "some://text").stdout_bytes == "grüße\x1b".encode()
    assert invoke("read", SOME, "some://bytes").stdout_bytes == bytes(range(256)) * 8


def test_read_writes_the_bytes_to_a_file(invoke, tmp_path):
    path = tmp_path / "bytes"
    shown = invoke("read", SOME, "some://bytes", "-o", path)
    assert (shown.exit_code, shown.output) == (0, "")
    assert path.read_bytes() == bytes(range(256)) * 8
    shown = invoke("read", SOME, "some://bytes", "-o", path / "below")
    assert shown.exit_code == 2
    assert "below" in shown.stderr


def test_read_as_json_is_the_result_to_the_byte(invoke, tmp_path):
    shown = invoke("read", "odd://a", "--json", *ODD)
    assert json.loads(shown.stdout)["contents"][1]["blob"] == "not base64"
    path = tmp_path / "result.json"
    assert invoke("read", "odd://a", "--json", "-o", path, *ODD).output == ""
    assert json.loads(path.read_bytes()) == json.loads(shown.stdout)


def test_read_rejects_a_blob_that_is_none_and_names_it(invoke):
    shown = invoke("read", "odd://a", *ODD)
    assert shown.exit_code == 1
    assert shown.stderr.startswith("odd://b: the data are not base64: ")


def test_read_shows_a_terminal_no_bytes(on_a_screen):
    assert "[resource: some://bytes, application/x-some, 2.0 KiB]" in on_a_screen(
        "read", SOME, "some://bytes"
    )
    assert "[resource: some://text, text/plain]\r\ngrüße\\x1b" in on_a_screen(
        "read", SOME, "some://text"
    )


def test_read_of_what_is_not_there_is_a_line_and_status_1(invoke):
    shown = invoke("read", SOME, "some://missing")
    assert shown.exit_code == 1
    assert "some://missing" in shown.stderr


# prompt


def test_prompt_shows_the_messages_under_their_roles(invoke):
    shown = invoke("prompt", SOME, "greet", "name=Ada", "tone=5")
    assert shown.exit_code == 0
    assert shown.stdout == "user:\nGreet Ada in a 5 way.\x1b\n"


def test_prompt_as_json_is_the_result(invoke):
    shown = invoke("prompt", SOME, "greet", '{"name": "Ada"}', "--json")
    assert json.loads(shown.stdout)["messages"][0]["role"] == "user"


def test_prompt_takes_texts_only(invoke):
    shown = invoke("prompt", SOME, "greet", "name:=5")
    assert shown.exit_code == 2
    assert "name: the arguments of a prompt must be strings" in shown.stderr
