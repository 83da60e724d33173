"""The audit log: what its lines have, and what a check finds."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import pytest
import trio
from click.testing import CliRunner
from msgspec import Meta

from mcp_trio import Client, Context, RequestError, Server, ToolError, UserRejected
from mcp_trio._cli.commands import commands
from mcp_trio._observers.audit_log import files_of_log
from mcp_trio.auth import StaticTokens
from mcp_trio.errors import ConnectionLost, RecordingError
from mcp_trio.observers import AuditLog, check_audit_log
from mcp_trio.recording import Redaction

KEY = b"a key of the auditor"


def harbour(*observers, **options):
    server = Server("harbour", observers=observers, **options)

    @server.tool
    async def moor(ship: str, password: str = "") -> str:
        return ship

    @server.tool(access=lambda _: False)
    async def scuttle(ship: str) -> None: ...

    @server.prompt
    async def hail(ship: str) -> str:
        return ship

    @server.resource("harbour://tide")
    async def tide() -> str:
        return "high"

    @server.tool
    async def name_it(ctx: Context) -> str:
        return (await ctx.sample("a name")).content.text

    return server


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def day(path, key=KEY):
    async with Client(harbour(AuditLog(path, key=key))) as client:
        for ship in ("cog", "hulk", "carrack"):
            await client.call_tool("moor", {"ship": ship, "password": "open sesame 4711"})
        await client.list_tools()


@pytest.mark.requirement("TOOL-40")
async def test_each_use_has_a_line_with_its_decision_and_redacted_arguments(
    tmp_path, autojump_clock
):
    path = tmp_path / "audit.jsonl"

    async def sample(_):
        raise UserRejected

    server = harbour(AuditLog(path))
    async with Client(server, sampling=sample, protocol_versions=["2025-11-25"]) as client:
        await client.call_tool("moor", {"ship": "cog", "password": "open sesame 4711"})
        await client.get_prompt("hail", {"ship": "hulk"})
        await client.read_resource("harbour://tide")
        with pytest.raises(RequestError):
            await client.call_tool("scuttle", {"ship": "cog"})
        with pytest.raises(RequestError):
            await client.call_tool("sink")
        with pytest.raises(RequestError, match="rejected"):
            await client.call_tool("name_it")
        await client.list_tools()
    opened, *used, closed = lines(path)
    assert (opened["event"], closed["event"]) == ("open", "close")
    found = [(it["method"], it.get("target"), it["decision"], it["outcome"]) for it in used]
    assert found == [
        ("tools/call", "moor", "allowed", "ok"),
        ("prompts/get", "hail", "allowed", "ok"),
        ("resources/read", "harbour://tide", "allowed", "ok"),
        ("tools/call", "scuttle", "denied", "denied"),
        ("tools/call", "sink", "rejected", "protocol"),
        ("sampling/createMessage", None, "rejected", "protocol"),
        ("tools/call", "name_it", "rejected", "protocol"),
    ]
    assert used[0]["arguments"]["ship"] == "cog"
    assert used[1]["arguments"] == {"ship": "hulk"}
    assert "sesame" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_large_arguments_are_replaced_by_their_size(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    async with Client(harbour(AuditLog(path))) as client:
        await client.call_tool("moor", {"ship": "x" * 100_000})
    assert lines(path)[1]["arguments"]["bytes"] > 100_000


async def test_a_chain_goes_on_when_the_server_starts_again(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        await day(path)
    assert [line["n"] for line in lines(path)] == list(range(1, 11))
    report = check_audit_log(path, key=KEY)
    assert (report.lines, report.problems, report.notes) == (10, [], [])


async def test_a_full_file_is_followed_by_another_in_the_same_chain(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        async with Client(harbour(AuditLog(path, key=KEY, file_bytes_max=800))) as client:
            for number in range(5):
                await client.call_tool("moor", {"ship": f"cog {number}"})
    names = [*(f"audit.jsonl.{number}" for number in range(1, 8)), "audit.jsonl"]
    found = [each for each in files_of_log(path) if each.stat().st_size]
    assert [each.name for each in found] == [name for name in names if (tmp_path / name) in found]
    assert len(found) > 3
    numbers = [line["n"] for each in found for line in lines(each)]
    assert numbers == list(range(1, 15))
    assert all(each.stat().st_size < 1600 for each in found)
    assert all(each.stat().st_mode & 0o77 == 0 for each in found)
    report = check_audit_log(path, key=KEY)
    assert (report.lines, report.problems, report.notes) == (14, [], [])
    assert check_audit_log(path).notes == [
        "changed lines were not looked for: the log needs --key FILE"
    ]
    # Files may be moved away from the beginning of the chain, and not from its middle.
    later = lines(found[1])[0]["n"]
    found[0].rename(tmp_path / "moved")
    report = check_audit_log(path, key=KEY)
    assert report.problems == []
    assert report.notes == [f"lines 1 to {later - 1} are in earlier files, which are not here"]
    third = lines(found[2])
    found[2].unlink()
    assert check_audit_log(path, key=KEY).problems[0] == (
        f"lines {third[0]['n']} to {third[-1]['n']} are missing before line {third[-1]['n'] + 1}"
        if len(third) > 1
        else f"line {third[0]['n']} is missing before line {third[0]['n'] + 1}"
    )


async def test_a_chain_goes_on_if_the_process_ended_between_two_files(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    await day(path)
    path.rename(f"{path}.1")
    assert check_audit_log(path, key=KEY).problems == []
    await day(path)
    assert [line["n"] for line in lines(path)] == list(range(6, 11))
    assert check_audit_log(path, key=KEY).problems == []
    path.unlink()
    assert check_audit_log(path, key=KEY).problems == ["lines 6 to 10 are cut off at the end"]


@pytest.mark.parametrize("failing", ["rename", "iterdir"])
async def test_a_full_file_that_cannot_be_renamed_goes_on(
    tmp_path, autojump_clock, caplog, monkeypatch, failing
):
    path = tmp_path / "audit.jsonl"

    def fail(*_):
        raise OSError(13, "permission denied")

    async with Client(harbour(AuditLog(path, file_bytes_max=600))) as client:
        monkeypatch.setattr(f"mcp_trio._observers.audit_log.Path.{failing}", fail)
        for _ in range(4):
            await client.call_tool("moor", {"ship": "cog"})
    monkeypatch.undo()
    found = lines(path)
    assert [line["n"] for line in found] == list(range(1, 7))
    assert ["format" in line for line in found] == [True, *[False] * 5]
    assert 1 <= caplog.text.count("cannot go on in a new file") <= 3
    assert check_audit_log(path).problems == []


async def test_lines_are_counted_until_a_new_file_can_be_created(
    tmp_path, autojump_clock, monkeypatch
):
    from mcp_trio._observers import audit_log

    path, open_ = tmp_path / "audit.jsonl", audit_log.os.open

    def fail(*_):
        raise OSError(28, "no space left")

    async with Client(harbour(AuditLog(path, file_bytes_max=600))) as client:
        monkeypatch.setattr(audit_log.os, "open", fail)
        for _ in range(4):
            await client.call_tool("moor", {"ship": "cog"})
        monkeypatch.setattr(audit_log.os, "open", open_)
        await client.call_tool("moor", {"ship": "cog"})
    first = lines(files_of_log(path)[1])[0]
    assert first["missing"] >= 1
    assert first["format"] == "mcp_trio audit 1"
    assert check_audit_log(path).problems == []


def removed(text):
    del text[2]


def changed(text):
    text[2] = text[2].replace("hulk", "raft")


def reordered(text):
    text[1], text[2] = text[2], text[1]


def repeated(text):
    text.insert(2, text[1])


def cut(text):
    del text[3:]


def emptied(text):
    text.clear()


def garbled(text):
    text[2] = text[2][:40]


FINDINGS = {
    removed: ["line 3 is missing before line 4"],
    changed: ["line 3 was changed"],
    reordered: [
        "line 2 is missing before line 3",
        "line 2 is out of order, after line 3",
    ],
    repeated: ["line 2 is out of order, after line 2"],
    cut: ["lines 4 to 5 are cut off at the end"],
    emptied: ["lines 1 to 5 are cut off at the end"],
    garbled: [
        "line 3 of the file is damaged, or incomplete",
        "line 3 is missing before line 4",
    ],
}


@pytest.mark.parametrize("tamper", FINDINGS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("key", [KEY, None])
async def test_a_check_names_the_line_that_was_tampered_with(tmp_path, tamper, key, autojump_clock):
    path = tmp_path / "audit.jsonl"
    await day(path, key)
    text = path.read_text().splitlines()
    tamper(text)
    path.write_text("".join(f"{line}\n" for line in text))
    assert check_audit_log(path, key=key).problems == FINDINGS[tamper]


async def test_a_person_without_the_key_cannot_make_a_chain(tmp_path, autojump_clock):
    path, other = tmp_path / "audit.jsonl", tmp_path / "forged.jsonl"
    await day(path)
    await day(other, b"the key of a forger")
    assert check_audit_log(other, key=KEY).problems[0] == "line 1 was changed"
    # A line of the forger's own among those of the log.
    text, forged = path.read_text().splitlines(), other.read_text().splitlines()
    text[2] = forged[2]
    path.write_text("".join(f"{line}\n" for line in text))
    assert check_audit_log(path, key=KEY).problems == [
        "line 3 was changed",
        "line 2 was replaced: line 3 followed another",
        "line 3 was replaced: line 4 followed another",
    ]


async def test_an_earlier_state_of_both_files_is_not_found(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    await day(path)
    copies = [shutil.copy(each, f"{each}.copy") for each in (path, f"{path}.head")]
    await day(path)
    for copy in copies:
        shutil.copy(copy, str(copy).removesuffix(".copy"))
    assert check_audit_log(path, key=KEY).problems == []  # as the documentation says
    await day(path)
    Path(copies[1]).replace(f"{path}.head")
    assert check_audit_log(path, key=KEY).problems == [
        f"{path}.head is older than the log: it ends at line 5"
    ]


async def test_a_log_that_was_cut_or_has_another_key_is_not_continued(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    await day(path)
    with pytest.raises(RecordingError, match="another key"), AuditLog(path, key=KEY + b"2"):
        pass
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join(text[:3]))
    with pytest.raises(RecordingError, match="ends at line 3 of 5"), AuditLog(path, key=KEY):
        pass
    path.write_text("a diary\n")
    with pytest.raises(RecordingError, match="not an audit log"), AuditLog(path, key=KEY):
        pass
    assert path.read_text() == "a diary\n"
    with pytest.raises(ConnectionLost, match="not an audit log"):
        await day(path)  # nothing is served


async def test_a_line_that_was_written_in_part_is_named_and_the_chain_goes_on(
    tmp_path, autojump_clock
):
    path = tmp_path / "audit.jsonl"
    await day(path)
    with path.open("a") as file:
        file.write('{"n":6,"time"')  # the process was killed
    await day(path)
    assert check_audit_log(path, key=KEY).problems == [
        "line 6 of the file is damaged, or incomplete"
    ]


@pytest.mark.parametrize("end", [b"", b"{", b'{"n":1,"ti', b'{"n":1,"time":"2026-11', b"\0" * 80])
@pytest.mark.parametrize("head", [None, b""])
async def test_a_log_whose_first_line_is_incomplete_goes_on(
    tmp_path, autojump_clock, caplog, end, head
):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(end)  # the power failed
    if head is not None:
        Path(f"{path}.head").write_bytes(head)
    for _ in range(2):
        await day(path)
    assert caplog.text.count("ends within line 1, because") == bool(end)
    damage = "line 1 of the file is damaged, or incomplete"
    report = check_audit_log(path, key=KEY)
    assert (report.problems, report.notes) == ([damage] if end else [], [])
    report = check_audit_log(path)
    assert report.problems == ([damage] if end else [])
    assert report.notes == ["changed lines were not looked for: the log needs --key FILE"]


async def test_a_new_file_whose_first_line_is_incomplete_goes_on(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    await day(path)
    path.rename(f"{path}.1")
    path.write_bytes(b'{"n":6,"ti')
    await day(path)
    damage = "line 1 of audit.jsonl is damaged, or incomplete"
    assert check_audit_log(path, key=KEY).problems == [damage]
    Path(f"{path}.1").rename(tmp_path / "moved")
    report = check_audit_log(path, key=KEY)
    assert report.problems == ["line 1 of the file is damaged, or incomplete"]
    assert report.notes == ["lines 1 to 5 are in earlier files, which are not here"]


async def test_a_first_line_that_the_head_counts_was_cut_and_is_not_continued(
    tmp_path, autojump_clock
):
    path = tmp_path / "audit.jsonl"
    await day(path)
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(RecordingError, match="ends at line 0 of 5"), AuditLog(path, key=KEY):
        pass
    path.write_bytes(b'{"n":1,"name":"a diary"}')
    with pytest.raises(RecordingError, match="not an audit log"), AuditLog(path, key=KEY):
        pass


async def test_a_full_disk_loses_lines_and_counts_them(tmp_path, autojump_clock, monkeypatch):
    from mcp_trio._observers import audit_log

    path, write = tmp_path / "audit.jsonl", audit_log.os.write
    server = harbour(AuditLog(path))
    async with Client(server) as client:

        def fail(*_):
            raise OSError(28, "no space left")

        monkeypatch.setattr(audit_log.os, "write", fail)
        try:
            result = await client.call_tool("moor", {"ship": "cog"})
        finally:
            monkeypatch.setattr(audit_log.os, "write", write)
        assert result.data == "cog"
        await client.call_tool("moor", {"ship": "hulk"})
    assert [line.get("missing") for line in lines(path)] == [None, 1, None]
    assert check_audit_log(path).problems == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda head: head.unlink(), "head .*audit.jsonl.head is missing or damaged"),
        (lambda head: head.write_bytes(b"\xff"), "is missing or damaged"),
        (
            lambda head: head.write_bytes(head.read_bytes().replace(b'"lines":5', b'"lines":3')),
            "head was changed, or has another key",
        ),
    ],
)
async def test_a_log_whose_head_was_removed_or_changed_is_not_continued(
    tmp_path, autojump_clock, change, text
):
    path = tmp_path / "audit.jsonl"
    await day(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    change(tmp_path / "audit.jsonl.head")
    with pytest.raises(RecordingError, match=text), AuditLog(path, key=KEY):
        pass
    assert path.read_bytes() == b"".join(lines[:3])


def test_a_process_that_ended_before_the_first_head_can_start_again(tmp_path):
    path = tmp_path / "audit.jsonl"
    with AuditLog(path):
        line = path.read_bytes()
    path.write_bytes(line)
    Path(f"{path}.head").write_bytes(b"")
    with AuditLog(path):
        pass
    assert check_audit_log(path).problems == []


async def test_lines_of_which_a_full_disk_took_a_part_are_followed_by_whole_ones(
    tmp_path, autojump_clock, monkeypatch
):
    from mcp_trio._observers import audit_log

    path, write = tmp_path / "audit.jsonl", audit_log.os.write
    async with Client(harbour(AuditLog(path, key=KEY))) as client:
        for missing in (100, 100, 1, 1):  # without its end of line, a line is complete

            def write_part(descriptor, data, missing=missing):
                return write(descriptor, data[:-missing])

            monkeypatch.setattr(audit_log.os, "write", write_part)
            await client.call_tool("moor", {"ship": "cog"})
            monkeypatch.setattr(audit_log.os, "write", write)
        shutil.copy(path, tmp_path / "killed.jsonl")
        shutil.copy(f"{path}.head", tmp_path / "killed.jsonl.head")
        await client.call_tool("moor", {"ship": "hulk"})
    for name in ("audit.jsonl", "killed.jsonl"):
        with AuditLog(tmp_path / name, key=KEY):
            pass
        problems = check_audit_log(tmp_path / name, key=KEY).problems
        assert problems == [
            f"line {number} of the file is damaged, or incomplete" for number in (2, 3)
        ]


async def test_a_full_file_without_its_last_end_of_line_is_followed_by_another(
    tmp_path, autojump_clock, monkeypatch
):
    from mcp_trio._observers import audit_log

    path, write = tmp_path / "audit.jsonl", audit_log.os.write
    async with Client(harbour(AuditLog(path, file_bytes_max=1))) as client:
        with monkeypatch.context() as patch:
            patch.setattr(audit_log.os, "write", lambda file, data: write(file, data[:-1]))
            await client.call_tool("moor", {"ship": "cog"})
        await client.call_tool("moor", {"ship": "hulk"})
    assert lines(tmp_path / "audit.jsonl.3")[0]["format"] == "mcp_trio audit 1"
    assert check_audit_log(path).problems == []


async def test_a_line_that_cannot_be_forced_to_the_disk_is_in_the_chain(
    tmp_path, autojump_clock, monkeypatch, caplog
):
    from mcp_trio._observers import audit_log

    def fail(_):
        raise OSError(5, "input/output error")

    path = tmp_path / "audit.jsonl"
    async with Client(harbour(AuditLog(path, sync=True))) as client:
        monkeypatch.setattr(audit_log.os, "fsync", fail)
        await client.call_tool("moor", {"ship": "cog"})
        monkeypatch.undo()
        await client.call_tool("moor", {"ship": "hulk"})
    assert "cannot be written to the disk: [Errno 5]" in caplog.text
    assert check_audit_log(path).problems == []


@pytest.mark.requirement("TOOL-40")
async def test_arguments_that_cannot_be_redacted_leave_a_line_without_them(
    tmp_path, autojump_clock
):
    path = tmp_path / "audit.jsonl"
    many = [f"tulip-{number}" for number in range(1100)]  # more secrets than a redactor keeps

    def secrets():
        if path.exists():
            raise LookupError
        return []

    async with Client(harbour(AuditLog(path))) as client:
        with pytest.raises(ToolError):
            await client.call_tool("moor", {"ship": "cog", "password": many})
        await client.call_tool("moor", {"ship": "hulk"})
    used = [line["arguments"] for line in lines(path)[1:-1]]
    assert used[0]["bytes"] > 10_000
    assert used[1] == {"ship": "hulk"}
    path.unlink()
    Path(f"{path}.head").unlink()
    async with Client(harbour(AuditLog(path, redaction=Redaction(secrets=secrets)))) as client:
        await client.call_tool("moor", {"ship": "cog"})
    assert list(lines(path)[1]["arguments"]) == ["bytes"]


async def test_passwords_of_each_server_that_shares_a_log_are_redacted(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    many = [f"tulip-{number}" for number in range(1100)]  # more secrets than a redactor keeps
    first = Server("first", observers=[log])
    other = harbour(log)

    @first.tool
    async def unlock(door: Annotated[str, Meta(extra_json_schema={"format": "password"})]) -> str:
        return "open"

    async with Client(first) as client, Client(other) as other_client:
        with pytest.raises(ToolError):
            await other_client.call_tool("moor", {"ship": "cog", "password": many})
        await client.call_tool("unlock", {"door": "open sesame 4711"})
    assert "sesame" not in path.read_text()


async def test_long_texts_of_a_client_are_cut(tmp_path, autojump_clock):
    path = tmp_path / "audit.jsonl"
    async with Client(harbour(AuditLog(path))) as client:
        with pytest.raises(RequestError):
            await client.read_resource("harbour://" + "x" * 2_000_000)
    assert lines(path)[1]["target"].endswith("x…")
    assert path.stat().st_size < 5_000


def test_a_log_with_a_deeply_nested_line_is_checked(tmp_path):
    path = tmp_path / "audit.jsonl"
    with AuditLog(path):
        pass
    with path.open("a") as file:
        file.write('{"x":' + "[" * 100_000 + "]" * 100_000 + "}\n")
    assert check_audit_log(path).problems == ["line 3 of the file is damaged, or incomplete"]


def test_a_damaged_log_that_is_not_utf8_is_checked(tmp_path):
    path = tmp_path / "audit.jsonl"
    with AuditLog(path):
        pass
    path.write_bytes(path.read_bytes().replace(b'"previous":"0', b'"previous":"\xff', 1))
    problems = check_audit_log(path).problems
    assert problems[0] == "line 1 of the file is damaged, or incomplete"


def test_two_processes_cannot_share_a_log(tmp_path):
    path = tmp_path / "audit.jsonl"
    with AuditLog(path), pytest.raises(RecordingError, match="another process"), AuditLog(path):
        pass
    with pytest.raises(ValueError, match="16 bytes"):
        AuditLog(path, key=b"short")


def check(*args):
    return CliRunner().invoke(commands, ["check", *map(str, args)])


def test_the_command_checks_audit_logs(tmp_path):
    path, key = tmp_path / "audit.jsonl", tmp_path / "key"
    key.write_bytes(KEY)
    trio.run(day, path, clock=trio.testing.MockClock(autojump_threshold=0))
    done = check(path, "--key", key)
    assert (done.exit_code, done.output) == (0, f"{path}: complete: an audit log of 5 lines\n")
    assert "note: changed lines were not looked for" in check(path).output
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join(text[:2] + text[3:]))
    done = check(path, "--key", key)
    assert done.exit_code == 1
    assert "\nline 3 is missing before line 4\n" in done.output
    recording = tmp_path / "x.mcprec.jsonl"
    recording.write_text("")
    assert "--key is for audit logs" in check(recording, "--key", key).output


async def test_the_principal_of_a_client_is_in_the_line(tmp_path):
    path = tmp_path / "audit.jsonl"
    auth = StaticTokens({"t" * 16: "ada"})
    server = harbour(AuditLog(path), auth=auth)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(
            lambda task_status: server.serve_http(port=0, task_status=task_status)
        )
        async with Client(url, token="t" * 16) as client:
            await client.call_tool("moor", {"ship": "cog"})
        nursery.cancel_scope.cancel()
    assert lines(path)[1]["principal"] == "ada"
