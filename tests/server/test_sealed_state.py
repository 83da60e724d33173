"""Sealed states: valid only for their own request, and rejected with one error."""

import itertools
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Context, KeyRing, Limits, RequestError, Server, ToolError, types
from mcp_trio import types as s
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL
from mcp_trio._protocol.requests import SUSPENDED_PREFIX, invalid_state_error, request_digest
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio._server.sealed_state import NONCE_BYTES, Binding, Sealer, State
from mcp_trio._session.handler_journal import FinishedOperation, OperationId
from mcp_trio.errors import LocalProtocolError
from mcp_trio.http import MemoryStore
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from tests.clocks import Clock
from tests.server.rounds import NOT_VALID

KEY = bytes(range(32))
NEW_KEY = bytes(range(32, 64))
NONCE = bytes(NONCE_BYTES)
NOW = 1_000_000.0
BINDING = Binding(principal="anna", method="tools/call", digest=b"params")


def sealer(*keys, server="shop", **limits):
    return Sealer(
        server=server,
        keys=KeyRing(keys or [KEY]),
        limits=msgspec.structs.replace(DEFAULT_LIMITS, **limits),
    )


def state(**members):
    return State(**{"chain": "c", "round": 1, "began": NOW, "version": "1", **members})


def sealed(**members):
    return sealer().seal(state(**members), BINDING, now=NOW, nonce=NONCE)


def opened(text, binding=BINDING, *, by=None, version="1", now=NOW):
    return (by or sealer()).open(text, binding, version=version, now=now)


texts = st.text(max_size=40)
operations = st.builds(
    FinishedOperation,
    st.builds(OperationId, texts, st.integers(0, 99), texts, texts),
    st.sampled_from(["res", "err", "cxl"]),
    st.builds(msgspec.Raw, st.builds(msgspec.json.encode, st.dictionaries(texts, texts))),
)
states = st.builds(
    State,
    chain=texts,
    round=st.integers(0, 99),
    began=st.just(NOW),
    version=st.just("1"),
    text=st.none() | st.text(max_size=300),
    seed=texts,
    operations=st.lists(operations, max_size=5),
    pending=st.dictionaries(texts, st.builds(OperationId, texts, st.integers(0, 9), texts, texts)),
    asked=st.integers(0, 99),
)


@pytest.mark.slow
@pytest.mark.requirement("MRTR-19", "MRTR-20", "MRTR-22")
@given(states)
def test_a_state_comes_back_as_it_was_sealed(given_state):
    text = sealer().seal(given_state, BINDING, now=NOW, nonce=NONCE)

    back = opened(text)

    assert msgspec.json.encode(back) == msgspec.json.encode(
        msgspec.structs.replace(given_state, ends=NOW + DEFAULT_LIMITS.requests.state_seconds)
    )


@pytest.mark.requirement("MRTR-19", "MRTR-20", "TRAP-96")
@given(st.data())
def test_a_state_that_was_changed_anywhere_is_rejected(data):
    raw = bytearray(urlsafe_b64decode(sealed(text="x") + "=="))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))

    assert opened(urlsafe_b64encode(raw).rstrip(b"=").decode()) is None


@pytest.mark.requirement("MRTR-19", "TRAP-96")
@given(st.text() | st.binary().map(lambda it: urlsafe_b64encode(it).decode().rstrip("=")))
def test_a_text_that_was_never_sealed_is_rejected(text):
    assert opened(text) is None


@given(st.integers(0, 400))
def test_a_state_that_was_cut_is_rejected(chars):
    text = sealed(text="x")

    assert opened(text[: min(chars, len(text) - 1)]) is None


def test_another_spelling_of_a_state_is_rejected():
    text = sealed()

    assert opened(text + "=") is None
    assert opened(text + "\n") is None


@pytest.mark.requirement("MRTR-22", "STATE-08", "STATE-09", "TRAP-96", "ELIC-45", "ELIC-53")
@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(BINDING, principal="bert"),
        msgspec.structs.replace(BINDING, principal=None),
        msgspec.structs.replace(BINDING, method="prompts/get"),
        msgspec.structs.replace(BINDING, digest=b"others"),
    ],
    ids=["another principal", "no principal", "another method", "other params"],
)
def test_a_state_is_valid_only_for_its_own_request(other):
    assert opened(sealed()) is not None
    assert opened(sealed(), other) is None


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_different_bindings_have_different_encodings(
    server, principal, other_server, other_principal
):
    binding = msgspec.structs.replace(BINDING, principal=principal)
    other = msgspec.structs.replace(BINDING, principal=other_principal)

    is_same = binding.bytes_for(server) == other.bytes_for(other_server)

    assert is_same is ((server, principal) == (other_server, other_principal))


def test_a_state_of_another_server_with_the_same_key_is_rejected():
    assert opened(sealed(), by=sealer(server="bank")) is None


@pytest.mark.requirement("MRTR-22", "STATE-09")
def test_a_state_ends_with_its_round():
    seconds = DEFAULT_LIMITS.requests.state_seconds

    assert opened(sealed(), now=NOW + seconds - 1) is not None
    assert opened(sealed(), now=NOW + seconds) is None


@pytest.mark.requirement("STATE-09")
def test_a_clock_that_is_set_back_does_not_make_a_state_valid_for_longer_than_its_use_is_kept():
    seconds = DEFAULT_LIMITS.requests.state_seconds

    assert opened(sealed(), now=NOW - seconds) is not None
    assert opened(sealed(), now=NOW - seconds - 1) is None
    assert opened(sealed(), now=NOW - 3600) is None


@pytest.mark.requirement("STATE-09")
def test_a_state_ends_with_its_chain_also_when_its_round_is_young():
    text = sealed(began=NOW - DEFAULT_LIMITS.requests.state_chain_seconds + 10)

    assert opened(text, now=NOW + 9) is not None
    assert opened(text, now=NOW + 10) is None


def test_a_state_of_another_version_of_its_handler_is_rejected():
    assert opened(sealed(), version="2") is None


def test_a_state_over_the_size_limit_is_rejected_before_decryption():
    text = sealed(text="x" * 2000)

    assert opened(text, by=sealer(requests=RequestLimits(state_bytes_max=len(text)))) is not None
    assert opened(text, by=sealer(requests=RequestLimits(state_bytes_max=len(text) - 1))) is None


def test_a_state_over_the_plaintext_limit_is_rejected():
    text = sealed(text="x" * 2000)

    assert opened(text, by=sealer(requests=RequestLimits(state_plain_bytes_max=1000))) is None


NOT_UTF_8 = zlib.compress(b'{"version": "\xff"}')


@pytest.mark.parametrize(
    "plain",
    [
        b"{}",
        b"",
        b"\0\0\0\x05state",
        b"\0\0\0\x03x\x9c\x03",
        len(NOT_UTF_8).to_bytes(4) + NOT_UTF_8,
    ],
)
def test_a_state_of_another_form_is_rejected(plain):
    """Another release of ours may have sealed it, with the same key."""
    by = sealer()
    raw = by.keys.seal(plain, bound_to=BINDING.bytes_for("shop"), nonce=NONCE)

    assert opened(urlsafe_b64encode(raw).rstrip(b"=").decode()) is None


@pytest.mark.parametrize("setting", ["state_bytes_max", "state_plain_bytes_max"])
def test_a_state_that_is_too_large_is_not_sealed(setting):
    small = sealer(requests=RequestLimits(**{setting: 200}))

    with pytest.raises(LocalProtocolError, match=rf"more than limits\.requests\.{setting}=200"):
        small.seal(state(text="x" * 500), BINDING, now=NOW, nonce=NONCE)


def test_the_length_of_a_state_reveals_little_of_its_content():
    lengths = {len(sealed(text="ab" * count)) for count in range(100)}

    assert len(lengths) == 1


def test_nothing_of_a_state_can_be_read():
    raw = urlsafe_b64decode(sealed(text="the secret") + "==")

    assert b"secret" not in raw
    assert b"chain" not in raw


# Keys.


def test_keys_are_changed_without_losing_a_state():
    old = sealed()
    both, new = sealer(NEW_KEY, KEY), sealer(NEW_KEY)
    text = both.seal(state(), BINDING, now=NOW, nonce=NONCE)

    assert opened(old, by=both) is not None
    assert opened(old, by=new) is None
    assert opened(text, by=new) is not None
    assert opened(text, by=sealer(KEY, NEW_KEY)) is not None


def test_generated_keys_differ():
    text = Sealer(server="shop", keys=KeyRing.random(), limits=DEFAULT_LIMITS).seal(
        state(), BINDING, now=NOW, nonce=NONCE
    )

    assert opened(text) is None


def test_a_key_ring_does_not_show_its_keys():
    assert "keys" not in repr(KeyRing([b"k" * 32]))


@pytest.mark.parametrize(
    ("keys", "error", "text"),
    [
        ([], ValueError, "needs at least one key"),
        ([b"short"], ValueError, "at least 32 bytes"),
        ([KEY, b"short"], ValueError, "at least 32 bytes"),
        (KEY, TypeError, "a sequence of keys"),
        (["k" * 32], TypeError, "a key has to be bytes"),
    ],
)
def test_a_key_ring_rejects_missing_and_short_keys(keys, error, text):
    with pytest.raises(error, match=text):
        KeyRing(keys)


# The params of a retry.


def params(arguments=b'{"a":1,"b":[2.0,"x"]}', **members):
    return s.CallToolParams(name="tool", arguments=msgspec.Raw(arguments), **members)


@pytest.mark.requirement("MRTR-22")
def test_the_digest_of_a_retry_does_not_depend_on_the_spelling_of_json():
    plain = request_digest("tools/call", params())

    assert request_digest("tools/call", params(b'{ "b" : [2.0, "\\u0078"], "a":1 }')) == plain
    assert request_digest("tools/call", params(meta={"progressToken": 3})) == plain
    retry = params(input_responses={"q": msgspec.Raw(b"{}")}, request_state="s")
    assert request_digest("tools/call", retry) == plain


@pytest.mark.requirement("MRTR-22")
def test_a_digest_differs_with_anything_that_a_retry_repeats():
    arguments = [b'{"a":1,"b":[2.0,"x"]}', b'{"a":1,"b":[2.5,"x"]}', b'{"a":1}', b"{}"]
    digests = {request_digest("tools/call", params(each)) for each in arguments}
    digests.add(request_digest("prompts/get", params()))
    digests.add(request_digest("tools/call", s.CallToolParams(name="other")))

    assert len(digests) == 6


def test_infinite_numbers_are_digested_by_their_spelling():
    digests = {
        request_digest("tools/call", params(b'{"a":%s}' % each)) for each in (b"1e999", b"2e999")
    }

    assert len(digests) == 2


def test_every_invalid_state_has_the_same_error():
    assert (invalid_state_error().code, invalid_state_error().message) == (
        -32602,
        "the request state is not valid",
    )


# States that are used once.


@pytest.mark.requirement("MRTR-23")
async def test_a_store_lets_a_state_be_used_once():
    store = MemoryStore(now=Clock())

    assert await store.take("chain.1", seconds=10, client="anna")
    assert not await store.take("chain.1", seconds=10, client="anna")
    assert await store.take("chain.2", seconds=10, client="anna")


async def test_a_store_keeps_the_result_of_a_used_state():
    store = MemoryStore(now=Clock())
    await store.take("chain.1", seconds=10, client="anna")
    before = await store.kept("chain.1")

    await store.keep("chain.1", b"reply", seconds=10)

    assert before is None
    assert await store.kept("chain.1") == b"reply"
    assert await store.kept("other") is None
    assert not await store.take("chain.1", seconds=10, client="anna")


async def test_a_full_store_drops_expired_states_and_otherwise_rejects():
    clock = Clock()
    store = MemoryStore(2, now=clock)
    await store.take("a", seconds=10, client="anna")
    clock.seconds = 5.0
    await store.take("b", seconds=10, client="anna")

    with pytest.raises(RequestError, match="states_max=2"):
        await store.take("c", seconds=10, client="anna")
    assert not await store.take("a", seconds=10, client="anna")
    clock.seconds = 10.0

    assert await store.take("c", seconds=10, client="anna")
    assert not await store.take("b", seconds=10, client="anna")


async def test_the_states_of_one_client_leave_room_to_the_others():
    store = MemoryStore(2, 4, now=Clock())
    for number in range(2):
        await store.take(f"a{number}", seconds=10, client="anna")
        await store.keep(f"a{number}", b"123", seconds=10)
    with pytest.raises(RequestError, match=r"too many used states \(states_max=2\)"):
        await store.take("c", seconds=10, client="anna")
    assert await store.take("c", seconds=10, client="bert")
    await store.keep("c", b"123", seconds=10)
    assert [await store.kept(key) for key in ("a0", "a1", "c")] == [b"123", None, b"123"]


async def test_expired_replies_make_room_in_a_store():
    clock = Clock()
    store = MemoryStore(reply_bytes_max=8, now=clock)
    for key in "ab":
        await store.take(key, seconds=10, client="anna")
        await store.keep(key, b"1234", seconds=10)
        await store.keep(key, b"1", seconds=10)
        clock.seconds += 5.0
    for key in "cd":
        await store.take(key, seconds=10, client="anna")
        await store.keep(key, b"1234567", seconds=10)

    kept = [await store.kept(key) for key in "abcd"]
    assert kept == [None, b"1", b"1234567", None]


async def test_the_reply_to_a_state_that_was_dropped_is_not_kept_and_takes_no_place():
    clock = Clock()
    store = MemoryStore(1, now=clock)
    await store.take("a", seconds=10, client="anna")
    clock.seconds = 10.0
    await store.take("b", seconds=10, client="anna")  # which drops the expired one
    await store.keep("a", b"1", seconds=10)
    assert await store.kept("a") is None
    for client in (0, 1, "bert"):
        assert await store.take(f"of {client}", seconds=10, client=client)


async def test_a_reply_larger_than_the_store_is_not_kept():
    store = MemoryStore(reply_bytes_max=8, now=Clock())
    await store.take("a", seconds=10, client="anna")
    await store.keep("a", b"123456789", seconds=10)
    assert await store.kept("a") is None


async def test_keeping_a_reply_costs_the_same_however_many_are_kept():
    looked_at = []

    class Reply(bytes):
        def __len__(self):
            looked_at.append(self)
            return 1

    store = MemoryStore(reply_bytes_max=100, now=Clock())
    for number in range(200):
        await store.take(str(number), seconds=10, client="anna")
        await store.keep(str(number), Reply(), seconds=10)
    assert len(looked_at) == 200


async def test_a_store_limits_the_size_of_the_kept_replies():
    store = MemoryStore(reply_bytes_max=8, now=Clock())
    for key in "abc":
        await store.take(key, seconds=10, client="anna")
    await store.keep("a", b"12345", seconds=10)
    await store.keep("b", b"1234", seconds=10)
    await store.keep("c", b"123", seconds=10)

    assert await store.kept("b") is None
    assert await store.kept("c") == b"123"
    assert not await store.take("b", seconds=10, client="anna")


# Stateless requests are independent: each names the state that it continues.


STATELESS = "2026-07-28"
CAPABILITIES = {"elicitation": {}}
CAPTAIN, UNKNOWN_PEER = ({"name": name, "version": "1"} for name in ("captain", "stranger"))


def accepted(value):
    return {"action": "accept", "content": {"value": value}}


@pytest.fixture
def stateful_server():
    trips = itertools.count(1)
    server = Server(
        "harbour",
        keys=KeyRing([b"k" * 32]),
        limits=Limits(requests=RequestLimits(page_items_max=2)),
    )

    @server.tool
    async def who(ctx: Context) -> dict:
        await ctx.debug("asked")
        return {"name": ctx.client_info and ctx.client_info.name, "asks": ctx.client_can("roots")}

    @server.tool
    async def sail(ctx: Context) -> str:
        trip = next(trips)
        return f"{trip} {(await ctx.elicit('Which boat?', str)).data}"

    @server.tool(resumable=True)
    async def row(ctx: Context) -> str:
        first = await ctx.elicit("Which boat?", str)
        return f"{first.data} {(await ctx.elicit('When?', str)).data}"

    @server.tool
    async def vault(ctx: Context) -> str:
        if ctx.client_info is None or ctx.client_info.name != "captain":
            raise RequestError(-32602, "not for you")
        return "gold"

    return server


@pytest.fixture
def stateless(serve, stateful_server):
    """A new connection to the server."""

    async def connect():
        return await serve(stateful_server, protocol_version=STATELESS, capabilities=CAPABILITIES)

    return connect


async def tool(asker, name, meta=None, **members):
    return await asker.ask("tools/call", {"name": name, "_meta": meta or {}, **members})


def retry(result, **answers):
    return {"requestState": result["requestState"], "inputResponses": answers}


@pytest.mark.requirement("STATE-01")
async def test_client_metadata_of_one_request_does_not_apply_to_another(stateless):
    asker = await stateless()
    metadata = {CLIENT_INFO: CAPTAIN, CLIENT_CAPABILITIES: {"roots": {}}, LOG_LEVEL: "debug"}
    first = (await tool(asker, "who", metadata))["result"]
    assert [message["method"] for message in asker.received] == ["notifications/message"]
    second = (await tool(asker, "who"))["result"]
    assert first["structuredContent"] == {"name": "captain", "asks": True}
    assert second["structuredContent"] == {"name": None, "asks": False}
    assert len(asker.received) == 1


@pytest.mark.requirement("STATE-02", "STATE-06")
async def test_conversations_on_one_connection_do_not_get_each_others_state(stateless):
    asker = await stateless()
    firsts = [(await tool(asker, "sail"))["result"] for _ in range(3)]
    for trip, boat in ((3, "elm"), (1, "reed"), (2, "oak")):
        again = retry(firsts[trip - 1], q1=accepted(boat))
        last = (await tool(asker, "sail", **again))["result"]
        assert last["content"][0]["text"] == f"{trip} {boat}"


@pytest.mark.requirement("STATE-03", "STATE-06")
async def test_each_round_of_a_resumable_handler_may_come_on_a_connection_of_its_own(stateless):
    one, another, third = [await stateless() for _ in range(3)]
    first = (await tool(one, "row"))["result"]
    second = (await tool(another, "row", **retry(first, q1=accepted("reed"))))["result"]
    await another.wire.aclose()
    last = (await tool(third, "row", **retry(second, q2=accepted("now"))))["result"]
    assert last["content"][0]["text"] == "reed now"


@pytest.mark.requirement("STATE-03", "STATE-06")
async def test_the_next_page_may_be_requested_on_another_connection(stateless):
    one, another = await stateless(), await stateless()
    page = await one.result("tools/list")
    await one.wire.aclose()
    following = await another.result("tools/list", {"cursor": page["nextCursor"]})
    names = [entry["name"] for each in (page, following) for entry in each["tools"]]
    assert names == ["who", "sail", "row", "vault"]


@pytest.mark.requirement("STATE-05")
@pytest.mark.parametrize("name", ["sail", "row"])
async def test_a_request_without_a_state_starts_anew(stateless, name):
    asker = await stateless()
    first = (await tool(asker, name))["result"]
    again = (await tool(asker, name, inputResponses={"q1": accepted("reed")}))["result"]
    assert again["resultType"] == "input_required"
    assert again["requestState"] != first["requestState"]
    assert list(again["inputRequests"]) == ["q1"]


@pytest.mark.requirement("STATE-07")
async def test_a_handler_checks_the_client_at_every_request(stateless):
    asker = await stateless()
    assert "result" in await tool(asker, "vault", {CLIENT_INFO: CAPTAIN})
    for meta in ({CLIENT_INFO: UNKNOWN_PEER}, {}):
        answer = await tool(asker, "vault", meta)
        assert answer["error"] == {"code": -32602, "message": "not for you"}
    assert "result" in await tool(asker, "vault", {CLIENT_INFO: CAPTAIN})


@pytest.mark.requirement("STATE-10")
@pytest.mark.parametrize("how", ["unknown", "expired"])
async def test_an_invalid_handle_is_an_error_of_the_tool(stateless, stateful_server, how):
    trips = {}

    @stateful_server.tool
    async def depart() -> str:
        trips[handle := secrets.token_hex()] = True
        return handle

    @stateful_server.tool
    async def arrive(trip: str) -> str:
        if not trips.get(trip):
            raise ToolError(f"the trip is {'expired' if trip in trips else 'unknown'}")
        return "there"

    asker = await stateless()
    trip = await asker.call("depart")
    assert await asker.call("arrive", trip=trip) == "there"
    if how == "expired":
        trips[trip] = False
    result = (await tool(asker, "arrive", arguments={"trip": trip if how == "expired" else "x"}))[
        "result"
    ]
    assert result["isError"] is True
    assert result["content"][0]["text"] == f"the trip is {how}"


@pytest.mark.requirement("MRTR-21")
async def test_a_changed_token_of_a_suspended_handler_is_rejected(stateless):
    """It has no content that could be changed: it is only found, or not."""
    asker = await stateless()
    first = (await tool(asker, "sail"))["result"]
    token = first["requestState"]
    assert token.startswith(SUSPENDED_PREFIX)
    for place in range(len(SUSPENDED_PREFIX), len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        answer = await tool(asker, "sail", **retry({"requestState": changed}, q1=accepted("no")))
        assert answer["error"] == NOT_VALID
    last = (await tool(asker, "sail", **retry(first, q1=accepted("reed"))))["result"]
    assert last["content"][0]["text"] == "1 reed"


async def test_a_handler_that_defers_its_answer_continues_with_a_legacy_client(
    serve, autojump_clock
):
    times = []
    server = Server("harbour", limits=Limits(requests=RequestLimits(round_pause_seconds=3)))

    @server.tool
    async def later(ctx: Context) -> types.InputRequiredResult | str:
        times.append(trio.current_time())
        state = ctx.request_state or ""
        return "done" if len(state) == 4 else types.InputRequiredResult(request_state=f"{state}a")

    asker = await serve(server, protocol_version="2025-11-25")
    assert await asker.call("later") == "done"
    assert [after - before for before, after in itertools.pairwise(times)] == [3, 6, 8, 8]


@pytest.mark.parametrize("protocol_version", ALL_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("resumable", [False, True])
async def test_a_handler_that_asks_nothing_responds_at_once(serve, protocol_version, resumable):
    server = Server("harbour")

    @server.tool(resumable=resumable)
    async def ask(ctx: Context) -> str:
        return str(await ctx.ask_all())

    asker = await serve(server, protocol_version=protocol_version)
    assert await asker.call("ask") == "()"
