"""Every definition of every published schema against our type for it, with generated values."""

import json
from typing import Any

import msgspec
import pytest

from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS, ProtocolVersion, is_between
from mcp_trio.types import ElicitResult
from tests.schema.definitions import DEFINITIONS

GRID = [
    (protocol_version.name, name)
    for protocol_version in PROTOCOL_VERSIONS.values()
    for name, row in sorted(DEFINITIONS.items())
    if is_between(protocol_version, row.since, row.until)
]
TYPED = sorted(name for name, row in DEFINITIONS.items() if row.body or row.params)
UNIONS = sorted(name for name, row in DEFINITIONS.items() if row.members)

# They came with 2025-11-25 and went with it, to come back as an extension: tasks are not spoken.
TASKS = {
    "CancelTaskRequest",
    "CancelTaskResult",
    "CreateTaskResult",
    "GetTaskPayloadRequest",
    "GetTaskPayloadResult",
    "GetTaskRequest",
    "GetTaskResult",
    "ListTasksRequest",
    "ListTasksResult",
    "RelatedTaskMetadata",
    "Task",
    "TaskAugmentedRequestParams",
    "TaskMetadata",
    "TaskStatus",
    "TaskStatusNotification",
    "TaskStatusNotificationParams",
}
TASK_MEMBERS = {"task", "tasks"}


def read(name: str, value: Any) -> Any:
    row = DEFINITIONS[name]
    body = value if row.params is None else value.get("params", {})
    return msgspec.json.decode(json.dumps(body), type=row.params or row.body)


def as_sent(name: str, value: Any, ours: Any) -> Any:
    body = json.loads(msgspec.json.encode(ours))
    if DEFINITIONS[name].params is None:
        return body
    envelope = {member: each for member, each in value.items() if member != "params"}
    return {**envelope, "params": body}


def holds(whole: Any, part: Any) -> bool:
    """Whether everything that `part` says stands in `whole`, too."""
    if isinstance(part, dict):
        return all(name in whole and holds(whole[name], part[name]) for name in part)
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return whole == part


def assert_survives(schema: Any, name: str, value: Any) -> Any:
    """A value that was read is sent with all that is declared; gives what was read."""
    ours = read(name, value)
    after = as_sent(name, value, ours)
    schema.validate(name, after)
    assert holds({"params": {}, **value} if isinstance(value, dict) else value, after)
    assert set(schema.lost(schema.definitions[name], value, after)) <= TASK_MEMBERS
    return ours


def is_of_a_task(name: str, value: Any) -> bool:
    """A cancellation may name no request in the one revision that cancels tasks by it (CANC-05)."""
    if not name.startswith("CancelledNotification"):
        return False
    return "requestId" not in value.get("params", value)


@pytest.mark.requirement("TRAP-09")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
def test_every_published_definition_has_a_row_and_every_row_is_published(
    protocol_version, published
):
    rows = {name for each, name in GRID if each == protocol_version}
    assert rows == set(published(protocol_version).definitions) - TASKS


def test_every_row_is_represented_in_exactly_one_way():
    for name, row in DEFINITIONS.items():
        ways = [row.body is not None, row.params is not None, bool(row.members), row.envelope]
        assert ways.count(True) == 1, name


def test_a_row_names_the_published_method(published):
    for protocol_version, name in GRID:
        row, definition = DEFINITIONS[name], published(protocol_version).definitions[name]
        method = definition.get("properties", {}).get("method", {})
        assert row.envelope or row.members or row.method == method.get("const"), name


def test_a_union_has_the_published_members(published):
    for protocol_version, name in (cell for cell in GRID if cell[1] in UNIONS):
        schema = published(protocol_version)
        definition = schema.definitions[name]
        branches = schema.branches(definition) if "anyOf" in definition else []
        members = {schema.definition(branch) for branch in branches}
        assert not members or members == set(members_of(protocol_version, name)), (
            protocol_version,
            name,
        )


def members_of(protocol_version: str, name: str) -> list[str]:
    row = DEFINITIONS[name]
    return [
        member
        for member in row.members
        if (protocol_version, member) in GRID
        and is_between(PROTOCOL_VERSIONS[protocol_version], None, row.members_until.get(member))
    ]


def test_a_union_of_one_is_published_as_that_one(published):
    newest = list(PROTOCOL_VERSIONS)[-1]
    assert members_of(newest, "ClientNotification") == ["CancelledNotification"]
    assert members_of(newest, "ClientResult") == ["Result"]
    definitions = published(newest).definitions
    for union, member in (
        ("ClientNotification", "CancelledNotification"),
        ("ClientResult", "Result"),
    ):
        alone, published_alone = definitions[union], definitions[member]
        if "$ref" not in alone:
            assert alone["properties"].keys() == published_alone["properties"].keys()


def test_only_json_rpc_frames_and_errors_are_left_to_the_wire():
    left = {name for name, row in DEFINITIONS.items() if row.envelope}
    assert left == {
        name
        for name in DEFINITIONS
        if name.startswith("JSONRPC") or name.endswith(("Error", "ResultResponse"))
    }


@pytest.mark.requirement("BASE-17", "META-01", "META-02", "TRAP-07", "TRAP-70")
@pytest.mark.parametrize("name", TYPED)
def test_a_published_value_loses_nothing_that_is_declared(name, published_anew, for_all):
    for protocol_version, schema in published_anew(name):
        values = schema.values(name).filter(lambda value: not is_of_a_task(name, value))
        for_all(values, published_value_survives, schema, name, PROTOCOL_VERSIONS[protocol_version])


def published_value_survives(
    schema: Any, name: str, protocol_version: ProtocolVersion, value: Any
) -> None:
    ours = assert_survives(schema, name, value)
    assert downgraded(ours, protocol_version) is ours


@pytest.mark.requirement("TRAP-08")
@pytest.mark.parametrize("name", UNIONS)
def test_a_value_of_a_published_union_fits_a_member(name, published_anew, for_all):
    for protocol_version, schema in published_anew(name):
        for_all(
            schema.values(name), value_fits_a_member, schema, members_of(protocol_version, name)
        )


def value_fits_a_member(schema: Any, members: list[str], value: Any) -> None:
    fitting = [each for each in members if schema.is_valid(schema.definitions[each], value)]
    assert fitting
    for member in fitting:
        assert is_of_a_task(member, value) or assert_survives(schema, member, value)


@pytest.mark.requirement("TRAP-07")
def test_a_fraction_that_was_filled_in_is_read_though_no_schema_has_it(published):
    answer = {"action": "accept", "content": {"share": 0.5}}
    schema = published("2026-07-28")
    assert not schema.is_valid(schema.definitions["ElicitResult"], answer)
    assert read("ElicitResult", answer) == ElicitResult(action="accept", content={"share": 0.5})
