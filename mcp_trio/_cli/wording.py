"""What a message is about, in words."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from mcp_trio._journal.rounds import Asking, Question
from mcp_trio._wire import Notification, Request


def what(message: Request | Notification) -> str:
    """The method, and what it is about."""
    return _what(message.method, message.params)


def asked_text(asking: Asking) -> str:
    """What a server asks for, each question under its key."""
    questions = [f"{key}: {_question(each)}" for key, each in asking.questions.items()]
    return f"asks {'; '.join(questions)}" if questions else "asks to come again"


def responses_text(responses: Mapping[str, msgspec.Raw]) -> str:
    """What a client answers, under the same keys."""
    answers = (f"{key}: {_response(each)}" for key, each in responses.items())
    return "; ".join(answers)


def members_of(body: object) -> dict[str, Any]:
    """The members of a JSON object, decoded or not; none for what is no object."""
    if isinstance(body, dict):
        return cast("dict[str, Any]", body)
    if not isinstance(body, bytes | msgspec.Raw):
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except ValueError:
        return {}


def content_text(result: Mapping[str, Any]) -> str:
    """The text of a tool's result."""
    try:
        return " ".join(str(item["text"]) for item in result["content"] if "text" in item)
    except (KeyError, TypeError):
        return ""


def _question(question: Question) -> str:
    return _what(question.method, question.params)


def _response(response: msgspec.Raw) -> str:
    """The action of a form and what was filled in, or the whole answer."""
    members = members_of(response)
    parts = (members.get(name) for name in ("action", "content"))
    if "action" not in members:
        return bytes(response).decode(errors="replace")
    return " ".join(part if isinstance(part, str) else _json(part) for part in parts if part)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _what(method: str, params: object) -> str:
    name = _TARGETS.get(method, _nothing)
    return f"{method} {name(members_of(params))}".rstrip()


def _nothing(_: dict[str, Any]) -> str:
    return ""


def _member(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda params: str(params.get(name, ""))


def _progress(params: dict[str, Any]) -> str:
    total, message = params.get("total"), params.get("message")
    of = "" if total is None else f"/{total}"
    return f"{params.get('progress')}{of}" + ("" if message is None else f" {message}")


def _log(params: dict[str, Any]) -> str:
    return f"{params.get('level')}: {params.get('data')}"


def _filter(params: dict[str, Any]) -> str:
    """What a subscription is about: the lists, and the resources by their URIs."""
    wishes = members_of(params.get("notifications"))
    return " ".join(
        _json(value) if isinstance(value, list) else name for name, value in wishes.items() if value
    )


_TARGETS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "tools/call": _member("name"),
    "prompts/get": _member("name"),
    "resources/read": _member("uri"),
    "resources/subscribe": _member("uri"),
    "resources/unsubscribe": _member("uri"),
    "logging/setLevel": _member("level"),
    "initialize": _member("protocolVersion"),
    "subscriptions/listen": _filter,
    "elicitation/create": _member("message"),
    "notifications/elicitation/complete": _member("elicitationId"),
    "notifications/progress": _progress,
    "notifications/message": _log,
    "notifications/resources/updated": _member("uri"),
    "notifications/subscriptions/acknowledged": _filter,
}
