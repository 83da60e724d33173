"""What a client has heard from a stateless server."""

from mcp_trio import types as s


def discovered(versions, **members):
    capabilities = s.ServerCapabilities(
        tools=s.ToolsCapability(), prompts=s.PromptsCapability(), resources=s.ResourcesCapability()
    )
    return s.DiscoverResult(supported_versions=versions, capabilities=capabilities, **members)
