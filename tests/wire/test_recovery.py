"""What broken text still tells."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._jsonrpc.messages import is_deeper_than, recover

TEXTS = [
    # text, id, has_id, has_method, has_outcome
    ("", None, False, False, False),
    ("null", None, False, False, False),
    ('[{"id":1}]', None, False, False, False),
    ('{"id":1', None, True, False, False),
    ('{"id":1 ', None, True, False, False),
    ('{"id":1,', 1, True, False, False),
    ('{"id":-12}', -12, True, False, False),
    ('{"id":"a"', "a", True, False, False),
    ('{"id":"a', None, True, False, False),
    ('{"id', None, False, False, False),
    ('{"id":"\\u0041\\n"}', "A\n", True, False, False),
    ('{"id":"\\ud83d"}', None, True, False, False),
    ('{"id":01}', None, True, False, False),
    ('{"id":1.0}', None, True, False, False),
    ('{"id":true}', None, True, False, False),
    ('{"id":null}', None, True, False, False),
    ('{"id":{"id":1}}', None, True, False, False),
    ('{"id":1,"id":"b"}', "b", True, False, False),
    ('{"params":{"id":1},"method":"m"}', None, False, True, False),
    ('{"params":["}","{"],"id":3}', 3, True, False, False),
    ('{"params":{"a":"x\\"},\\"id\\":1,', None, False, False, False),
    ('{"id":3,"params":{"a":"never ends, "id":4', 3, True, False, False),
    ('{"id":3,"params":{"a":},"method":"m"}', 3, True, True, False),
    ('{"id":3,"result":{"content":[', 3, True, False, True),
    ('{"error":{"code":1},"id":3}', 3, True, False, True),
    ('{"id":3}{"id":4}', 3, True, False, False),
    ('{"id" 3, "method":"m"}', None, False, True, False),
    ('{"id":3 4}', None, False, False, False),
]


@pytest.mark.parametrize(("text", "id_", "has_id", "has_method", "has_outcome"), TEXTS)
def test_what_is_certain_is_recovered(text, id_, has_id, has_method, has_outcome):
    seen = recover(text.encode())
    assert (seen.id, seen.has_id, seen.has_method, seen.has_outcome) == (
        id_,
        has_id,
        has_method,
        has_outcome,
    )


@pytest.mark.parametrize(
    ("text", "is_request"),
    [("{", True), ('{"method":"m"', True), ('{"result":', False), ('{"error":{},', False)],
)
def test_an_answer_may_be_due_unless_it_is_an_answer_itself(text, is_request):
    assert recover(text.encode()).is_request is is_request


@given(st.binary(max_size=40))
def test_recovery_never_raises(text):
    recover(b'{"id":' + text)


def test_recovery_gives_up_on_endless_tokens_in_good_time():
    begin = time.process_time()
    seen = recover(b'{"params":' + b"[]," * 2_000_000 + b'"id":1}')
    assert seen.id is None
    assert time.process_time() - begin < 5


values = st.recursive(
    st.none() | st.text('\\"[]{}a'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('"{]\\'), inner, max_size=3)
    ),
    max_leaves=12,
)


def depth_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(values, st.integers(0, 6))
def test_depth_is_counted_exactly(value, depth_max):
    text = json.dumps(value).encode()
    assert is_deeper_than(depth_max, text) is (depth_of(value) > depth_max)


@given(values, st.integers(0, 40), st.binary(max_size=3))
def test_no_tail_hides_depth_before_it(value, cut, tail):
    """Only what precedes the first error counts: a parser gets no further."""
    text = json.dumps([[[[value]]]]).encode()
    assert is_deeper_than(3, text[: max(cut, 4)] + tail)
