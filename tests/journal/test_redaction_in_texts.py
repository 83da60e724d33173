"""Where secrets are found: in every structure and every text that says of itself what is secret."""

import json
import time
from contextlib import suppress

import pytest

from mcp_trio._journal.redaction import redactor_for_replay
from tests.journal.conftest import SECRET, call, encoded, redactor, result


def redacted(frame, **rules):
    return redactor(**rules).redact("in", frame)


TEXTS = {
    "shell": 'export PASSWORD="{}"',
    "shell, single": "PASSWORD='{}' run",
    "shell, with a hash": "PASSWORD=ab#{}",
    "shell, with a comma": "PASSWORD=ab,{}",
    "ini": "[db]\npassword = {}\nhost = a",
    "ini, with spaces in it": "password = my {} word",
    "yaml": "db:\n  password: {}\n",
    "yaml list": "- token: {}",
    "header": "GET / HTTP/1.1\r\nX-Api-Key: {}\r\n\r\n",
    "header, basic": "Authorization: Basic {}",
    "curl": "curl -H 'X-Api-Key: {}' host",
    "flag": "psql --password {} -h host",
    "flag, quoted": 'psql --password "{}"',
    "flag with =": "psql --password={}",
    "xml": "<a><password>{}</password></a>",
    "xml attribute": '<db password="{}"/>',
    "form": "user[password]={}&x=1",
    "form in parts": 'form-data; name="password"\r\nX: 1\r\n\r\n{}\r\n--b',
    "python": 'config["password"] = "{}"',
    "a call in a traceback": "    login(user='a', password='{}')\nX: no",
    "bytes": "login(password=b'{}')",
    "in another text": "note = \"password='{}'\"",
    "JSON with an escape": 'so {{"password": "ab\\"{}"}} it',
    "an address": "postgres://u:p@{}@host/db",
    "a query in a query": "r=https%3A%2F%2Fh%2F%3Ftoken%3D{}%26x%3D1",
    "a sentence": "the password: {}.",
    "bearer": "sent Bearer {}",
    "bearer of letters": "sent Bearer abcdefghijklmnopqrstuvwx{}",
    "two that overlap": "Cookie: a=b; token={}; c=d",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_secrets_named_in_a_text_are_replaced(text):
    one, frame = redactor(), result(text.format(SECRET))
    changed = one.redact("out", frame)
    assert SECRET.encode() not in changed
    assert len(changed) == len(frame)
    assert one.redact("out", changed) == changed
    assert redactor_for_replay(one.manifest(), []).redact("out", changed) == changed


HARMLESS = [
    "a token: the thing that says so",
    "Unexpected token '<' in JSON at position 0",
    "{'required': ['password', 'user']}",
    "max_tokens=100&token_type=bearer",
    "https://host:8080/path?a=b@c",
    "Basic understanding of bearer bonds",
    "if password == other: pass",
    "note = 'a' -- and so on: b",
    "<b>password</b>",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_that_names_no_secret_is_left_alone(text):
    assert redacted(result(text)) == result(text)


SHAPED = [
    "sk-proj-Abc123Xyz789Qrs456Tuv",
    "rk_test_Abc123Xyz789Qrs456",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_0123456789abcdefghijABCDEFGHIJ012345",
    "glpat-Abc123Xyz789Qrs456Tuv",
    "AKIAIOSFODNN7EXAMPLE",
    "AIza0123456789abcdefghijABCDEFGHIJ01234",
    "ya29.Abc123Xyz789Qrs456Tuv",
    "xoxb-0123456789ab",
    "npm_0123456789abcdefghijABCDEFGHIJ012345",
    "hf_0123456789abcdefghijABCDEFGHIJ",
    "pypi-0123456789abcdefghijABCDEFGHIJ0123456789abcdefghijABCDE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7x9\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SHAPED)
def test_a_secret_of_a_well_known_shape_is_secret_wherever_it_stands(secret):
    one = redactor()
    frame = result(f"here: {secret} and {secret}")
    changed = one.redact("out", frame)
    assert secret[4:20].encode() not in changed.replace(b"-BEGIN RSA PRIVATE KEY", b"")
    assert secret.removesuffix("-----END RSA PRIVATE KEY-----")[-9:-1].encode() not in changed
    assert f"here: {secret[:3]}".encode() in changed
    assert one.redact("out", changed) == changed


@pytest.mark.parametrize(
    "name",
    [
        *("passwords", "api_keys", "secrets", "cookies", "PGPASSWORD", "dbpassword", "smtp_pass"),
        *("auth", "sessionId", "password_confirmation", "privateKeyPem", "X-AUTH"),
    ],
)
def test_more_names_of_secrets(name):
    assert SECRET.encode() not in redacted(call(**{name: [SECRET]}))


STRUCTURES = [
    [{"value": SECRET, "name": "API_KEY"}],
    [{"value": [SECRET], "x": {"name": "a", "value": 1}, "key": "API_KEY"}],
    [{"Name": "API_KEY", "Value": SECRET}],
    ["--token", SECRET],
    ["run", "--token", [SECRET]],
    [["X-Api-Key", SECRET], ["a", "b"]],
    json.dumps([{"name": "API_KEY", "value": SECRET}]),
    json.dumps([{"value": SECRET, "name": "API_KEY"}]),
    {"_meta": {"apiKey": SECRET}},
]


@pytest.mark.parametrize("value", STRUCTURES)
def test_a_value_beside_what_names_it_is_secret(value):
    assert SECRET.encode() not in redacted(call(x=value))


def test_items_that_name_nothing_are_left_alone():
    frame = call(a=["password", "user"], b=[["-x", "user1"], ["a", 5]], c=["--token"], d=["next"])
    assert redacted(frame) == frame


def test_a_member_that_stands_there_twice_is_gone_into_both_times():
    for text in (
        b'{"params":{"a":{"password":"%s"},"a":1}}',
        b'{"params":{"a":"{\\"a\\":{\\"password\\":\\"%s\\"},\\"a\\":1}"}}',
    ):
        assert SECRET.encode() not in redactor().redact("in", text % SECRET.encode())


def test_meta_is_users_data_except_for_the_progress_token():
    meta = {"progressToken": SECRET, "com.example/trace": f"by {SECRET}"}
    frame = {"method": "tools/call", "params": {"name": "a", "_meta": meta}}
    changed = json.loads(redacted(encoded(frame), secrets=[SECRET]))["params"]["_meta"]
    assert changed["progressToken"] == SECRET
    assert SECRET not in changed["com.example/trace"]


HOSTILE = [
    "password=" * 4000,
    "a='" * 20000,
    "ab=" * 60000,
    "ab='\"" * 40000,
    "password='\"" * 4000,
    "".join(f"a={chr(92) * n}'" for n in range(300)),
    "password: " * 4000,
    "--token " * 20000,
    "<password " * 20000,
    "://a:" * 20000,
    "form-data; name=a\r\n" * 2000,
    "a" * 200000,
    "\\" * 200000,
    "-----BEGIN PRIVATE KEY-----" * 400,
    "Bearer " * 20000,
    " " * 100000 + "=",
    "password" + " " * 100000,
    "[" * 200000,
    "eyJaaaaaaaa." * 20000,
]


@pytest.mark.real_time
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_a_hostile_text_does_not_hold_up_the_session(text):
    begin = time.process_time()
    with suppress(ValueError):  # too many secrets
        redacted(result(text))
    assert time.process_time() - begin < 3
