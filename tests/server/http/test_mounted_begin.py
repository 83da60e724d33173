"""A mounted application that takes a while to begin, and who does not wait for that."""

import contextlib
import functools

import pytest
import trio
import trio.testing

from tests.server.http.conftest import harbour, hello
from tests.server.http.test_serving import answered


@pytest.fixture
def told():
    return []


@pytest.fixture
def app(told):
    @contextlib.asynccontextmanager
    async def lifespan(_server):
        told.append("begins")
        await trio.sleep(5)
        yield
        told.append("ends")

    return harbour(lifespan=lifespan).asgi()


greeted = functools.partial(answered, method="POST", path="/mcp", message=hello("2025-11-25"))


async def test_a_client_that_leaves_before_it_has_begun_leaves_it_to_the_next(
    app, told, autojump_clock
):
    with trio.move_on_after(1) as patience:
        await greeted(app)
    assert patience.cancelled_caught
    status, _head, _body = await greeted(app)
    assert (status, told) == (200, ["begins"])
    await app.aclose()
    assert told == ["begins", "ends"]


async def test_what_is_closed_before_it_has_begun_ends(app, told, autojump_clock):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(greeted, app)
        await trio.sleep(1)
        await app.aclose()
    assert told == ["begins", "ends"]
