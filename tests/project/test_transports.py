"""The table of recordings over all transports, and the matrix of the channel contract."""

import channel_matrix
import pytest
import trio
from channel_matrix import Outcome, cell, outcomes_of, remarks, table_of
from proof import transports
from proof.transports import (
    ENVELOPE,
    PROTOCOL_VERSIONS,
    TRANSPORTS,
    differences,
    record,
    records_of,
)
from rich.console import Console

from mcp_trio.testing import CHANNEL_CHECKS

pytestmark = pytest.mark.slow


@pytest.mark.real_time
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
def test_over_all_transports_the_same_is_recorded_but_for_the_envelope(capsys, protocol_version):
    assert transports.main(["--protocol-version", protocol_version]) == 0
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.real_time
@pytest.mark.parametrize("field", ["shut $.cause", "open $.transport"])
def test_anything_else_that_differs_is_told_and_is_a_status(monkeypatch, capsys, field):
    monkeypatch.setattr(
        transports, "TRANSPORTS", {name: TRANSPORTS[name] for name in ("memory", "HTTP")}
    )
    monkeypatch.setattr(
        transports, "ENVELOPE", {each: ENVELOPE[each] for each in ENVELOPE if each != field}
    )
    assert transports.main(["--protocol-version", "2025-11-25"]) == 1
    assert f"WRONG {field}" in " ".join(capsys.readouterr().out.split())


def test_what_may_differ_and_never_does_is_told(monkeypatch):
    row = transports.Row("TCP", 1, tuple(ENVELOPE), "yes")
    assert transports.unused_fields([row]) == []
    monkeypatch.setattr(transports, "ENVELOPE", {**ENVELOPE, "out $.result": ("x", "y")})
    assert transports.unused_fields([row]) == ["out $.result"]


@pytest.mark.real_time
def test_every_kind_of_difference_has_its_name(tmp_path):
    protocol_version = "2025-11-25"
    left = records_of(trio.run(record, TRANSPORTS["memory"], protocol_version, tmp_path))
    assert list(differences(left, left)) == []
    assert list(differences(left, left[:-1])) == ["more records"]
    swapped = [left[0], left[2], left[1], *left[3:]]
    found = set(differences(left, swapped))
    assert {"in became out", "out became in"} <= found


def test_a_replay_that_differs_is_told(tmp_path):
    protocol_version = "2025-11-25"
    path = trio.run(record, TRANSPORTS["memory"], protocol_version, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"gauge 2", b"gauge 3"))
    assert transports.replayed(path, protocol_version) != "yes"


# The matrix.


async def test_the_matrix_has_a_cell_for_each_check_and_transport(autojump_clock):
    outcomes = await outcomes_of(["memory"], ["order_is_kept", "deliver_to_gets_all_messages"])
    assert [cell(*ends) for ends in outcomes.values()] == ["ok", "-"]
    assert list(remarks(outcomes)) == [
        "deliver_to_gets_all_messages: it has no deliver_to: memory (client and server)"
    ]
    console = Console(width=80, record=True)
    console.print(table_of(outcomes))
    assert "order_is_kept" in console.export_text()


@pytest.mark.parametrize(
    ("client", "server", "told"),
    [
        (Outcome(), Outcome(), "ok"),
        (Outcome(), Outcome(not_applicable="why"), "client"),
        (Outcome(not_applicable="why"), Outcome(), "server"),
        (Outcome(not_applicable="why"), Outcome(not_applicable="why"), "-"),
        (Outcome(not_applicable="why"), Outcome(failure="what"), "FAILED"),
    ],
)
def test_a_cell_says_at_which_end_a_check_holds(client, server, told):
    assert cell(client, server) == told


@pytest.mark.parametrize(("failure", "status"), [(None, 0), ("expected the end", 1)])
def test_a_failure_is_told_and_is_a_status(monkeypatch, capsys, failure, status):
    async def outcomes(names, checks):
        await trio.lowlevel.checkpoint()
        assert checks == list(CHANNEL_CHECKS)
        return {(name, checks[0]): (Outcome(), Outcome(failure=failure)) for name in names}

    monkeypatch.setattr(channel_matrix, "outcomes_of", outcomes)
    assert channel_matrix.main(["TCP"]) == status
    assert ("FAILED TCP, server: expected the end" in capsys.readouterr().out) is bool(status)


def test_an_excuse_is_about_a_check_that_there_is():
    for transport in channel_matrix.TRANSPORTS.values():
        assert {check for check, _ in transport.excuses} <= CHANNEL_CHECKS.keys()
