"""`mcp-trio replay --mode --key`."""

import pytest


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--mode", "lax"], "Invalid value for '--mode'"),
        (["--key", "/does/not/exist"], "cannot read the key /does/not/exist"),
    ],
)
def test_odd_options_are_rejected(invoke, tmp_path, write, options, told):
    target = tmp_path / "server.py"
    target.write_text('from mcp_trio import Server\n\nserver = Server("x")\n')
    shown = invoke("replay", write(), target, *options)
    assert (shown.exit_code, told in shown.stderr) == (2, True)
