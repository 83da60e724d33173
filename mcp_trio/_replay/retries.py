"""A recorded client's retries, for a live server: under its keys, with its state.

What a server calls its questions, and what it knows the retry by, is its own affair. So a recorded
question is the live one that asks the same, or else the next of its kind.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, cast

import msgspec
from msgspec import Raw

from mcp_trio._journal.conversation import members
from mcp_trio._journal.rounds import RESPONSES, STATE, Asking, Question, asking_of


def retried(params: dict[str, Any], recorded: Asking, live: Asking) -> dict[str, Any]:
    """The params of a recorded retry as the live server expects them.

    Answers to what it does not ask are left out.
    """
    keys = live_keys(recorded.questions, live.questions)
    said = {name: value for name, value in params.items() if name not in {RESPONSES, STATE}}
    responses = params.get(RESPONSES)
    if isinstance(responses, dict):
        given = cast("dict[str, Any]", responses)
        said[RESPONSES] = {keys[key]: given[key] for key in given if key in keys}
    if live.request_state is not None:
        said[STATE] = live.request_state
    return said


def with_recorded_keys(live: Raw, recorded: Raw) -> Raw:
    """A live result with its questions under the keys of the recorded one."""
    was, now = asking_of(recorded), asking_of(live)
    if was is None or now is None:
        return live
    keys = live_keys(was.questions, now.questions)
    if all(key == other for key, other in keys.items()):
        return live
    names = {other: key for key, other in keys.items()}
    result = members(live)
    questions: dict[str, Any] = result["inputRequests"]
    result["inputRequests"] = {names.get(key, key): each for key, each in questions.items()}
    return Raw(msgspec.json.encode(result))


def live_keys(recorded: Mapping[str, Question], live: Mapping[str, Question]) -> dict[str, str]:
    """The key of each recorded question, and that of the live one that it is now."""
    found: dict[str, str] = {}
    for is_exact in (True, False):
        for key, question in recorded.items():
            if key not in found:
                rest = {it: other for it, other in live.items() if it not in found.values()}
                match = _match(key, question, rest, is_exact=is_exact)
                if match is not None:
                    found[key] = match
    return found


def _match(
    key: str, question: Question, live: Mapping[str, Question], *, is_exact: bool
) -> str | None:
    if is_exact:
        alike = [it for it, other in live.items() if _words(other) == _words(question)]
    else:
        alike = [it for it, other in live.items() if other.method == question.method]
    same_key = (it for it in alike if it == key)
    return next(chain(same_key, alike), None)


def _words(question: Question) -> bytes:
    params = msgspec.json.decode(question.params)
    return msgspec.json.encode([question.method, params], order="sorted")
