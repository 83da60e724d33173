import dataclasses
import json
import subprocess
import sys
from typing import ClassVar

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio._server.results import JsonWriter

in_order = JsonWriter().in_order


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    members: set
    name: str = "d"
    kinds: ClassVar[set] = {1}


@attrs.frozen
class Attrs:
    name: str
    members: set
    _secret: int = 7
    late: int = attrs.field(init=False)


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag=True):
    all_members: set
    other_name: str = "s"


def encoded(value):
    return msgspec.json.encode(in_order(value)).decode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b", "a", "c"}, '["a","b","c"]'),
        (frozenset({2, 1}), "[1,2]"),
        ({1, "a", None, 2.5}, '["a",1,2.5,null]'),
        ({"z": {"b", "a"}, "a": 1}, '{"z":["a","b"],"a":1}'),
        ([[{"b", "a"}], ({"d", "c"}, 1)], '[[["a","b"]],[["c","d"],1]]'),
        ({frozenset({2, 1}), frozenset({3})}, "[[1,2],[3]]"),
        ({(2, 1), (1, 2)}, "[[1,2],[2,1]]"),
        (Data({"b", "a"}), '{"members":["a","b"],"name":"d"}'),
        (Attrs("n", {"b", "a"}), '{"name":"n","members":["a","b"]}'),
        (Struct({"b", "a"}), '{"type":"Struct","allMembers":["a","b"]}'),
        ([Struct([Data({"b", "a"})], "o")], None),
    ],
)
def test_sets_become_sorted_lists_and_nothing_else_changes(value, text):
    expected = (
        '[{"type":"Struct","allMembers":[{"members":["a","b"],"name":"d"}],"otherName":"o"}]'
        if text is None
        else text
    )
    assert encoded(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "text",
        {"b": 1, "a": [None, (1, 2)]},
        Struct({}),
        Struct(["b", {"a": 1}]),
        object(),
        [],
    ],
)
def test_a_value_that_is_in_order_is_itself(value):
    assert in_order(value) is value


def test_fields_keep_their_order_also_in_classes_with_slots():
    assert (
        encoded(Attrs("n", [Data([], "d")])) == '{"name":"n","members":[{"members":[],"name":"d"}]}'
    )


def test_the_value_of_the_handler_is_never_changed():
    inner = {"b", "a"}
    value = {"data": Data(inner), "list": [inner]}
    in_order(value)
    assert value == {"data": Data(inner), "list": [inner]}
    assert value["data"].members is inner


def test_a_member_without_a_json_form_is_rejected():
    with pytest.raises(TypeError, match="no JSON form"):
        in_order({object(), object()})


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        SCALARS | st.frozensets(SCALARS),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_only_the_order_of_sets_is_new(value):
    def plain(it):
        if isinstance(it, frozenset):
            return sorted(it, key=lambda member: json.dumps(member, ensure_ascii=False).encode())
        if isinstance(it, dict):
            return {key: plain(member) for key, member in it.items()}
        return [plain(member) for member in it] if isinstance(it, list) else it

    assert json.loads(encoded(value)) == json.loads(json.dumps(plain(value)))


@pytest.mark.slow
def test_the_order_is_the_same_whatever_the_hash_seed():
    code = (
        "from mcp_trio import Server\n"
        "server = Server('s')\n"
        "@server.tool\n"
        "async def t(kinds: frozenset[str] = frozenset('abcdef')): ...\n"
        "from mcp_trio._protocol.versions import OLDEST\n"
        "print(bytes(server._registry.page('tools/list', None, OLDEST)))\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(runs) == 1
    assert b'"default":["a","b","c","d","e","f"]' in runs.pop()
