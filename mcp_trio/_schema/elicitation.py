"""Client, elicitation: the server asks the client's user."""

from typing import Any, Literal, TypeAlias

from mcp_trio._schema.base import Params, Result

ElicitAction: TypeAlias = Literal["accept", "cancel", "decline"]
ElicitMode: TypeAlias = Literal["form", "url"]
ElicitValue: TypeAlias = str | int | float | bool | list[str]


class ElicitParams(Params, kw_only=True):
    """A form to fill in by `requested_schema`, or a `url` to visit; without `mode` it is a form.

    `requested_schema` is the JSON Schema of a flat object, kept as it came. `elicitation_id` is
    what a later `notifications/elicitation/complete` names.

    Raises:
        ValueError: What the mode needs is not there. While decoding it becomes a
            `msgspec.ValidationError`.
    """

    message: str
    mode: ElicitMode | None = None
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None

    def __post_init__(self) -> None:
        if self.mode == "url" and self.url is None:
            raise ValueError("an elicitation by URL needs `url`")
        if self.mode != "url" and self.requested_schema is None:
            raise ValueError("an elicitation by form needs `requestedSchema`")


class ElicitResult(Result, kw_only=True):
    """What the user did; `content` is the form that was filled in."""

    action: ElicitAction
    content: dict[str, ElicitValue] | None = None


class ElicitationCompleteParams(Params, kw_only=True):
    """What was to be done at the URL is done."""

    elicitation_id: str
