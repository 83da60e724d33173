"""JSON-RPC messages: decoding, encoding, malformed messages and batches."""

import json
import math
import time
import tracemalloc
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcp_trio import ConnectionLost
from mcp_trio._jsonrpc.channel_messages import AuthInfo, DecodedMessage
from mcp_trio._jsonrpc.lines import join_lines
from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    ErrorObject,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    has_more_long_exponents,
    is_deeper_than,
    recover,
    with_id_replaced,
)
from mcp_trio.errors import INVALID_REQUEST, PARSE_ERROR, Unencodable
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import Lost, RelatedMessage

# Decoding and encoding.

decode = Decoder(MessageLimits(json_depth_max=512)).decode

text = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(text, values, max_size=3)
ids = st.integers() | text


def rest(raw):
    return msgspec.json.decode(raw)


@pytest.mark.requirement("BASE-01", "BASE-02", "BASE-06", "META-01")
@given(ids, text, objects)
def test_an_encoded_request_decodes_to_the_same_request(id_, method, params):
    encoded = encode_request(id_, method, params)
    assert json.loads(encoded) == {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
    message = decode(encoded)
    assert isinstance(message, Request)
    assert (message.id, type(message.id), message.method) == (id_, type(id_), method)
    assert rest(message.params) == params


@pytest.mark.requirement("BASE-13")
@given(text, objects)
def test_a_notification_has_no_id(method, params):
    encoded = encode_notification(method, params)
    assert json.loads(encoded) == {"jsonrpc": "2.0", "method": method, "params": params}
    message = decode(encoded)
    assert isinstance(message, Notification)
    assert rest(message.params) == params


@pytest.mark.requirement("BASE-06", "BASE-09")
@given(ids, objects)
def test_a_response_repeats_the_id_with_its_type(id_, result):
    encoded = encode_response(id_, result)
    assert json.loads(encoded) == {"jsonrpc": "2.0", "id": id_, "result": result}
    message = decode(encoded)
    assert isinstance(message, Response)
    assert (message.id, type(message.id)) == (id_, type(id_))
    assert rest(message.result) == result


@pytest.mark.requirement("BASE-09", "BASE-11", "BASE-12", "ERR-01")
@given(ids, st.integers(-(2**53), 2**53), text, values)
def test_an_encoded_error_decodes_to_the_same_error(id_, code, message, data):
    encoded = encode_error(id_, code, message, data)
    error = {"code": code, "message": message, "data": data}
    assert json.loads(encoded) == {"jsonrpc": "2.0", "id": id_, "error": error}
    received = decode(encoded)
    assert isinstance(received, ErrorResponse)
    assert (received.id, received.error.code, received.error.message) == (id_, code, message)
    assert rest(received.error.data) == data


def test_absent_differs_from_null_in_error_data():
    assert encode_error(1, -1, "no") == (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}'
    )
    assert decode(encode_error(1, -1, "no")) == ErrorResponse(1, ErrorObject(-1, "no"))
    assert bytes(decode(encode_error(1, -1, "no", None)).error.data) == b"null"


def test_absent_params_stay_absent():
    assert encode_request(1, "ping") == b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    assert decode(encode_request(1, "ping")) == Request(1, "ping", None)
    assert encode_notification("n") == b'{"jsonrpc":"2.0","method":"n"}'
    assert decode(encode_notification("n")) == Notification("n", None)


@pytest.mark.requirement("BASE-02", "BASE-06")
def test_ids_that_python_thinks_equal_stay_distinct():
    one = decode(b'{"jsonrpc":"2.0","id":1,"method":"m"}')
    word = decode(b'{"jsonrpc":"2.0","id":"1","method":"m"}')
    assert (one.id, word.id) == (1, "1")
    huge = 2**70
    assert decode(encode_request(huge, "m")).id == huge


@pytest.mark.requirement("BASE-08")
@pytest.mark.parametrize("id_", ['"id":null,', ""])
def test_an_error_response_without_an_id_is_accepted_from_a_peer(id_):
    encoded = f'{{"jsonrpc":"2.0",{id_}"error":{{"code":-32700,"message":"m"}}}}'
    assert decode(encoded.encode()) == ErrorResponse(None, ErrorObject(-32700, "m"))


@pytest.mark.requirement("BASE-08", "TRAP-03")
def test_an_error_without_a_known_request_has_no_id_member():
    encoded = encode_error(None, -32700, "Parse error")
    assert encoded == b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}'
    assert decode(encoded) == ErrorResponse(None, ErrorObject(-32700, "Parse error"))


@pytest.mark.requirement("BASE-17")
def test_unknown_members_are_ignored():
    encoded = b'{"jsonrpc":"2.0","later":[1,{"a":null}],"id":1,"method":"m","params":{},"more":0}'
    message = decode(encoded)
    assert (message.id, message.method, bytes(message.params)) == (1, "m", b"{}")


def test_the_last_of_equal_members_counts():
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"a","id":2,"method":"b"}') == Request(
        2, "b", None
    )


def test_params_and_result_stay_as_they_stood_on_the_wire():
    params = b'{ "a" : [1.50,  "\\u00e9"] }'
    message = decode(b'{"jsonrpc":"2.0", "id":1 ,"method":"m","params": ' + params + b" }")
    assert bytes(message.params) == params


ENVELOPE = '"jsonrpc":"2.0",'
MALFORMED = [
    # message, code, part of the text, id, is_request
    ("{", -32700, "incomplete text", None, True),
    ("", -32700, "incomplete text", None, True),
    ("hello", -32700, "not JSON", None, True),
    ("\ufeff{}", -32700, "not JSON", None, True),
    (f'{{{ENVELOPE}"id":1,"method":"m","params":{{"a":NaN}}}}', -32700, "not JSON", 1, True),
    (f'{{{ENVELOPE}"id":1,"method":"m","params":{{"a":Infinity}}}}', -32700, "not JSON", 1, True),
    (f'{{{ENVELOPE}"id":1,"method":"m","params":{{"a":-Infinity}}}}', -32700, "not JSON", 1, True),
    (f'{{{ENVELOPE}"id":1,"method":"m"}} x', -32700, "trailing", 1, True),
    (f'{{{ENVELOPE}"id":1,"method":"m",}}', -32700, "not JSON", 1, True),
    (
        f'{{{ENVELOPE}"id":1,"method":"m","params":{{"a":"\\ud83d"}}}}',
        -32700,
        "incomplete surrogate pair",
        1,
        True,
    ),
    (f'{{{ENVELOPE}"id":1,"method":"m","params":{{"a":"\\ude00"}}}}', -32700, "surrogate", 1, True),
    (f'{{{ENVELOPE}"id":1,"method":"m","params":{{"a":"b\nc"}}}}', -32700, "not JSON", 1, True),
    (
        f'{{{ENVELOPE}"id":1,"result":{{"a":"\\ud83d"}}}}',
        -32700,
        "incomplete surrogate pair",
        1,
        False,
    ),
    ("1", -32600, "Expected `object`", None, True),
    ("null", -32600, "Expected `object`", None, True),
    ("{}", -32600, "jsonrpc", None, True),
    ('{"id":1,"method":"m"}', -32600, "jsonrpc", 1, True),
    ('{"jsonrpc":"1.0","id":1,"method":"m"}', -32600, "jsonrpc", 1, True),
    ('{"jsonrpc":2.0,"id":1,"method":"m"}', -32600, "jsonrpc", 1, True),
    ('{"jsonrpc":null,"id":1,"method":"m"}', -32600, "jsonrpc", 1, True),
    (f'{{{ENVELOPE}"id":null,"method":"m"}}', -32600, "id is null", None, True),
    (f'{{{ENVELOPE}"id":1.0,"method":"m"}}', -32600, "id", None, True),
    (f'{{{ENVELOPE}"id":1.5,"method":"m"}}', -32600, "id", None, True),
    (f'{{{ENVELOPE}"id":1e3,"method":"m"}}', -32600, "id", None, True),
    (f'{{{ENVELOPE}"id":true,"method":"m"}}', -32600, "id", None, True),
    (f'{{{ENVELOPE}"id":[1],"method":"m"}}', -32600, "id", None, True),
    (f'{{{ENVELOPE}"id":{{}},"method":"m"}}', -32600, "id", None, True),
    (f'{{{ENVELOPE}"id":{"9" * 5000},"method":"m"}}', -32600, "id", None, True),
    (f'{{{ENVELOPE}"id":1,"method":null}}', -32600, "method", 1, True),
    (f'{{{ENVELOPE}"id":1,"method":7}}', -32600, "method", 1, True),
    (f'{{{ENVELOPE}"id":1}}', -32600, "neither", 1, True),
    (f'{{{ENVELOPE}"params":{{}}}}', -32600, "neither", None, True),
    (f'{{{ENVELOPE}"id":1,"method":"m","params":null}}', -32600, "params", 1, True),
    (f'{{{ENVELOPE}"id":1,"method":"m","params":[1]}}', -32600, "params", 1, True),
    (f'{{{ENVELOPE}"id":"a","method":"m","params":"x"}}', -32600, "params", "a", True),
    (f'{{{ENVELOPE}"method":"m","params":[]}}', -32600, "params", None, False),
    (f'{{{ENVELOPE}"id":1,"result":null}}', -32600, "result", 1, False),
    (f'{{{ENVELOPE}"id":1,"result":[]}}', -32600, "result", 1, False),
    (f'{{{ENVELOPE}"id":1,"result":"x"}}', -32600, "result", 1, False),
    (f'{{{ENVELOPE}"id":null,"result":{{}}}}', -32600, "id is null", None, False),
    (f'{{{ENVELOPE}"result":{{}}}}', -32600, "neither", None, False),
    (f'{{{ENVELOPE}"id":1,"result":{{}},"error":null}}', -32600, "error", 1, False),
    (
        f'{{{ENVELOPE}"id":1,"result":{{}},"error":{{"code":1,"message":"m"}}}}',
        -32600,
        "neither",
        1,
        False,
    ),
    (f'{{{ENVELOPE}"id":1,"method":"m","result":{{}}}}', -32600, "neither", 1, True),
    (f'{{{ENVELOPE}"id":1,"error":"no"}}', -32600, "error", 1, False),
    (f'{{{ENVELOPE}"id":1,"error":{{"code":1}}}}', -32600, "message", 1, False),
    (f'{{{ENVELOPE}"id":1,"error":{{"message":"m"}}}}', -32600, "code", 1, False),
    (f'{{{ENVELOPE}"id":1,"error":{{"code":"1","message":"m"}}}}', -32600, "code", 1, False),
    (f'{{{ENVELOPE}"id":1,"error":{{"code":1.5,"message":"m"}}}}', -32600, "code", 1, False),
    (f'{{{ENVELOPE}"id":1,"error":{{"code":true,"message":"m"}}}}', -32600, "code", 1, False),
    (f'{{{ENVELOPE}"id":1,"error":{{"code":1,"message":null}}}}', -32600, "message", 1, False),
]


@pytest.mark.requirement(
    "BASE-01", "BASE-02", "BASE-03", "BASE-09", "BASE-10", "BASE-11", "BASE-15"
)
@pytest.mark.requirement("BASE-30", "BASE-31", "ERR-01", "STDIO-04")
@pytest.mark.parametrize(("encoded", "code", "text", "id_", "is_request"), MALFORMED)
def test_every_malformed_message_has_a_defined_error(encoded, code, text, id_, is_request):
    message = decode(encoded.encode())
    assert isinstance(message, Malformed)
    assert (message.code, message.id, message.is_request) == (code, id_, is_request)
    assert text in message.message


@pytest.mark.requirement("BASE-30", "TRAP-131", "BASE-18")
@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\xbd", b"\xc3"])
def test_text_that_is_not_utf_8_is_malformed_at_every_position(bad):
    encoded = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"' + bad + b'"}}'
    message = decode(encoded)
    assert (message.code, message.id, message.is_request) == (-32700, 7, True)
    assert "UTF-8" in message.message


def test_text_beyond_ascii_is_welcome():
    encoded = '{"jsonrpc":"2.0","id":"é😀","method":"m","params":{"a":"\u2028"}}'.encode()
    assert decode(encoded).id == "é😀"


def nested(depth, opening="[", closing="]"):
    inner = opening * (depth - 2) + closing * (depth - 2)
    return f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{inner}}}}}'.encode()


@pytest.mark.parametrize(("depth", "is_fine"), [(5, True), (6, False)])
def test_the_nesting_limit_is_exact(depth, is_fine):
    message = Decoder(MessageLimits(json_depth_max=5)).decode(nested(depth))
    assert isinstance(message, Request) is is_fine
    assert is_fine or message == Malformed(
        -32600, "nested deeper than limits.messages.json_depth_max (5)", 1, is_request=True
    )


def numbers(count, number="1e300"):
    return b'{"jsonrpc":"2.0","id":7,"method":"a","params":{"a":[%b]}}' % (
        ",".join([number] * count).encode()
    )


@pytest.mark.parametrize("number", ["1e300", "1E+300", "-1.5e-0308", "2e0000000"])
def test_a_message_with_too_many_numbers_that_take_long_to_read_is_malformed(number):
    decode = Decoder(MessageLimits(json_depth_max=5, long_exponents_max=10)).decode
    assert isinstance(decode(numbers(10, number)), Request)
    message = decode(numbers(11, number))
    assert message == Malformed(
        -32600,
        "more long exponents than limits.messages.long_exponents_max (10)",
        7,
        is_request=True,
    )


def test_a_batch_counts_the_numbers_of_all_its_messages():
    decode = Decoder(MessageLimits(json_depth_max=5, long_exponents_max=10)).decode
    assert isinstance(decode(b"[%b,%b]" % (numbers(5), numbers(5))), Batch)
    assert isinstance(decode(b"[%b,%b]" % (numbers(5), numbers(6))), Malformed)


def test_a_response_with_too_many_long_numbers_is_not_answered():
    data = numbers(11).replace(b'"method":"a","params"', b'"result"')
    message = Decoder(MessageLimits(json_depth_max=5, long_exponents_max=10)).decode(data)
    assert (message.id, message.is_request) == (7, False)


@pytest.mark.parametrize("number", ["1e99", "1.25e-05", "12345678901234567890", '"1e300\\"1e300"'])
def test_other_numbers_and_texts_are_not_counted(number):
    decode = Decoder(MessageLimits(json_depth_max=5, long_exponents_max=10)).decode
    assert isinstance(decode(numbers(500, number)), Request)


@pytest.mark.parametrize("number", ["1e300", '1e300,"e300"', '"1e300"', '"1e300\\""'])
@pytest.mark.parametrize("offset", range(12))
def test_long_exponents_are_counted_wherever_a_large_message_has_them(number, offset):
    data = numbers(30_000, number).replace(b'"a"', b'"%b"' % (b"a" * (offset + 1)), 1)
    most = 30_000 if number[0] != '"' else 0
    assert isinstance(
        Decoder(MessageLimits(json_depth_max=5, long_exponents_max=most)).decode(data), Request
    )
    if most:
        decode = Decoder(MessageLimits(json_depth_max=5, long_exponents_max=most - 1)).decode
        assert isinstance(decode(data), Malformed)


def test_counting_long_exponents_takes_little_memory():
    text = b'["%b"%b]' % (b"e300" * 1001, b',""' * 300_000)
    tracemalloc.start()
    try:
        assert not has_more_long_exponents(1000, text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5 * len(text)


def test_brackets_in_strings_and_side_by_side_are_no_nesting():
    tricky = r'{"a":"[[[[[[\"[[[[","b\\":[],"c":[{},{},{}],"d\"{":"{\\\\","e":[[]]}'
    encoded = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{tricky}}}'.encode()
    assert isinstance(Decoder(MessageLimits(json_depth_max=4)).decode(encoded), Request)
    assert isinstance(Decoder(MessageLimits(json_depth_max=3)).decode(encoded), Malformed)


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_hostile_nesting_is_rejected_and_the_id_still_found(depth):
    for encoded in (nested(depth), nested(depth)[: depth // 2]):
        message = decode(encoded)
        assert (message.code, message.id, message.is_request) == (-32600, 1, True)


def test_a_nesting_limit_beyond_the_stack_still_raises_nothing():
    message = Decoder(MessageLimits(json_depth_max=10_000_000)).decode(nested(2_000_000))
    assert (message.code, message.id) == (-32600, 1)


@given(st.binary(max_size=60))
def test_the_decoder_never_raises(encoded):
    assert isinstance(decode(encoded), get_args(Message))


@given(st.data())
def test_a_damaged_message_never_yields_another_id(data):
    whole = b'{"jsonrpc":"2.0","method":"m","params":{"id":5,"a":"\\"id\\":6"},"id":"seven"}'
    cut = data.draw(st.integers(0, len(whole) - 1))
    message = decode(whole[:cut])
    assert message.id == ("seven" if cut >= len(whole) - 1 else None)


def cyclic():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("\ud83d", id="half emoji"),
        pytest.param({"\ud83d": 1}, id="half emoji as key"),
        pytest.param(object(), id="object"),
        pytest.param({(1, 2): 3}, id="tuple key"),
        pytest.param(cyclic(), id="cycle"),
        pytest.param(10**5000, id="endless number"),
        pytest.param(msgspec.Raw(b'{\n"a": }'), id="invalid raw JSON of several lines"),
    ],
)
def test_a_value_that_json_cannot_express_is_unencodable(value):
    with pytest.raises(Unencodable, match="cannot be sent as JSON: "):
        encode_response(1, {"a": value})
    with pytest.raises(Unencodable):
        encode_request(1, "m", {"a": value})
    with pytest.raises(Unencodable):
        encode_notification("m", {"a": value})
    with pytest.raises(Unencodable):
        encode_error(1, -1, "m", value)


def test_a_value_nested_too_deeply_is_unencodable():
    value = []
    for _ in range(600):
        value = [value]
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max \(512\)"):
        encode_response(1, {"a": value})
    assert encode_response(1, {"a": value}, json_depth_max=603)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_encoded_as_null(number):
    assert encode_response(1, {"a": number}) == b'{"jsonrpc":"2.0","id":1,"result":{"a":null}}'


@pytest.mark.requirement("STDIO-03")
@pytest.mark.parametrize("space", [b"\n", b"\r\n", b"\r"])
def test_an_encoded_message_never_contains_a_line_end(space):
    raw = Raw(b'{"a":' + space + b' "x\\ny" , "b" : 1.50}')
    encoded = encode_response(1, raw)
    assert encoded == b'{"jsonrpc":"2.0","id":1,"result":{"a":"x\\ny","b":1.50}}'
    assert encode_response(1, {"a": "x\r\ny"}).endswith(rb'"x\r\ny"}}')


# Batches.

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
NOTE = b'{"jsonrpc":"2.0","method":"note"}'
ANSWER = b'{"jsonrpc":"2.0","id":2,"result":{}}'
BAD = b'{"jsonrpc":"2.0","id":7,"method":9}'


@pytest.mark.requirement("BASE-24")
@pytest.mark.parametrize("around", [(b"[", b"]"), (b" \t[ ", b" ] "), (b"\n[\n", b"\n]\n")])
def test_a_batch_is_its_messages_in_order(around):
    batch = decode(around[0] + b" , ".join([PING, NOTE, ANSWER, BAD]) + around[1])
    assert isinstance(batch, Batch)
    ping, note, answer, bad = batch.messages
    assert (ping, note) == (Request(1, "ping", None), Notification("note", None))
    assert (answer.id, bytes(answer.result)) == (2, b"{}")
    assert (bad.code, bad.id, bad.is_request) == (INVALID_REQUEST, 7, True)


@pytest.mark.parametrize(
    ("encoded", "code", "text"),
    [
        (b"[]", INVALID_REQUEST, "an empty batch"),
        (b" [ ] ", INVALID_REQUEST, "an empty batch"),
        (b"[" + PING, PARSE_ERROR, "incomplete text"),
        (b"[" + PING + b"]]", PARSE_ERROR, "trailing"),
        (b"[" + PING + b",]", PARSE_ERROR, "JSON"),
        (b"[NaN]", PARSE_ERROR, "JSON"),
        (b'["\xff"]', PARSE_ERROR, "UTF-8"),
        (b"[" * 600 + b"]" * 600, INVALID_REQUEST, "limits.messages.json_depth_max"),
        (
            b"[" + b",".join([NOTE] * 4) + b"]",
            INVALID_REQUEST,
            "limits.messages.batch_size_max (3)",
        ),
    ],
)
def test_an_invalid_array_is_malformed(encoded, code, text):
    rejected = Decoder(MessageLimits(json_depth_max=512, batch_size_max=3)).decode(encoded)
    assert isinstance(rejected, Malformed)
    assert (rejected.code, rejected.id, rejected.is_request) == (code, None, True)
    assert text in rejected.message


def test_a_batch_of_exactly_the_limit_is_accepted():
    encoded = b"[" + b",".join([NOTE] * 3) + b"]"
    assert isinstance(
        Decoder(MessageLimits(json_depth_max=9, batch_size_max=3)).decode(encoded), Batch
    )


@pytest.mark.parametrize("inner", [b"[]", b"[" + PING + b"]", b"[[[]]]"])
def test_a_batch_inside_a_batch_is_no_message_and_the_others_are(inner):
    rejected, ping = decode(b"[" + inner + b"," + PING + b"]").messages
    assert (rejected.code, rejected.id) == (INVALID_REQUEST, None)
    assert rejected.message == "not a message: a batch inside a batch"
    assert ping == Request(1, "ping", None)


@pytest.mark.parametrize("member", [b"1", b"null", b'"x"', b"true"])
def test_a_member_that_is_no_object_is_no_message(member):
    (rejected,) = decode(b"[" + member + b"]").messages
    assert (rejected.code, rejected.id) == (INVALID_REQUEST, None)


def test_a_batch_deeper_than_the_stack_raises_nothing():
    rejected = Decoder(MessageLimits(json_depth_max=10_000_000)).decode(
        b"[" * 2_000_000 + b"]" * 2_000_000
    )
    assert rejected.code == INVALID_REQUEST


def test_messages_returns_those_of_single_messages_and_batches():
    decoder = Decoder(MessageLimits(json_depth_max=512))
    assert decoder.messages(PING) == (Request(1, "ping", None),)
    assert len(decoder.messages(b"[" + PING + b"," + NOTE + b"]")) == 2


SHAPES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"id": st.integers(), "method": st.text()}),
        st.fixed_dictionaries({"method": st.text()}),
        st.fixed_dictionaries({"id": st.text(), "result": st.just({})}),
        st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5),
    ),
    min_size=1,
)


@pytest.mark.slow
@given(SHAPES)
def test_each_message_of_a_batch_is_decoded_as_alone(shapes):
    members = [
        json.dumps({"jsonrpc": "2.0", **each} if isinstance(each, dict) else each).encode()
        for each in shapes
    ]
    messages = decode(b"[" + b", ".join(members) + b"]").messages
    assert len(messages) == len(members)
    for message, member in zip(messages, members, strict=True):
        if not member.startswith(b"["):
            assert message == decode(member)


# Recovering the id of malformed messages.

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
def test_only_certain_members_are_recovered(text, id_, has_id, has_method, has_outcome):
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
def test_malformed_data_may_be_a_request_unless_it_is_a_response(text, is_request):
    assert recover(text.encode()).is_request is is_request


@given(st.binary(max_size=40))
def test_recovery_never_raises(text):
    recover(b'{"id":' + text)


def test_recovery_gives_up_on_endless_tokens_within_seconds():
    begin = time.process_time()
    seen = recover(b'{"params":' + b"[]," * 2_000_000 + b'"id":1}')
    assert seen.id is None
    assert time.process_time() - begin < 5


json_values = st.recursive(
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


@given(json_values, st.integers(0, 6))
def test_depth_is_counted_exactly(value, depth_max):
    text = json.dumps(value).encode()
    assert is_deeper_than(depth_max, text) is (depth_of(value) > depth_max)


@given(json_values, st.integers(0, 40), st.binary(max_size=3))
def test_invalid_text_does_not_hide_the_depth_before_it(value, cut, tail):
    """Only what precedes the first error counts: a parser gets no further."""
    text = json.dumps([[[[value]]]]).encode()
    assert is_deeper_than(3, text[: max(cut, 4)] + tail)


# Messages with metadata that is not in their bytes.

ENCODED = b'{"jsonrpc":"2.0","id":7,"result":{}}'


@pytest.mark.parametrize("about", [7, 0, "seven", "", None])
def test_an_address_is_kept_with_its_type(about):
    encoded = RelatedMessage(ENCODED, about)
    assert encoded.related_request_id == about
    assert type(encoded.related_request_id) is type(about)
    assert not encoded.is_response


def test_a_related_message_knows_if_it_is_the_response():
    assert RelatedMessage(ENCODED, 7, is_response=True).is_response


def test_an_annotated_message_equals_its_bytes():
    encoded = RelatedMessage(ENCODED, 7)
    assert encoded == ENCODED
    assert hash(encoded) == hash(ENCODED)
    assert len(encoded) == len(ENCODED)
    assert Decoder(MessageLimits(json_depth_max=9)).decode(encoded) == Response(
        7, msgspec.Raw(b"{}")
    )
    assert join_lines([encoded, encoded]) == ENCODED + b"\n" + ENCODED + b"\n"


def test_a_lost_request_has_its_id_and_error():
    error = ConnectionLost("gone")
    lost = Lost(7, error)
    assert (lost.id, lost.error) == (7, error)
    assert lost != Lost("7", error)


def test_a_decoded_message_equals_its_bytes_and_has_the_message():
    message = Request(7, "ping", None)
    encoded = DecodedMessage(ENCODED, message, AuthInfo(subject="anna"))
    assert (encoded, encoded.message, encoded.auth.principal) == (ENCODED, message, "anna")
    assert DecodedMessage(ENCODED, message, None).auth is None


@pytest.mark.parametrize("id_", [0, -1, 2**64, "a", "", 'é"\n\\', "7"])
@pytest.mark.parametrize(
    "encoded",
    [
        encode_response(12, {"text": '"id":12,'}),
        encode_response(12, msgspec.Raw(b'{\n"id": 12}')),
        encode_error(12, -32000, "no", {"id": 12}),
        b'{"result":{},"id":12,"jsonrpc":"2.0"}',
        b'{"jsonrpc": "2.0", "id": 12, "result": {}}',
    ],
)
def test_another_id_replaces_that_of_a_response_and_nothing_else(encoded, id_):
    expected = msgspec.json.decode(encoded) | {"id": id_}
    assert msgspec.json.decode(with_id_replaced(encoded, id_)) == expected
    assert msgspec.json.decode(with_id_replaced(RelatedMessage(encoded, 12), id_)) == expected
