"""A value is secret by its name, by a path, by a tool's schema, or by what a text says of it."""

import json
import re

import pytest

from tests.journal.conftest import SECRET, arguments_of, call, encoded, redactor, result, text_of


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "apiKey",
        "api_key",
        "X-API-Key",
        "githubToken",
        "APIKEY",
        "db password",
        "tokenValue",
    ],
)
def test_a_secret_is_known_by_its_name(name):
    assert SECRET.encode() not in redactor().redact("in", call(**{name: SECRET}))


@pytest.mark.parametrize(
    "name", ["token_type", "maxTokens", "passwordless", "progressToken", "city"]
)
def test_other_names_are_left_alone(name):
    frame = call(**{name: SECRET})
    assert redactor().redact("in", frame) == frame


def test_a_name_in_escapes_is_a_name():
    frame = call(password=SECRET).replace(b"password", rb"p\u0061ssword")
    assert SECRET.encode() not in redactor().redact("in", frame)


def test_what_is_inside_a_secret_is_secret():
    changed = arguments_of(
        redactor().redact("in", call(credentials={"a": ["one1", {"b": 57}], "c": True}))
    )
    assert changed["credentials"]["a"][0] != "one1"
    assert changed["credentials"]["a"][1]["b"] != 57
    assert changed["credentials"]["c"] is True


def test_a_value_beside_its_name_is_secret():
    frame = call(env=[{"name": "API_KEY", "value": SECRET}, {"name": "HOME", "value": "/root"}])
    changed = arguments_of(redactor().redact("in", frame))["env"]
    assert changed[0]["value"] != SECRET
    assert changed[1]["value"] == "/root"


@pytest.mark.parametrize("secret", ["Password-2024!", "token=1234567890"])
def test_a_secret_that_begins_like_a_name_is_none_and_is_followed_as_a_name(secret):
    one = redactor()
    one.redact("in", call(password=secret))
    assert secret.encode() not in one.redact("in", call(users={secret: "Ann"}))


@pytest.mark.parametrize("secret", ["Password", "api_key"])
def test_a_name_that_is_a_secret_as_well_may_be_read_as_a_name(secret):
    one = redactor()
    assert secret not in arguments_of(one.redact("in", call(password=secret))).values()
    assert arguments_of(one.redact("in", call(users={secret: True})))["users"].keys() == {secret}


def test_a_name_is_not_that_long():
    frame = call(**{"x_" * 70 + "token": "abc"})
    assert redactor().redact("in", frame) == frame


def test_a_path_names_a_secret_of_a_method():
    rules = {"paths": {"tools/call": ["$.params.arguments.cards[*].digits"]}}
    changed = arguments_of(
        redactor(**rules).redact("in", call(cards=[{"digits": "4111", "of": "Ann"}]))
    )
    assert changed["cards"][0]["digits"] != "4111"
    assert changed["cards"][0]["of"] == "Ann"


def test_a_path_into_a_result_counts_in_all_results():
    rules = {"paths": {"tools/call": ['$.result["structuredContent"].pin']}}
    changed = redactor(**rules).redact("out", result("", structuredContent={"pin": "777123"}))
    assert b"777123" not in changed


def test_a_path_may_be_of_a_kind_of_record_or_of_all():
    for where in ("res", "*"):
        changed = redactor(paths={where: ["$.mother"]}).redact(
            "res", encoded({"mother": "Eve Adams"})
        )
        assert b"Adams" not in changed


def test_a_path_within_a_secret_path_changes_nothing():
    paths = ["$.params.arguments.a", "$.params.arguments.a.b"]
    assert b"word123" not in redactor(paths={"*": paths}).redact("in", call(a={"c": "word123"}))


@pytest.mark.parametrize("path", ["params.a", "$", "$[0]", "$.a..b"])
def test_a_path_that_is_none_is_rejected(path):
    with pytest.raises(ValueError, match="not a JSON path"):
        redactor(paths={"tools/call": [path]})


@pytest.mark.parametrize("path", ["$.params.name", "$.id"])
def test_a_path_to_a_member_of_the_protocol_is_rejected(path):
    with pytest.raises(ValueError, match="the protocol defines this member"):
        redactor(paths={"tools/call": [path]})


def test_a_schema_names_passwords():
    schema = {
        "properties": {
            "pin": {"type": "string", "format": "password"},
            "of": {"anyOf": [{"$ref": "#/$defs/Of"}, {"type": "null"}]},
            "codes": {"items": {"format": "password"}},
            "name": {"type": "string"},
        },
        "$defs": {
            "Of": {"properties": {"word": {"format": "password"}, "of": {"$ref": "#/$defs/Of"}}}
        },
    }
    frame = call(pin="abcd1", of={"word": "wxyz2"}, codes=["klmn3"], name="opqr4")
    changed = redactor(schemas={"login": schema, "other": {}}).redact("in", frame)
    for secret in (b"abcd1", b"wxyz2", b"klmn3"):
        assert secret not in changed
    assert b"opqr4" in changed


TEXTS = [
    "https://host/a?x=1&access_token={}&y",
    "API_KEY={} HOME=/root",
    "client_secret={}",
    "Authorization: Bearer {}",
    "postgres://me:{}@host/db",
    'Got {{"password": "{}"}} back',
    "Got {{'password': '{}'}} back",
    "login(password=b'{}')",
    'nested \\"token\\": \\"{}\\" here',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_may_name_a_secret_itself(text):
    changed = text_of(redactor().redact("out", result(text.format("Abc123Xyz789"))))
    assert "Abc123Xyz789" not in changed
    pattern = re.escape(text.format("SECRET")).replace(
        "SECRET", "[A-Z][a-z]{2}[0-9]{3}[A-Z][a-z]{2}[0-9]{3}"
    )
    assert re.fullmatch(pattern, changed)


def test_a_percent_encoded_secret_is_followed_decoded():
    one = redactor()
    changed = one.redact(
        "cmd", encoded({"name": "ctx.http", "arguments": {"url": "http://h/?token=ab%2Bcd%2F12"}})
    )
    assert b"ab%2Bcd" not in changed
    assert b"ab+cd/12" not in one.redact("res", encoded("token ab+cd/12"))


def test_a_text_names_a_number():
    assert "4711" not in text_of(redactor().redact("out", result('so "otp": 4711 it is')))


def test_texts_in_texts_are_gone_into():
    one, text = redactor(), json.dumps({"password": "abcdefg1"})
    for _ in range(5):
        text = json.dumps([text])
    assert b"abcdefg1" not in one.redact("out", result(text))
