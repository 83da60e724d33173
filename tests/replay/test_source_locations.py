"""Source locations of users' code."""

import trio
import trio.testing

from mcp_trio import Context, Server
from mcp_trio._replay import source_locations
from mcp_trio._replay.source_locations import (
    current_location,
    handler_location,
    is_alive,
    task_location,
)
from mcp_trio.examples import weather
from mcp_trio.transports import memory_pair

server = Server("places")


@server.tool
async def tool(*, ctx: Context) -> None: ...


@server.prompt
async def prompt() -> str:
    return ""


@server.resource("place://{name}")
async def resource(name: str) -> str:
    return name


@server.completion(resource, "name")
async def names(typed: str) -> list[str]:
    return [typed]


@server.method("acme/method")
async def method() -> None:
    pass


def site(request):
    application = server._sessions.open_session(memory_pair()[0]).application
    return handler_location(application, request)


async def test_the_handler_of_each_kind_of_request_is_found():
    assert site(b'{"method":"tools/call","params":{"name":"tool"}}').startswith(
        "in tool at test_source_locations.py:"
    )
    assert "in prompt at " in site(b'{"method":"prompts/get","params":{"name":"prompt"}}')
    assert "in resource at " in site(b'{"method":"resources/read","params":{"uri":"place://a"}}')


async def test_the_handlers_of_completions_and_methods_are_found():
    params = (
        b'"params":{"ref":{"type":"ref/resource","uri":"place://{name}"},'
        b'"argument":{"name":"name","value":""}}'
    )
    assert site(b'{"method":"completion/complete",' + params + b"}").startswith(
        "in name of place://{name} at test_source_locations.py:"
    )
    assert site(b'{"method":"acme/method"}').startswith(
        "in acme/method at test_source_locations.py:"
    )
    assert "in acme/method at " in site(b'{"method":"acme/method","params":{"uri":3}}')


async def test_a_message_without_a_handler_has_no_location():
    unknown = b'"params":{"ref":{"type":"ref/prompt","name":"prompt"},"argument":{"name":"x"}}'
    assert site(b'{"method":"completion/complete",' + unknown + b"}") == ""
    assert site(b'{"method":"tools/list","params":{}}') == ""
    assert site(b'{"method":"tools/call","params":{"name":"none"}}') == ""
    assert site(b'{"method":"resources/read","params":{"uri":"other://a"}}') == ""
    assert site(b'{"method":"resources/read","params":{"uri":"place://.."}}') == ""
    assert site(b"[]") == ""
    assert site(b"") == ""
    assert handler_location(object(), b"{}") == ""


async def test_the_examples_count_as_user_code():
    application = weather.server._sessions.open_session(memory_pair()[0]).application
    request = b'{"method":"tools/call","params":{"name":"warmest"}}'
    assert "at weather.py:" in handler_location(application, request)
    assert source_locations._is_user_code(weather.weather.__code__)


async def test_the_location_of_a_task_is_where_its_user_code_waits():
    async def wait():
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        (task,) = nursery.child_tasks
        assert task_location(task).startswith("at test_source_locations.py:")
        nursery.cancel_scope.cancel()
    assert not is_alive(task)
    assert task_location(task) == ""


async def test_the_current_location_is_that_of_the_calling_task():
    assert current_location().startswith("at test_source_locations.py:")


async def test_a_task_without_user_code_has_no_location(nursery):
    ours, _ = memory_pair()
    nursery.start_soon(ours.receive)
    await trio.testing.wait_all_tasks_blocked()
    (task,) = nursery.child_tasks
    assert task_location(task) == ""
    nursery.cancel_scope.cancel()
