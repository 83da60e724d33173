"""A redactor takes what is secret out of each body, and knows what it took out before."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._journal.redaction import redactor_for_replay
from mcp_trio.errors import RecordingError
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import Record
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


def test_a_message_without_secrets_is_unchanged():
    frame = b'{ "jsonrpc":"2.0",  "id":1,"method":"tools/call","params":{"name":"a","n":1e2} }'
    assert redactor().redact("in", frame) is frame


def test_a_body_that_cannot_be_read_whole_is_gone_through():
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


def test_one_text_is_no_collection_of_them():
    for rules in ({"keys": "password"}, {"secrets": SECRET}, {"secrets": lambda: SECRET}):
        with pytest.raises(TypeError, match="not one text"):
            redactor(**rules)


def test_a_name_without_letters_is_rejected():
    with pytest.raises(ValueError, match="needs a letter"):
        redactor(keys=["42"])


@pytest.mark.parametrize("value", ["", "  ", "null", "True", "none"])
def test_a_secret_that_is_none_is_left_alone(value):
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


def test_a_token_too_short_to_be_told_from_anything_is_known_by_itself_alone():
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


def test_the_manifest_tells_no_secret():
    one = redactor(secrets=[SECRET])
    one.redact("in", call(password="hunter2hunter2"))
    said = json.dumps(one.manifest())
    assert SECRET not in said
    assert "hunter2hunter2" not in said
    assert KEY.decode() not in said
