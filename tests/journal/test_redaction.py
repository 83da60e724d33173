"""Redaction of records."""

import html
import json
import re
import time
import tracemalloc
from base64 import b64decode, b64encode, urlsafe_b64encode
from contextlib import suppress
from urllib.parse import quote

import attrs
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from memory_sessions import client_session

from mcp_trio import Context, Limits, Server, ToolError
from mcp_trio._cli.commands import commands
from mcp_trio._journal.redaction import (
    PARAMS,
    Redactor,
    Tokens,
    mask_malformed,
    password_paths,
    redactor_for_replay,
)
from mcp_trio._journal.secret_names import SecretNames
from mcp_trio._journal.secrets import KnownSecrets, likely_secrets, spelling_pattern
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._protocol.methods import METHODS
from mcp_trio.errors import RecordingError
from mcp_trio.limits import MessageLimits, RecordingLimits
from mcp_trio.recording import (
    DEFAULT_SECRET_NAMES,
    Record,
    RecordOptions,
    Redaction,
    open_recording,
    replay,
)
from tests.journal.conftest import (
    KEY,
    SECRET,
    arguments_of,
    call,
    encoded,
    hidden,
    record,
    redactor,
    result,
    text_of,
)

# Redacting bodies.


def test_a_message_without_secrets_is_unchanged():
    frame = b'{ "jsonrpc":"2.0",  "id":1,"method":"tools/call","params":{"name":"a","n":1e2} }'
    assert redactor().redact("in", frame) is frame


def test_a_malformed_body_is_searched_as_text():
    deep = b'{"password":"' + SECRET.encode() + b'","a":' + b"[" * 3000 + b"]" * 3000 + b"}"
    assert SECRET.encode() not in redactor().redact("res", deep)


def test_secrets_may_be_asked_for():
    known = []
    one = redactor(secrets=lambda: known)
    assert text_of(one.redact("out", result("Elm Row 5"))) == "Elm Row 5"
    known.append("Elm Row 5")
    assert text_of(one.redact("out", result("Elm Row 5"))) != "Elm Row 5"


def test_a_secret_that_is_everywhere_is_rejected():
    with pytest.raises(ValueError, match="follow_chars_min"):
        redactor(secrets=["abc"])


def test_an_empty_key_is_rejected():
    with pytest.raises(ValueError, match="empty"):
        redactor(key=b"")


@pytest.mark.parametrize(
    "limits",
    [
        Limits(recording=RecordingLimits(secrets_max=1)),
        Limits(recording=RecordingLimits(secrets_chars_max=10)),
    ],
)
def test_a_secret_too_many_to_follow_is_rejected_and_the_others_go_on(limits):
    one = redactor(limits=limits)
    first = one.redact("in", call(password="first111"))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"limits\.recording\.secrets_(chars_)?max"):
            one.redact("in", call(password="second222", note="second222"))
    assert one.redact("in", call(password="first111")) == first


@pytest.mark.parametrize(
    "note", [["x"] * 101, ["x" * 101 * 256]], ids=["many texts", "a long text"]
)
def test_a_record_that_needs_too_many_searches_is_rejected_and_the_others_go_on(note):
    limits = Limits(recording=RecordingLimits(secret_searches_max=100))
    one = redactor(limits=limits, secrets=[SECRET])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"limits\.recording\.secret_searches_max"):
            one.redact("in", call(notes=[SECRET, *note]))
        assert SECRET.encode() not in one.redact("in", call(notes=[SECRET, "x" * 200] * 40))
    assert json.loads(one.redact("in", call(notes=note)))["params"]["arguments"]["notes"] == note


def test_a_single_text_is_not_a_collection_of_names():
    for rules in ({"keys": "password"}, {"secrets": SECRET}, {"secrets": lambda: SECRET}):
        with pytest.raises(TypeError, match="not one text"):
            redactor(**rules)


def test_a_name_without_letters_is_rejected():
    with pytest.raises(ValueError, match="needs a letter"):
        redactor(keys=["42"])


@pytest.mark.parametrize("value", ["", "  ", "null", "True", "none"])
def test_a_secret_of_null_is_unchanged(value):
    assert hidden(value) == value


def test_clean_names_are_not_kept_without_end():
    one = redactor()
    for begin in range(0, 8000, 2000):
        frame = call(**{f"n{number}": 1 for number in range(begin, begin + 2000)})
        assert one.redact("in", frame) == frame


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["password", "a", "token", "b"]), inner, max_size=3)
    ),
    max_leaves=10,
)


def shape(value):
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return type(value)


@pytest.mark.slow
@given(values)
@example({"password": "password"})
@example({"token": [], "a": {"password": "token"}})
def test_a_redacted_body_has_its_structure_and_redacts_to_itself(value):
    one = redactor()
    changed = one.redact("in", call(x=value))
    assert shape(json.loads(changed)) == shape(json.loads(call(x=value)))
    again = redactor_for_replay(one.manifest(), [record("in", changed)], KEY)
    assert again.redact("in", changed) == changed


def test_a_replay_leaves_the_tokens_of_the_recording_alone():
    one = redactor(secrets=["hard-secret-1"], paths={"res": ["$.pin"]})
    bodies = [
        ("in", call(password=SECRET, n=3)),
        ("res", encoded({"pin": 4711, "h": "hard-secret-1"})),
    ]
    redacted = [(kind, one.redact(kind, body)) for kind, body in bodies]
    records = [record(kind, body) for kind, body in redacted] + [
        Record(number=9, kind="cxl", time_ns=0)
    ]
    for key in (None, KEY):
        again = redactor_for_replay(one.manifest(), records, key)
        for kind, body in redacted:
            assert again.redact(kind, body) == body
        assert again.knows(f"it is {hidden(SECRET)}")
        assert not again.knows("it is not")


def test_a_very_short_token_is_recognised_only_exactly():
    one = redactor()
    (token,) = arguments_of(one.redact("in", call(otp=5))).values()
    assert one.knows(str(token))
    assert not one.knows(f"a{token}b")


def test_with_the_key_a_replay_redacts_what_the_recording_redacted():
    again = redactor_for_replay(redactor().manifest(), [], KEY)
    assert again.redact("in", call(password=SECRET)) == redactor().redact(
        "in", call(password=SECRET)
    )


def test_another_key_or_a_damaged_manifest_is_rejected():
    with pytest.raises(RecordingError, match="with another key"):
        redactor_for_replay(redactor().manifest(), [], b"another")
    with pytest.raises(RecordingError, match="cannot read the redaction"):
        redactor_for_replay({"names": 3}, [])


def test_the_manifest_contains_no_secret():
    one = redactor(secrets=[SECRET])
    one.redact("in", call(password="hunter2hunter2"))
    text = json.dumps(one.manifest())
    assert SECRET not in text
    assert "hunter2hunter2" not in text
    assert KEY.decode() not in text


# Known secrets in other encodings and inside other values.

VALUE = "p@ss!w(o)r*d~/+&=\"q' ü9<\n😀>"
TOKEN = "k@aa!z(x)w*v~/+&=\"b' é3<\n😁>"

WRITINGS = {
    "JavaScript's": lambda text: quote(text, safe="!'()*~"),
    "twice encoded": lambda text: quote(quote(text)),
    "in small": lambda text: "".join(
        f"%{byte:02x}" if byte > 126 else chr(byte) for byte in text.encode()
    ),
    "HTML": html.escape,
    "XML": lambda text: (
        text.replace("&", "&amp;")
        .replace("'", "&apos;")
        .replace("ü", "&#252;")
        .replace("é", "&#233;")
    ),
    "PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "JSON, three deep": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "JSON in unicode, twice": lambda text: json.dumps(
        json.dumps(text, ensure_ascii=False), ensure_ascii=False
    ),
    "form": lambda text: quote(text, safe="").replace("%20", "+"),
}


def following(**tokens):
    one = KnownSecrets()
    for value, token in tokens.items():
        one.add(value, token, is_given=False)
    return one


def replaced(one, text):
    return one.replaced(text, one.found_in(json.dumps(text).encode()))


def test_a_secret_that_contains_the_token_of_another_one_is_replaced_once():
    one = following(**{"9983021234": "5555555555", "471124": "830212"})
    assert replaced(one, "9983021234 471124") == "5555555555 830212"


@pytest.mark.parametrize("write", WRITINGS.values(), ids=WRITINGS)
def test_a_value_is_found_in_every_writing(write):
    one = following(**{VALUE: TOKEN})
    assert replaced(one, f"it is {write(VALUE)}!") == f"it is {write(TOKEN)}!"


@pytest.mark.parametrize("write", WRITINGS.values(), ids=WRITINGS)
def test_nothing_of_a_value_with_rows_of_backslashes_is_left(write):
    value, token = 'drei \\\\"Pferde\\" \\\\\\😀 \\\n', 'eybk \\\\"Fleznj\\" \\\\\\😁 \\\n'
    assert replaced(following(**{value: token}), f"it: {write(value)}") == f"it: {write(token)}"


def test_many_backslashes_do_not_slow_the_search():
    value, other = ("\\" * 16 + '"x').join("abcdefghi"), ("\\" * 99 + '"x').join("abcdefghj")
    assert spelling_pattern(value).search(other) is None


@given(st.text(min_size=1, max_size=12), st.data())
def test_a_pattern_matches_any_mixture_of_writings(value, data):
    ways = [
        lambda character: character,
        lambda character: json.dumps(character)[1:-1],
        lambda character: quote(character, safe=""),
        html.escape,
    ]
    value = value.encode("utf-8", "ignore").decode()
    written = "".join(data.draw(st.sampled_from(ways))(character) for character in value)
    assert spelling_pattern(value).fullmatch(written)


def test_a_longer_token_is_written_to_its_end():
    assert replaced(following(**{"a/b cd": "x/y zwvu"}), "a%2Fb+cd!") == "x%2Fy+zwvu!"


def test_a_token_of_other_signs_is_written_as_the_value_was():
    one = following(**{"----": "#;-?", '""""': "&#:/", "¡¡¡¡": "éàéà", "\\<<<": "^:#-"})
    assert replaced(one, "----") == "#;-?"
    assert replaced(one, '\\"\\"\\"\\"') == "&#:/"
    assert replaced(one, "%22" * 4) == "%26%23%3A%2F"
    assert replaced(one, "%2522" * 4) == "%2526%2523%253A%252F"
    assert replaced(one, "&#34;" * 4) == "&#38;&#35;&#58;&#47;"
    assert replaced(one, "\\u00a1" * 4) == "\\u00e9\\u00e0\\u00e9\\u00e0"
    assert replaced(one, "%c2%a1" * 4) == "%c3%a9%c3%a0%c3%a9%c3%a0"


def test_of_two_values_that_overlap_nothing_is_left():
    one = following(abcdef12="ghijkl34", ef12ghij9="mnop56qr7")
    changed = replaced(one, "abcdef12ghij9")
    assert changed == "ghij" + "mnop56qr7"
    assert replaced(one, changed) == changed


def test_a_value_in_another_is_part_of_that():
    one = following(hunter22="abcdef33", hunter22hunter22x="klmnop44qrstuv55w")
    assert replaced(one, "hunter22hunter22x hunter22") == "klmnop44qrstuv55w abcdef33"


def test_a_value_inside_a_token_is_not_replaced():
    one = following(secret77longer="abcxyz99defghi", xyz99="uvw11")
    assert replaced(one, "abcxyz99defghi xyz99") == "abcxyz99defghi uvw11"


def test_an_ambiguous_part_belongs_to_the_longer_secret():
    one = following(**{"00001234000001234": "abcdefghijklmnopq"})
    assert replaced(one, "00001234") == "abcdefgh"
    assert replaced(one, "000001234") == "ijklmnopq"
    assert replaced(one, "x00001234") == "xabcdefgh"
    assert replaced(one, "00001234000001") == "abcdefghijklmn"
    assert replaced(one, "000001234 and 000012340") == "ijklmnopq and abcdefghi"


@pytest.mark.slow
def test_a_long_value_is_followed_in_pieces():
    value, token = (
        "".join(chr(first + number * number // 97 % 26) for number in range(5000))
        for first in (97, 65)
    )
    one = following(**{value: token})
    assert replaced(one, f"<{value}>") == f"<{token}>"
    assert value[3000:3100] not in replaced(one, value[:3100])
    assert replaced(one, json.dumps({"a": value})) == json.dumps({"a": token})


def test_needless_escapes_hide_no_value():
    one = following(hunter22x="abcdef33y")
    for body in (rb'"h\u0075nter22x"', rb'"\"h\\u0075nter22x\""', rb'"a\/\\/hunter22x"'):
        assert one.found_in(body)
    assert not one.found_in(rb'"\u00e9 \u0022 \\ \/ and nothing else"')


def test_with_many_values_base64_is_looked_for_in_long_runs():
    one = following(**{f"{number:04}" * 5: f"{9999 - number:04}" * 5 for number in range(100)})
    written = b64encode(b"0042" * 5).decode()
    assert replaced(one, written) == b64encode(b"9957" * 5).decode()
    assert not one.found_in(b'"a b c"')
    assert not one.found_in(b"")


# Secrets in nested structures and in texts.


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
def test_a_well_known_key_is_secret_at_every_position(secret):
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
        "ACCESS_TOKEN_V2",
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
def test_a_value_next_to_its_secret_name_is_secret(value):
    assert SECRET.encode() not in redacted(call(x=value))


def test_items_that_name_nothing_are_left_alone():
    frame = call(a=["password", "user"], b=[["-x", "user1"], ["a", 5]], c=["--token"], d=["next"])
    assert redacted(frame) == frame


def test_both_of_two_equal_members_are_redacted():
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
    "-eyJ" * 20000,
    "form-data;" * 20000,
    "form-data;name=ab" * 2000,
    "form-data; name=ab\n" * 20000,
    "password=hunter2x token=hunter3y " + "hunter2x hunter3y " * 8000,
    "<password>" + "'" * 100001 + "</password>",
    "password='/hunter2x' " + "\\" * 100000 + "hunter2x",
    "password='\\\\hunter2x' " + "\\" * 100000 + "hunter2",
]


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
def test_a_hostile_text_does_not_hold_up_the_session(text):
    begin = time.process_time()
    with suppress(ValueError):  # too many secrets
        redacted(result(text))
    assert time.process_time() - begin < 3


@pytest.mark.slow
@pytest.mark.real_time
def test_many_known_secrets_do_not_slow_down_every_text():
    known = KnownSecrets()
    secrets, tokens = ([f"{n:05}-{word}-{n:05}" for n in range(5000)] for word in ("key", "was"))
    for secret, token in zip(secrets, tokens, strict=True):
        known.add(secret, token, is_given=True)
    texts = [secrets[7], *("a text" for _ in range(5000)), tokens[8]]
    begin = time.process_time()
    for text in texts:
        known.found_in(encoded(text))
    found = known.found_in(encoded(texts))
    replaced = [known.replaced(text, found) for text in texts]
    assert time.process_time() - begin < 1.5
    assert replaced == [tokens[7], *texts[1:]]


def test_each_of_many_known_secrets_is_found():
    known = KnownSecrets()
    for number in range(1500):
        known.add(f"{number:04}-key-{number}", f"{number:04}-was-{number}", is_given=True)
    known.add("q7", "r8", is_given=True)
    for number in range(0, 1500, 100):
        secret, token = b"%04d-key-%d" % (number, number), b"%04d-was-%d" % (number, number)
        text, after = (b" ".join((each, b64encode(b"-" + each))) for each in (secret, token))
        text = text.decode() + " q7"
        assert known.replaced(text, known.found_in(encoded(text))) == after.decode() + " r8"


# Secrets by name, path, tool schema and text.


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


def test_values_inside_a_secret_are_secret():
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
def test_a_secret_that_begins_like_a_name_is_masked_in_names_too(secret):
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


def test_a_path_counts_in_a_batch_with_space_before_it():
    changed = redactor(paths={"tools/call": ["$.params.arguments.a"]}).redact(
        "in", b" [" + call(a="word123") + b"]"
    )
    assert b"word123" not in changed


@pytest.mark.parametrize(
    ("old", "odd"), [(b"{", b'{"name":null,'), (b"{", b'{"name":5,'), (b'"login"', b"5")]
)
def test_a_path_counts_in_a_message_with_an_odd_name(old, odd):
    message = call(a="word123").replace(old, odd, 1)
    changed = redactor(paths={"tools/call": ["$.params.arguments.a"]}).redact("in", message)
    assert b"word123" not in changed


def test_a_path_within_a_secret_path_changes_nothing():
    paths = ["$.params.arguments.a", "$.params.arguments.a.b"]
    assert b"word123" not in redactor(paths={"*": paths}).redact("in", call(a={"c": "word123"}))


@pytest.mark.parametrize("path", ["params.a", "$", "$[0]", "$.a..b"])
def test_a_malformed_path_is_rejected(path):
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


PASSWORD_SCHEMA = {"type": "string", "format": "password"}


def test_passwords_under_any_name_and_in_tuples_are_hidden():
    schema = {
        "properties": {
            "logins": {"type": "object", "additionalProperties": PASSWORD_SCHEMA},
            "users": {"additionalProperties": {"$ref": "#/$defs/User"}},
            "keys": {"patternProperties": {"^k": PASSWORD_SCHEMA}},
            "pair": {"prefixItems": [{"type": "string"}, PASSWORD_SCHEMA]},
            "free": {"additionalProperties": True},
            "closed": {"properties": {"a": {"type": "string"}}, "additionalProperties": False},
        },
        "$defs": {"User": {"properties": {"pin": PASSWORD_SCHEMA}}},
    }
    frame = call(
        logins={"ann": "abcd1"},
        users={"bob": {"pin": "wxyz2"}},
        keys={"k1": "klmn3"},
        pair=["ann", "stuv4"],
        free={"x": "opqr5"},
        closed={"a": "efgh6"},
    )
    changed = redactor(schemas={"login": schema}).redact("in", frame)
    for secret in (b"abcd1", b"wxyz2", b"klmn3", b"stuv4"):
        assert secret not in changed
    assert b"opqr5" in changed
    assert b"efgh6" in changed


def test_an_object_of_passwords_is_hidden_as_the_arguments_of_a_tool():
    schema = {"type": "object", "additionalProperties": PASSWORD_SCHEMA}
    changed = redactor(schemas={"login": schema}).redact("in", call(ann="abcd1"))
    assert b"abcd1" not in changed


def test_definitions_that_refer_to_each_other_are_searched_in_a_short_time():
    names = [f"Block{number}" for number in range(30)]
    blocks = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    definitions = {name: {"properties": {"children": {"items": blocks}}} for name in names}
    login = {"properties": {"pin": {"format": "password"}}}
    schema = {
        "properties": {"page": blocks, "login": {"$ref": "#/$defs/Login"}},
        "$defs": {**definitions, "Login": login},
    }
    assert password_paths(schema) == ['$["login"]["pin"]']
    first = {"properties": {"pin": {"format": "password"}, "children": {"items": blocks}}}
    schema = {
        "properties": {"page": {"$ref": "#/$defs/Block0"}},
        "$defs": {**definitions, "Block0": first},
    }
    assert password_paths(schema) == ['$["page"]["pin"]']


@pytest.mark.parametrize("choices", [None, 5, "x", {"a": 1}])
def test_an_invalid_schema_has_no_passwords(choices):
    assert password_paths({"properties": {"a": {"anyOf": choices, "items": []}}}) == []


RECOGNISED_TEXTS = [
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


@pytest.mark.parametrize("text", RECOGNISED_TEXTS)
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


# Malformed messages.

decode = Decoder(MessageLimits(json_depth_max=64)).decode

BROKEN = [
    b'{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"password":"hunter2",',
    b'{"jsonrpc":"2.0","id":"a-7","method":"tools/call","params":{"password":hunter2}}',
    b'{"jsonrpc":"2.0","method":"notify","params":{"password":"hunter2"}',
    b'{"id":"hunter2-id","params":{"id":"hunter2","n":12e5,"m":-0.5,}}',
    b'{"jsonrpc":"2.0","id":3,"result":{"password":"hunter2\\u00e9\\n\\q"}}',
    b'{"jsonrpc":"2.0","id":3,"result":{"password":"hunter2\\ud83d"}}',
    b'{"jsonrpc":"2.0","id":3,"result":{"password":"hunter2\\udc00 \\ud8zz"}}',
    b'{"jsonrpc":"2.0","id":3,"params":{"password":"hunter2 \xff\xfe"}}',
    b'{"jsonrpc":"2.0","id":3,"params":{"password":"hunter2 \xc3("}}',
    b'{"jsonrpc":"2.0","id":3,"params":{"password":"hunter2 \xe2\x82',
    '{"jsonrpc":"2.0","id":3,"params":{"pässwörd":"hunter2 é",}}'.encode(),
    b'{"jsonrpc":"2.0","id":true,"params":{"password":"hunter2"}',
    b'{"id":01,"id":"hunter2\\q","method":"hunter2"',
    b"hunter2",
    b'"hunter2',
    b"",
    b'{"jsonrpc":"2.0","id":4,"method":"x","params":' + b'{"hunter2":' * 70 + b"1" + b"}" * 71,
]


@pytest.mark.parametrize("frame", BROKEN)
def test_a_malformed_message_is_masked_and_gets_the_same_answer(frame):
    mask = mask_malformed(frame)
    assert b"hunter2" not in mask.replace(b'"hunter2-id"', b"")
    assert decode(mask) == decode(frame)
    assert mask_malformed(mask) == mask


@given(
    st.binary(max_size=60) | st.text('{}[]":, \\u01e5xyDd8truefals', max_size=60).map(str.encode)
)
def test_a_mask_is_its_own_mask(frame):
    assert mask_malformed(mask_malformed(frame)) == mask_malformed(frame)


def test_the_digits_of_a_number_are_not_kept():
    assert mask_malformed(b'{"id":3,"pin":1001,"x":0.050,') == b'{"id":3,"xxx":1111,"x":0.111,'


def test_a_redactor_masks_invalid_json_and_redacts_valid_json():
    one = Redactor(Redaction(), key=b"key")
    broken = BROKEN[0]
    assert one.redact("in", broken, is_whole_json=False) == mask_malformed(broken)
    whole = b'{"jsonrpc":"1.0","password":\n"hunter2","a":"b"}'
    changed = one.redact("in", whole, is_whole_json=False)
    assert b"hunter2" not in changed
    assert changed.endswith(b'"a":"b"}')


# Multi round-trip requests with secrets.

PASSWORD = "Tr0ub4dor-and-3-horses"
PROTOCOL_VERSION = "2026-07-28"


@attrs.define
class Note:
    user: str
    text: str


def vault():
    server = Server("vault")

    @server.tool
    async def suspended(password: str, *, ctx: Context) -> str:
        answer = await ctx.elicit(f"Who has {password}?", Note)
        await ctx.info(answer.data.text)
        return answer.data.text

    @server.tool(resumable=True)
    async def sealed(password: str, *, ctx: Context) -> str:
        answer = await ctx.elicit("Who?", Note)
        again = await ctx.elicit("Again?", Note)
        return f"{answer.data.text} {again.data.user} {password}"

    return server


async def record_session(to, protocol_version):
    options = {
        "protocol_versions": (protocol_version,),
        "elicitation": lambda _: {"user": "ann", "text": f"It is {PASSWORD}"},
    }
    async with client_session(vault(), to, **options) as client:
        for name in ("suspended", "sealed"):
            result = await client.call_tool(name, {"password": PASSWORD})
            assert PASSWORD in result.content[0].text


def states_in(path):
    """The state that the server gave to its client, and the state that came back."""
    frames = [json.loads(line).get("f", {}) for line in open_recording(path)]
    given = [each["result"].get("requestState") for each in frames if "result" in each]
    came = [each.get("params", {}).get("requestState") for each in frames if "method" in each]
    return [it for it in given if it], [it for it in came if it]


@pytest.mark.parametrize("protocol_version", ["2025-06-18", "2025-11-25", PROTOCOL_VERSION])
async def test_a_redacted_recording_with_questions_replays(tmp_path, protocol_version):
    path = tmp_path / "a.mcprec.jsonl"
    await record_session(RecordOptions(path, redaction=Redaction()), protocol_version)
    assert PASSWORD.encode() not in b"".join(open_recording(path))
    report = await trio.to_thread.run_sync(replay, path, vault())
    assert report.is_complete


async def test_the_states_of_requests_are_not_touched(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    await record_session(RecordOptions(path, redaction=Redaction()), PROTOCOL_VERSION)
    given, came = states_in(path)
    assert given == came
    assert [state.startswith("suspended.") for state in given] == [True, False, False]


async def test_a_recording_redacted_later_replays_with_the_same_states(tmp_path):
    path, clean = tmp_path / "a.mcprec.jsonl", tmp_path / "b.mcprec.jsonl"
    await record_session(path, PROTOCOL_VERSION)
    with pytest.raises(SystemExit) as ended:
        await trio.to_thread.run_sync(commands, ["redact", str(path), "-o", str(clean)])
    assert ended.value.code == 0
    assert PASSWORD.encode() not in b"".join(open_recording(clean))
    assert states_in(clean) == states_in(path)
    assert (await trio.to_thread.run_sync(replay, clean, vault())).is_complete


async def test_a_scan_finds_nothing_in_states(tmp_path, capsys):
    path, clean = tmp_path / "a.mcprec.jsonl", tmp_path / "b.mcprec.jsonl"
    await record_session(RecordOptions(clean, redaction=Redaction()), PROTOCOL_VERSION)
    await record_session(path, PROTOCOL_VERSION)
    statuses = []
    for each in (clean, path):
        with pytest.raises(SystemExit) as ended:
            await trio.to_thread.run_sync(commands, ["scan", str(each)])
        statuses.append(ended.value.code)
    assert statuses == [0, 1]
    shown = capsys.readouterr().out
    assert "secret name" in shown
    assert "high entropy" not in shown


def test_the_paths_of_values_without_secrets_take_no_memory():
    body = encoded({"n" * 20_000: [1] * 10_000})
    tracemalloc.start()
    try:
        assert likely_secrets(body) == []
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_disorder_is_no_secret_in_a_state_but_elsewhere():
    disorder = b"aB3dE6gH9jK2mN5pQ8sT1vW4"
    for path, count in ((b"requestState", 0), (b"other", 1)):
        assert len(likely_secrets(b'{"result":{"%s":"%s"}}' % (path, disorder))) == count


def test_a_known_key_is_found_in_a_state_as_well():
    body = b'{"result":{"requestState":"AKIAIOSFODNN7EXAMPLE"}}'
    assert [each.path for each in likely_secrets(body)] == ["$.result.requestState"]


# A redacted recording of a session contains no secret, and replays.


GRANTED = "tok_Zyx987Wvu654"
HARD = "known-beforehand-77"
PIN = 915273

OUTSIDE = []


async def ask_outside(url: str, headers: dict[str, str]) -> dict[str, str]:
    OUTSIDE.append(url)
    return {"access_token": GRANTED, "greeting": f"hello {HARD}"}


async def reject(reason: str) -> None:
    raise ValueError(f"refused: {reason}")


def vault_redaction_replay():
    server = Server("vault")

    @server.tool
    async def login(user: str, password: str, otp: int, *, ctx: Context) -> str:
        await ctx.info(f"{user} says {password}")
        await ctx.info(password[:11])
        await ctx.info(password[11:])
        url = f"https://me:{password}@host/?token={quote(password)}&otp={otp}"
        answer = await ctx.effect(ask_outside, url, {"x-api-key": password})
        try:
            await ctx.effect(reject, answer["access_token"])
        except ValueError as error:
            await ctx.info(str(error))
        encoded = b64encode(json.dumps(["picture", password, answer]).encode()).decode()
        return json.dumps({"said": password, "got": answer, "encoded": encoded, "n": otp}, indent=1)

    @server.tool
    async def fail(password: str) -> str:
        raise ToolError(f"wrong: {password}")

    return server


async def record_redaction_replay(to):
    async with client_session(vault_redaction_replay(), to) as client:
        arguments = {"user": "ann", "password": PASSWORD, "otp": PIN}
        await client.call_tool("login", arguments)
        with pytest.raises(ToolError, match=PASSWORD):
            await client.call_tool("fail", {"password": PASSWORD})


def secrets_found_in(path):
    text = b"".join(open_recording(path))
    secrets = [PASSWORD.encode(), GRANTED.encode(), HARD.encode(), str(PIN).encode()]
    in_base64 = [
        b64encode(bytes(offset) + secret)[4:-4] for secret in secrets[:3] for offset in range(3)
    ]
    return [secret for secret in (*secrets, *in_base64) if secret in text]


@pytest.fixture
def outside():
    OUTSIDE.clear()
    return OUTSIDE


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_no_secret_is_in_a_redacted_recording_and_it_replays(tmp_path, outside, suffix):
    path = tmp_path / f"trip.mcprec.jsonl{suffix}"
    trio.run(record_redaction_replay, RecordOptions(path, redaction=Redaction(secrets=[HARD])))
    assert secrets_found_in(path) == []
    assert PASSWORD in outside[0]
    report = replay(path, vault_redaction_replay())
    assert report.requests >= 2
    assert len(outside) == 1


@pytest.mark.usefixtures("outside")
def test_without_redaction_they_are(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    trio.run(record_redaction_replay, path)
    assert len(secrets_found_in(path)) > 4


@pytest.mark.usefixtures("outside")
def test_a_recording_that_is_redacted_afterwards_replays(tmp_path):
    path, clean = tmp_path / "trip.mcprec.jsonl", tmp_path / "clean.mcprec.jsonl"
    trio.run(record_redaction_replay, path)
    values = tmp_path / "values"
    values.write_text(HARD)
    arguments = ["redact", str(path), "-o", str(clean), "--values", str(values)]
    commands.main(arguments, standalone_mode=False)
    assert secrets_found_in(clean) == []
    replay(clean, vault_redaction_replay())


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("secret", ["own-secret-12345", "0042"])
def test_with_the_key_a_secret_of_the_servers_own_replays(tmp_path, secret):
    def mint():
        server = Server("mint")

        @server.tool
        async def coin() -> dict[str, str]:
            return {"token": secret, "again": f"say {secret}"}

        return server

    async def record():
        async with client_session(mint(), options) as client:
            await client.call_tool("coin", {})

    key = b"sixteen bytes or more"
    options = RecordOptions(tmp_path / "a.mcprec.jsonl", redaction=Redaction(key=key))
    trio.run(record)
    assert re.search(rf"\b{secret}\b", options.path.read_text()) is None
    assert replay(options.path, mint(), key=key).is_complete


# Tokens have the type and shape of the values that they replace.


SHAPES = {
    "bob@example.com": r"[a-z]{3}@[a-z]{7}\.[a-z]{3}",
    "Abc-123_xYZ": r"[A-Z][a-z]{2}-[0-9]{3}_[a-z][A-Z]{2}",
    "sk-proj-Abc123Xyz789Qrs456": r"sk-proj-([A-Z][a-z]{2}[0-9]{3}){3}",
    "sk-a1": r"[a-z]{2}-[a-z][0-9]",
    "Bearer abcdef12": r"Bearer [a-z]{6}[0-9]{2}",
    "https://me:pw9x@host.org/": r"https://[a-z]{2}:[a-z]{2}[0-9][a-z]@[a-z]{4}\.[a-z]{3}/",
    "550e8400-e29b-41d4-a716-446655440000": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "DEADBEEF99": r"[A-F]{8}[0-9]{2}",
    "1984-12-31": r"19[7-9][0-9]-0[1-9]-[01][1-9]",
    "2026-11-22T05:38:00.5Z": r"19[7-9][0-9]-0[1-9]-[01][1-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9]\.5Z",
    "----": r"[!#$&*+./:;=?@^_~-]{4}",
    "mötley €5 😀x": r"[a-z][à-ö][a-z]{4} [一-乿][0-9] [😀-😿][a-z]",
    " padded9 ": r" [a-z]{6}[0-9] ",
    '{"a": "secret1"}': r'\{"a": "[a-z]{6}[0-9]"\}',
}


@pytest.mark.parametrize(("value", "shape"), SHAPES.items())
def test_a_token_has_the_shape_of_its_value(value, shape):
    token = hidden(value)
    assert re.fullmatch(shape, token)
    assert token != value
    assert len(token) == len(value)
    assert len(token.encode()) == len(value.encode())


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_stays_a_number_of_its_type_that_reads_back(number):
    before = call(password=number)
    after = redactor().redact("in", before)
    token = arguments_of(after)["password"]
    assert type(token) is type(number)
    if "e" not in repr(number):
        assert call(password=token) == after


def test_fractions_of_many_digits_read_back():
    one = redactor()
    for number in range(1, 30):
        frame = one.redact("in", call(password=number / 7e3))
        assert call(password=arguments_of(frame)["password"]) == frame


def test_equal_stays_equal_and_different_different():
    one = redactor()
    tokens = [arguments_of(one.redact("in", call(password=n)))["password"] for n in range(1, 40)]
    assert len(set(tokens)) == len(tokens)
    texts = [
        arguments_of(one.redact("in", call(password=c)))["password"]
        for c in "abcdefghijklmnopqrstuvwxyz"
    ]
    assert len(set(texts)) == len(texts)


def test_the_key_makes_the_token():
    assert hidden(SECRET) == hidden(SECRET)
    assert hidden(SECRET, key=b"other") != hidden(SECRET)


# The parts of records that are redacted, and those that the protocol defines.


@pytest.mark.parametrize("kind", ["cmd", "res", "err", "val", "mark", "open"])
def test_values_that_are_known_to_be_secret_reach_no_body(kind):
    body = {"name": "what", "text": f"no {SECRET}", "value": [SECRET], "arguments": {"a": SECRET}}
    changed = redactor(secrets=[SECRET]).redact(kind, encoded(body))
    assert SECRET.encode() not in changed
    assert json.loads(changed).keys() == body.keys()


@pytest.mark.parametrize("kind", ["cmd", "val", "mark"])
def test_the_name_of_an_effect_or_mark_is_no_secret(kind):
    body = {"name": "what", "value": "what"}
    changed = json.loads(redactor(secrets=["what"]).redact(kind, encoded(body)))
    assert changed["name"] == "what" != changed["value"]


@pytest.mark.parametrize("name", ["ctx.now", "ctx.monotonic", "time.time"])
def test_a_clock_is_left_alone(name):
    body = encoded({"name": name, "value": "2026-01-01"})
    assert redactor(secrets=["2026-01-01"]).redact("val", body) == body


@pytest.mark.parametrize("kind", ["cxl", "shut", "end"])
def test_our_own_bodies_are_left_alone(kind):
    assert redactor(secrets=["closed"]).redact(kind, b'{"cause":"closed"}') == b'{"cause":"closed"}'


def test_the_lanes_and_times_of_steps_are_left_alone():
    """A replay could not find lanes and times that redaction has changed."""
    body = b'{"lanes":["r1234",4111111111111111,"r1234.0"]}'
    assert redactor(secrets=["r1234", "4111111111111111"]).redact("step", body) == body


def test_the_clock_of_a_recording_is_left_alone():
    body = b'{"clock":"virtual","clock_ns":4111111111111111}'
    assert redactor(secrets=["virtual", "4111111111111111"]).redact("open", body) == body


def test_every_method_of_the_protocol_has_its_zones():
    assert set(METHODS) == set(PARAMS)


def test_protocol_fields_are_never_touched():
    secrets = ["tools/call", "login", "token", "text", "user", "2024-11-05", "nobody", "cursor7"]
    one = redactor(secrets=secrets)
    frames = [
        call(),
        result(""),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": "nobody",
                "result": {
                    "tools": [{"name": "login", "inputSchema": {"token": "text"}}],
                    "nextCursor": "cursor7",
                },
            }
        ),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "initialize",
                "params": {"protocolVersion": "2024-11-05", "clientInfo": {"name": "login"}},
            }
        ),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "result": {
                    "role": "user",
                    "model": "login",
                    "content": {"type": "text", "text": ""},
                },
            }
        ),
        encoded(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "completion/complete",
                "params": {"ref": {"name": "login"}, "argument": {"name": "token", "value": ""}},
            }
        ),
    ]
    for frame in frames:
        assert one.redact("in", frame) == frame


def test_all_params_of_a_users_method_are_data():
    frame = encoded(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "own/thing",
            "params": {"name": SECRET, "token": "abcd1", "_meta": {"progressToken": "abcd1"}},
        }
    )
    changed = json.loads(redactor(secrets=[SECRET]).redact("in", frame))
    assert changed["params"]["name"] != SECRET
    assert changed["params"]["token"] != "abcd1"
    assert changed["params"]["_meta"] == {"progressToken": "abcd1"}


def test_messages_with_unusual_members_are_redacted():
    for frame in (
        {"method": 5, "params": {"password": SECRET}},
        {"params": [{"password": SECRET}]},
        [{"password": SECRET}],
    ):
        assert SECRET.encode() not in redactor().redact("in", encoded(frame))


# Known secrets are replaced in later messages, in every encoding.


ECHOES = {
    "as it is": lambda value: value,
    "in JSON": lambda value: json.dumps({"a": [value, "ä"]}, indent=2),
    "in JSON in JSON": lambda value: json.dumps(json.dumps({"a": value})),
    "in a sentence with JSON": lambda value: f"It is {json.dumps(value)}.",
    "in a query": lambda value: f"https://host/?a=1&b={quote(value, safe='')}&c",
    "in a query, small": lambda value: re.sub("%..", lambda m: m[0].lower(), quote(value, safe="")),
    "in base64": lambda value: b64encode(value.encode()).decode(),
    "in base64, second": lambda value: b64encode(b"1" + value.encode() + b"4").decode(),
    "in base64, third": lambda value: b64encode(b"12" + value.encode() + b"56").decode(),
    "in base64, unpadded": lambda value: b64encode(b"12" + value.encode()).decode().rstrip("="),
    "in base64 for URLs": lambda value: urlsafe_b64encode(b"\xff\xfe" + value.encode()).decode(),
}

SECRETS = [
    SECRET,
    'quo"te\\and ümlaut/+&= 9',
    "bob@example.com",
    "密码是秘密的东西啊啊",
    "hunter2hunter2",
]


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_followed_wherever_it_appears(secret, echo):
    one = redactor()
    token = arguments_of(one.redact("in", call(password=secret)))["password"]
    frame = result(echo(secret))
    changed = one.redact("out", frame)
    assert text_of(changed) == echo(token)
    assert len(json.loads(changed)) == len(json.loads(frame))
    assert one.redact("out", changed) == changed


@pytest.mark.parametrize("size", [8, 13, 17])
def test_a_secret_in_two_chunks_is_followed(size):
    one = redactor()
    token = hidden(SECRET)
    one.redact("in", call(password=SECRET))
    first, second = (
        one.redact("out", result("= " + SECRET[:size])),
        one.redact("out", result(SECRET[size:] + "!")),
    )
    assert (text_of(first), text_of(second)) == ("= " + token[:size], token[size:] + "!")


def test_a_secret_is_followed_into_names_of_members_and_numbers():
    one = redactor()
    one.redact("in", call(otp=915273, password=SECRET))
    changed = one.redact("out", result("code 915273", structuredContent={"by": {SECRET: 915273}}))
    assert b"915273" not in changed
    assert SECRET.encode() not in changed


def test_a_short_secret_is_masked_only_as_a_separate_word():
    one = redactor()
    one.redact("in", call(password="test"))
    assert text_of(one.redact("out", result("the latest"))) == "the latest"
    assert "test" not in text_of(one.redact("out", result("a test.")))


def test_a_scheme_is_no_secret():
    one = redactor()
    one.redact("in", call(password="https"))
    assert text_of(one.redact("out", result("https://host"))) == "https://host"


def test_short_values_are_replaced_only_where_they_are_named():
    one = redactor()
    assert b'"abc"' not in one.redact("in", call(password="abc"))
    assert text_of(one.redact("out", result("abc"))) == "abc"


@pytest.mark.parametrize("key", [b"a", b"b", b"c"])
def test_no_short_value_gets_itself_as_a_token(key):
    for value in [*map(str, range(1000)), "-1", "0.0", "-0.5", "a", "Z", "-", "é", "000"]:
        assert Tokens(key, limits=Limits()).of(value) != value


@pytest.mark.parametrize("value", [*range(12), 99, 100, 999, -1, 0.0, -0.5, "0", "42", "a", "-"])
def test_a_short_value_keeps_its_type(value):
    (changed,) = arguments_of(redactor().redact("in", call(otp=value))).values()
    assert type(changed) is type(value)
    assert changed != value


def remaining(kind, body, **members):
    one = redactor(paths={"res": ["$.pin"]})
    one.redact("in", call(otp=123, **members))
    return list(one.remaining(kind, one.redact(kind, encoded(body))))


@pytest.mark.parametrize(
    ("kind", "body", "paths"),
    [
        ("out", json.loads(result("it is 123.")), ["$.result.content[0].text"]),
        ("out", json.loads(result("123 and 123")), ["$.result.content[0].text"] * 2),
        ("cmd", {"name": "check", "arguments": {"code": "123"}}, ["$.arguments.code"]),
        ("res", [5, {"a b": 123}], ['$[1]["a b"]']),
        ("res", {"123": None}, ['$["123"]']),
        ("res", "123", ["$"]),
        ("in", [json.loads(call(code=123))], ["$.params.arguments.code"]),
    ],
)
def test_the_places_of_short_secrets_that_are_left_are_known(kind, body, paths):
    assert remaining(kind, body) == [(path, "123") for path in paths]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("out", {"jsonrpc": "2.0", "id": 123, "result": {"content": []}}),
        ("out", json.loads(result("it is 1234, a123 or 12"))),
        ("res", {"pin": 123, "otp": "123", "by": {"name": "otp", "value": 123}}),
        ("res", {"text": "otp=123"}),
        ("res", True),
        ("res", None),
        ("cxl", None),
    ],
)
def test_a_short_secret_that_is_named_or_part_of_a_word_is_not_left(kind, body):
    assert remaining(kind, body) == []


def test_a_longer_secret_is_never_left():
    one = redactor()
    one.redact("in", call(otp=4711))
    assert list(one.remaining("out", one.redact("out", result("it is 4711")))) == []


def test_a_malformed_body_has_no_secret_left():
    one = redactor()
    one.redact("in", call(otp=123))
    assert list(one.remaining("in", b'{"a": 123')) == []


NAMES = SecretNames(DEFAULT_SECRET_NAMES)

plain = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"), min_size=8, max_size=40
).filter(
    lambda text: (
        len(set(text)) > 5
        and text == text.strip()
        and text[0] not in "{["
        and not text.isspace()
        and not NAMES.is_listed(text)  # a member called so keeps its name, which is no secret
        and text not in json.dumps(json.loads(result("", structuredContent={})))  # `structure`
    )
)

places = st.lists(st.sampled_from([*ECHOES]), min_size=1, max_size=4)


@given(plain, places)
def test_no_planted_secret_is_in_any_byte(secret, echoes):
    one = redactor(secrets=[secret])
    body = result(
        " ".join(ECHOES[each](secret) for each in echoes), structuredContent={"a": {secret: secret}}
    )
    changed = one.redact("out", body)
    assert secret not in json.dumps(json.loads(changed), ensure_ascii=False)
    assert one.redact("out", changed) == changed
    for each in ECHOES.values():
        assert each(secret) not in changed.decode()


def test_a_secret_before_its_name_is_found_in_the_same_record():
    assert SECRET.encode() not in redactor().redact("in", call(note=SECRET, password=SECRET))


def test_base64_that_only_looks_alike_is_left_alone():
    one = redactor(secrets=["abcdefgh"])
    whole, shifted = (b64encode(each).decode() for each in (b"abcdefgh", b"\x001abcdefgh"))
    for each in (whole[:10], f"={whole[:10]}=", shifted[3:]):
        assert text_of(one.redact("out", result(each))) == each
    assert b64decode(text_of(one.redact("out", result(whole)))) != b"abcdefgh"


def test_a_part_of_base64_that_shows_too_little_is_left_alone():
    one = redactor(secrets=["abcdefg"])
    part = b64encode(b"abcdefg").decode()[:9]
    assert text_of(one.redact("out", result(part))) == part


def test_a_secret_that_occurs_twice_has_one_token():
    one = redactor(secrets=[SECRET, SECRET])
    arguments = arguments_of(one.redact("in", call(password=SECRET, note=SECRET)))
    assert arguments["password"] == arguments["note"] != SECRET
