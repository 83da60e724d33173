"""What passes in a session beside its methods, and not in every revision: rows of the table."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
from facts import FACTS

from mcp_trio._protocol.metadata import LOG_LEVEL, SERVER_INFO, SUBSCRIPTION_ID
from mcp_trio._protocol.methods import Role

Json: TypeAlias = Mapping[str, Any]

NOTHING: Final[Json] = MappingProxyType({})


class Passed(NamedTuple):
    """A request, a notification, or the result or the error that a request got."""

    sender: Role
    method: str
    params: Json = NOTHING
    result: Json = NOTHING
    error: Json = NOTHING

    @property
    def meta(self) -> Json:
        """The metadata of what was sent."""
        found: Json = (self.params or self.result).get("_meta") or {}
        return found


@attrs.frozen
class Feature:
    """Something that one side says; `since` names it in `facts.json`, with its revisions."""

    name: str
    sender: Role
    since: str
    is_in: Callable[[Passed], bool]

    def passes(self, passed: Passed) -> bool:
        """Whether it is in what was sent."""
        return passed.sender is self.sender and self.is_in(passed)


def _of(method: str, is_in: Callable[[Passed], object]) -> Callable[[Passed], bool]:
    return lambda passed: passed.method == method and bool(is_in(passed))


def _tools(member: str) -> Callable[[Passed], bool]:
    return _of("tools/list", lambda it: any(member in tool for tool in it.result.get("tools", ())))


def _content(kind: str) -> Callable[[Passed], bool]:
    return _of("tools/call", lambda it: kind in _kinds(it.result.get("content", ())))


def _kinds(content: Any) -> list[str]:
    blocks: Iterable[Json] = content if isinstance(content, list) else [content] if content else ()
    return [block["type"] for block in blocks]


def _fields(passed: Passed) -> Iterable[Json]:
    fields: Iterable[Json] = passed.params.get("requestedSchema", {}).get("properties", {}).values()
    return fields


_SAMPLING: Final = "sampling/createMessage"
_ELICITATION: Final = "elicitation/create"

FEATURES: Final = (
    Feature("annotations of tools", Role.SERVER, "annotations", _tools("annotations")),
    Feature("titles", Role.SERVER, "titles", _tools("title")),
    Feature("icons", Role.SERVER, "icons", _tools("icons")),
    Feature("output schemas", Role.SERVER, "structure", _tools("outputSchema")),
    Feature(
        "structured content",
        Role.SERVER,
        "structure",
        _of("tools/call", lambda it: "structuredContent" in it.result),
    ),
    Feature("audio", Role.SERVER, "audio", _content("audio")),
    Feature("resource links", Role.SERVER, "links", _content("resource_link")),
    Feature(
        "completions capability",
        Role.SERVER,
        "completions",
        lambda it: "completions" in it.result.get("capabilities", {}),
    ),
    Feature(
        "messages of progress",
        Role.SERVER,
        "progress_messages",
        _of("notifications/progress", lambda it: "message" in it.params),
    ),
    Feature(
        "context of completions",
        Role.CLIENT,
        "completion_context",
        _of("completion/complete", lambda it: "context" in it.params),
    ),
    Feature("forms", Role.SERVER, "elicitation", _of(_ELICITATION, _fields)),
    Feature(
        "defaults of forms",
        Role.SERVER,
        "choices",
        # A default of a boolean is older.
        _of(_ELICITATION, lambda it: any(isinstance(f.get("default"), str) for f in _fields(it))),
    ),
    Feature(
        "questions by URL",
        Role.SERVER,
        "urls",
        _of(_ELICITATION, lambda it: it.params.get("mode") == "url"),
    ),
    Feature(
        "errors that want a URL",
        Role.SERVER,
        "url_errors",
        lambda it: it.error.get("code") == FACTS.url_required,
    ),
    Feature(
        "tools for models",
        Role.SERVER,
        "model_tools",
        _of(_SAMPLING, lambda it: "tools" in it.params),
    ),
    Feature(
        "use of tools by models",
        Role.CLIENT,
        "model_tools",
        _of(_SAMPLING, lambda it: "tool_use" in _kinds(it.result.get("content"))),
    ),
    Feature(
        "input required",
        Role.SERVER,
        "rounds",
        lambda it: it.result.get("resultType") == "input_required",
    ),
    Feature("input responses", Role.CLIENT, "rounds", lambda it: "inputResponses" in it.params),
    Feature("request states", Role.CLIENT, "rounds", lambda it: "requestState" in it.params),
    Feature("subscription ids", Role.SERVER, "rounds", lambda it: SUBSCRIPTION_ID in it.meta),
    Feature("cache hints", Role.SERVER, "rounds", lambda it: "ttlMs" in it.result),
    Feature("log levels of requests", Role.CLIENT, "rounds", lambda it: LOG_LEVEL in it.meta),
    Feature("server info of results", Role.SERVER, "rounds", lambda it: SERVER_INFO in it.meta),
)
