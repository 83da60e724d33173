"""The tools of the "everything" server that need rounds, or look at what a request says."""

import pytest

from mcp_trio import Client, RequestError
from mcp_trio.types import CreateMessageResult, TextContent

pytestmark = pytest.mark.slow

ERAS = ["2025-11-25", "2026-07-28"]

SAID = {
    "test_input_required_result_elicitation": "Hello, Ada!",
    "test_input_required_result_sampling": "Paris",
    "test_input_required_result_list_roots": "file:///a",
    "test_input_required_result_request_state": "state-ok",
    "test_input_required_result_tampered_state": "state-ok",
    "test_input_required_result_capabilities": "Asked for: sampling, elicitation, roots",
    "test_streaming_elicitation": "The user has chosen to accept.",
    "test_missing_capability": "Paris",
    "test_logging_tool": "Logged.",
    "test_reconnection": "Reconnection test completed successfully",
    "test_x_mcp_header": "The region is anywhere.",
}

ANSWERS = {"name": "Ada", "ok": True}


def model(_params):
    content = TextContent(text="Paris")
    return CreateMessageResult(role="assistant", content=content, model="one-word")


def user(params):
    return {name: ANSWERS[name] for name in params.requested_schema["properties"]}


@pytest.fixture(params=ERAS)
def client(request, serve):
    """Makes a client of each era."""

    def client(**options):
        return Client(serve(request.param), protocol_versions=[request.param], **options)

    return client


async def test_questions_come_to_an_answer_in_both_eras(client, autojump_clock):
    options = {"sampling": model, "elicitation": user, "roots": ["file:///a"]}
    async with client(**options) as able:
        for name, said in SAID.items():
            (content,) = (await able.call_tool(name)).content
            assert content.text == said


async def test_only_what_a_client_can_answer_is_asked(client, autojump_clock):
    async with client(sampling=model) as able:
        (content,) = (await able.call_tool("test_input_required_result_capabilities")).content
        assert content.text == "Asked for: sampling"


async def test_a_client_without_a_model_is_told_what_it_lacks(serve):
    async with Client(serve(ERAS[-1]), protocol_versions=ERAS[-1:]) as unable:
        with pytest.raises(RequestError) as caught:
            await unable.call_tool("test_missing_capability")
    assert (caught.value.code, caught.value.data) == (
        -32021,
        {"requiredCapabilities": {"sampling": {}}},
    )
