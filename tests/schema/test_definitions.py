"""Every published definition against our type for it, in both directions, with generated values."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio._schema import DEFINITIONS

TYPED = sorted(name for name, row in DEFINITIONS.items() if row.body or row.params)
UNIONS = sorted(name for name, row in DEFINITIONS.items() if row.members)

modest = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def through_our_type(name: str, value: Any) -> Any:
    """Decodes a value with our type, and gives back what we would send."""
    row = DEFINITIONS[name]
    if row.params is None:
        return again(row.body, value)
    params = again(row.params, value.get("params", {}))
    return {"method": value["method"], "params": params}


def again(kind: Any, value: Any) -> Any:
    decoded = msgspec.json.decode(json.dumps(value), type=kind)
    return json.loads(msgspec.json.encode(decoded))


def as_sent(name: str, instance: Any) -> Any:
    row = DEFINITIONS[name]
    body = json.loads(msgspec.json.encode(instance))
    return body if row.params is None else {"method": row.method or "any/method", "params": body}


def holds(whole: Any, part: Any) -> bool:
    """Whether everything that `part` says stands in `whole`, too."""
    if isinstance(part, dict):
        return all(name in whole and holds(whole[name], part[name]) for name in part)
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return whole == part


def assert_survives(published: Any, name: str, value: Any) -> None:
    after = through_our_type(name, value)
    published.validate(name, after)
    assert holds({"params": {}, **value} if isinstance(value, dict) else value, after)
    assert not list(published.lost(published.definitions[name], value, after))


def test_every_published_definition_has_a_row_and_every_row_is_published(published):
    current = {name for name, row in DEFINITIONS.items() if row.since == "2024-11-05"}
    assert current == set(published.definitions)


def test_every_row_is_represented_in_exactly_one_way():
    for name, row in DEFINITIONS.items():
        ways = [row.body is not None, row.params is not None, bool(row.members), row.envelope]
        assert ways.count(True) == 1, name


def test_a_row_names_the_published_method(published):
    for name, row in DEFINITIONS.items():
        method = published.definitions[name].get("properties", {}).get("method", {})
        assert row.envelope or row.method == method.get("const"), name


def test_a_union_has_the_published_members(published):
    for name in UNIONS:
        branches = [branch["$ref"] for branch in published.definitions[name]["anyOf"]]
        members = [f"#/definitions/{member}" for member in DEFINITIONS[name].members]
        assert members == branches


def test_only_json_rpc_frames_are_left_to_the_wire():
    left = {name for name, row in DEFINITIONS.items() if row.envelope}
    assert left == {name for name in DEFINITIONS if name.startswith("JSONRPC")}


@pytest.mark.requirement("BASE-17", "META-01")
@pytest.mark.parametrize("name", TYPED)
def test_a_published_value_loses_nothing_that_is_declared(name, published):
    @modest
    @given(value=published.values(name))
    def check(value):
        assert_survives(published, name, value)

    check()


@pytest.mark.parametrize("name", UNIONS)
def test_a_value_of_a_published_union_fits_a_member(name, published):
    @modest
    @given(value=published.values(name))
    def check(value):
        fitting = [
            member
            for member in DEFINITIONS[name].members
            if published.is_valid(published.definitions[member], value)
        ]
        assert fitting
        for member in fitting:
            assert_survives(published, member, value)

    check()


@pytest.mark.parametrize("name", TYPED)
def test_what_we_send_is_valid_and_reads_back_the_same(name, published, ours):
    row = DEFINITIONS[name]

    @modest
    @given(instance=ours(name))
    def check(instance):
        published.validate(name, as_sent(name, instance))
        encoded = msgspec.json.encode(instance)
        assert msgspec.json.decode(encoded, type=row.params or row.body) == instance

    check()


@pytest.mark.parametrize("name", UNIONS)
def test_what_we_send_is_valid_for_the_union(name, published, ours):
    @modest
    @given(data=st.data(), member=st.sampled_from(DEFINITIONS[name].members))
    def check(data, member):
        published.validate(name, as_sent(member, data.draw(ours(member))))

    check()
