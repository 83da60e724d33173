"""What a client says of itself is a label for people: nothing is granted or refused for it."""

import pytest

from mcp_trio import Context, types

CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
ACCEPTED = {"action": "accept", "content": {}}


async def moor(*, ctx: Context) -> str:
    return (await ctx.elicit("Moor?")).action


async def show(*, ctx: Context) -> str | types.InputRequiredResult:
    if ctx.input_responses:
        return "accept"
    schema = {"type": "object", "properties": {}}
    form = types.ElicitParams(message="Moor?", requested_schema=schema)
    question = types.InputRequest(method="elicitation/create", params=form)
    return types.InputRequiredResult(input_requests={"mine": question}, request_state="asked")


def claims(name):
    """The metadata of a request that claims to come from somebody."""
    return {"_meta": {CLIENT_INFO: {"name": name, "version": "1"}, "principal": name}}


@pytest.mark.requirement("ELIC-47", "META-19")
@pytest.mark.parametrize("handler", [moor, show])
async def test_a_state_is_not_bound_to_the_identity_that_a_client_claims(resumable, chain, handler):
    plain = chain(lambda server: server.tool(name="it")(show))
    it = resumable(moor) if handler is moor else plain
    first = (await it.send(**claims("anna")))["result"]
    (key,) = first["inputRequests"]
    answers = {"requestState": first["requestState"], "inputResponses": {key: ACCEPTED}}
    last = (await it.send(**answers, **claims("bert")))["result"]
    assert last["content"][0]["text"] == "accept"
