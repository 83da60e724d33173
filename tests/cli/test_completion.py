"""`mcp-trio completion`, and what shells complete, through click's protocol with its variables."""

import shutil
import subprocess

import pytest

SERVER = "open('imported', 'w').close()\nfrom mcp_trio import Server\nserver = Server('s')\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("server.py", ".hidden.py", "sub/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SERVER)
    for name in ("trip.mcprec.jsonl", "trip.mcprec.jsonl.zst", "notes.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(invoke, *words):
    """What bash is offered for the last word: the type and value of each item."""
    variables = {
        "_MCP_TRIO_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["mcp-trio", *words]),
        "COMP_CWORD": str(len(words)),
    }
    shown = invoke(env=variables, prog_name="mcp-trio")
    assert shown.exit_code == 0, shown.output
    return shown.stdout.split()


def test_commands_are_completed(invoke):
    assert completed(invoke, "re") == [
        *("plain,read", "plain,record", "plain,replay", "plain,redact")
    ]


def test_options_are_completed(invoke):
    assert completed(invoke, "run", "--seg") == ["plain,--segment-mib", "plain,--segment-minutes"]
    assert completed(invoke, "run", "--transport", "w") == ["plain,websocket"]


@pytest.mark.usefixtures("folder")
def test_targets_are_python_files_and_folders(invoke):
    assert completed(invoke, "run", "") == ["dir,", "plain,server.py"]
    assert completed(invoke, "run", "se") == ["plain,server.py"]
    assert completed(invoke, "run", "sub/") == ["plain,sub/other.py"]
    assert completed(invoke, "run", ".h") == ["plain,.hidden.py"]
    assert completed(invoke, "run", "nowhere/x") == []
    assert completed(invoke, "install", "s") == ["dir,s", "plain,server.py"]


@pytest.mark.usefixtures("folder")
def test_recordings_are_completed(invoke):
    recordings = ["plain,trip.mcprec.jsonl", "plain,trip.mcprec.jsonl.zst"]
    assert completed(invoke, "show", "t") == recordings
    assert completed(invoke, "diff", "trip.mcprec.jsonl", "t") == recordings
    assert completed(invoke, "scan", "trip.mcprec.jsonl", "t") == recordings
    assert completed(invoke, "mock", "trip.mcprec.jsonl", "se") == ["plain,server.py"]
    assert completed(invoke, "replay", "trip.mcprec.jsonl", "se") == ["plain,server.py"]
    assert completed(invoke, "replay", "t") == recordings


def test_hosts_are_completed(invoke):
    assert completed(invoke, "install", "--host", "c") == [
        *("plain,claude-desktop", "plain,claude-code", "plain,cursor", "plain,copilot-cli")
    ]


def test_completing_a_call_starts_no_server(invoke, folder):
    assert completed(invoke, "call", "se") == ["plain,server.py"]
    assert completed(invoke, "call", "server.py", "") == []
    assert completed(invoke, "call", "server.py", "tool", "a") == []
    assert completed(invoke, "call", "tool", "--", "python", "se") == []
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(invoke, shell):
    shown = invoke("completion", shell)
    assert shown.exit_code == 0
    assert f"_MCP_TRIO_COMPLETE={shell}_complete" in shown.stdout
    assert "mcp-trio" in shown.stdout
    assert invoke("completion", "tcsh").exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_accepts_the_script(mcp_trio):
    script = mcp_trio("completion", "bash").stdout
    shown = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ncomplete -p mcp-trio"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "-F _mcp_trio_completion mcp-trio" in shown.stdout
