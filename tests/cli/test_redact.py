"""`mcp-trio redact` and `scan`."""

import fcntl
import os
import stat

import pytest
import zstandard

# `redact`.


SECRET = "Abc123Xyz789Qrs456"
ECHO = {
    "jsonrpc": "2.0",
    "method": "notifications/message",
    "params": {"level": "info", "data": SECRET},
}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "login",
        "arguments": {"password": SECRET, "pin": "4711", "street": "Elm Row 5"},
    },
}
LISTED = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "tools": [{"name": "login", "inputSchema": {"properties": {"pin": {"format": "password"}}}}]
    },
}
BROKEN = b'{"jsonrpc":"2.0","id":2,"x":' + SECRET.encode()


@pytest.fixture
def path(write):
    return write(
        ("out", ECHO),
        ("in", CALL),
        ("in", BROKEN),
        ("cxl", None, "r2", 0),
        ("out", LISTED, "r2", 1),
    )


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "team.key"
    file.write_text("sixteen bytes or more\n")
    return file


def test_no_secret_is_left_even_before_its_name_occurs(path, tmp_path, invoke):
    out = tmp_path / "clean.mcprec.jsonl"
    assert invoke("redact", path, "-o", out).exit_code == 0
    clean = out.read_bytes()
    assert SECRET.encode() not in clean
    assert b"4711" not in clean
    assert b"Elm Row 5" in clean
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert invoke("check", out).exit_code == 0
    assert invoke("scan", out).exit_code == 0
    differing = invoke("diff", path, out).output
    assert "missing" not in differing
    assert "extra" not in differing


def test_rules_names_and_values_are_redacted_too(path, tmp_path, invoke):
    values = tmp_path / "values"
    values.write_text("Elm Row\n\n")
    for rule in (
        ["--name", "street"],
        ["--rule", "$.params.arguments.street"],
        ["--rule", "tools/call:$.params.arguments.street"],
        ["--values", values],
    ):
        done = invoke("redact", path, *rule)
        assert done.exit_code == 0
        assert b"Elm Row" not in done.stdout_bytes


def test_the_same_key_gives_the_same_recording(path, key, invoke):
    done = [invoke("redact", path, "--key", key).stdout_bytes for _ in range(2)]
    assert done[0] == done[1]
    assert invoke("redact", path).stdout_bytes != done[0]


def test_redacting_twice_changes_no_message(path, tmp_path, key, invoke):
    once = tmp_path / "once.mcprec.jsonl"
    invoke("redact", path, "-o", once, "--key", key)
    twice = invoke("redact", once).stdout_bytes.splitlines()
    for before, after in zip(once.read_bytes().splitlines()[1:-1], twice[1:-1], strict=True):
        assert before == after


def test_in_place_replaces_the_recording(path, invoke):
    assert invoke("redact", path, "--in-place").exit_code == 0
    assert SECRET.encode() not in path.read_bytes()
    assert invoke("check", path).exit_code == 0
    assert list(path.parent.iterdir()) == [path]


def test_the_output_is_compressed_if_its_name_ends_in_zst(path, tmp_path, invoke):
    out = tmp_path / "clean.mcprec.jsonl.zst"
    assert invoke("redact", path, "-o", out).exit_code == 0
    with zstandard.open(out, "rb") as file:
        assert SECRET.encode() not in file.read()
    assert invoke("check", out).exit_code == 0


def test_a_cut_recording_stays_cut(path, invoke):
    path.write_bytes(path.read_bytes()[:-5])
    done = invoke("redact", path, "--in-place")
    assert done.exit_code == 0
    assert "left out: line 7: the recording was cut" in done.stderr
    assert "not closed" in invoke("check", path).output


def test_a_damaged_recording_is_rejected(path, invoke):
    path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":3'))
    before = path.read_bytes()
    done = invoke("redact", path, "--in-place")
    assert done.exit_code == 2
    assert "numbering" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-o", "{path}"], "--in-place"),
        (["-o", "x", "--in-place"], "cannot be used together"),
        (["--rule", "pin"], "not a JSON path to a member: 'pin'"),
        (["--key", "{path}.none"], "cannot read the key"),
        (["--values", "{path}.none"], "cannot read the values"),
        (["-o", "{path}/none/x"], "cannot write"),
    ],
)
def test_contradictory_options_and_unreadable_files_are_rejected(path, invoke, arguments, text):
    done = invoke("redact", path, *(each.format(path=path) for each in arguments))
    assert done.exit_code == 2
    assert text in done.stderr


def test_in_place_rejects_a_recording_in_several_files(path, invoke):
    segment = path.parent / "hand.2.mcprec.jsonl"
    segment.write_bytes(b"more of it")
    for where, text in ((["--in-place"], "several files"), (["-o", segment], "itself")):
        done = invoke("redact", path, *where)
        assert (done.exit_code, text in done.stderr) == (2, True)
    assert segment.read_bytes() == b"more of it"


def test_a_missing_recording_is_reported(tmp_path, invoke):
    (tmp_path / "out").touch()
    done = invoke("redact", tmp_path / "none", "-o", tmp_path / "out")
    assert (done.exit_code, "cannot read" in done.stderr) == (2, True)


def test_an_invalid_tool_list_defines_no_secrets(write, invoke):
    odd = {"jsonrpc": "2.0", "id": 1, "result": {"tools": 3, "inputSchema": 1}}
    assert invoke("redact", write(("out", odd))).exit_code == 0


def test_the_recordings_that_stdin_names_are_redacted_with_one_key(path, tmp_path, invoke):
    clean, other = tmp_path / "clean", path.with_name("other.mcprec.jsonl")
    other.write_bytes(path.read_bytes())
    names = f"{path}\n{tmp_path / 'none'}\n{other}\n"
    done = invoke("redact", "-", "-o", clean, input=names)
    assert (done.exit_code, "cannot read" in done.stderr) == (2, True)
    first, second = ((clean / each.name).read_bytes() for each in (path, other))
    assert b"correct-horse" not in first
    assert first.splitlines()[1:] == second.splitlines()[1:]
    done = invoke("redact", "-", "-o", clean, input=f"{path}")
    assert (done.exit_code, "exists" in done.stderr) == (2, True)
    assert (
        invoke("redact", "-", "--in-place", input=names.replace("none", path.name)).exit_code == 0
    )
    assert b"correct-horse" not in other.read_bytes()
    assert invoke("redact", "-", input=names).exit_code == 2


def test_recordings_of_one_name_are_not_redacted_to_one_file(path, tmp_path, invoke):
    other = tmp_path / "other" / path.name
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    done = invoke(
        *("redact", "-", "-o", tmp_path / "clean", "--overwrite"), input=f"{path}\n{other}\n"
    )
    assert done.exit_code == 2
    assert f"stdin names 2 recordings {path.name}: OUT has room for one" in done.stderr


def test_in_place_replaces_the_file_behind_a_link(path, tmp_path, invoke):
    link = tmp_path / "link.mcprec.jsonl"
    link.symlink_to(path)
    assert invoke("redact", link, "--in-place").exit_code == 0
    assert link.is_symlink()
    assert SECRET.encode() not in path.read_bytes()


def test_a_hard_link_to_the_recording_is_reported(path, tmp_path, invoke):
    (tmp_path / "other.mcprec.jsonl").hardlink_to(path)
    assert "hard link" in invoke("redact", path, "--in-place").stderr


def test_in_place_rejects_a_recording_in_progress(path, invoke):
    before = path.read_bytes()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = invoke("redact", path, "--in-place")
    assert done.exit_code == 2
    assert "still being recorded" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["none", "no/folder"])
def test_in_place_rejects_a_missing_recording(tmp_path, invoke, name):
    done = invoke("redact", tmp_path / name, "--in-place")
    assert done.exit_code == 2
    assert "cannot read" in done.stderr


def test_a_failed_write_leaves_the_recording_unchanged(path, invoke, monkeypatch):
    before = path.read_bytes()

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    assert invoke("redact", path, "--in-place").exit_code != 0
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.slow
def test_the_limit_on_secrets_of_a_session_does_not_apply(write, invoke):
    calls = [
        ("in", {**CALL, "params": {"arguments": {"password": f"word-{number:05}"}}})
        for number in range(1100)
    ]
    done = invoke("redact", write(*calls))
    assert done.exit_code == 0
    assert b"word-" not in done.stdout_bytes


def test_passwords_by_a_tools_output_schema_are_redacted(write, invoke):
    tool = LISTED["result"]["tools"][0]
    tool = {**tool, "outputSchema": {"properties": {"seed": {"format": "password"}}}}
    listed = {**LISTED, "result": {"tools": [tool]}}
    result = {"structuredContent": {"seed": "abcdef1"}, "content": []}
    done = invoke("redact", write(("out", listed), ("out", {"id": 2, "result": result})))
    assert done.exit_code == 0
    assert b"abcdef1" not in done.stdout_bytes


PIN = {**CALL, "params": {"name": "login", "arguments": {"otp": "123", "note": "otp 123"}}}
CHECK = {"name": "check", "arguments": {"code": "123"}}


@pytest.fixture
def short(write):
    return write(("in", PIN), ("cmd", CHECK, "r1", 0), ("cxl", None, "r1", 1))


def test_a_short_secret_that_is_left_is_reported_without_its_value(short, tmp_path, invoke):
    out = tmp_path / "clean.mcprec.jsonl"
    done = invoke("redact", short, "-o", out)
    assert done.exit_code == 1
    assert "record 1 (in): --rule '$.params.arguments.note'" in done.stderr
    assert "record 2 (cmd): --rule 'cmd:$.arguments.code'" in done.stderr
    assert "--min-chars 3" in done.stderr
    assert "123" not in done.stderr
    assert b'"otp":"123"' not in out.read_bytes()


def test_the_rules_that_are_proposed_leave_no_short_secret(short, key, invoke):
    rules = ["$.params.arguments.note", "cmd:$.arguments.code"]
    options = [text for rule in rules for text in ("--rule", rule)]
    # With a random key, a token could have the same three digits somewhere.
    done = invoke("redact", short, "--key", key, *options)
    assert (done.exit_code, done.stderr) == (0, "")
    assert b"123" not in done.stdout_bytes


def test_short_secrets_are_replaced_everywhere_on_request(short, key, invoke):
    done = invoke("redact", short, "--key", key, "--min-chars", "3")
    assert (done.exit_code, done.stderr) == (0, "")
    assert b"123" not in done.stdout_bytes


def test_a_recording_in_which_a_short_secret_would_be_left_is_not_replaced(short, invoke):
    before = short.read_bytes()
    done = invoke("redact", short, "--in-place")
    assert done.exit_code == 1
    assert f"{short} is unchanged" in done.stderr
    assert short.read_bytes() == before


def test_only_the_first_places_of_short_secrets_are_printed(write, invoke):
    done = invoke("redact", write(*[("in", PIN)] * 30))
    assert "… and in 10 more places" in done.stderr
    assert len(done.stderr.splitlines()) < 25


# `scan`.


SECRETS = {
    "secret name": {"password": "correct-horse"},
    "AI service key": "use sk-proj-Abc123Xyz789Qrs456Tuv",
    "GitHub token": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "AWS key": ["AKIAIOSFODNN7EXAMPLE"],
    "JSON Web Token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "high entropy": "zQ8vN3kLp1Xw7RtYb2MfHs9J",
}


def message(data):
    params = {"level": "info", "data": data}
    return ("out", {"jsonrpc": "2.0", "method": "notifications/message", "params": params})


@pytest.mark.parametrize(("kind", "data"), SECRETS.items())
def test_a_likely_secret_is_shown_masked_with_its_path(write, invoke, kind, data):
    done = invoke("scan", write(message(data)))
    assert done.exit_code == 1
    assert f"1  {kind}" in done.stdout
    assert "$.params.data" in done.stdout
    assert str(data) not in done.stdout
    assert "correct-horse" not in done.stdout


@pytest.mark.parametrize(
    "data",
    [
        "nothing at all",
        {"token": {"type": "string"}, "token_type": "bearer", "password": True},
        "0123456789abcdef0123456789abcdef",
        "https://a/ein-ganz-langer-pfad-von-worten",
        "AaBbCc112233AaBbCc112233AaBbCc112233",
        {"data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB5Zx7pQ"},
        {"password": ""},
        17.5,
    ],
)
def test_unsuspicious_values_are_not_shown(write, invoke, data):
    done = invoke("scan", write(message(data)))
    assert done.exit_code == 0
    assert "nothing looks like a secret" in done.stdout


@pytest.mark.requirement("SAMP-29")
def test_the_counts_of_masked_secrets_are_no_secrets(write, invoke):
    counts = {"counts": {"masked: password": 2}}
    result = invoke("scan", write(("in", {"jsonrpc": "2.0", "method": "x"}), ("end", counts)))
    assert (result.exit_code, "nothing looks like a secret" in result.output) == (0, True)


def test_a_message_that_is_not_json_is_scanned(write, invoke):
    assert invoke("scan", write(("in", b'{"password":"correct-horse", '))).exit_code == 1


def test_a_value_with_two_indications_is_shown_once(write, invoke):
    done = invoke("scan", write(message("secret=AKIAIOSFODNN7EXAMPLE")))
    assert done.stdout.count("characters") == 1


def test_an_unreadable_line_is_status_1(write, invoke):
    path = write(message("nothing at all"), message("nothing either"))
    intact = path.read_bytes()
    for damage, text in (
        (intact[:-5], "line 4: the recording was cut"),
        (intact.replace(b'{"n":2', b"{"), "line 3: not a record"),
        (
            intact.replace(b'{"n":2', b'{"z":"password=correct-horse","n":2'),
            "line 3: a record with",
        ),
    ):
        path.write_bytes(damage)
        done = invoke("scan", path)
        assert (done.exit_code, f"cannot be scanned: {text}" in done.stderr) == (1, True)


def test_a_short_redaction_token_does_not_hide_other_secrets(write, tmp_path, invoke):
    clean = tmp_path / "clean.mcprec.jsonl"
    values = [f"zQ8vN3kLp{digit}Xw7RtYb2MfHs9J" for digit in range(10)]
    path = write(message({"otp": 1}), *map(message, values))
    assert invoke("redact", path, "-o", clean).exit_code == 0
    assert invoke("scan", clean).stdout.count("high entropy") == len(values)


def test_a_recording_without_redaction_gets_a_note(write, tmp_path, invoke):
    path = write(message({"password": "correct-horse"}))
    assert "without redaction" in invoke("scan", path).stderr
    clean = tmp_path / "clean.mcprec.jsonl"
    invoke("redact", path, "-o", clean)
    done = invoke("scan", clean)
    assert done.exit_code == 0
    assert done.stderr == ""


def test_a_file_that_is_not_a_recording_does_not_end_the_scan(write, tmp_path, invoke):
    none = tmp_path / "none"
    done = invoke("scan", none, write(message(SECRETS["AWS key"])))
    assert done.exit_code == 2
    assert "cannot read" in done.stderr
    assert "AWS key" in done.stdout
