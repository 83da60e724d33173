"""Arguments of tools that HTTP requests repeat in headers."""

import pytest

from mcp_trio import Server


def schema(**properties):
    return {"type": "object", "properties": properties}


def register(given):
    server = Server("sea")

    @server.tool(input_schema=given)
    async def tide(arguments):
        return str(arguments)

    return server


@pytest.mark.requirement("HDR-08")
def test_a_tool_declares_the_arguments_that_are_repeated_in_headers():
    region = {"type": "string", "x-mcp-header": "Region"}
    server = register(schema(place={"type": "object", "properties": {"region": region}}))
    assert server._sessions.param_header_paths("tide") == {"Region": ("place", "region")}
    assert server._sessions.param_header_paths("wave") is None


@pytest.mark.requirement("HDR-13")
def test_an_invalid_header_annotation_is_rejected_at_registration():
    with pytest.raises(ValueError, match="x-mcp-header"):
        register(schema(depth={"type": "number", "x-mcp-header": "Depth"}))


@pytest.mark.requirement("HDR-35")
def test_a_header_annotation_of_a_secret_is_rejected():
    secret = {"type": "string", "format": "password", "x-mcp-header": "Key"}
    with pytest.raises(ValueError, match=r"'login\.key', which is a secret"):
        register(schema(login={"type": "object", "properties": {"key": secret}}))
