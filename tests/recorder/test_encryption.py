"""Encrypted recordings: keys, frames, readers, and what is known without the key."""

import base64
import os
import sys
from functools import partial
from itertools import pairwise

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_sessions import client_session

from mcp_trio import Context, Server, ToolError
from mcp_trio._recorder.encryption import (
    COMMAND_VARIABLE,
    KEYS_VARIABLE,
    EncryptedSink,
    KeyMissingError,
    check_frames,
    is_encrypted,
    recording_keys,
)
from mcp_trio._recorder.files import CompressedSink, FileSink, Segments
from mcp_trio._replay.many_replays import ReplayJob, replay_here
from mcp_trio.errors import RecordingError
from mcp_trio.recording import (
    Catalogue,
    RecordOptions,
    RecordPolicy,
    Redaction,
    check,
    open_recording,
    replay,
)

OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
SECRET = "red-tulip-9"


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    monkeypatch.setenv(KEYS_VARIABLE, f"old:{OLD}")
    return partial(monkeypatch.setenv, KEYS_VARIABLE)


def server_of(**options):
    server = Server("vault", **options)

    @server.tool
    async def store(text: str, *, ctx: Context) -> str:
        if text == "fail":
            raise ToolError(f"no place for {SECRET}")
        return f"{text} at {ctx.now():%H}"

    return server


async def record(record_to, *texts, server=None):
    server = server or server_of()
    async with client_session(server, record_to, raise_tool_errors=False) as client:
        for text in texts or ("gold", SECRET):
            await client.call_tool("store", {"text": text})


async def test_without_its_key_a_recording_of_several_is_unusable(tmp_path, keys):
    path = tmp_path / "a.mcprec.jsonl"
    await record(RecordOptions(path, encrypt=True))
    keys("")
    job = ReplayJob(files=[str(path)], target="mcp_trio.examples.weather:server")
    (outcome,) = await trio.to_thread.run_sync(list, replay_here(job))
    assert (outcome.status, "is encrypted" in outcome.text) == ("unusable", True)


@pytest.mark.parametrize("name", ["a.mcprec.jsonl", "a.mcprec.jsonl.zst"])
async def test_an_encrypted_recording_is_read_with_its_key_and_only_with_it(tmp_path, keys, name):
    path = tmp_path / name
    await record(RecordOptions(path, encrypt=True))
    assert is_encrypted(path)
    written = path.read_bytes()
    assert SECRET.encode() not in written
    assert b"tools/call" not in written
    assert check(open_recording(path)).complete
    await trio.to_thread.run_sync(replay, path, server_of())
    keys(f"new:{NEW} old:{OLD}")
    assert check(open_recording(path)).complete
    for value, text in {
        "": f"{path} is encrypted: no key for recordings: set $MCP_TRIO_RECORDING_KEYS",
        f"new:{NEW}": f"{path} is encrypted with the key 'old', which is not among the keys new",
    }.items():
        keys(value)
        with pytest.raises(KeyMissingError) as missing:
            list(open_recording(path))
        assert str(missing.value).startswith(text)
    keys(f"old:{NEW}")
    with pytest.raises(RecordingError, match="the key 'old' is not the one that has encrypted it"):
        list(open_recording(path))


async def test_the_first_key_encrypts(tmp_path, keys):
    keys(f"new:{NEW},old:{OLD}")
    path = tmp_path / "a.mcprec.jsonl"
    await record(RecordOptions(path, encrypt=True))
    assert check_frames(path).key == "new"
    keys(f"new:{NEW}")
    assert check(open_recording(path)).complete


async def test_all_segments_are_encrypted(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    await record(RecordOptions(path, encrypt=True, segment_bytes_max=600), *"abcdef")
    files = sorted(tmp_path.iterdir())
    assert len(files) > 2
    assert all(is_encrypted(each) for each in files)
    assert all(check_frames(each).is_closed for each in files)
    report = check(open_recording(path))
    assert report.complete
    assert not report.damage


async def test_secrets_are_redacted_before_they_are_encrypted(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    redaction = Redaction(paths={"in": ["$.params.arguments.text"]})
    await record(RecordOptions(path, encrypt=True, redaction=redaction))
    assert SECRET.encode() not in b"".join(open_recording(path)).split(b'"k":"out"')[0]


def test_without_a_key_nothing_is_recorded(tmp_path, keys):
    keys("")
    options = RecordOptions(tmp_path / "a.mcprec.jsonl", encrypt=True)
    for each in (options, RecordPolicy(tmp_path, encrypt=True)):
        missing = pytest.RaisesExc(RecordingError, match="no key for recordings: set")
        with pytest.RaisesGroup(missing, flatten_subgroups=True):
            trio.run(partial(record, each))
    assert list(tmp_path.iterdir()) == []


# Keys


@pytest.mark.parametrize(
    "text",
    ["x", "x:", f"x:{OLD[:-6]}", f"x y:{OLD}", f"x:{OLD} x:{NEW}", f"a b:{OLD}", f"a/b:{OLD}"],
)
def test_an_invalid_key_is_named_by_its_number_and_never_shown(keys, text):
    keys(text)
    with pytest.raises(RecordingError, match=r"key \d in \$MCP_TRIO_RECORDING_KEYS is not") as it:
        recording_keys()
    assert OLD[:10] not in str(it.value)


def test_a_key_may_have_the_alphabet_of_urls_and_no_padding(keys):
    key = bytes([255, 254] * 16)
    for text in (
        base64.b64encode(key).decode(),
        base64.urlsafe_b64encode(key).decode(),
        base64.urlsafe_b64encode(key).decode().rstrip("="),
    ):
        keys(f"\n a:{text},\n")
        assert recording_keys() == {"a": key}


def test_a_command_prints_the_keys(monkeypatch, tmp_path):
    monkeypatch.setenv(KEYS_VARIABLE, "")
    script, calls = tmp_path / "keys.py", tmp_path / "calls"
    script.write_text(f"open({str(calls)!r}, 'a').write('.')\nprint('a:{OLD}')\nprint('b:{NEW}')")
    monkeypatch.setenv(COMMAND_VARIABLE, f"{sys.executable} {script}")
    for _ in range(3):
        assert list(recording_keys()) == ["a", "b"]
    assert calls.read_text() == "."


@pytest.mark.skipif(sys.platform == "win32", reason="the name of the program is none there")
def test_a_command_of_windows_may_have_backslashes(monkeypatch, tmp_path):
    program = tmp_path / "folder\\keys"
    program.write_text(f"#!/bin/sh\necho a:{OLD}\n")
    program.chmod(0o700)
    monkeypatch.setenv(KEYS_VARIABLE, "")
    monkeypatch.setenv(COMMAND_VARIABLE, str(program))
    monkeypatch.setattr(sys, "platform", "win32")
    assert list(recording_keys()) == ["a"]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (f"{sys.executable} -c 'raise SystemExit(3)'", "failed with exit status 3"),
        ("/nowhere/to/be/found", "cannot be run: No such file"),
        ("'", "cannot be run: ValueError"),
        (f"{sys.executable} -c 'print(7)'", "key 1 in the output of"),
        (f"{sys.executable} -c ''", "no key for recordings"),
    ],
)
def test_a_command_that_prints_no_keys_is_an_error(monkeypatch, command, text):
    monkeypatch.delenv(KEYS_VARIABLE)
    monkeypatch.setenv(COMMAND_VARIABLE, command)
    with pytest.raises(RecordingError) as caught:
        recording_keys()
    assert text in str(caught.value)


# Frames

WRITES = [b"one\n", b"two two\n" * 5, os.urandom(3_000_000) + b"\n", b"", b"end\n"]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    sink = EncryptedSink(FileSink(path), recording_keys())
    for data in WRITES:
        sink.write(data)
    assert sink.written_bytes == path.stat().st_size
    sink.close()
    return path


def content(path):
    return b"".join(open_recording(path))


def test_an_encrypted_file_has_all_written_bytes(written):
    assert content(written) == b"".join(WRITES)
    report = check_frames(written)
    assert (report.frames, report.is_closed, report.damage) == (7, True, "")


def test_each_write_can_be_read_at_once(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    sink, so_far = EncryptedSink(FileSink(path), recording_keys()), b""
    for data in WRITES:
        sink.write(data)
        so_far += data
        assert content(path) == so_far
        assert not check_frames(path).is_closed
    sink.close()


def test_two_files_with_the_same_content_have_nothing_in_common(tmp_path):
    written = []
    for name in "ab":
        sink = EncryptedSink(FileSink(tmp_path / name), recording_keys())
        sink.write(b"the same\n")
        sink.close()
        written.append((tmp_path / name).read_bytes())
    assert written[0][100:] != written[1][100:]


class FullDisk:
    """A file whose writes fail while it is full; it then keeps nothing of them."""

    def __init__(self, path):
        self._file, self.is_full = FileSink(path), False
        self.refused = []

    @property
    def written_bytes(self):
        return self._file.written_bytes

    def write(self, data):
        if self.is_full:
            self.refused.append(data)
            raise OSError(28, "No space left on device")
        self._file.write(data)

    def close(self):
        self._file.close()


@pytest.mark.requirement("SAMP-29")
def test_after_a_failed_write_another_key_encrypts_the_rest(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    file = FullDisk(path)
    sink = EncryptedSink(file, recording_keys())
    sink.write(b"before\n")
    file.is_full = True
    with pytest.raises(OSError, match="No space"):
        sink.write(b"lost 1\n")
    file.is_full = False
    sink.write(b"kept 1\n")
    sink.close()
    assert content(path) == b"before\nkept 1\n"
    assert path.read_bytes().count(b'"salt"') == 2
    # The refused text and the one that follows have the same length, but not the same key stream.
    refused, kept = file.refused[0], path.read_bytes()
    assert refused[5:12] not in kept
    assert check_frames(path).is_closed


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_a_segment_whose_first_write_fails_is_created_again(tmp_path, suffix):
    path, full = tmp_path / f"a.mcprec.jsonl{suffix}", []

    def open_file(name):
        disk = FullDisk(name)
        # There is room for the little that a sink writes when it is closed.
        if name != os.fspath(path) and not full:
            full.append(disk)
            write = disk.write
            disk.write = lambda data: [setattr(disk, "is_full", len(data) > 300), write(data)]
        sink = EncryptedSink(disk, recording_keys())
        return CompressedSink(sink) if suffix else sink

    segments = Segments(path, open_file=open_file)
    segments.write(b"1\n")
    segments.begin_next(b"2\n")
    noise = base64.b64encode(os.urandom(500))
    with pytest.raises(OSError, match="No space"):
        segments.write(noise)
    segments.write(noise)
    segments.close()
    assert len(full[0].refused) == 1
    assert b"".join(open_recording(tmp_path / f"a.2.mcprec.jsonl{suffix}")) == b"2\n" + noise


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_file_that_was_cut_anywhere_is_read_up_to_its_last_complete_part(small, tmp_path, data):
    whole, lines = small
    length = data.draw(st.integers(0, len(whole)))
    path = tmp_path / "cut.mcprec.jsonl"
    path.write_bytes(whole[:length])
    if not is_encrypted(path):
        assert length < 20
        return
    read = list(open_recording(path))
    assert read == lines[: len(read)]
    report = check_frames(path)
    assert report.damage == ""
    assert report.is_closed == (length == len(whole))
    if length == len(whole):
        assert read == lines


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.mcprec.jsonl"
    trio.run(partial(record, RecordOptions(path, encrypt=True)))
    return path.read_bytes(), list(open_recording(path))


@pytest.mark.requirement("SAMP-29")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_found_with_and_without_the_key(small, tmp_path, data):
    whole, lines = small
    place = data.draw(st.integers(20, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "changed.mcprec.jsonl"
    path.write_bytes(changed)
    report = check_frames(path)
    assert report.damage or not report.is_closed
    read = []
    try:
        for line in open_recording(path):
            read.append(line)
    except RecordingError:
        pass
    else:
        assert len(read) < len(lines) or not report.is_closed
    # Nothing that was changed is ever read.
    assert read == lines[: len(read)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda parts: [*parts, b"x"], "something follows the end of the file"),
        (lambda parts: parts[:2] + parts[3:], "frame 2 is damaged: it, or the file before it"),
        (lambda parts: [parts[0], parts[2], parts[1], *parts[3:]], "frame 1 is damaged"),
        (lambda parts: [parts[0], b"X", *parts[1:]], "frame 1 is damaged: it is of no known kind"),
        (lambda parts: [parts[0], b"D\xff\xff\xff\xff"], "it has an impossible length"),
        (lambda parts: [*parts[:2], parts[0], *parts[2:]], "frames are missing after frame 1"),
        (lambda parts: [parts[0].replace(b":1,", b":2,", 1)], "version 2 of the encryption"),
        (lambda parts: [parts[0][:40] + b"\n"], "the header after frame 0 is damaged"),
        (lambda parts: [parts[0][:-1] + b" " * 5000], "the header after frame 0 is damaged"),
    ],
)
@pytest.mark.requirement("SAMP-29")
def test_damage_is_named(tmp_path, change, text):
    path = tmp_path / "a.mcprec.jsonl"
    sink = EncryptedSink(FileSink(path), recording_keys())
    ends = []
    for data in (b"one\n", b"two\n", b"three\n"):
        sink.write(data)
        ends.append(sink.written_bytes)
    sink.close()
    whole = path.read_bytes()
    cuts = [0, whole.index(b"\n") + 1, *ends, len(whole)]
    parts = [whole[begin:end] for begin, end in pairwise(cuts)]
    path.write_bytes(b"".join(change(parts)))
    assert text in check_frames(path).damage
    with pytest.raises(RecordingError, match="cannot decrypt"):
        content(path)


def test_a_change_with_a_new_digest_is_found_with_the_key(written):
    import hashlib

    whole = bytearray(written.read_bytes())
    begin = whole.index(b"\n") + 1
    size = int.from_bytes(whole[begin + 1 : begin + 5], "big")
    whole[begin + 7] ^= 1
    end = begin + 5 + size
    whole[end : end + 8] = hashlib.sha256(whole[:end]).digest()[:8]
    written.write_bytes(whole)
    with pytest.raises(RecordingError, match="or the file was changed without the key"):
        content(written)


# Policies and the catalogue


@pytest.mark.requirement("SAMP-29")
async def test_a_policy_encrypts_compresses_and_keeps_texts_out_of_the_catalogue(tmp_path, keys):
    folder = tmp_path / "kept"
    policy = RecordPolicy(folder, encrypt=True, index_arguments=True)
    await record(policy, "gold", "fail", server=server_of())
    with Catalogue(folder) as catalogue:
        (row,) = catalogue.find("error:tool tool:store")
        assert catalogue.find('text:"no place"') == []
        assert catalogue.find('text:"gold"') == []
    assert row.file.endswith(".zst")
    assert is_encrypted(row.file)
    for each in folder.iterdir():
        assert SECRET.encode() not in each.read_bytes()
    # Without the key a new catalogue has no row; with the key, the next run makes it.
    (folder / "catalogue.sqlite").unlink()
    keys("")
    with Catalogue(folder) as catalogue:
        assert "is encrypted" in str(catalogue.index().unreadable)
        keys(f"old:{OLD}")
        assert catalogue.index().added == 1
        assert len(catalogue.find("tool:store")) == 1
