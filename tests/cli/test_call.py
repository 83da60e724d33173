"""`mcp-trio list`, `call`, `read` and `prompt`."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._cli.call import (
    recorded_results,
)
from mcp_trio._cli.options import records_of
from mcp_trio._cli.output import resource_bytes
from mcp_trio._cli.tool_arguments import (
    arguments_with_types,
    parse_arguments,
    prompt_arguments,
    schema_types,
    tool_arguments,
)
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.errors import RecordingError, RemoteProtocolError
from mcp_trio.recording import body_bytes
from mcp_trio.types import ResourceContents

measured = pytest.mark.usefixtures("measured_processes")

# Output and exit status.


SOME = Path(__file__).with_name("some_server.py")
ODD = ["--", sys.executable, str(Path(__file__).with_name("odd_server.py"))]
RUN = [sys.executable, "-m", "mcp_trio", "run", str(SOME)]


# list


def test_list_prints_a_table_for_each_kind(invoke):
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


def test_list_prints_only_the_given_kinds(invoke):
    shown = invoke("list", SOME, "prompts", "templates").output
    assert re.findall(r"^(\w+): \d", shown, re.MULTILINE) == ["templates", "prompts"]


def test_list_as_json_has_all_pages_and_unknown_members(invoke):
    shown = invoke("list", "--json", *ODD)
    assert json.loads(shown.stdout) == {
        "tools": [
            {"name": "one", "title": "The One", "inputSchema": {}},
            {"name": "two", "inputSchema": {}},
        ],
        "resources": [],
    }
    assert shown.stdout.count("\n") == 1


def test_list_prints_empty_lists_and_skips_methods_that_the_server_does_not_know(invoke):
    shown = invoke("list", *ODD)
    assert shown.exit_code == 0
    assert shown.output.endswith("\nresources: none\n")
    assert "templates" not in shown.output


@pytest.mark.parametrize(
    ("kind", "text"),
    [("templates", "no resources/templates/list (code -32601)"), ("prompts", "prompts/list needs")],
)
def test_list_reports_why_a_given_kind_is_missing(invoke, kind, text):
    shown = invoke("list", kind, *ODD)
    assert shown.exit_code == 1
    assert text in shown.stderr
    assert shown.stderr.count("\n") == 1


# call


def test_call_converts_arguments_to_the_types_of_the_schema(invoke):
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


def test_call_sends_a_json_object_unchanged(invoke):
    shown = invoke("call", SOME, "echo", '{"text": "a b", "count": 2}')
    assert json.loads(shown.stdout)["text"] == "a b"


def test_call_prints_texts_and_the_type_and_size_of_other_content(invoke):
    shown = invoke("call", SOME, "mixed")
    assert shown.stdout == (
        "line \x1b[31mone\nline two\n[image: image/png, 2.0 KiB]\n"
        "[resource: result:bytes, application/octet-stream, 5 bytes]\n"
    )


def test_call_as_json_prints_the_result_byte_for_byte(invoke):
    shown = invoke("call", "one", "--json", *ODD)
    assert shown.stdout == '{"content": [], "structuredContent": {"n": 1.0}, "isError": false}\n'


def test_a_failed_tool_is_reported_on_stderr_with_status_1(invoke):
    shown = invoke("call", SOME, "broken")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "", "out of \\x1border\n")
    shown = invoke("call", SOME, "broken", "--json")
    assert (shown.exit_code, shown.stderr) == (1, "")
    assert json.loads(shown.stdout)["isError"] is True


def test_a_rejected_request_is_one_line_and_status_1(invoke):
    shown = invoke("call", SOME, "missing")
    assert shown.exit_code == 1
    assert shown.stderr.count("\n") == 1
    assert "(code -32602)" in shown.stderr


def test_an_unknown_tool_is_reported_with_the_known_ones(invoke):
    shown = invoke("call", SOME, "ecco", "text=a")
    assert shown.exit_code == 2
    assert "no tool 'ecco'; it has: echo, mixed, broken, noisy, slow" in shown.stderr


def test_an_unknown_tool_of_a_server_that_shows_none_is_reported(invoke, tmp_path):
    lines = ["import mcp_trio", "server = mcp_trio.Server('bare')"]
    lines += ["@server.tool", "async def hidden(): ...", "server.disable('hidden')"]
    (tmp_path / "bare.py").write_text("\n".join(lines))
    shown = invoke("call", tmp_path / "bare.py", "echo", "text=a")
    assert "no tool 'echo'; it has: none\n" in shown.stderr


def test_without_a_terminal_progress_is_printed_only_on_request(invoke):
    shown = invoke("call", SOME, "slow", "steps=2", "--progress")
    assert shown.stderr == "progress: 1 of 2\nprogress: 2 of 2\n"
    shown = invoke("call", SOME, "slow", "steps=1", "total=false", "--progress")
    assert shown.stderr == "progress: 1\n"
    assert invoke("call", SOME, "slow", "steps=2").stderr == ""


@measured
def test_on_a_terminal_progress_is_a_bar_that_is_erased(on_a_screen):
    shown = on_a_screen("call", SOME, "slow", "steps=20")
    assert "━" in shown
    assert " of 20 " in shown
    assert shown.rstrip().splitlines()[-1].endswith("done")


@pytest.mark.slow
def test_on_a_terminal_control_characters_of_a_server_are_escaped(on_a_screen):
    shown = on_a_screen("call", SOME, "mixed")
    assert "line \\x1b[31mone\r\nline two\r\n" in shown


@pytest.mark.slow
def test_ctrl_c_cancels_the_call_at_the_server_and_exits_with_130(tmp_path):
    recording = tmp_path / "server.mcprec.jsonl"
    command = [sys.executable, "-m", "mcp_trio", "call", "slow", "steps=10000"]
    command += ["--progress", "--", *RUN]
    with subprocess.Popen(
        [*command, "--record", str(recording)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr.readline() == "progress: 1 of 10000\n"
        process.send_signal(signal.SIGINT)
        *_, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    received = [body_bytes(item) or b"" for item in records_of(recording) if item.kind == "in"]
    assert b"notifications/cancelled" in received[-1]


# read


def test_read_writes_the_bytes_to_a_pipe_unchanged(invoke):
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is full")
def test_read_reports_a_full_disk(invoke):
    shown = invoke("read", SOME, "some://text", "-o", "/dev/full")
    assert shown.exit_code == 1
    assert shown.stderr == "Error: cannot write /dev/full: No space left on device\n"


@pytest.mark.slow
def test_read_as_json_prints_the_result_byte_for_byte(invoke, tmp_path):
    shown = invoke("read", "odd://a", "--json", *ODD)
    assert json.loads(shown.stdout)["contents"][1]["blob"] == "not base64"
    path = tmp_path / "result.json"
    assert invoke("read", "odd://a", "--json", "-o", path, *ODD).output == ""
    assert json.loads(path.read_bytes()) == json.loads(shown.stdout)


def test_read_rejects_a_blob_that_is_not_base64(invoke):
    shown = invoke("read", "odd://a", *ODD)
    assert shown.exit_code == 1
    assert shown.stderr.startswith("odd://b: the data are not base64: ")


def test_a_blob_may_have_line_ends_and_no_other_characters():
    assert resource_bytes(ResourceContents(uri="a", blob="//\n79\r\n")) == b"\xff\xfe\xfd"
    for blob in ("__79", "%%%%", "=AAA"):
        with pytest.raises(RemoteProtocolError, match="a: the data are not base64"):
            resource_bytes(ResourceContents(uri="a", blob=blob))


@pytest.mark.slow
def test_read_prints_no_bytes_to_a_terminal(on_a_screen):
    assert "[resource: some://bytes, application/x-some, 2.0 KiB]" in on_a_screen(
        "read", SOME, "some://bytes"
    )
    assert "[resource: some://text, text/plain]\r\ngrüße\\x1b" in on_a_screen(
        "read", SOME, "some://text"
    )


def test_reading_a_missing_resource_is_one_line_and_status_1(invoke):
    shown = invoke("read", SOME, "some://missing")
    assert shown.exit_code == 1
    assert "some://missing" in shown.stderr


# prompt


def test_prompt_prints_the_messages_below_their_roles(invoke):
    shown = invoke("prompt", SOME, "greet", "name=Ada", "tone=5")
    assert shown.exit_code == 0
    assert shown.stdout == "user:\nGreet Ada in a 5 way.\x1b\n"


def test_prompt_as_json_prints_the_result(invoke):
    shown = invoke("prompt", SOME, "greet", '{"name": "Ada"}', "--json")
    assert json.loads(shown.stdout)["messages"][0]["role"] == "user"


def test_prompt_rejects_arguments_that_are_not_strings(invoke):
    shown = invoke("prompt", SOME, "greet", "name:=5")
    assert shown.exit_code == 2
    assert "name: the arguments of a prompt must be strings" in shown.stderr


# ARGUMENT.


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "choice": {"enum": ["a", 1]},
        "one": {"const": 7},
        "point": {"$ref": "#/$defs/Point"},
        "words": {"oneOf": [{"type": "array"}]},
        "any": {},
        "loop": {"$ref": "#/$defs/Loop"},
        "odd": {"type": 5, "enum": "x", "anyOf": {}},
        "lost": {"$ref": "https://example.com/schema"},
        "true": True,
    },
    "required": ["text", "count"],
    "$defs": {"Point": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}},
}


def typed(*words):
    return tool_arguments(parse_arguments(words), SCHEMA)


def rejection(call, *arguments):
    with pytest.raises(click.UsageError) as caught:
        call(*arguments)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=5", "5"),
        ("text=null", "null"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ('text:="5"', "5"),
        ("text:=5", 5),
        ("count=5", 5),
        ("ratio=5", 5),
        ("ratio=0.5", 0.5),
        ("flag=true", True),
        ("maybe=null", None),
        ("either=5", "5"),
        ("either:=5", 5),
        ("choice=1", "1"),
        ("one=7", 7),
        ('point={"x":1}', {"x": 1}),
        ("words=[1]", [1]),
        ("any=5", 5),
        ("any=a b", "a b"),
        ("loop=[]", []),
        ("odd=x", "x"),
        ("lost=1", 1),
        ("true=1", 1),
        ("unknown=1", 1),
        ("unknown=one", "one"),
    ],
)
def test_a_value_gets_the_type_of_the_schema(word, value):
    (found,) = typed(word).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("count=x", "count: the tool expects integer, not 'x'"),
        ("count=1.5", "count: the tool expects integer, not '1.5'"),
        ("maybe=x", "maybe: the tool expects integer or null, not 'x'"),
        ("flag=1", "flag: the tool expects boolean, not '1'"),
        ("count:=x", "count: not JSON: "),
    ],
)
def test_a_value_of_another_type_is_rejected_in_one_line(word, text):
    assert rejection(typed, word).startswith(text)


@pytest.mark.parametrize("word", ["city", "=Oslo", ":=1", ""])
def test_a_text_that_is_not_an_argument_is_rejected(word):
    assert rejection(parse_arguments, [word]).startswith(
        f"{word!r} is not an argument: write key=value"
    )


def test_an_argument_that_is_given_twice_is_rejected():
    assert (
        rejection(parse_arguments, ["a=1", "b=2", "a:=1"])
        == "a: given twice; write a list as a:='[...]'"
    )


def test_a_single_object_stands_for_all_arguments():
    assert parse_arguments(['{"a": {"b": 1}}']) == {"a": {"b": 1}}
    assert parse_arguments([]) == []


def test_an_object_beside_other_arguments_is_rejected():
    assert "is not an argument" in rejection(parse_arguments, ["a=1", "{}"])


def test_a_file_can_hold_all_arguments(tmp_path):
    path = tmp_path / "arguments.json"
    path.write_bytes(b'{"a": 1}\n')
    assert parse_arguments([f"@{path}"]) == {"a": 1}
    assert rejection(parse_arguments, [f"@{path}.not"]).endswith(
        "cannot be read: No such file or directory"
    )


def test_stdin_can_hold_all_arguments():
    @click.command()
    @click.argument("words", nargs=-1)
    def command(words):
        click.echo(parse_arguments(words)["a"])

    assert CliRunner().invoke(command, ["-"], input='{"a": "text"}').output == "text\n"


@pytest.mark.parametrize("text", ["{", "{}x", '{"a":1', "{" * 5000])
def test_json_that_is_not_an_object_is_rejected(text):
    assert rejection(parse_arguments, [text]).startswith("the arguments are not a JSON object: ")


def test_arguments_of_a_prompt_have_to_be_strings():
    assert prompt_arguments(parse_arguments(["a=1", 'b:="x"'])) == {"a": "1", "b": "x"}
    assert prompt_arguments({"a": "1"}) == {"a": "1"}
    assert rejection(prompt_arguments, {"a": 1}) == "a: the arguments of a prompt must be strings"
    assert rejection(prompt_arguments, parse_arguments(["a:=1"])).startswith("a: ")


def test_arguments_are_listed_with_their_types():
    names = arguments_with_types(SCHEMA)
    assert names.startswith("text=string count=integer [ratio=number] [flag=boolean]")
    assert "[maybe=integer|null]" in names
    assert "[any=any]" in names
    assert arguments_with_types({}) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "enum", "const", "anyOf", "$ref", "properties", "required", "a"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON, JSON)
def test_any_json_is_accepted_as_a_schema(schema, root):
    root = root if isinstance(root, dict) else {"properties": root}
    assert all(isinstance(name, str) for name in schema_types(schema, root))
    assert isinstance(arguments_with_types(root), str)


# SERVER.


ODD_FILE = Path(__file__).with_name("odd_server.py")
COMMAND = [sys.executable, str(ODD_FILE)]


@pytest.fixture
def config(tmp_path):
    servers = {
        "odd": {"command": sys.executable, "args": [str(ODD_FILE)]},
        "far": {"url": "https://example.com/mcp"},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_a_target_runs_in_this_process(invoke):
    assert invoke("call", f"{SOME}:server", "echo", "text=hi").exit_code == 0


def test_a_command_after_dashes_replaces_the_server(invoke):
    shown = invoke("list", "tools", "--", *COMMAND)
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.output.splitlines()] == [
        "tools:",
        "name",
        "one",
        "two",
    ]


def test_a_name_from_a_configuration_file_is_a_server(invoke, config):
    assert "one" in invoke("list", "odd", "tools", "--config", config).output


def test_the_kinds_may_come_before_the_server(invoke, config):
    assert "one" in invoke("list", "tools", "odd", "--config", config).output
    assert "'odds' is not one of" in invoke("list", "odd", "odds", "--config", config).stderr


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
def test_arguments_without_a_usable_server_are_a_usage_error(invoke, arguments, text):
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert text in shown.stderr
    assert shown.stdout == ""


@pytest.mark.parametrize(
    "arguments", [["call", SOME, "echo", "text=\udcff"], ["read", SOME, "some://\udcff/now"]]
)
def test_an_argument_that_is_not_utf8_is_a_usage_error(invoke, arguments):
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert "surrogates not allowed" in shown.stderr


def test_a_name_that_is_not_in_the_file_is_reported_with_those_that_are(invoke, config):
    shown = invoke("list", "even", "--config", config)
    assert shown.exit_code == 2
    assert "has no server 'even'; it has: odd, far" in shown.stderr


def test_the_other_servers_of_a_configuration_file_need_not_be_valid(invoke, config, monkeypatch):
    monkeypatch.delenv("UNSET", raising=False)
    document = json.loads(config.read_text())
    document["mcpServers"]["far"]["headers"] = {"Key": "${UNSET}"}
    config.write_text(json.dumps(document))
    assert invoke("list", "odd", "--config", config).exit_code == 0
    shown = invoke("list", "far", "--config", config)
    assert shown.exit_code == 2
    assert "server 'far': headers.Key: the variable UNSET is not set" in shown.stderr


def test_a_configuration_file_and_a_command_are_rejected(invoke, config):
    shown = invoke("list", "--config", config, "--", "python")
    assert shown.exit_code == 2
    assert "name one server: with --config, or its COMMAND after --" in shown.stderr


def test_an_unusable_configuration_is_reported_in_one_line(invoke, tmp_path):
    shown = invoke("list", "a", "--config", tmp_path / "missing.json")
    assert shown.exit_code == 2
    assert shown.stderr.count("\n") == 1
    assert "missing.json" in shown.stderr


def test_a_server_that_cannot_be_started_is_reported(invoke):
    shown = invoke("list", "--", "/no/such/program")
    assert shown.exit_code == 1
    assert "/no/such/program" in shown.stderr


def test_a_server_that_dies_is_reported_with_its_last_stderr_lines(invoke):
    shown = invoke("list", "--", *COMMAND, "dies")
    assert shown.exit_code == 1
    assert "odd is here\nodd cannot go on" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.slow
@pytest.mark.real_time
def test_a_timeout_is_reported_with_the_option_to_raise_it(mcp_trio):
    begin = time.monotonic()
    done = mcp_trio("list", "--timeout", "1", "--", *COMMAND, "mute")
    assert time.monotonic() - begin < 25
    assert done.returncode == 1
    assert f"initialize: no response from {COMMAND[0]} " in done.stderr
    assert "within 1 s in all; raise --timeout" in done.stderr
    assert "odd is here" in done.stderr


@pytest.mark.slow
def test_the_stderr_of_a_command_is_passed_on_with_the_option(mcp_trio, config):
    command = ("list", "tools", "--json")
    assert "odd is here" in mcp_trio(*command, "--stderr", "--", *COMMAND).stderr
    assert "odd is here" not in mcp_trio(*command, "--", *COMMAND).stderr
    done = mcp_trio("list", "odd", "--stderr", "--config", config)
    assert "odd is here" in done.stderr


def test_the_stderr_option_is_accepted_for_a_target(invoke):
    assert invoke("call", SOME, "echo", "--stderr").exit_code == 0


def test_log_messages_from_the_level_on_are_printed_to_stderr(invoke):
    shown = invoke("call", SOME, "noisy", "--log-level", "info")
    assert shown.stdout == "quiet\n"
    assert "info: told by the tool\n" in shown.stderr
    assert 'error db: {"code":7}\n' in shown.stderr
    assert "told" not in invoke("call", SOME, "noisy", "--log-level", "error").stderr
    assert "told" not in invoke("call", SOME, "noisy").stderr


def test_a_log_level_is_no_error_for_a_server_without_logging(invoke):
    shown = invoke("list", "--log-level", "info", "--", *COMMAND)
    assert shown.exit_code == 0
    assert "the server does not offer logging\n" in shown.stderr


def test_what_a_server_in_this_process_prints_goes_to_stderr(invoke):
    shown = invoke("call", SOME, "noisy")
    assert (shown.stdout, shown.stderr) == ("quiet\n", "printed by the tool\n")


def test_results_that_were_not_recorded_are_an_error(write):
    path = write(("gap", {"reason": "full"}), ("gap", {"count": 3}), role="client")
    with pytest.raises(RecordingError, match="no disk space for the results in "):
        recorded_results(path)


@measured
def test_a_command_inherits_the_environment(mcp_trio, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; print('customized', file=sys.stderr)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = mcp_trio("list", "--stderr", "--", *COMMAND, env=environment)
    assert "customized\nodd is here" in done.stderr


# SERVER as a URL, and --header.


def some_server(auth=None):
    spec = importlib.util.spec_from_file_location("some_server_over_http", SOME)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.server.auth = auth
    return module.server


@pytest.fixture
def url(serve):
    return serve(some_server())


@pytest.mark.parametrize("protocol_version", ["2024-11-05", "2025-11-25", "2026-07-28"])
def test_all_four_commands_take_a_url(invoke, url, protocol_version):
    version_option = ("--protocol-version", protocol_version)
    assert "echo" in invoke("list", url, "tools", *version_option).stdout
    assert (
        json.loads(invoke("call", url, "echo", "text=hi", *version_option).stdout)["text"] == "hi"
    )
    assert invoke("read", url, "some://b/now", *version_option).stdout == "b"
    assert (
        "Greet Ada in a kind way."
        in invoke("prompt", url, "greet", "name=Ada", *version_option).stdout
    )


def test_a_user_without_a_home_folder_can_use_a_url(invoke, url, monkeypatch):
    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # as in a container, no such user is known
    assert invoke("list", url).exit_code == 0


def test_json_output_is_the_result_on_the_wire_over_http_too(invoke, url):
    shown = invoke("call", url, "echo", "text=hi", "--json")
    assert json.loads(shown.stdout)["structuredContent"]["text"] == "hi"
    tools = json.loads(invoke("list", url, "--json", "tools").stdout)["tools"]
    assert "echo" in [tool["name"] for tool in tools]


def test_the_stderr_option_is_ignored_for_a_url(invoke, url):
    assert invoke("call", url, "echo", "--stderr").exit_code == 0


# Headers.


class Door:
    """Accepts one bearer token, and keeps the headers that it received."""

    def __init__(self):
        self.received = set()

    async def verify(self, head):
        self.received.add(head.header("authorization"))
        return "somebody" if head.header("authorization") == "Bearer open sesame" else None


@pytest.fixture
def door():
    return Door()


@pytest.fixture
def guarded(serve, door):
    return serve(some_server(door.verify))


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer open sesame", "authorization:Bearer ${WORD}", "Authorization: ${ALL}"],
)
def test_headers_are_sent_with_each_request(invoke, guarded, door, monkeypatch, header):
    monkeypatch.setenv("WORD", "open sesame")
    monkeypatch.setenv("ALL", "Bearer open sesame")
    assert invoke("call", guarded, "echo", "--header", header).exit_code == 0
    assert door.received == {"Bearer open sesame"}


def test_a_401_is_reported_in_one_line_that_names_the_header_option(invoke, guarded):
    shown = invoke("call", guarded, "echo")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1
    assert "answered HTTP 401 Unauthorized" in shown.stderr
    assert "401 Unauthorized: the request has no access token" in shown.stderr
    assert "send a token with --header 'Authorization: Bearer ${TOKEN}'" in shown.stderr


def test_a_token_option_is_answered_with_the_header_to_write(invoke, guarded):
    shown = invoke("call", guarded, "echo", "--token", "open sesame")
    assert shown.exit_code == 2
    assert "'--token'; write --header 'Authorization: Bearer ${TOKEN}'" in shown.stderr


FAILING = """
from mcp_trio import Server
server = Server("failing")
@server.tool
async def fail() -> None:
    raise KeyError("reason")
if __name__ == "__main__":
    server.run()
"""


def test_a_failure_without_a_text_names_the_option_that_shows_the_log(mcp_trio, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    command = ["--", sys.executable, tmp_path / "failing.py"]
    hint = "internal error in fail; --stderr shows what the server logged"
    assert hint in mcp_trio("call", "fail", *command).stderr
    shown = mcp_trio("call", "fail", "--stderr", *command).stderr
    assert "KeyError: 'reason'" in shown
    assert hint not in shown


def test_headers_of_the_command_line_override_those_of_a_configuration(invoke, guarded, tmp_path):
    config = tmp_path / "mcp.json"
    servers = {"far": {"url": guarded, "headers": {"Authorization": "Bearer nothing"}}}
    config.write_text(json.dumps({"mcpServers": servers}))
    word = ("--header", "Authorization: Bearer open sesame")
    assert invoke("call", "far", "echo", "--config", config).exit_code == 1
    assert invoke("call", "far", "echo", "--config", config, *word).exit_code == 0


SECRET = "topsecret"


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([SECRET], "a header must be written as 'Name: value'"),
        (["X Y: " + SECRET], "'X Y' is not a valid name of a header"),
        ([f"X: {SECRET}\r\nY: 1"], "the value of the header X has characters that are not allowed"),
        (["X: ${NO_SUCH_VARIABLE}"], "X: the variable NO_SUCH_VARIABLE is not set"),
        (["X: ${not one}"], "X: ${not one} is not a reference to a variable"),
        ([f"X: {SECRET}", "x: 2"], "x is given twice"),
    ],
)
def test_an_invalid_header_is_rejected_without_its_value(invoke, headers, text):
    given = [word for header in headers for word in ("--header", header)]
    shown = invoke("list", "http://127.0.0.1:1/mcp", *given)
    assert shown.exit_code == 2
    assert f"--header': {text}" in shown.stderr
    assert SECRET not in shown.stderr


@pytest.mark.parametrize("command", ["list", "replay", "mock"])
def test_headers_without_a_url_are_rejected(invoke, command):
    recording = Path(__file__).parents[2] / "recordings" / "weather.mcprec.jsonl"
    given = {
        "list": (SOME,),
        "replay": (recording, "--inputs", SOME),
        "mock": (recording, "--as", "client", SOME),
    }[command]
    shown = invoke(command, *given, "--header", "X: 1")
    assert shown.exit_code == 2
    assert "--header needs a server at an http(s):// or ws(s):// URL" in shown.stderr


def test_headers_for_a_unix_socket_are_rejected(invoke):
    shown = invoke("list", "unix:/nowhere", "--header", "X: 1")
    assert shown.exit_code == 2
    assert "--header needs a server at an http(s):// or ws(s):// URL" in shown.stderr


# Servers that cannot be asked.


@pytest.mark.parametrize("word", ["ftp://there/mcp", "http://", "http://a:b/mcp", "tcp://a"])
def test_an_invalid_url_is_a_usage_error(invoke, word, tmp_path):
    shown = invoke("list", word)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "URL" in shown.stderr.splitlines()[-1]
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"far": {"url": word}}}))
    assert invoke("list", "far", "--config", config).exit_code == 2


def test_an_unreachable_http_server_is_reported_in_one_line(invoke, unused_url):
    shown = invoke("list", unused_url["http"])
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.startswith(f"cannot connect to {unused_url['http']}: ")


@pytest.mark.parametrize("url", ["unix:/nowhere", "tcp://127.0.0.1:1", "ws://127.0.0.1:1/ws"])
def test_an_unreachable_server_of_another_transport_is_reported_in_one_line(invoke, url):
    shown = invoke("list", url)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1


def test_a_server_without_tls_is_reported_in_one_line(invoke, url):
    shown = invoke("list", url.replace("http:", "https:"))
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert "SSL" in shown.stderr


def test_a_wrong_path_is_reported_in_one_line(invoke, url):
    shown = invoke("list", f"{url}/nothing")
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert "the MCP endpoint is /mcp" in shown.stderr


def test_secrets_in_a_url_are_not_printed(invoke, unused_url):
    shown = invoke("list", unused_url["http"].replace("//", f"//me:{SECRET}@") + f"?key={SECRET}")
    assert shown.exit_code == 1
    assert SECRET not in shown.stderr


# --protocol-version and --protocol-versions.


STATELESS = "2026-07-28"


@pytest.mark.parametrize("protocol_version", ALL_PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("list", SOME, "tools"),
        ("call", SOME, "echo", "text=a"),
        ("read", SOME, "some://text"),
        ("prompt", SOME, "greet", "name=Ann"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_each_command_uses_the_chosen_protocol_version(invoke, arguments, protocol_version):
    shown = invoke(*arguments, "--json", "--protocol-version", protocol_version)
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    is_stateless = result.get("resultType") == "complete"
    assert is_stateless is (protocol_version == STATELESS and arguments[0] != "list")


def test_an_unknown_protocol_version_is_rejected(invoke):
    shown = invoke("list", SOME, "--protocol-version", "1999-01-01")
    assert shown.exit_code == 2
    assert STATELESS in shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol_version", "status"), [("2025-06-18", 0), ("2025-11-25", 0), (STATELESS, 1)]
)
def test_run_offers_only_the_chosen_protocol_versions(mcp_trio, protocol_version, status):
    serve = (
        sys.executable,
        "-m",
        "mcp_trio",
        "run",
        SOME,
        "--protocol-versions",
        "2025-06-18,2025-11-25",
    )
    done = mcp_trio("call", "echo", "text=a", "--protocol-version", protocol_version, "--", *serve)
    assert done.returncode == status, done.stderr


def test_run_rejects_an_unknown_protocol_version(invoke):
    shown = invoke("run", SOME, "--protocol-versions", "2025-06-18,other")
    assert shown.exit_code == 2
    assert "unknown protocol versions ['other']" in shown.stderr


# Replay.


@pytest.fixture
def recorded(tmp_path, mcp_trio):
    path = tmp_path / "a.mcprec.jsonl"
    serve = (sys.executable, "-m", "mcp_trio", "run", SOME, "--record", path)
    done = mcp_trio("call", "echo", "text=a", "--protocol-version", "2025-11-25", "--", *serve)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.slow
def test_replay_can_use_another_protocol_version_with_a_live_server(recorded, invoke):
    driven = invoke("replay", "--inputs", recorded, SOME, "--protocol-version", "2025-06-18")
    assert driven.exit_code == 0, driven.output
    assert "no differences" in driven.stdout
    rejected = invoke("replay", "--inputs", recorded, SOME, "--protocol-version", STATELESS)
    assert rejected.exit_code == 2
    assert (
        f"cannot be sent under {STATELESS}; possible protocol versions: 2025-11-25"
        in rejected.stderr
    )


@pytest.mark.slow
def test_replay_of_handlers_takes_no_protocol_version(recorded, invoke):
    rejected = invoke("replay", recorded, SOME, "--protocol-version", "2025-06-18")
    assert rejected.exit_code == 2
    assert "--protocol-version cannot be used with a replay of one recording" in rejected.stderr


# Texts that contain control sequences, on a terminal.

ESCAPING = Path(__file__).with_name("escaping_server.py")


def _is_safe(shown):
    """Ignore the line ends of the terminal, and what rich draws."""
    text = shown.replace("\r\n", "\n").replace("\x1b[1m", "").replace("\x1b[0m", "")
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    "arguments",
    [
        *(("call", "tell"), ("call", "tell", "--json"), ("call", "nothing", "b=1")),
        *(("list",), ("list", "--json"), ("read", "a://b")),
    ],
    ids=" ".join,
)
def test_text_of_a_server_cannot_control_a_terminal(on_a_screen, arguments):
    command, *rest = arguments
    options = ["--log-level", "debug", "--protocol-version", "2025-11-25"]
    shown = on_a_screen(command, *rest, *options, "--", sys.executable, ESCAPING)
    assert shown
    assert _is_safe(shown), repr(shown)


@measured
def test_json_on_a_terminal_is_escaped_and_equal(on_a_screen, mcp_trio):
    command = ["call", "tell", "--json", "--protocol-version", "2025-11-25", "--"]
    command += [sys.executable, ESCAPING]
    *_, shown = on_a_screen(*command).splitlines()
    unescaped = mcp_trio(*command).stdout
    assert "\\u009b31m\\u007f\\u202e\\udb40\\udc41" in shown
    assert "\x9b31m\x7f\u202e\U000e0041" in unescaped
    assert json.loads(shown) == json.loads(unescaped)
