"""Known secrets are replaced in later messages, in every encoding."""

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._journal.secret_detection import SecretNames
from mcp_trio.recording import DEFAULT_SECRET_NAMES
from tests.journal.conftest import SECRET, arguments_of, call, hidden, redactor, result, text_of

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


NAMES = SecretNames(DEFAULT_SECRET_NAMES)

plain = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"), min_size=8, max_size=40
).filter(
    lambda text: (
        len(set(text)) > 5
        and text == text.strip()
        and text[0] not in "{["
        and not text.isspace()
        and not NAMES.lists(text)  # a member called so keeps its name, which is no secret
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
    said = arguments_of(one.redact("in", call(password=SECRET, note=SECRET)))
    assert said["password"] == said["note"] != SECRET
