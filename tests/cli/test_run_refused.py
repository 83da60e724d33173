"""`mcp-trio run`: what cannot be served so is said in a line, and people's own errors are kept."""

import socket

import pytest

SERVERS = {
    "plain.py": "server = Server('there')",
    "stateful.py": "server = Server('there', states=MemoryStore())",
    "broken.py": """
@asynccontextmanager
async def lifespan(server):
    raise OSError(98, "the disk is in use")
    yield

server = Server("there", lifespan=lifespan)
""",
}
BEGIN = "from contextlib import asynccontextmanager\nfrom mcp_trio import Server\nfrom mcp_trio.http import MemoryStore\n"
HTTP = ("--transport", "http")
FILE = ("--record", "one.mcprec.jsonl")

REJECTED = {
    "legacy workers": (
        ["plain.py", *HTTP, "--workers", "2", "--protocol-versions", "2025-11-25"],
        "workers serve stateless protocol versions only",
    ),
    "workers with states of one process": (
        ["stateful.py", *HTTP, "--workers", "2"],
        "workers need another store",
    ),
    "one file over http": (["plain.py", *HTTP, *FILE], "--transport http serves many sessions"),
    "one file of workers": (
        ["plain.py", *HTTP, "--workers", "2", *FILE],
        "--record needs an existing folder",
    ),
    "one file over websocket": (
        ["plain.py", "--transport", "websocket", *FILE],
        "--transport websocket serves many sessions",
    ),
    "one file over unix": (
        ["plain.py", "--transport", "unix", "--socket", "s", *FILE],
        "--transport unix serves many sessions",
    ),
    "one file over tcp": (
        ["plain.py", "--transport", "tcp", *FILE],
        "--transport tcp serves many sessions",
    ),
    "a socket at a file": (
        ["plain.py", "--transport", "unix", "--socket", "plain.py"],
        "cannot listen at plain.py: the file exists and is no socket",
    ),
    "a socket nowhere": (
        ["plain.py", "--transport", "unix", "--socket", "no/such/s"],
        "cannot listen at no/such/s: No such file or directory",
    ),
    "a host that can have no such name": (
        ["plain.py", *HTTP, "--host", "a..b"],
        "cannot listen at a..b:8000: ",
    ),
    "a certificate that does not exist": (
        ["plain.py", *HTTP, "--certfile", "cert.pem"],
        "File 'cert.pem' does not exist",
    ),
    "a file that is no certificate": (
        ["plain.py", *HTTP, "--certfile", "plain.py"],
        "no usable certificate and key in plain.py",
    ),
    "a file that is no certificate, with workers": (
        ["plain.py", *HTTP, "--workers", "2", "--certfile", "plain.py"],
        "no usable certificate and key in plain.py",
    ),
    "a key without a certificate": (
        ["plain.py", *HTTP, "--keyfile", "plain.py"],
        "--keyfile needs --certfile",
    ),
    "a certificate for tcp": (
        ["plain.py", "--transport", "tcp", "--certfile", "plain.py"],
        "--certfile cannot be used with tcp",
    ),
    "a socket of a long name": (
        ["plain.py", "--transport", "unix", "--socket", "x" * 200],
        "path too long",
    ),
}
TAKEN = {
    "http": HTTP,
    "hypercorn": (*HTTP, "--server", "hypercorn"),
    "workers": (*HTTP, "--workers", "2"),
    "websocket": ("--transport", "websocket"),
    "tcp": ("--transport", "tcp"),
}


@pytest.fixture
def rejected(invoke, tmp_path, monkeypatch):
    """What `run` says when it refuses; the servers are files of the folder that it runs in."""
    monkeypatch.chdir(tmp_path)
    for name, text in SERVERS.items():
        (tmp_path / name).write_text(BEGIN + text)

    def rejected(*arguments):
        shown = invoke("run", *arguments)
        assert shown.exit_code == 2
        return " ".join(shown.stderr.split())

    return rejected


@pytest.mark.parametrize("name", REJECTED)
def test_what_contradicts_itself_is_rejected_before_anything_is_served(name, rejected):
    arguments, complaint = REJECTED[name]
    assert complaint in rejected(*arguments)


@pytest.mark.parametrize("way", TAKEN)
def test_a_port_that_is_taken_is_named(way, rejected):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rejected("plain.py", *TAKEN[way], "--port", str(port))
    assert said.startswith(f"cannot listen at 127.0.0.1:{port}: Address already in use")


def test_what_a_lifespan_raises_is_its_own_and_keeps_its_traceback(rejected, invoke):
    with pytest.raises(OSError, match="the disk is in use"):
        invoke("run", "broken.py", *HTTP, "--port", "0")
    assert "cannot listen" in rejected("broken.py", "--transport", "unix", "--socket", "plain.py")
