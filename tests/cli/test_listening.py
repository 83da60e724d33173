"""Listening somewhere: only that it cannot be is told as that."""

import signal

import click
import pytest

from mcp_trio._cli.options import listen_address, listening, serve_options

SERVER = """
from contextlib import asynccontextmanager

from mcp_trio import Server

@asynccontextmanager
async def lifespan(server):
    yield
    raise OSError(28, "the disk is full")

server = Server("there", lifespan=lifespan)
"""
PLACES = {
    "http": ("--port", "0"),
    "websocket": ("--port", "0"),
    "unix": ("--socket", "s"),
    "tcp": ("--port", "0"),
}


@click.command()
def nothing():
    pass


def fail(place, error, *urls):
    with click.Context(nothing), listening(place, "serving") as attempt:
        for url in urls:
            attempt.report_url(url)
        raise error


def test_what_fails_before_somebody_listens_is_a_line_and_a_status(capsys):
    with pytest.raises(click.exceptions.Exit) as ended:
        fail("there:1", OSError(98, "in use"))
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "cannot listen at there:1: in use\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(16, "held", "there"), "held: there"),
        (OSError(16, "held", "a/place"), "held"),
        (OSError(2, "nothing", "no/such"), "nothing"),
        (OSError("path too long"), "path too long"),
    ],
)
def test_a_file_that_is_in_the_way_is_named(tmp_path, monkeypatch, capsys, error, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/place").touch()
    with pytest.raises(click.exceptions.Exit):
        fail("unix:a/place", error)
    assert capsys.readouterr().err == f"cannot listen at unix:a/place: {text}\n"


def test_what_fails_afterwards_is_raised_as_it_is(capsys):
    with pytest.raises(OSError, match="the disk is full"):
        fail("there:1", OSError(28, "the disk is full"), "http://there:1/mcp")
    assert capsys.readouterr().err == "serving http://there:1/mcp\n"


def test_where_nobody_listens_that_is_no_reason():
    with pytest.raises(OSError, match="gone"):
        fail(None, OSError(5, "gone"))


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "127.0.0.1:8000"),
        ({"port": 0, "token": "t"}, "127.0.0.1:0"),
        ({"host": "::1", "port": 80}, "[::1]:80"),
        ({"path": "a/socket"}, "a/socket"),
    ],
)
def test_a_place_is_told_as_people_write_it(place, text):
    assert listen_address(**place) == text


def test_what_was_not_said_is_not_told():
    said = {"host": None, "port": 0, "hosts": (), "is_open": False}
    assert serve_options("tcp", said) == {"port": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", PLACES)
def test_what_a_server_does_that_was_served_is_its_own(
    while_listening, tmp_path, monkeypatch, way, number
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text(SERVER)
    arguments = ("run", "there.py", "--transport", way, *PLACES[way])
    with pytest.raises(OSError, match="the disk is full"):
        while_listening(str, *arguments, number=number)
