"""From what a client's callback says of a form or a URL to the answer that its server gets."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from mcp_trio._protocol.forms import mistakes_in, with_defaults
from mcp_trio._schema import ElicitParams, ElicitResult


def elicit_result(params: ElicitParams, said: object) -> ElicitResult:
    """The answer to an elicitation.

    True agrees, and False declines; what was filled in is a mapping or an object with fields, and
    agrees, too; anything else is said by an `ElicitResult`. The form's own defaults stand for what
    was left out (ELIC-14).

    Raises:
        TypeError: The callback has said something else.
        ValueError: What was filled in does not fit the form (ELIC-22), or is said of a URL, to
            which one only agrees (ELIC-17).
    """
    result = said if isinstance(said, ElicitResult) else _result(said)
    if result.action != "accept":
        return msgspec.structs.replace(result, content=None)
    if params.requested_schema is None:
        if result.content:
            raise ValueError("nothing is filled in where a URL is to be visited")
        return msgspec.structs.replace(result, content=None)
    content = with_defaults(result.content or {}, params.requested_schema)
    mistakes = mistakes_in(content, params.requested_schema)
    if mistakes:
        raise ValueError(f"the form is filled in wrong: {'; '.join(mistakes)}")
    return msgspec.structs.replace(result, content=content)


def _result(said: object) -> ElicitResult:
    if isinstance(said, bool):
        return ElicitResult(action="accept" if said else "decline")
    content = _content(said)
    if content is None:
        raise TypeError(
            "an elicitation callback returns an ElicitResult, True or False, or what was filled in,"
            f" not {said!r}"
        )
    return ElicitResult(action="accept", content=content)


def _content(said: object) -> dict[str, Any] | None:
    """What was filled in, as JSON has it; a member that is None was left out."""
    try:
        plain: object = msgspec.to_builtins(said, str_keys=True)
    except TypeError:
        return None
    if not isinstance(plain, Mapping):
        return None
    members = cast("Mapping[str, Any]", plain)
    return {name: value for name, value in members.items() if value is not None}
