"""The cache of a client: its rules, and a client that follows them."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import RequestError
from mcp_trio import types as t
from mcp_trio._client.cache import Cache, cache_key
from tests.client.stateless import error, stateless_client

TOOLS = ("tools/list", b"{}")
PAGE = {"tools": [], "nextCursor": "2", "ttlMs": 0}
READ = cache_key("resources/read", {"uri": "tide://bergen"})


def tools(*names, ttl_ms=1000):
    listed = [t.Tool(name=name, input_schema={}) for name in names]
    return t.ListToolsResult(tools=listed, ttl_ms=ttl_ms)


def read(ttl_ms=1000):
    contents = [t.ResourceContents(uri="tide://bergen", text="ebb")]
    return t.ReadResourceResult(contents=contents, ttl_ms=ttl_ms)


def kept(*entries, entries_max=10, bytes_max=10_000):
    cache = Cache(entries_max=entries_max, bytes_max=bytes_max)
    for key, result in entries:
        cache.put(key, result, now=100.0, changes=0)
    return cache


# The rules.


@pytest.mark.requirement("CACHE-05", "CACHE-09", "TRAP-81")
def test_a_result_is_valid_for_its_ttl():
    cache = kept((TOOLS, tools("tide", ttl_ms=1500)))
    assert cache.get(TOOLS, 101.499) == tools("tide", ttl_ms=1500)
    assert cache.get(TOOLS, 101.5) is None
    assert cache.get(TOOLS, 101.0) is None  # dropped, not only looked past


def test_a_result_may_be_valid_for_longer_than_a_float_can_tell():
    ages = tools("tide", ttl_ms=10**400)
    assert kept((TOOLS, ages)).get(TOOLS, 1e9) == ages


@pytest.mark.requirement("CACHE-05", "CACHE-06", "TRAP-81")
@pytest.mark.parametrize("ttl_ms", [None, 0, -1, -(10**9)])
def test_a_result_without_a_ttl_is_not_cached(ttl_ms):
    cache = kept((TOOLS, tools("tide")))
    cache.put(TOOLS, tools("tide", ttl_ms=ttl_ms), now=100.0, changes=0)
    assert cache.get(TOOLS, 100.0) is None


@pytest.mark.requirement("CACHE-07", "TRAP-84")
def test_a_cached_result_serves_only_its_method_and_params():
    first, second = cache_key("tools/list", None), cache_key("tools/list", {"cursor": "2"})
    cache = kept((first, tools("tide")))
    for key in (second, cache_key("prompts/list", None), READ):
        assert cache.get(key, 100.0) is None
    assert cache.get(first, 100.0) == tools("tide")


@pytest.mark.requirement("CACHE-07")
def test_a_key_is_the_method_and_all_of_the_params_in_any_order():
    same = [
        t.ReadResourceParams(uri="a:b"),
        {"uri": "a:b"},
    ]
    assert len({cache_key("resources/read", params) for params in same}) == 1
    ordered, turned = {"uri": "a:b", "_meta": {"x/y": 1}}, {"_meta": {"x/y": 1}, "uri": "a:b"}
    assert cache_key("resources/read", ordered) == cache_key("resources/read", turned)
    assert cache_key("resources/read", ordered) != cache_key("resources/read", {"uri": "a:b"})
    assert cache_key("tools/list", None) == cache_key("tools/list", t.PaginatedParams())
    assert cache_key("tools/list", {"cursor": ""}) != cache_key("tools/list", None)


@pytest.mark.requirement("TRAP-80")
def test_results_of_six_methods_are_cacheable():
    def is_kept(method):
        return cache_key(method, None) is not None

    lists = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]
    assert all(map(is_kept, [*lists, "resources/read", "server/discover"]))
    others = ["tools/call", "prompts/get", "completion/complete", "ping", "people/own"]
    assert not any(map(is_kept, others))


@pytest.mark.requirement("CACHE-08", "TRAP-82")
@pytest.mark.parametrize(
    "retry",
    [
        {"requestState": ""},
        {"inputResponses": {}},
        t.ReadResourceParams(uri="a:b", input_responses={}, request_state="s"),
    ],
)
def test_the_result_of_a_retry_has_no_cache_key(retry):
    assert cache_key("resources/read", retry) is None


@pytest.mark.parametrize("params", [{"uri": object()}, {"uri": "\ud800"}])
def test_params_that_cannot_be_encoded_have_no_cache_key(params):
    assert cache_key("resources/read", params) is None


@pytest.mark.requirement("CACHE-15")
@pytest.mark.parametrize(
    ("notification", "stale"),
    [
        ("notifications/tools/list_changed", {"tools/list"}),
        ("notifications/prompts/list_changed", {"prompts/list"}),
        ("notifications/resources/list_changed", {"resources/list", "resources/templates/list"}),
        ("notifications/message", set()),
    ],
)
def test_a_changed_list_is_dropped_with_all_its_pages(notification, stale):
    pages = {
        "tools/list": tools("tide"),
        "prompts/list": t.ListPromptsResult(prompts=[], ttl_ms=1000),
        "resources/list": t.ListResourcesResult(resources=[], ttl_ms=1000),
        "resources/templates/list": t.ListResourceTemplatesResult(
            resource_templates=[], ttl_ms=1000
        ),
    }
    keys = [cache_key(method, params) for method in pages for params in (None, {"cursor": "2"})]
    cache = kept(*((key, pages[key[0]]) for key in keys))
    cache.apply(notification, t.EmptyParams())
    assert {key[0] for key in keys if cache.get(key, 100.0) is None} == stale


@pytest.mark.requirement("CACHE-15", "TRAP-78")
@pytest.mark.parametrize(
    ("updated", "is_stale"),
    [
        ("tide://bergen", True),
        ("tide://bergen/north", True),
        ("tide://bergen2", False),
        ("tide://", False),
        ("tide://oslo", False),
    ],
)
def test_an_updated_resource_is_dropped_and_so_is_its_parent(updated, is_stale):
    cache = kept((READ, read()), (TOOLS, tools("tide")))
    params = t.ResourceUpdatedParams(uri=updated)
    cache.apply("notifications/resources/updated", params)
    assert (cache.get(READ, 100.0) is None) is is_stale
    assert cache.get(TOOLS, 100.0) is not None


@pytest.mark.requirement("CACHE-15")
def test_a_result_requested_before_a_change_is_not_cached():
    cache = kept()
    changes = cache.changes
    cache.apply("notifications/tools/list_changed", t.EmptyParams())
    cache.put(TOOLS, tools("tide"), now=100.0, changes=changes)
    assert cache.get(TOOLS, 100.0) is None
    cache.put(TOOLS, tools("tide"), now=100.0, changes=cache.changes)
    assert cache.get(TOOLS, 100.0) is not None


def test_a_caller_cannot_change_a_cached_result():
    result = tools("tide")
    cache = kept((TOOLS, result))
    result.tools.clear()
    cache.get(TOOLS, 100.0).tools.clear()
    assert cache.get(TOOLS, 100.0) == tools("tide")


def test_an_oversized_result_evicts_no_other():
    cache = kept((TOOLS, tools("tide")), bytes_max=200)
    cache.put(
        READ,
        t.ReadResourceResult(contents=[], ttl_ms=9, meta={"a/b": "c" * 200}),
        now=100.0,
        changes=0,
    )
    assert cache.get(READ, 100.0) is None
    assert cache.get(TOOLS, 100.0) == tools("tide")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=30),
    st.integers(1, 4),
    st.integers(50, 400),
)
def test_the_cache_never_exceeds_its_limits(kept_in_turn, entries_max, bytes_max):
    cache = Cache(entries_max=entries_max, bytes_max=bytes_max)
    for cursor, size in kept_in_turn:
        key = cache_key("tools/list", {"cursor": str(cursor)})
        cache.put(key, tools("t" * size), now=0.0, changes=0)
    keys = [cache_key("tools/list", {"cursor": str(cursor)}) for cursor in range(6)]
    held = [len(entry.encoded) for entry in cache._entries.values()]
    assert len(held) <= entries_max
    assert sum(held) == cache._size_bytes <= bytes_max
    assert sum(cache.get(key, 0.5) is not None for key in keys) == len(held)
    cache.clear()
    assert cache._size_bytes == 0 == len(cache._entries)


# A client.


@pytest.mark.requirement("CACHE-05", "CACHE-07", "CACHE-09", "CACHE-10", "TRAP-84")
async def test_a_client_requests_again_when_the_ttl_has_passed(autojump_clock, nursery):

    pages = {
        None: {"tools": [], "nextCursor": "2", "ttlMs": 5000},
        "2": {"tools": [], "ttlMs": 900},
    }
    answers = {"tools/list": lambda params: pages[params.get("cursor")]}
    client, server = await stateless_client(nursery, answers=answers)
    for _ in range(3):
        await client.list_tools()
    assert [params.get("cursor") for params in server.asked("tools/list")] == [None, "2"]
    await trio.sleep(1)  # and nothing is asked meanwhile
    assert len(server.asked("tools/list")) == 2
    await client.list_tools()
    assert [params.get("cursor") for params in server.asked("tools/list")] == [None, "2", "2"]
    await client.aclose()


@pytest.mark.requirement("CACHE-15")
async def test_a_client_requests_again_after_a_change(nursery):
    answers = {"tools/list": {"tools": [], "ttlMs": 10**6}}
    client, server = await stateless_client(nursery, answers=answers)
    async with client.listen(tools=True):
        for _ in range(2):
            await client.list_tools()
        await server.notify("notifications/tools/list_changed")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            await client.list_tools()
    assert len(server.asked("tools/list")) == 2
    await client.aclose()


@pytest.mark.requirement("CACHE-18", "CACHE-19", "TRAP-84")
async def test_all_pages_are_read_again_when_a_cached_cursor_is_invalid(autojump_clock, nursery):
    rest = iter([{"tools": []}, error(-32602), {"tools": []}])
    cursors = iter("234")

    def page(params):
        if "cursor" in params:
            return next(rest)
        return {"tools": [], "ttlMs": 5000, "nextCursor": next(cursors)}

    client, server = await stateless_client(nursery, answers={"tools/list": page})
    await client.list_tools()
    await client.list_tools()
    assert [params.get("cursor") for params in server.asked("tools/list")] == [
        *(None, "2"),
        *("2", None, "3"),
    ]
    await client.aclose()


async def test_an_invalid_cursor_of_an_uncached_page_is_an_error(nursery):
    answers = {"tools/list": lambda params: error(-32602) if params.get("cursor") else PAGE}
    client, _ = await stateless_client(nursery, answers=answers)
    with pytest.raises(RequestError, match="no"):
        await client.list_tools()
    await client.aclose()


@pytest.mark.requirement("CACHE-08", "TRAP-82")
async def test_the_result_of_a_multi_round_trip_request_is_not_cached(nursery):
    def read(params):
        if params.get("inputResponses"):
            return {"contents": [], "ttlMs": 10**6}
        return {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}

    client, server = await stateless_client(nursery, answers={"resources/read": read}, roots=[])
    for _ in range(2):
        await client.read_resource("a:b")
    assert len(server.asked("resources/read")) == 4
    await client.aclose()


async def test_a_client_without_a_cache_always_sends_the_request(nursery):
    answers = {"tools/list": {"tools": [], "ttlMs": 10**6}}
    client, server = await stateless_client(nursery, answers=answers, cache=False)
    for _ in range(2):
        await client.list_tools()
    assert len(server.asked("tools/list")) == 2
    await client.aclose()


@pytest.mark.requirement("CACHE-13")
async def test_clients_share_no_cache(nursery):
    answers = {"tools/list": {"tools": [], "ttlMs": 10**6, "cacheScope": "private"}}
    for _ in range(2):
        client, server = await stateless_client(nursery, answers=answers)
        await client.list_tools()
        assert len(server.asked("tools/list")) == 1
        await client.aclose()
