"""`scan` finds likely secrets, shows where they are, and does not show them."""

import pytest

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
def test_a_likely_secret_is_shown_with_its_place_and_masked(write, invoke, kind, data):
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
def test_what_is_none_is_not_shown(write, invoke, data):
    done = invoke("scan", write(message(data)))
    assert done.exit_code == 0
    assert "nothing looks like a secret" in done.stdout


def test_a_frame_that_is_no_json_is_looked_through(write, invoke):
    assert invoke("scan", write(("in", b'{"password":"correct-horse", '))).exit_code == 1


def test_a_value_that_is_found_in_two_ways_is_shown_once(write, invoke):
    done = invoke("scan", write(message("secret=AKIAIOSFODNN7EXAMPLE")))
    assert done.stdout.count("characters") == 1


def test_a_line_that_cannot_be_read_is_no_clean_one(write, invoke):
    path = write(message("nothing at all"), message("nothing either"))
    whole = path.read_bytes()
    for damage, told in (
        (whole[:-5], "line 4: the recording was cut"),
        (whole.replace(b'{"n":2', b"{"), "line 3: not a record"),
        (whole.replace(b'{"n":2', b'{"z":"password=correct-horse","n":2'), "line 3: a record with"),
    ):
        path.write_bytes(damage)
        done = invoke("scan", path)
        assert (done.exit_code, f"cannot be scanned: {told}" in done.stderr) == (1, True)


def test_a_short_token_hides_nothing(write, tmp_path, invoke):
    clean = tmp_path / "clean.mcprec.jsonl"
    values = [f"zQ8vN3kLp{digit}Xw7RtYb2MfHs9J" for digit in range(10)]
    path = write(message({"otp": 1}), *map(message, values))
    assert invoke("redact", path, "-o", clean).exit_code == 0
    assert invoke("scan", clean).stdout.count("high entropy") == len(values)


def test_a_recording_without_manifest_gets_a_note(write, tmp_path, invoke):
    path = write(message({"password": "correct-horse"}))
    assert "without redaction" in invoke("scan", path).stderr
    clean = tmp_path / "clean.mcprec.jsonl"
    invoke("redact", path, "-o", clean)
    done = invoke("scan", clean)
    assert done.exit_code == 0
    assert done.stderr == ""


def test_what_is_no_recording_does_not_end_the_scan(write, tmp_path, invoke):
    none = tmp_path / "none"
    done = invoke("scan", none, write(message(SECRETS["AWS key"])))
    assert done.exit_code == 2
    assert "cannot read" in done.stderr
    assert "AWS key" in done.stdout
