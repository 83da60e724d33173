"""Requests of servers to clients: as requests of their own, or as input requests."""

import attrs
import trio.testing

from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import RemoteProtocolError
from tests.client.stateless import STATELESS, legacy_client, stateless_client


@attrs.frozen(kw_only=True)
class Answer:
    """The outcome of a request: a result, an error code, or the exception of the caller."""

    announced: dict
    result: dict | None = None
    code: int | None = None
    raised: BaseException | None = None

    @property
    def is_rejected(self):
        return self.result is None


async def _in_a_round(nursery, method, params, options):
    question = {"method": method, **({} if params is None else {"params": params})}
    needed = {"resultType": "input_required", "inputRequests": {"q": question}}
    answers = iter([needed, {"content": []}])
    client, server = await stateless_client(
        nursery, answers={"tools/call": lambda _params: next(answers)}, **options
    )
    raised = None
    try:
        await client.call_tool("tide")
    except Exception as error:
        raised = error
    key = "io.modelcontextprotocol/clientCapabilities"
    _, *retries = server.asked("tools/call")
    await client.aclose()
    return Answer(
        announced=server.metadata("tools/call")[key],
        result=retries[0]["inputResponses"]["q"] if retries else None,
        raised=raised,
    )


async def _by_a_request(nursery, protocol_version, method, params, options):
    client, server = await legacy_client(nursery, protocol_version=protocol_version, **options)
    await server.peer.send_request(method, params, id="q")
    await trio.testing.wait_all_tasks_blocked()
    answers = [it for it in server.requests if it.get("id") == "q"]
    await client.aclose()
    (answer,) = answers
    return Answer(
        announced=server.requests[0]["params"]["capabilities"],
        result=answer.get("result"),
        code=answer.get("error", {}).get("code"),
    )


async def asked(nursery, protocol_version, method, params=None, **options):
    """Ask a new client with some options one thing, as the servers of a protocol version do."""
    if PROTOCOL_VERSIONS[protocol_version].is_stateless:
        return await _in_a_round(nursery, method, params, options)
    return await _by_a_request(nursery, protocol_version, method, params, options)


def check_rejected(answer, protocol_version, code, raised=RemoteProtocolError):
    """A legacy server receives an error; with a stateless one, only the caller does."""
    assert answer.is_rejected
    if protocol_version == STATELESS:
        assert isinstance(answer.raised, raised)
    else:
        assert answer.code == code
