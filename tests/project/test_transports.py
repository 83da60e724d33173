"""The comparison of recordings over all transports."""

import pytest
import trio
from proof import transports
from proof.transports import (
    ENVELOPE,
    PROTOCOL_VERSIONS,
    TRANSPORTS,
    differences,
    record,
    records_of,
)

pytestmark = pytest.mark.slow


@pytest.mark.real_time
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
def test_over_all_transports_the_same_is_recorded_but_for_the_envelope(capsys, protocol_version):
    assert transports.main(["--protocol-version", protocol_version]) == 0
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.real_time
@pytest.mark.parametrize("field", ["shut $.cause", "open $.transport"])
def test_any_other_difference_is_printed_and_fails(monkeypatch, capsys, field):
    monkeypatch.setattr(
        transports, "TRANSPORTS", {name: TRANSPORTS[name] for name in ("memory", "HTTP")}
    )
    monkeypatch.setattr(
        transports, "ENVELOPE", {each: ENVELOPE[each] for each in ENVELOPE if each != field}
    )
    assert transports.main(["--protocol-version", "2025-11-25"]) == 1
    assert f"WRONG {field}" in " ".join(capsys.readouterr().out.split())


def test_an_allowed_difference_that_never_occurs_is_printed(monkeypatch):
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


def test_a_replay_that_differs_is_printed(tmp_path):
    protocol_version = "2025-11-25"
    path = trio.run(record, TRANSPORTS["memory"], protocol_version, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"gauge 2", b"gauge 3"))
    assert transports.replayed(path, protocol_version) != "yes"
