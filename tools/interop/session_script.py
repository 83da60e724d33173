"""A recorded session as a script for an SDK's client, with the expected answers.

A repeater (`python_repeater.py`, `typescript/repeater.mjs`) gets a script: the requests in order,
and a reply to each kind of question. It prints a telling, of what it was told: the answers, that to
the handshake first, the questions, the notifications, and what its SDK could make no sense of.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from parties import Json

from mcp_trio._journal.conversation import (
    Conversation,
    RecordedMessage,
    members,
    token_of,
    without_meta,
)
from mcp_trio._journal.diff import json_differences

_HANDSHAKE: Final = "initialize"
_TOKEN: Final = "progressToken"


def script_of(recorded: Conversation) -> Json:
    """What the client of a recording did: `requests`, and `replies` by the method of a question."""
    requests = recorded.of("client", "request")
    replies = recorded.of("client", "result")
    return {
        "requests": [_asked(said) for said in requests if said.method != _HANDSHAKE],
        "replies": {said.method: members(said.body) for said in replies},
    }


def _asked(said: RecordedMessage) -> Json:
    params = {} if said.body is None else {"params": without_meta(said.body)}
    return {"method": said.method, **params, "wantsProgress": token_of(said.body) is not None}


def telling_of(recorded: Conversation) -> Json:
    """What the client of a recording was told, as a repeater would print it."""
    answers = [recorded.answers[said.index] for said in recorded.of("client", "request")]
    return {
        "answers": [{said.kind: members(said.body)} for said in answers],
        "asked": [_message(said) for said in recorded.of("server", "request")],
        "heard": [_message(said) for said in recorded.of("server", "notification")],
        "faults": [],
    }


def _message(said: RecordedMessage) -> Json:
    return {"method": said.method, "params": members(said.body)}


def things_in(telling: Json) -> int:
    """How much there is to compare."""
    return sum(map(len, telling.values()))


def differences(recorded: Json, told: Json) -> list[str]:
    """Where a client was told something else than was recorded, in sentences.

    Notifications and questions may come in another order, as concurrent tasks of an SDK hear them.
    """
    places = json_differences(_comparable(recorded), _comparable(told))
    return [f"{path}: {_text(old)} became {_text(new)}" for path, old, new in places]


def _comparable(telling: Json) -> bytes:
    """Without tokens, which are new in each session; messages in an order of their own."""
    # The Python SDKs make a float of each number of a progress report.
    plain = json.loads(json.dumps(telling), parse_float=_number)
    for kind in ("asked", "heard"):
        plain[kind] = sorted(map(_without_tokens, plain[kind]))
    return json.dumps(plain).encode()


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _without_tokens(message: Mapping[str, Any]) -> str:
    params = message.get("params") or {}
    rest = {name: value for name, value in params.items() if name not in {_TOKEN, "_meta"}}
    return json.dumps([message["method"], rest], sort_keys=True)


def _text(value: Any) -> str:
    return "nothing" if value is msgspec.UNSET else repr(value)


def unexpected(found: Iterable[object], expected: Iterable[str]) -> list[str]:
    """Which lines came without being expected, and which did not come, in sentences."""
    came, due = set(map(str, found)), set(expected)
    return [
        *(f"not expected: {line}" for line in sorted(came - due)),
        *(f"has not come: {line}" for line in sorted(due - came)),
    ]
