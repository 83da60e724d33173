"""Elicitations during `mcp-trio call`: on a terminal, with default values, and without a terminal."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mcp_trio._cli.elicitation import accept_defaults, answer_function, ask
from mcp_trio.types import ElicitParams

ASKING = Path(__file__).with_name("asking_server.py")
STATELESS = "2026-07-28"
WITH_URLS = ["2025-11-25", STATELESS]
WITH_FORMS = ["2025-06-18", *WITH_URLS]


def form(*required, **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ElicitParams(message="What\x1b?", requested_schema=schema)


def typed(params, *lines):
    """The answer, and the text that is shown, if a user types these lines."""
    with CliRunner().isolation(input="".join(f"{line}\n" for line in (*lines, ""))) as streams:
        result = ask(params)
        return result, streams[1].getvalue().decode()


CITY = {"type": "string", "minLength": 2, "description": "Where to go"}
DAYS = {"type": "integer", "default": 2, "title": "Days"}


def test_each_member_is_asked_for_with_its_default():
    result, shown = typed(form("city", city=CITY, days=DAYS), "Oslo", "")
    assert (result.action, result.content) == ("accept", {"city": "Oslo", "days": 2})
    assert shown.startswith("the server asks: What\\x1b? (Ctrl-D declines)\ncity (Where to go): ")
    assert "Days [2]: " in shown


def test_an_invalid_value_is_asked_for_again():
    result, shown = typed(form("city", city=CITY, days=DAYS), "", "O", "Oslo", "many", "3")
    assert result.content == {"city": "Oslo", "days": 3}
    assert "Error: city: less than 2 characters" in shown
    assert "Error: days: not an integer" in shown


def test_an_optional_member_can_be_left_out():
    assert typed(form(city=CITY), "")[0].content == {}


@pytest.mark.parametrize("schema", [{"properties": {"it": 5}, "required": 7}, {"properties": [1]}])
def test_a_malformed_form_is_asked_for_as_far_as_it_is_one(schema):
    assert typed(ElicitParams(message="", requested_schema=schema), "a")[0].action == "accept"


def test_null_is_no_default():
    result, shown = typed(form(city=CITY | {"default": None}), "")
    assert (result.content, "None" in shown) == ({}, False)
    assert typed(form("city", city=CITY | {"default": None}), "", "Oslo")[0].content == {
        "city": "Oslo"
    }


@pytest.mark.parametrize(
    ("member", "line", "value"),
    [
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "2", 2),
        ({"type": "boolean"}, "y", True),
        ({"type": "boolean", "default": True}, "", True),
        ({"type": "boolean"}, "No", False),
        ({"type": "string", "enum": ["a", "b"]}, "b", "b"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "a, b", ["a", "b"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "default": ["a", "b"]}, "", ["a", "b"]),
        ({"type": "string", "default": "x"}, "", "x"),
    ],
)
def test_an_answer_is_converted_to_the_members_type(member, line, value):
    assert typed(form("it", it=member), line)[0].content == {"it": value}


@pytest.mark.parametrize(
    ("member", "label"),
    [
        ({"type": "string", "enum": ["a", "b"], "description": "Pick"}, "(Pick; one of a, b)"),
        ({"type": "array", "items": {"enum": ["a"]}}, "(one of a; separated by commas)"),
        ({"type": "boolean"}, "(y or n)"),
        ({"type": "string", "title": "A\x1b", "description": "d\n"}, "A\\x1b (d\\n)"),
    ],
)
def test_the_prompt_names_description_choices_and_format(member, label):
    assert label in typed(form("it", it=member), "a", "y")[1]


def test_the_end_of_the_input_declines():
    result, _ = typed(form("city", city=CITY))
    assert (result.action, result.content) == ("decline", None)


@pytest.mark.requirement("ELIC-37")
def test_the_user_confirms_the_content_before_it_is_sent():
    result, shown = typed(form("city", city=CITY), "Oslo", "n")
    assert (result.action, result.content) == ("decline", None)
    assert "Send this? [Y/n]: " in shown


@pytest.mark.parametrize(("line", "action"), [("", "accept"), ("y", "accept"), ("n", "decline")])
def test_a_form_without_members_is_a_confirmation(line, action):
    assert typed(form(), line)[0].action == action


@pytest.mark.requirement("ELIC-37", "ELIC-39", "ELIC-40")
@pytest.mark.parametrize(("line", "action"), [("y", "accept"), ("n", "decline")])
def test_a_url_is_shown_completely_and_not_opened(line, action):
    url = "https://example.com/\x1bsign?" + "x" * 200
    params = ElicitParams(message="Sign", mode="url", url=url, elicitation_id="e")
    result, shown = typed(params, line)
    assert result.action == action
    assert url.replace("\x1b", "\\x1b") in shown
    assert "Open example.com in a browser" in shown


@pytest.mark.requirement("ELIC-40")
@pytest.mark.parametrize(
    ("url", "host", "warns"),
    [("https://xn--exmple-cua.com/", "xn--exmple-cua.com", True), ("a://[", "no host", False)],
)
def test_a_punycode_host_gets_a_warning(url, host, warns):
    _, shown = typed(ElicitParams(message="", mode="url", url=url), "n")
    assert ("warning: this host" in shown) is warns
    assert f"Open {host} in" in shown


# Without a terminal.


@pytest.mark.parametrize(
    ("params", "content", "why"),
    [
        (form(days=DAYS, city=CITY), {"days": 2}, ""),
        (form(), {}, ""),
        (form(city=CITY | {"default": None}), {}, ""),
        (form("city", city=CITY, days=DAYS), None, "each field: city: missing"),
        (
            ElicitParams(message="", mode="url", url="a:b"),
            None,
            "only a user at a terminal can confirm opening a:b",
        ),
    ],
)
def test_forms_are_accepted_if_defaults_make_them_valid(params, content, why, capsys):
    result = accept_defaults(params)
    assert (result.action, result.content) == ("decline" if why else "accept", content)
    assert why in capsys.readouterr().err


def test_the_user_is_asked_only_on_a_terminal(monkeypatch, capsys):
    assert answer_function(accepts_defaults=True) is accept_defaults
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert answer_function(accepts_defaults=False)(form()).action == "decline"
    assert "stdin is not a terminal; --yes accepts the defaults" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert answer_function(accepts_defaults=False) is ask


# The command.


@pytest.mark.parametrize("protocol_version", WITH_FORMS)
def test_without_a_terminal_a_form_is_declined(invoke, protocol_version):
    done = invoke("call", ASKING, "plan", "--protocol-version", protocol_version)
    assert (done.exit_code, done.stdout) == (0, "decline: None\n")
    assert "the server asks: Where to?\ndeclined: stdin is not a terminal" in done.stderr


@pytest.mark.parametrize("protocol_version", WITH_FORMS)
def test_with_yes_the_defaults_are_accepted(invoke, protocol_version):
    done = invoke("call", ASKING, "easy", "--yes", "--protocol-version", protocol_version)
    assert done.stdout == "accept: Easy(level='low')\n"
    assert invoke(
        "call", ASKING, "plan", "--yes", "--protocol-version", protocol_version
    ).stdout == ("decline: None\n")


@pytest.mark.parametrize("protocol_version", WITH_URLS)
def test_with_yes_a_url_is_declined(invoke, protocol_version):
    done = invoke("call", ASKING, "visit", "--yes", "--protocol-version", protocol_version)
    assert done.stdout == "decline\n"
    assert "only a user at a terminal can confirm opening https://example.com/sign" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("protocol_version", WITH_FORMS)
def test_a_user_at_a_terminal_fills_in_a_form(protocol_version):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mcp_trio", "call", str(ASKING), "plan"]
    os.write(ours, b"Oslo\n3\nn\ny\n")
    done = subprocess.run(
        [*command, "--protocol-version", protocol_version],
        check=False,
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=30,
    )
    os.close(ours)
    os.close(theirs)
    assert done.stdout == "accept: Trip(city='Oslo', days=3, quiet=False)\n"
    assert "the server asks: Where to?" in done.stderr


def test_a_default_value_cannot_control_the_terminal(monkeypatch, capsys):
    bad = "\x1b]0;title\x07\x9b31m\u202e"
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ny\n"))
    schema = {"properties": {bad: {"type": "string", "default": bad, "description": bad}}}
    result = ask(ElicitParams(message=bad, requested_schema=schema))
    assert result.content == {bad: bad}
    shown = capsys.readouterr().err
    assert shown.count("\\x1b]0;title\\x07\\x9b31m\\u202e") == 4
    assert shown.replace("\n", "").isprintable()


# The answers.


def test_structured_content_is_printed_unless_a_text_repeats_it(invoke):
    assert (
        invoke("call", ASKING, "structured", "--protocol-version", STATELESS).stdout == '{"a":1}\n'
    )
    shown = invoke("call", ASKING, "apart", "--protocol-version", STATELESS).stdout
    assert shown == 'other\n{\n  "b": [\n    2\n  ]\n}\n'


def test_audio_and_links_are_printed_with_their_type(invoke):
    shown = invoke("call", ASKING, "media", "--protocol-version", STATELESS).stdout
    assert shown == "[audio: audio/wav, 10 bytes]\n[link: some://link, text/plain]\n"


def test_json_output_is_the_result_of_the_last_round(invoke):
    shown = invoke(
        "call", ASKING, "easy", "--yes", "--json", "--protocol-version", STATELESS
    ).stdout
    assert '"text":"accept: Easy(level=\'low\')"' in shown
    assert "input_required" not in shown
