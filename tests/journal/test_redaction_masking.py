"""A broken frame leaves its form in the recording, and is answered as before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._journal.redaction import Redactor, mask_malformed
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio.recording import Redaction

decode = Decoder(json_depth_max=64).decode

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


def test_a_redactor_masks_what_is_no_json_and_redacts_what_is():
    one = Redactor(Redaction(), key=b"key")
    broken = BROKEN[0]
    assert one.redact("in", broken, is_whole_json=False) == mask_malformed(broken)
    whole = b'{"jsonrpc":"1.0","password":\n"hunter2","a":"b"}'
    changed = one.redact("in", whole, is_whole_json=False)
    assert b"hunter2" not in changed
    assert changed.endswith(b'"a":"b"}')
