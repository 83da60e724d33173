"""An error of the lifespan after a cancellation is raised without an exception group."""

import contextlib
from types import SimpleNamespace

import pytest
import trio

from mcp_trio import Server
from tests.ways import WAYS, serving


@contextlib.asynccontextmanager
async def lifespan(_server):
    yield
    raise LookupError("no sea")


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_of_the_lifespan_is_raised_without_a_group_after_a_cancellation(
    way, tmp_path
):
    with trio.CancelScope() as scope:
        status = SimpleNamespace(started=lambda _url: scope.cancel())
        with pytest.raises(LookupError) as raised:
            await serving(Server("harbour", lifespan=lifespan), way, tmp_path)(task_status=status)
    assert raised.value.args == ("no sea",)
