"""Secrets reach no byte of a recording; what stands for them has their shape, and stays in place."""

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._errors import RecordingError
from mcp_trio._journal.records import Record
from mcp_trio._journal.redaction import Redaction, Redactor, redactor_of
from mcp_trio._journal.redaction.zones import PARAMS
from mcp_trio._limits import Limits
from mcp_trio._protocol.methods import METHODS

KEY = b"a key of thirty-two bytes, about"
SECRET = "sk-proj-Abc123Xyz789Qrs456"


def redactor(*, key=KEY, schemas=None, limits=None, **rules):
    return Redactor(Redaction(**rules), key=key, schemas=schemas, limits=limits or Limits())


def encoded(value):
    return json.dumps(value).encode()


def call(**arguments):
    params = {"name": "login", "arguments": arguments, "_meta": {"progressToken": "token"}}
    return encoded({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def result(text, **more):
    content = [{"type": "text", "text": text}]
    return encoded({"jsonrpc": "2.0", "id": 1, "result": {"content": content, **more}})


def arguments_of(frame):
    return json.loads(frame)["params"]["arguments"]


def text_of(frame):
    return json.loads(frame)["result"]["content"][0]["text"]


def hidden(value, **rules):
    return arguments_of(redactor(**rules).redact("in", call(password=value)))["password"]


def test_a_frame_without_secrets_is_passed_on_as_it_is():
    frame = b'{ "jsonrpc":"2.0",  "id":1,"method":"tools/call","params":{"name":"a","n":1e2} }'
    assert redactor().redact("in", frame) is frame


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
    frame = call(**{name: "Abc123Xyz789Qrs456"})
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


@pytest.mark.parametrize("path", ["params.a", "$", "$[0]", "$.a..b", "$.params.name", "$.id"])
def test_a_path_that_is_none_or_the_protocols_is_refused(path):
    with pytest.raises(
        ValueError, match=re.escape("protocol") if "." in path[1:2] and path != "$.a..b" else "path"
    ):
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


@pytest.mark.parametrize("size", [8, 13, 18])
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


def test_a_short_word_is_followed_only_where_it_stands_alone():
    one = redactor()
    one.redact("in", call(password="test"))
    assert text_of(one.redact("out", result("the latest"))) == "the latest"
    assert "test" not in text_of(one.redact("out", result("a test.")))


def test_a_scheme_is_no_secret():
    one = redactor()
    one.redact("in", call(password="https"))
    assert text_of(one.redact("out", result("https://host"))) == "https://host"


def test_shorter_values_are_replaced_and_not_followed():
    one = redactor()
    assert b'"abc"' not in one.redact("in", call(password="abc"))
    assert text_of(one.redact("out", result("abc"))) == "abc"


@pytest.mark.parametrize("value", ["", "  ", "null", "True", "none"])
def test_a_secret_that_is_none_is_left_alone(value):
    assert hidden(value) == value


TEXTS = {
    "https://host/a?x=1&access_token={}&y": "https://host/a?x=1&access_token={}&y",
    "API_KEY={} HOME=/root": None,
    "client_secret={}": None,
    "Authorization: Bearer {}": None,
    "postgres://me:{}@host/db": None,
    'Got {{"password": "{}"}} back': None,
    "Got {{'password': '{}'}} back": None,
    'nested \\"token\\": \\"{}\\" here': None,
}


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


@pytest.mark.parametrize("kind", ["cmd", "res", "err", "val", "mark", "open"])
def test_values_that_are_known_to_be_secret_reach_no_body(kind):
    body = {"name": "what", "text": f"no {SECRET}", "value": [SECRET], "arguments": {"a": SECRET}}
    changed = redactor(secrets=[SECRET]).redact(kind, encoded(body))
    assert SECRET.encode() not in changed
    assert json.loads(changed)["name"] == (
        "what" if kind != "open" else json.loads(changed)["name"]
    )


@pytest.mark.parametrize("name", ["ctx.now", "ctx.monotonic", "ctx.timeout"])
def test_a_clock_is_left_alone(name):
    body = encoded({"name": name, "value": "2026-01-01"})
    assert redactor(secrets=["2026-01-01"]).redact("val", body) == body


@pytest.mark.parametrize("kind", ["cxl", "shut", "end"])
def test_our_own_bodies_are_left_alone(kind):
    assert redactor(secrets=["closed"]).redact(kind, b'{"cause":"closed"}') == b'{"cause":"closed"}'


def test_secrets_may_be_asked_for():
    known = []
    one = redactor(secrets=lambda: known)
    assert text_of(one.redact("out", result("Elm Row 5"))) == "Elm Row 5"
    known.append("Elm Row 5")
    assert text_of(one.redact("out", result("Elm Row 5"))) != "Elm Row 5"


def test_a_secret_that_is_everywhere_is_refused():
    with pytest.raises(ValueError, match="follow_chars_min"):
        redactor(secrets=["abc"])


def test_an_empty_key_is_refused():
    with pytest.raises(ValueError, match="empty"):
        redactor(key=b"")


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


def test_a_method_of_people_has_data_only():
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


def test_frames_with_odd_members_are_gone_through_as_well():
    for frame in (
        {"method": 5, "params": {"password": SECRET}},
        {"params": [{"password": SECRET}]},
        [{"password": SECRET}],
    ):
        assert SECRET.encode() not in redactor().redact("in", encoded(frame))


def test_texts_in_texts_are_gone_into():
    one, text = redactor(), json.dumps({"password": "abcdefg1"})
    for _ in range(5):
        text = json.dumps([text])
    assert b"abcdefg1" not in one.redact("out", result(text))


@pytest.mark.parametrize("limits", [Limits(redaction_values_max=1), Limits(redaction_chars_max=10)])
def test_a_secret_too_many_to_follow_is_refused_and_the_others_go_on(limits):
    one = redactor(limits=limits)
    first = one.redact("in", call(password="first111"))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"redaction_(values|chars)_max"):
            one.redact("in", call(password="second222", note="second222"))
    assert one.redact("in", call(password="first111")) == first


def test_one_text_is_no_collection_of_them():
    for rules in ({"keys": "password"}, {"secrets": SECRET}, {"secrets": lambda: SECRET}):
        with pytest.raises(TypeError, match="not one text"):
            redactor(**rules)


def test_a_name_without_letters_is_refused():
    with pytest.raises(ValueError, match="no letter"):
        redactor(keys=["42"])


SHAPES = {
    "bob@example.com": r"[a-z]{3}@[a-z]{7}\.[a-z]{3}",
    "Abc-123_xYZ": r"[A-Z][a-z]{2}-[0-9]{3}_[a-z][A-Z]{2}",
    SECRET: r"sk-proj-[A-Z][a-z]{2}[0-9]{3}[A-Z][a-z]{2}[0-9]{3}[A-Z][a-z]{2}[0-9]{3}",
    "sk-a1": r"[a-z]{2}-[a-z][0-9]",
    "Bearer abcdef12": r"Bearer [a-z]{6}[0-9]{2}",
    "https://me:pw9x@host.org/": r"https://[a-z]{2}:[a-z]{2}[0-9][a-z]@[a-z]{4}\.[a-z]{3}/",
    "550e8400-e29b-41d4-a716-446655440000": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "DEADBEEF99": r"[A-F]{8}[0-9]{2}",
    "1984-12-31": r"19[7-9][0-9]-0[1-9]-[01][1-9]",
    "2026-11-22T05:38:00.5Z": r"19[7-9][0-9]-0[1-9]-[01][1-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9]\.5Z",
    "----": r"[^-A-Za-z0-9].{3}|-.{3}",
    "mötley €5 😀x": r"[a-z][à-ö][a-z]{4} [一-丿乀-乿] ?[0-9] [😀-🙏][a-z]|.*",
    " padded9 ": r" [a-z]{6}[0-9] ",
    '{"a": "secret1"}': r'\{"a": "[a-z]{6}[0-9]"\}',
}


@pytest.mark.parametrize(("value", "shape"), SHAPES.items())
def test_a_token_has_the_shape_of_what_it_stands_for(value, shape):
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


plain = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"), min_size=8, max_size=40
).filter(
    lambda text: (
        len(set(text)) > 5 and text == text.strip() and text[0] not in "{[" and not text.isspace()
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
        if len(each(secret)) > 8 and each is not ECHOES["in base64"]:
            assert each(secret) not in changed.decode()


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


@given(values)
def test_a_redacted_body_has_its_structure_and_redacts_to_itself(value):
    one = redactor()
    changed = one.redact("in", call(x=value))
    assert shape(json.loads(changed)) == shape(json.loads(call(x=value)))
    again = redactor_of(one.manifest(), [record("in", changed)], KEY)
    assert again.redact("in", changed) == changed


def test_a_secret_that_stands_in_front_of_its_name_is_found_in_the_same_record():
    assert SECRET.encode() not in redactor().redact("in", call(note=SECRET, password=SECRET))


def record(kind, body, number=0):
    import msgspec

    return Record(number=number, kind=kind, time_ns=0, frame=msgspec.Raw(body))


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
        again = redactor_of(one.manifest(), records, key)
        for kind, body in redacted:
            assert again.redact(kind, body) == body
        assert again.knows(f"it is {hidden(SECRET)}")
        assert not again.knows("it is not")


def test_with_the_key_a_replay_redacts_what_the_recording_redacted():
    again = redactor_of(redactor().manifest(), [], KEY)
    assert again.redact("in", call(password=SECRET)) == redactor().redact(
        "in", call(password=SECRET)
    )


def test_another_key_or_a_damaged_manifest_is_refused():
    with pytest.raises(RecordingError, match="not the key"):
        redactor_of(redactor().manifest(), [], b"another")
    with pytest.raises(RecordingError, match="cannot be read"):
        redactor_of({"names": 3}, [])


def test_the_manifest_tells_no_secret():
    one = redactor(secrets=[SECRET])
    one.redact("in", call(password="hunter2hunter2"))
    said = json.dumps(one.manifest())
    assert SECRET not in said
    assert "hunter2hunter2" not in said
    assert KEY.decode() not in said


def test_base64_that_only_looks_alike_is_left_alone():
    one = redactor(secrets=["abcdefgh"])
    text = "xx" + b64encode(b"\x001abcdefgh").decode()[2:]
    own = b64encode(b"abcdefgh").decode()[:10]
    for each in (own, f"={own}=", text[3:]):
        one.redact("out", result(each))
    assert (
        b64decode(text_of(one.redact("out", result(b64encode(b"abcdefgh").decode()))))
        != b"abcdefgh"
    )


def test_a_part_of_base64_that_shows_too_little_is_left_alone():
    one = redactor(secrets=["abcdefg"])
    own = b64encode(b"abcdefg").decode()[:9]
    assert text_of(one.redact("out", result(own))) == own


def test_a_body_that_cannot_be_read_whole_is_gone_through():
    deep = b'{"password":"' + SECRET.encode() + b'","a":' + b"[" * 3000 + b"]" * 3000 + b"}"
    assert SECRET.encode() not in redactor().redact("res", deep)


def test_clean_names_are_not_kept_without_end():
    one = redactor()
    for begin in range(0, 8000, 2000):
        frame = call(**{f"n{number}": 1 for number in range(begin, begin + 2000)})
        assert one.redact("in", frame) == frame


def test_a_name_is_not_that_long():
    frame = call(**{"x_" * 70 + "token": "abc"})
    assert redactor().redact("in", frame) == frame


def test_a_value_is_followed_once():
    one = redactor(secrets=[SECRET, SECRET])
    assert one.redact("in", call(password=SECRET, token=SECRET)).count(SECRET.encode()) == 0
