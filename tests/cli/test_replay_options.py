"""`mcp-trio replay --mode --key`."""

import pytest


@pytest.mark.parametrize("options", [["--mode", "lax"], ["--key", "/does/not/exist"]])
def test_odd_options_are_refused(invoke, tmp_path, options):
    target = tmp_path / "server.py"
    target.write_text('from mcp_trio import Server\n\nserver = Server("x")\n')
    shown = invoke("replay", tmp_path / "a.jsonl", target, *options)
    assert shown.exit_code == 2
