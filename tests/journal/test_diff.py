"""Differences between two recordings."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from mcp_trio._journal.diff import json_differences, role_of
from mcp_trio._journal.records import OpenBody, RecordEncoder, encode_body
from mcp_trio.recording import diff

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab.", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.", max_size=2), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("left", "right", "places"),
    [
        ('{"a":1}', '{ "a" : 1 }', []),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', []),
        ('{"a":"\\u0041"}', '{"a":"A"}', []),
        ("1", "1.0", [("$", 1, 1.0)]),
        ("1", "true", [("$", 1, True)]),
        ('{"a":1}', '{"a":2}', [("$.a", 1, 2)]),
        ('{"a":null}', "{}", [("$.a", None, UNSET)]),
        ("{}", '{"a":null}', [("$.a", UNSET, None)]),
        ("[1,2]", "[1,3,4]", [("$[1]", 2, 3), ("$[2]", UNSET, 4)]),
        ("[1]", "[]", [("$[0]", 1, UNSET)]),
        ('{"a":[]}', '{"a":{}}', [("$.a", [], {})]),
        ('{"a b":{"":1}}', '{"a b":{"":2}}', [('$["a b"][""]', 1, 2)]),
        (
            '{"result":{"content":[{"type":"text","text":"x"}],"z":1}}',
            '{"result":{"content":[{"type":"text","text":"y"}],"z":2}}',
            [("$.result.content[0].text", "x", "y"), ("$.result.z", 1, 2)],
        ),
        ("{", "{", []),
        ("{", "{}", [("$", b"{", {})]),
    ],
)
def test_a_difference_has_a_path(left, right, places):
    found = json_differences(left.encode(), right.encode())
    assert found == places
    assert [type(place[1]) for place in found] == [type(place[1]) for place in places]


@given(values, values)
def test_messages_differ_exactly_if_there_is_a_difference(a, b):
    left, right = (json.dumps(value, sort_keys=True) for value in (a, b))
    assert bool(json_differences(left.encode(), right.encode())) is (left != right)
    assert json_differences(left.encode(), left.encode()) == []


def test_deeply_nested_messages_are_compared():
    deep = b"[" * 900 + b"%d" + b"]" * 900
    assert json_differences(deep % 1, deep % 2)[0][1:] in {(1, 2), (deep % 1, deep % 2)}


def test_the_paths_of_equal_values_take_no_memory():
    name, items = "n" * 20_000, [1] * 10_000
    texts = [json.dumps({name: [*items, end]}).encode() for end in (2, 3)]
    tracemalloc.start()
    try:
        assert json_differences(*texts) == [(f"$.{name}[10000]", 2, 3)]
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def recorded(*rows, shift=0):
    encoder = RecordEncoder()
    body = OpenBody(transport="t", role="server", name="n", version="1", started=f"at {shift}")
    records = [encoder.record("open", encode_body(body), 0)]
    for _ in range(shift):
        records.append(encoder.record("mark", b'{"name":"x"}', 0))
    for kind, frame, lane, ordinal in rows:
        if lane is not None:
            lane = f"r{lane + shift}"
        records.append(encoder.record(kind, frame, shift, lane, ordinal))
    return records


SESSION = [
    ("in", b'{"id":1}', None, None),
    ("in", b'{"id":2}', None, None),
    ("out", b'{"id":2,"a":1}', 2, 0),
    ("out", b'{"id":1,"a":1}', 1, 0),
]


def changed(at, frame):
    rows = list(SESSION)
    rows[at] = (rows[at][0], frame, *rows[at][2:])
    return recorded(*rows)


def test_a_recording_does_not_differ_from_itself():
    assert diff(recorded(*SESSION), recorded(*SESSION)) == []


def test_numbers_times_and_the_start_do_not_count():
    found = diff(recorded(*SESSION), recorded(*SESSION, shift=3))
    assert [(one.what, one.kind) for one in found] == [("extra", "mark")] * 3


def test_a_changed_message_is_reported_with_its_path():
    (one,) = diff(recorded(*SESSION), changed(2, b'{"id":2,"a":7}'))
    assert (one.what, one.kind, one.lane, one.left, one.right) == ("changed", "out", "r2", 3, 3)
    assert (one.path, one.left_value, one.right_value) == ("$.a", 1, 7)


@pytest.mark.parametrize(("a", "b"), [(b"{}", None), (None, b"{}")])
def test_a_message_in_one_recording_only_is_reported(a, b):
    (one,) = diff(changed(2, a), changed(2, b))
    assert (one.path, one.left_value, one.right_value) == (
        "$",
        UNSET if a is None else a,
        UNSET if b is None else b,
    )


def test_sessions_in_one_file_are_compared_each_with_its_own():
    def records_of(*rows):
        encoder = RecordEncoder()
        return [encoder.record(kind, body, 0, channel=channel) for channel, kind, body in rows]

    asked = [(1, "in", b'{"id":1,"method":"a"}'), (2, "in", b'{"id":1,"method":"b"}')]
    answers = [(1, "out", b'{"id":1,"n":1}'), (2, "out", b'{"id":1,"n":2}')]
    found = diff(records_of(*asked, *answers), records_of(*asked, *reversed(answers)))
    assert {one.what for one in found} <= {"order"}


def test_changed_envelopes_are_reported():
    def with_envelope(envelope):
        encoder = RecordEncoder()
        return [encoder.record("in", b"{}", 0, envelope=envelope)]

    (one,) = diff(with_envelope({"method": "GET"}), with_envelope({"method": "PUT"}))
    assert (one.path, one.left_value, one.right_value) == ("$x.method", "GET", "PUT")
    (one,) = diff(with_envelope({"method": "GET"}), with_envelope(None))
    assert (one.path, one.right_value) == ("$x", UNSET)


def test_missing_and_extra_records_are_reported():
    longer, shorter = recorded(*SESSION), recorded(*SESSION[:3])
    (one,) = diff(longer, shorter)
    assert (one.what, one.kind, one.lane, one.left, one.right) == ("missing", "out", "r1", 4, None)
    (one,) = diff(shorter, longer)
    assert (one.what, one.lane, one.left, one.right) == ("extra", "r1", None, 4)


def test_another_order_is_reported_at_its_first_record():
    swapped = recorded(*SESSION[:2], SESSION[3], SESSION[2])
    (one,) = diff(recorded(*SESSION), swapped)
    assert (one.what, one.kind, one.lane, one.left, one.right) == ("order", "out", "r2", 3, 3)


def test_a_lane_without_its_request_keeps_its_name():
    rows = [("out", b"{}", 9, 0)]
    assert diff(recorded(*rows), recorded(*rows)) == []


CALL_1 = b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'
CALL_2 = b'{"jsonrpc":"2.0","id":2,"method":"tools/call"}'
ANSWER_1 = b'{"jsonrpc":"2.0","id":1,"result":{"n":1}}'
ANSWER_2 = b'{"jsonrpc":"2.0","id":2,"result":{"n":2}}'
LOG = b'{"jsonrpc":"2.0","method":"notifications/message"}'
SERVER = [("in", CALL_1), ("out", LOG), ("in", CALL_2), ("out", ANSWER_2), ("out", ANSWER_1)]


def proxied(*frames, **opening):
    encoder = RecordEncoder()
    body = OpenBody(transport="t", role="proxy", name="n", version="", started="now", **opening)
    records = [encoder.record("open", encode_body(body), 0)]
    return records + [encoder.record(kind, frame, 0) for kind, frame in frames]


def test_the_random_seed_and_key_are_ignored():
    assert diff(proxied(*SERVER, seed=1), proxied(*SERVER, seed=2)) == []
    left, right = (proxied(*SERVER, redaction={"key": key, "rules": 1}) for key in "ab")
    assert diff(left, right) == []


def test_an_additional_notification_is_the_only_difference():
    (one,) = diff(proxied(*SERVER[:1], *SERVER[2:]), proxied(*SERVER))
    assert (one.what, one.kind, one.right) == ("extra", "out", 2)


def test_answers_without_lanes_are_paired_by_their_requests():
    swapped = [*SERVER[:3], SERVER[4], SERVER[3]]
    (one,) = diff(proxied(*SERVER), proxied(*swapped))
    assert (one.what, one.left, one.right) == ("order", 4, 4)


def test_another_way_to_count_ids_changes_nothing_but_ids():
    renamed = [(kind, frame.replace(b'"id":', b'"id":1')) for kind, frame in SERVER]
    found = diff(proxied(*SERVER), proxied(*renamed))
    assert [(one.what, one.path) for one in found] == [("changed", "$.id")] * 4


def test_an_additional_request_does_not_change_later_lanes():
    shorter = [("in", CALL_1, None, None), ("out", ANSWER_1, 1, 0)]
    ping = ("in", b'{"id":7,"method":"ping"}', None, None)
    longer = [ping, shorter[0], ("out", ANSWER_1, 2, 0)]
    (one,) = diff(recorded(*shorter), recorded(*longer))
    assert (one.what, one.kind, one.right) == ("extra", "in", 1)


# Two sides of one session.


def of_role(role, *frames):
    encoder = RecordEncoder()
    body = OpenBody(transport="t", role=role, name="n", version="1", started="now")
    records = [encoder.record("open", encode_body(body), 0)]
    for kind, frame in frames:
        lane = "r1" if (role, kind) == ("server", "out") else None
        records.append(encoder.record(kind, frame, 0, lane, None if lane is None else 1))
    records.append(encoder.record("mark", encode_body({"name": role}), 0))
    return records


def seen_by_client(frames):
    """Return the same messages recorded by the client, which sent all requests before it received."""
    turned = [({"in": "out", "out": "in"}[kind], frame) for kind, frame in frames]
    return sorted(turned, key=lambda row: row[0] == "in")


def test_sent_and_received_messages_are_compared_across_sides():
    client = of_role("client", *seen_by_client(SERVER))
    assert diff(of_role("server", *SERVER), client) == []
    assert diff(client, of_role("server", *SERVER)) == []


def test_a_proxy_records_a_session_like_its_server():
    assert diff(of_role("server", *SERVER), of_role("proxy", *SERVER)) == []
    assert diff(of_role("proxy", *SERVER), of_role("client", *seen_by_client(SERVER))) == []


def test_a_message_changed_in_transit_is_reported_as_the_left_side_has_it():
    client = of_role("client", *seen_by_client(SERVER))
    changed = of_role("server", *SERVER[:-1], ("out", ANSWER_1.replace(b'"n":1', b'"n":9')))
    (one,) = diff(changed, client)
    assert (one.what, one.kind, one.path, one.left_value, one.right_value) == (
        *("changed", "out", "$.result.n"),
        *(9, 1),
    )
    (one,) = diff(client, changed)
    assert (one.kind, one.left_value, one.right_value) == ("in", 1, 9)


def test_a_message_that_one_side_never_received_is_reported():
    client = of_role("client", *seen_by_client(SERVER[:-1]))
    (one,) = diff(of_role("server", *SERVER), client)
    assert (one.what, one.kind, one.left) == ("missing", "out", 5)
    (one,) = diff(client, of_role("server", *SERVER))
    assert (one.what, one.kind, one.right) == ("extra", "out", 5)


def test_messages_of_one_direction_in_another_order_are_reported():
    swapped = [*SERVER[:3], SERVER[4], SERVER[3]]
    (one,) = diff(of_role("server", *SERVER), of_role("client", *seen_by_client(swapped)))
    assert (one.what, one.kind) == ("order", "out")


def test_malformed_messages_are_compared_too():
    garbage = [("in", b"garbage"), ("in", b"[1]"), ("in", b"garbage")]
    other = of_role("client", *seen_by_client(garbage))
    assert diff(of_role("server", *garbage), other) == []
    (one,) = diff(of_role("server", *garbage[:2]), other)
    assert (one.what, one.kind) == ("extra", "out")


def test_without_an_open_record_the_role_is_unknown():
    assert role_of([]) is None
    assert role_of(of_role("proxy")[1:]) is None
    assert role_of(of_role("proxy")) == "proxy"


STATES = [
    {"method": "tools/call", "id": 1, "params": {"requestState": "%s"}},
    {"id": 1, "result": {"requestState": "%s", "resultType": "input_required"}},
    {"method": "elicitation/create", "id": 1, "params": {"elicitationId": "%s"}},
]


def opening(role):
    return OpenBody(transport="t", role=role, name="n", version="1", started="now")


def with_states(state, *, role="server"):
    """Return the records of a server whose random values all are `state`."""
    encoder = RecordEncoder()
    bodies = [
        ("open", opening(role)),
        *(("out", json.loads(json.dumps(each).replace("%s", state))) for each in STATES),
        ("mark", {"name": "suspended", "value": state}, "r1.ask", 1),
        ("cmd", {"name": "state.seal"}, "r1", 1),
        ("res", state, "r1", 2),
    ]
    return [encoder.record(kind, encode_body(body), 0, *lane) for kind, body, *lane in bodies]


def test_values_random_in_each_run_are_not_different():
    assert diff(with_states("one"), with_states("two")) == []


def test_on_both_sides_of_one_session_a_state_is_the_same():
    found = diff(with_states("one"), with_states("two", role="proxy"))
    assert [each.path for each in found] == [
        "$.params.requestState",
        "$.result.requestState",
        "$.params.elicitationId",
    ]


def test_a_state_that_is_gone_is_a_difference():
    left, right = with_states("one"), with_states("two")
    right[2] = msgspec.structs.replace(right[2], body=msgspec.Raw(b'{"id":1,"result":{}}'))
    right[1] = msgspec.structs.replace(
        right[1], body=msgspec.Raw(bytes(right[1].body).replace(b'"two"', b"2"))
    )
    assert [each.path for each in diff(left, right)] == [
        "$.params.requestState",
        "$.result.requestState",
        "$.result.resultType",
    ]


@pytest.mark.parametrize("kind", ["cmd", "mark"])
def test_values_that_only_resemble_server_marks_are_compared(kind):
    def noted(value):
        encoder = RecordEncoder()
        bodies = [("open", opening("server")), (kind, "state.", "r1", 1), ("res", value, "r1", 2)]
        return [encoder.record(k, encode_body(body), 0, *lane) for k, body, *lane in bodies]

    assert [each.kind for each in diff(noted(1), noted(2))] == ["res"]
