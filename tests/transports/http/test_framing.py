"""Where a request ends: what two readers could understand in two ways reaches no application."""

import socket

import pytest
import trio

from tests.transports.http.conftest import HOSTS

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
async def opened(open_host, request):
    """A host that keeps the paths of what its application has seen."""
    seen = []

    async def respond(exchange):
        seen.append(exchange.head.path)
        await exchange.answer(200, [], b"hello")

    async def opened(name):
        return await open_host(name, respond), seen

    return opened


both_lengths = pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
    ],
    ids=["length-first", "coding-first"],
)


@pytest.mark.parametrize("name", HOSTS)
@both_lengths
async def test_a_request_with_length_and_coding_is_rejected_and_disconnected(opened, name, fields):
    host, seen = await opened(name)
    client = await host.connect()
    await client.put(HEAD + fields + b"\r\n0\r\n\r\n")
    with trio.fail_after(5):
        received = await client.rest()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert seen == []


@pytest.mark.parametrize("name", HOSTS)
@both_lengths
async def test_data_after_such_a_request_are_not_served(opened, name, fields, caplog):
    host, seen = await opened(name)
    for _ in range(3):
        client = await host.connect()
        await client.put(HEAD + fields + b"\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        with trio.fail_after(5):
            assert (await client.rest()).count(b"HTTP/1.1") <= 1
    assert seen == []
    assert name == "hypercorn" or caplog.records == []


@pytest.mark.parametrize("name", ["native", "resting"])
async def test_headers_and_body_of_an_answer_are_sent_together(opened, name, monkeypatch):
    host, _ = await opened(name)
    sent = []
    for kind, method in ((socket.socket, "send"), (trio.SocketStream, "send_all")):
        monkeypatch.setattr(kind, method, noting(getattr(kind, method), sent))
    client = await host.connect()
    await client.put(HEAD + b"Content-Length: 3\r\nConnection: close\r\n\r\nabc")
    await client.rest()
    answers = [data for data in sent if data.startswith(b"HTTP/1.1")]
    assert len(answers) == 1
    assert answers[0].endswith(b"hello")


def noting(send, sent):
    def noted(self, data, *options):
        sent.append(bytes(data))
        return send(self, data, *options)

    return noted


@pytest.mark.parametrize("name", HOSTS)
async def test_a_connection_is_kept_after_an_unread_empty_body(opened, name):
    host, seen = await opened(name)
    client = await host.connect()
    for _ in range(2):
        await client.put(HEAD + b"Content-Length: 0\r\n\r\n")
        with trio.fail_after(5):
            while not (received := await client.stream.receive_some()).endswith(b"hello"):
                assert b"connection: close" not in received
    assert seen == ["/", "/"]
