"""URL elicitation, and the notification that it is complete."""

import uuid

import pytest

from mcp_trio import Context, Limits, Server, ThreadContext, UrlElicitation
from mcp_trio.errors import LocalProtocolError, UrlElicitationRequired
from mcp_trio.limits import RequestLimits

C, D = "2025-06-18", "2025-11-25"
BOTH = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
URL = "https://harbour.example/pay"


def text_of(answer):
    return answer["result"]["content"][0]["text"]


@pytest.mark.requirement("ELIC-27", "ELIC-28", "ELIC-30", "ELIC-31", "TRAP-92")
@pytest.mark.parametrize("thread", [False, True])
async def test_a_user_accepts_a_url_and_the_client_is_notified_of_the_completion(
    server, serve, thread
):
    if thread:

        @server.tool
        def pay(ctx: ThreadContext) -> str:
            answer = ctx.elicit_url("Pay", URL)
            assert (answer.is_accepted, answer.data) == (True, None)
            ctx.elicitation_complete(answer.elicitation_id)
            return answer.elicitation_id
    else:

        @server.tool
        async def pay(ctx: Context) -> str:
            answer = await ctx.elicit_url("Pay", URL)
            assert (answer.is_accepted, answer.data) == (True, None)
            await ctx.elicitation_complete(answer.elicitation_id)
            return answer.elicitation_id

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    seen = set()
    for _ in range(2):
        call = await asker.begin("tools/call", {"name": "pay"})
        question = await asker.next_told()
        elicitation_id = question["params"].pop("elicitationId")
        assert question["params"] == {"mode": "url", "message": "Pay", "url": URL}
        await asker.wire.send_result(question, {"action": "accept"})
        assert text_of(await asker.end(call)) == elicitation_id
        (told,) = asker.told
        asker.told.clear()
        assert told["method"] == "notifications/elicitation/complete"
        assert told["params"] == {"elicitationId": elicitation_id}
        seen.add(uuid.UUID(elicitation_id))
    assert len(seen) == 2


@pytest.mark.requirement("ELIC-28", "ELIC-32", "ELIC-45", "ELIC-47")
async def test_only_the_asked_client_is_notified_of_the_completion_and_once(server, serve):
    @server.tool
    async def pay(ctx: Context) -> str:
        answer = await ctx.elicit_url("Pay", URL, elicitation_id="payment-7")
        return answer.elicitation_id

    @server.tool
    async def paid(ctx: Context) -> str:
        try:
            await ctx.elicitation_complete("payment-7")
        except LocalProtocolError as error:
            return str(error)
        return "told"

    first = await serve(server, protocol_version=D, capabilities=BOTH)
    second = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await first.begin("tools/call", {"name": "pay"})
    question = await first.next_told()
    assert question["params"]["elicitationId"] == "payment-7"
    await first.wire.send_result(question, {"action": "accept"})
    assert text_of(await first.end(call)) == "payment-7"
    rejection = "the URL elicitation 'payment-7' was not sent to this client, or is complete"
    assert await second.call("paid") == rejection
    assert await first.call("paid") == "told"
    assert await first.call("paid") == rejection
    assert [told["params"] for told in first.told] == [{"elicitationId": "payment-7"}]
    assert second.told == []


async def test_visits_that_are_never_over_are_forgotten_in_the_end(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(elicitations_remembered_max=1)))

    @server.tool
    async def pay(ctx: Context) -> str:
        for name in ("one", "two"):
            await ctx.elicit_url("Pay", URL, elicitation_id=name)
        await ctx.elicitation_complete("two")
        with pytest.raises(LocalProtocolError, match="'one'"):
            await ctx.elicitation_complete("one")
        await ctx.elicitation_complete(None)
        return "done"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "pay"})
    for _ in range(2):
        await asker.wire.send_result(await asker.next_told(), {"action": "accept"})
    assert text_of(await asker.end(call)) == "done"
    assert [told["params"] for told in asker.told] == [{"elicitationId": "two"}]


# A handler that cannot go on before a visit.


@pytest.fixture
def toll(server):
    """A tool, a prompt and a resource that want a visit first."""

    def visits():
        return UrlElicitationRequired(
            [UrlElicitation("Pay", URL), UrlElicitation("Log in", URL, elicitation_id="mine")],
            "the toll is due",
        )

    @server.tool
    async def here() -> str:
        raise visits()

    @server.tool
    def there() -> str:
        raise visits()

    @server.prompt
    async def ask() -> str:
        raise ExceptionGroup("of a nursery", [visits()])

    @server.resource("harbour://toll")
    async def read() -> str:
        raise visits()

    return server


CALLS = [
    ("tools/call", {"name": "here"}),
    ("tools/call", {"name": "there"}),
    ("prompts/get", {"name": "ask"}),
    ("resources/read", {"uri": "harbour://toll"}),
]


@pytest.mark.requirement("ERR-16", "ERR-17", "ELIC-28", "TRAP-92")
@pytest.mark.parametrize(("method", "params"), CALLS)
async def test_a_client_of_november_2025_is_told_which_visits_are_needed(
    toll, serve, method, params
):
    asker = await serve(toll, protocol_version=D, capabilities=BOTH)
    error = await asker.error(method, params)
    assert (error["code"], error["message"]) == (-32042, "the toll is due")
    first, second = error["data"]["elicitations"]
    assert uuid.UUID(first.pop("elicitationId"))
    assert first == {"mode": "url", "message": "Pay", "url": URL}
    assert second == {"mode": "url", "message": "Log in", "url": URL, "elicitationId": "mine"}


@pytest.mark.requirement("ELIC-04", "ERR-16")
@pytest.mark.parametrize(
    ("protocol_version", "capabilities"),
    [(D, {"elicitation": {}}), (C, {"elicitation": {}}), (D, {})],
)
async def test_a_client_without_url_elicitation_receives_no_url(
    toll, serve, protocol_version, capabilities
):
    asker = await serve(toll, protocol_version=protocol_version, capabilities=capabilities)
    error = await asker.error("prompts/get", {"name": "ask"})
    said = "the client did not announce elicitation.url"
    assert (error["code"], error["message"]) == (-32603, said)
