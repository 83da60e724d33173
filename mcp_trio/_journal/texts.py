"""Short texts about messages and JSON values, for reports, tables and logs."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from mcp_trio._journal.conversation import InputRequired, members_of

# Values -------------------------------------------------------------------------------------------


def json_text(value: Any) -> str:
    """Return a value as JSON; UNSET is "nothing", and bytes stay as they are, JSON or not."""
    if value is UNSET:
        return "nothing"
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return data.decode(errors="backslashreplace")


def shortened(text: str, chars_max: int) -> str:
    """Return the text, cut and ended with an ellipsis if it is longer than `chars_max`."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def excerpts(left: str, right: str, *, chars_max: int) -> tuple[str, str]:
    """Return two texts, each cut to this length around the first character that differs."""
    pairs = zip(left, right, strict=False)
    shorter = min(len(left), len(right))
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter) if left != right else 0
    begin = max(min(same - chars_max // 3, max(len(left), len(right)) - chars_max), 0)
    cut: list[str] = []
    for text in (left, right):
        excerpt = text[begin : begin + chars_max]
        is_cut = begin + chars_max < len(text)
        cut.append(f"{'…' if begin else ''}{excerpt}{'…' if is_cut else ''}")
    return cut[0], cut[1]


# Messages -----------------------------------------------------------------------------------------


def message_text(method: str, params: object) -> str:
    """Return the method, and what the message is about, such as `tools/call forecast`."""
    subject = _SUBJECTS.get(method)
    return method if subject is None else f"{method} {subject(members_of(params))}".rstrip()


def input_required_text(result: InputRequired) -> str:
    """Return the requests of a result that asks the client for input, each with its key."""
    requests = [
        f"{key}: {message_text(each.method, each.params)}" for key, each in result.requests.items()
    ]
    return f"asks {'; '.join(requests)}" if requests else "asks to retry the request"


def responses_text(responses: Mapping[str, msgspec.Raw]) -> str:
    """Return a client's responses to these requests, each with its key.

    Of an elicitation's response, these are the action and the content.
    """
    texts: list[str] = []
    for key, response in responses.items():
        members = members_of(response)
        if "action" in members:
            parts = [part for name in ("action", "content") if (part := members.get(name))]
            text = " ".join(part if isinstance(part, str) else json_text(part) for part in parts)
        else:
            text = json_text(bytes(response))
        texts.append(f"{key}: {text}")
    return "; ".join(texts)


def tool_text(result: Mapping[str, Any]) -> str:
    """Return the texts in a tool's result, joined."""
    try:
        return " ".join(str(item["text"]) for item in result["content"] if "text" in item)
    except (KeyError, TypeError):
        return ""


def _member(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda params: str(params.get(name, ""))


def _progress(params: dict[str, Any]) -> str:
    total, message = params.get("total"), params.get("message")
    of = "" if total is None else f"/{total}"
    return f"{params.get('progress')}{of}" + ("" if message is None else f" {message}")


def _subscribed(params: dict[str, Any]) -> str:
    """Return the names of lists and the URIs of resources that a subscription asks for."""
    wanted = members_of(params.get("notifications"))
    return " ".join(
        json_text(value) if isinstance(value, list) else name
        for name, value in wanted.items()
        if value
    )


_SUBJECTS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "tools/call": _member("name"),
    "prompts/get": _member("name"),
    "resources/read": _member("uri"),
    "resources/subscribe": _member("uri"),
    "resources/unsubscribe": _member("uri"),
    "logging/setLevel": _member("level"),
    "initialize": _member("protocolVersion"),
    "subscriptions/listen": _subscribed,
    "elicitation/create": _member("message"),
    "notifications/elicitation/complete": _member("elicitationId"),
    "notifications/progress": _progress,
    "notifications/message": lambda params: f"{params.get('level')}: {params.get('data')}",
    "notifications/resources/updated": _member("uri"),
    "notifications/subscriptions/acknowledged": _subscribed,
}
