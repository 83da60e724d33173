"""A `server/discover` result for tests."""

from mcp_trio import types as s


def discovered(versions, **members):
    capabilities = s.ServerCapabilities(
        tools=s.ToolsCapability(), prompts=s.PromptsCapability(), resources=s.ResourcesCapability()
    )
    return s.DiscoverResult(supported_versions=versions, capabilities=capabilities, **members)
