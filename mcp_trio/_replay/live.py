"""Replay of a recorded client's messages against a live server."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import msgspec
import trio
from msgspec import UNSET, Raw

from mcp_trio._client.connect import (
    NO_WEB_OPTIONS,
    ProcessOptions,
    Served,
    Target,
    WebOptions,
    open_target,
)
from mcp_trio._journal.conversation import (
    REFERENCES,
    SUBSCRIPTION,
    Conversation,
    RecordedMessage,
    members,
    without_meta,
)
from mcp_trio._journal.diff import json_differences
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Lost,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode_request,
)
from mcp_trio._protocol.metadata import SERVER_INFO
from mcp_trio._protocol.methods import DISCOVER, PING
from mcp_trio._replay.live_matching import (
    AGREED,
    Key,
    ResponseMatcher,
    check_protocol_version,
    key_of,
    with_recorded_keys,
)
from mcp_trio._replay.live_messages import Wire, index_of
from mcp_trio._replay.live_report import IgnoreRules, InputDifference, InputsReport, What
from mcp_trio._replay.trace import load_conversation
from mcp_trio._session.tasks import bare
from mcp_trio._transports.channel import Channel
from mcp_trio.errors import ConnectionLost, OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# A client that says again what a recorded client said, to a live server.
#
# It walks over the recorded conversation. What the client said is sent; at what the server said it
# waits until that has come again. So whatever was sent after something had come is sent after that
# again, and what was concurrent stays concurrent.
#
# No wait is endless. An answer has the budget of a request; what nobody asked for has that as well
# while a request is open, and else `limits.replay.unrequested_seconds`, once for each kind: a
# server that has ceased to say something delays nothing more. If a server asks in another order
# than the recorded one did, and everything stands still, the recorded replies are sent ahead of
# their place.
#
# Over HTTP one answer can be lost and others come: then that one is not waited for. Who cannot be
# asked at all any more is lost as a whole.


_LAST_PING: Final = "the last ping"

# So many answers in a row fail to come while nothing at all is heard: then nobody is there.
_SILENCES_MAX: Final = 2


@attrs.define(kw_only=True, eq=False)
class RequestDriver:
    """Drives one live server.

    `lost` is why the server could not be driven to the end, if it could not, and `unreached` is the
    same if it took not even the first request; `late` are the requests whose answers did not come
    in time, by index.
    """

    played: ResponseMatcher
    channel: Channel
    limits: Limits
    lost: str | None = attrs.field(default=None, init=False)
    unreached: ConnectionLost | None = attrs.field(default=None, init=False)
    late: set[int] = attrs.field(factory=set[int], init=False)
    _wire: Wire = attrs.field(init=False)
    _heard: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _heard_count: int = attrs.field(default=0, init=False)
    _is_pinged: bool = attrs.field(default=False, init=False)
    _silences: int = attrs.field(default=0, init=False)
    _given_up: set[Key] = attrs.field(factory=set[Key], init=False)

    def __attrs_post_init__(self) -> None:
        self._wire = Wire(self.channel, self.limits)

    async def run(self, served: Served | None = None) -> None:
        """Says everything, and hears the server out; closes the channel.

        What becomes of the server raises nothing: it is `lost`.
        """
        try:
            async with trio.open_nursery() as nursery:
                if served is not None:
                    nursery.start_soon(self._serve, served)
                nursery.start_soon(self._wire.write)
                nursery.start_soon(self._listen)
                await self._play()
                nursery.cancel_scope.cancel()
        finally:
            await self.channel.aclose()

    # The script.

    async def _play(self) -> None:
        for said in self.played.recorded.messages:
            if self.lost is not None:
                return
            if said.sender == "client":
                self._send([self.played.frame(said)])
            else:
                await self._wait_for(said)
                self._send(self.played.due_replies(before=said.index))
        await self._hear_out()

    def _send(self, frames: Iterable[bytes | None]) -> None:
        for frame in frames:
            if frame is not None:
                self._wire.say(frame)

    async def _wait_for(self, said: RecordedMessage) -> None:
        key = key_of(said)
        if self.played.never_comes(said):
            return
        if said.is_answer:
            await self._wait_for_answer(said)
        elif key not in self._given_up and not await self._comes(said):
            self._given_up.add(key)

    async def _wait_for_answer(self, said: RecordedMessage) -> None:
        heard_before = self._heard_count
        if await self._comes(said):
            self._silences = 0
        elif said.request_index is not None and self.played.may_come(said):
            self.late.add(said.request_index)
            self._silences = self._silences + 1 if heard_before == self._heard_count else 0
            if self._silences >= _SILENCES_MAX:
                self._lose(f"it has left {_SILENCES_MAX} requests without a word")

    async def _comes(self, said: RecordedMessage) -> bool:
        """Return whether the live server says it in time."""
        played, limits = self.played, self.limits
        seconds = min(limits.replay.unrequested_seconds, limits.requests.idle_seconds)
        await self._until(lambda: played.has_come(said), seconds)
        if not played.has_come(said) and played.may_come(said):
            rest_seconds = limits.requests.idle_seconds - seconds
            await self._until(lambda: self._comes_after_replies(said), rest_seconds)
        return played.has_come(said)

    def _comes_after_replies(self, said: RecordedMessage) -> bool:
        """Return whether it has come, or never will; sends what the server may be waiting for."""
        self._send(self.played.due_replies())
        return self.played.has_come(said) or not self.played.may_come(said)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        with trio.move_on_after(seconds):
            while not is_so() and self.lost is None:
                await self._heard.park()

    async def _hear_out(self) -> None:
        """What the server says before it answers a ping is heard; the ping is no difference."""
        self._send([_last_ping(self.played.recorded)])
        await self._until(lambda: self._is_pinged, self.limits.replay.unrequested_seconds)

    # The server.

    async def _listen(self) -> None:
        try:
            await self._wire.listen(self._hear)
            self._lose("it has closed the connection")
        except ConnectionLost as error:
            self._lose(str(error))

    def _hear(self, message: Message | Lost) -> None:
        if isinstance(message, Response | ErrorResponse | Lost) and message.id == _LAST_PING:
            self._is_pinged = True
        elif isinstance(message, Lost):
            self._hear_loss(message)
        else:
            self._send([self.played.hear(message)])
        self._heard_count += 1
        self._heard.unpark_all()

    def _hear_loss(self, message: Lost) -> None:
        """An answer will not come; if the request was not even taken, no other will be either."""
        error = message.error
        if isinstance(error, ConnectionLost) and not isinstance(error, OutcomeUnknown):
            self.unreached = None if self.played.has_heard else error
            self._lose(str(error))
        self.played.lose(index_of(message.id), str(error))

    async def _serve(self, served: Served) -> None:
        try:
            await served.server.serve(served.channel)
        except Exception as error:
            self._lose(f"the server object failed: {bare(error)!r}")
        finally:
            await served.channel.aclose()

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._heard.unpark_all()


def _last_ping(recorded: Conversation) -> bytes:
    """A request that every server answers at once; modern ones have no other than discovery."""
    stateless = recorded.stateless_request
    if stateless is None:
        return encode_request(_LAST_PING, PING)
    meta: dict[str, Any] = members(stateless.body)["_meta"]
    meta.pop("progressToken", None)
    return encode_request(_LAST_PING, DISCOVER, {"_meta": meta})


# --------------------
# What was recorded of a server against what a live one has said.


_NAMES: Final = ("name", "uri")


def report_of(driver: RequestDriver, rules: IgnoreRules) -> InputsReport:
    """Compare what was recorded with what a driver has heard.

    What a lost server could not say any more is not told one by one: it is one difference.
    """
    played = driver.played
    comparison = _Comparison(played, rules, is_lost=driver.lost is not None)
    if driver.lost is not None:
        comparison.add("lost", "the server", live=driver.lost)
    comparison.answers(driver.late)
    comparison.questions()
    comparison.notifications()
    comparison.strangers()
    said = played.recorded.messages
    return InputsReport(
        requests=len(played.recorded.of("client", "request")),
        answered=len(played.answers),
        differences=tuple(comparison.found),
        ignored=comparison.ignored,
        unsent=sum(each.sender == "client" and each.index not in played.sent for each in said),
        unreadable=played.recorded.unreadable,
    )


def title(method: str, params: Raw | None) -> str:
    """What a message is, in words: its method, and the name or URI in it."""
    inner = members(params)
    named = next((inner[name] for name in _NAMES if name in inner), None)
    return method if named is None else f"{method} {named}"


class _Comparison:
    def __init__(self, played: ResponseMatcher, rules: IgnoreRules, *, is_lost: bool) -> None:
        self._played = played
        self._rules = rules
        self._is_lost = is_lost
        self.found: list[InputDifference] = []
        self.ignored = 0

    def answers(self, late: set[int]) -> None:
        recorded = self._played.recorded
        for said in recorded.of("client", "request"):
            answer, live = recorded.answers.get(said.index), self._played.answers.get(said.index)
            about = f"answer to {title(said.method, said.body)}"
            if answer is not None and live is not None:
                self._compare(said, about, _recorded_outcome(answer), _outcome(live, answer))
            elif said.index in self._played.lost:
                self._add_lost(about, said)
            elif answer is not None and not self._played.is_final(answer):
                self._add_missing("late" if said.index in late else "missing", about, said)
            elif live is not None and said.index in recorded.cancelled:
                self.add("extra", f"{about}, which was cancelled", said)

    def questions(self) -> None:
        for said in self._played.recorded.of("server", "request"):
            live = self._played.questions.get(said.index)
            about = f"question {said.method}"
            if live is None:
                self._add_missing("missing", about, said)
            else:
                self._compare(said, about, _what_is_said(said), _what_is_said(live))

    def notifications(self) -> None:
        recorded: dict[Key, list[RecordedMessage]] = {}
        for said in self._played.recorded.of("server", "notification"):
            recorded.setdefault(key_of(said), []).append(said)
        for key in recorded | self._played.told:
            told = self._played.told.get(key, [])
            self._pair(recorded.get(key, []), told, self._about(*key))

    def strangers(self) -> None:
        for message in self._played.strangers:
            self.add("extra", _STRANGERS[type(message)](message))

    def _pair(
        self, recorded: Sequence[RecordedMessage], told: Sequence[Notification], about: str
    ) -> None:
        """The same ones are a pair, and the others in their order; what is left is one-sided."""
        rest = [_what_is_said(each) for each in told]
        changed: list[tuple[RecordedMessage, bytes]] = []
        for said in recorded:
            content = _what_is_said(said)
            if content in rest:
                rest.remove(content)
            else:
                changed.append((said, content))
        for (said, content), live in zip(changed, rest, strict=False):
            self._compare(said, about, content, live)
        for said, _ in changed[len(rest) :]:
            if not self._played.is_final(said):
                self._add_missing("missing", about, said)
        for _ in rest[len(changed) :]:
            self.add("extra", about)

    def _about(self, method: str, index: int | None) -> str:
        if index is None:
            return method
        said = self._played.recorded.messages[index]
        return f"{method} for {title(said.method, said.body)}"

    def _compare(self, said: RecordedMessage, about: str, recorded: bytes, live: bytes) -> None:
        for path, old, new in json_differences(recorded, live):
            if self._rules.ignores(path, old, new):
                self.ignored += 1
            else:
                self.add("changed", about, said, path=path, recorded=old, live=new)

    def _add_lost(self, about: str, said: RecordedMessage) -> None:
        if not self._is_lost:
            self.add("lost", about, said, live=self._played.lost[said.index])

    def _add_missing(self, what: What, about: str, said: RecordedMessage) -> None:
        if not self._is_lost:
            self.add(what, about, said)

    def add(
        self,
        what: What,
        about: str,
        said: RecordedMessage | None = None,
        *,
        path: str = "",
        recorded: Any = UNSET,
        live: Any = UNSET,
    ) -> None:
        self.found.append(
            InputDifference(
                what=what,
                about=about,
                record=None if said is None else said.record,
                path=path,
                recorded=recorded,
                live=live,
            )
        )


def _recorded_outcome(answer: RecordedMessage) -> bytes:
    body = answer.body if answer.kind == "error" else _told_result(answer.body, answer.method)
    return msgspec.json.encode({answer.kind: body})


def _outcome(live: Response | ErrorResponse, recorded: RecordedMessage) -> bytes:
    if isinstance(live, ErrorResponse):
        return msgspec.json.encode({"error": live.error})
    result = live.result
    if recorded.kind == "result" and recorded.body is not None:
        result = with_recorded_keys(result, recorded.body)
    return msgspec.json.encode({"result": _told_result(result, recorded.method)})


def _told_result(result: Raw | None, method: str) -> Any:
    """A result without what says again who the server is, and which subscription it belongs to.

    Who it is counts in the answer to who asks for that.
    """
    own = {SUBSCRIPTION} if method == DISCOVER else {SUBSCRIPTION, SERVER_INFO}
    if result is None or not any(name.encode() in bytes(result) for name in own):
        return result
    inner = members(result)
    meta = inner.pop("_meta", None)
    if isinstance(meta, dict):
        said = cast("dict[str, Any]", meta)
        meta = {name: value for name, value in said.items() if name not in own}
    return {**inner, "_meta": meta} if meta else inner


def _what_is_said(message: RecordedMessage | Request | Notification) -> bytes:
    """Its params, without what says how it is asked or which request it is about."""
    body = message.body if isinstance(message, RecordedMessage) else message.params
    params = without_meta(body)
    params.pop(REFERENCES.get(message.method, ""), None)
    return msgspec.json.encode({"params": params}, order="deterministic")


def _strange_question(message: Request) -> str:
    return f"question {title(message.method, message.params)}"


def _strange_answer(message: Response | ErrorResponse) -> str:
    return f"answer to nothing, with the id {message.id!r}"


def _strange_frame(message: Malformed) -> str:
    return f"frame that is no message: {message.message}"


_STRANGERS: Final[Mapping[type[Message], Callable[[Any], str]]] = {
    Request: _strange_question,
    Response: _strange_answer,
    ErrorResponse: _strange_answer,
    Malformed: _strange_frame,
}


def drive(
    path: str | os.PathLike[str],
    target: Target,
    *,
    ignore: Collection[str] = (),
    channel: int | None = None,
    protocol_version: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
) -> InputsReport:
    """Say to a live server what the client in a recording said, and compare what it answers.

    `path` is a recording of any role, by whomever. Ids, progress tokens, and cursors and URIs that
    the client had from the server are those of the live session; times and cursors in answers do
    not count, and neither do the places that `ignore` names (see `IgnoreRules`). Questions of the
    server get the recorded replies, by requests or in rounds. `protocol_version` is another one to
    speak, of the era in which the client spoke. `headers` go along with each request to a URL. How
    the recorded client was connected does not matter. Starts a Trio run of its own; see
    `run_inputs`.

    Raises:
        RecordingError: The file is no recording, or holds several sessions: choose a `channel`.
        ConnectionLost: A command could not be started, or the server at a URL does not take the
            first request. What happens later is in the report.
        ValueError: A path in `ignore` is none, or the client cannot speak that `protocol_version`,
        or a URL
            is none.
    """

    async def run() -> InputsReport:
        return await run_inputs(
            path,
            target,
            ignore=ignore,
            channel=channel,
            protocol_version=protocol_version,
            limits=limits,
            inherit_env=inherit_env,
            headers=headers,
        )

    return trio.run(run)


async def run_inputs(
    path: str | os.PathLike[str],
    target: Target,
    *,
    ignore: Collection[str] = (),
    channel: int | None = None,
    protocol_version: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
) -> InputsReport:
    """`drive` inside a Trio program.

    Every wait is bounded, by `limits.requests.idle_seconds` and `limits.replay.unrequested_seconds`
    of `limits`.
    Cancelled: the connection is closed, and the process of a command stopped.

    Raises:
        RecordingError: As `drive`; so do the others.
    """
    recorded = load_conversation(path, channel=channel)
    if protocol_version is not None:
        check_protocol_version(recorded, protocol_version)
        ignore = (*ignore, AGREED)
    rules = IgnoreRules(ignore)
    played = ResponseMatcher(recorded, protocol_version)
    process = ProcessOptions(inherit_env=inherit_env)
    web = WebOptions(headers=headers) if headers else NO_WEB_OPTIONS
    connected = await open_target(target, process=process, web=web, limits=limits)
    driver = RequestDriver(played=played, channel=connected.channel, limits=limits)
    await driver.run(connected.served)
    if driver.unreached is not None:
        raise driver.unreached
    return report_of(driver, rules)


async def mock_client(
    path: str | os.PathLike[str],
    target: Target,
    *,
    channel: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
) -> InputsReport:
    """Stand in for the recorded client, whatever the server answers.

    As `run_inputs`, with every place of every answer ignored: what the report still holds is what
    did not come, came unasked, or came to an end.

    Raises:
        RecordingError: As `drive`; so do the others.
    """
    return await run_inputs(
        path,
        target,
        ignore=("$",),
        channel=channel,
        limits=limits,
        inherit_env=inherit_env,
        headers=headers,
    )
