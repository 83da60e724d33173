"""What people give to a call, as the protocol's params."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mcp_trio import _schema as s
from mcp_trio._wire import Unencodable


def call_tool_params(name: str, arguments: Mapping[str, Any] | None) -> s.CallToolParams:
    """A tool's name and its arguments, which become JSON here.

    Raises:
        Unencodable: The arguments cannot be written as JSON.
    """
    if arguments is None:
        return s.CallToolParams(name=name)
    try:
        return s.CallToolParams(name=name, arguments=msgspec.Raw(msgspec.json.encode(arguments)))
    except Exception as error:  # people's values fail in many ways
        raise Unencodable(f"the arguments cannot be sent as JSON: {error}") from error


def get_prompt_params(name: str, arguments: Mapping[str, Any] | None) -> s.GetPromptParams:
    """A prompt's name and its arguments.

    Raises:
        TypeError: An argument is not text (PROM-04).
    """
    for argument, value in (arguments or {}).items():
        if not isinstance(value, str):
            raise TypeError(f"the arguments of a prompt are text, unlike {argument}={value!r}")
    return s.GetPromptParams(name=name, arguments=None if arguments is None else dict(arguments))


def complete_params(
    ref: s.Reference | str, argument: str, value: str, context: Mapping[str, str] | None = None
) -> s.CompleteParams:
    """What is completed, the name of the argument, what stands there so far, and in the others."""
    return s.CompleteParams(
        ref=reference(ref),
        argument=s.CompletionArgument(name=argument, value=value),
        context=None if context is None else s.CompletionContext(arguments=dict(context)),
    )


def reference(ref: s.Reference | str) -> s.Reference:
    """Text names the URI (template) of a resource, known by its "://", or else a prompt."""
    if not isinstance(ref, str):
        return ref
    return s.ResourceReference(uri=ref) if "://" in ref else s.PromptReference(name=ref)
