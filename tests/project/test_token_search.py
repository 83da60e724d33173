"""The search for tokens in the tests of authorization fails a test that shows one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

TESTS = """
import logging
import pytest
from mcp_trio._auth.consent_page import HttpResponse
from tests.token_search import plant

TOKEN = "-".join(["access", "token", "1"])  # the source itself is no place to search


def test_logged():
    logging.getLogger("mcp_trio").warning("sent %s", TOKEN)


def test_caught():
    with pytest.raises(ValueError, match="rejected"):
        try:
            raise KeyError(TOKEN)
        except KeyError:
            raise ValueError("rejected")


def test_printed():
    print(TOKEN)


def test_recorded(tmp_path):
    (tmp_path / "a.mcprec.jsonl").write_text(TOKEN)


def test_planted():
    plant("0123456789abcdef")
    logging.getLogger().error("0123456789abcdef")


def test_quiet(tmp_path):
    plant("0123456789abcdef")
    (tmp_path / "tokens.json").write_text(TOKEN)
    HttpResponse(200, body=TOKEN.encode())
"""


def test_a_test_that_shows_a_token_fails(tmp_path):
    file = tmp_path / "test_shown.py"
    file.write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider"]
    options = ["-p", "tests.token_search", "--token-search=all", f"--basetemp={tmp_path / 'files'}"]
    done = subprocess.run(
        [*command, *options, str(file)], check=False, cwd=HOME, capture_output=True, text=True
    )
    assert "5 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    for place in ("a log message", "an error", "Captured stdout call", "the recording a.mcprec"):
        assert re.search(f"{place}.* has the token", done.stdout), place
