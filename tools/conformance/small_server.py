"""The everything server without what only later protocol versions have, for small recordings."""

import importlib.util
from pathlib import Path
from typing import Final

# A module of its own each time it is loaded: what is removed must not be missing elsewhere.
_SPEC = importlib.util.spec_from_file_location("everything", Path(__file__).with_name("server.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_everything = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_everything)
server = _everything.server

LATER_TOOLS: Final = (
    *("test_audio_content", "test_resource_link", "test_structured_content"),
    *("test_elicitation", "test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"),
    *("test_elicitation_url", "test_url_required", "test_sampling_with_tools"),
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    *("test_input_required_result_elicitation", "test_input_required_result_sampling"),
    *("test_input_required_result_list_roots", "test_input_required_result_request_state"),
    *("test_input_required_result_tampered_state", "test_input_required_result_capabilities"),
    *("test_streaming_elicitation", "test_missing_capability", "test_logging_tool"),
    *("test_x_mcp_header", "test_reconnection"),
)

for tool in LATER_TOOLS:
    server.remove_tool(tool)
server.remove_resource("test://asking")
server.remove_prompt("test_input_required_result_prompt")
