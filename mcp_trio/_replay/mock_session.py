"""One client of a mocked server, from its first message to its last.

A request is answered as the recorded one was that it is the same as. What the recorded server said
due to a request (see `Conversation`) comes with it, in order: notifications before the answer, and
questions, whose replies are waited for where the recorded server had them before it went on.
Requests in flight at once do not wait for each other.
"""

from collections.abc import Sequence
from contextlib import suppress

import trio

from mcp_trio._errors import INVALID_PARAMS, METHOD_NOT_FOUND, ConnectionLost
from mcp_trio._journal.conversation import (
    CANCELLED,
    PROGRESS,
    REFERENCES,
    Conversation,
    Id,
    Said,
    members,
    token_of,
)
from mcp_trio._limits import Limits
from mcp_trio._replay.mock_eras import answer_of_era
from mcp_trio._replay.mock_matching import Matching, Miss
from mcp_trio._replay.saying import (
    answer_frame,
    id_of,
    index_of,
    notification_frame,
    request_frame,
)
from mcp_trio._replay.wire import Wire
from mcp_trio._transports.channel import Channel
from mcp_trio._wire import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode_error,
)


class MockSession:
    """Plays the server of `recorded` over `channel`.

    `misses` are the requests that were not recorded; `matching` knows the recorded ones that
    nobody has asked.
    """

    def __init__(
        self, recorded: Conversation, channel: Channel, *, is_paced: bool, limits: Limits
    ) -> None:
        self.misses: list[Miss] = []
        self.matching = Matching(recorded)
        self._recorded = recorded
        self._wire = Wire(channel, limits)
        self._is_paced = is_paced
        self._nursery: trio.Nursery
        self._scopes: dict[Id, trio.CancelScope] = {}
        self._live: dict[int | None, Request] = {}
        self._asked: set[int] = set()
        self._unreplied: dict[int, trio.Event] = {}

    async def run(self) -> None:
        """Plays until the client leaves; closes the channel."""
        try:
            async with trio.open_nursery() as writing:
                writing.start_soon(self._wire.write)
                async with trio.open_nursery() as self._nursery:
                    self._act(None)
                    with suppress(ConnectionLost):
                        await self._wire.listen(self._hear)
                    deadline = trio.current_time() + self._wire.limits.drain_seconds
                    self._nursery.cancel_scope.deadline = deadline
                writing.cancel_scope.deadline = deadline
                await self._wire.drain()
                writing.cancel_scope.cancel()
        finally:
            await self._wire.channel.aclose()

    # What the client says.

    def _hear(self, message: Message) -> None:
        match message:
            case Request():
                self._hear_request(message)
            case Notification():
                self._hear_notification(message)
            case Response() | ErrorResponse():
                self._hear_reply(message.id)
            case Malformed(id=int() | str(), is_request=True):
                self._wire.say(encode_error(message.id, message.code, message.message))
            case _:
                pass

    def _hear_request(self, request: Request) -> None:
        matching, method, params = self.matching, request.method, request.params
        if (said := matching.find(method, params)) is not None:
            self._live[said.index] = request
            self._act(said, request.id)
        elif (said := matching.find_again(method, params)) is not None:
            self._answer_again(said, request.id)
        elif (answer := answer_of_era(self._recorded, request)) is not None:
            self._wire.say(answer)
        else:
            self._refuse(request)

    def _answer_again(self, said: Said, request_id: Id) -> None:
        answer = self._recorded.answers.get(said.index)
        if answer is not None:
            self._wire.say(answer_frame(answer, request_id))

    def _refuse(self, request: Request) -> None:
        miss = self.matching.miss(request.method, request.params)
        self.misses.append(miss)
        code = INVALID_PARAMS if miss.nearest else METHOD_NOT_FOUND
        self._wire.say(encode_error(request.id, code, f"this is a mock: {miss}"))

    def _hear_notification(self, message: Notification) -> None:
        if message.method == CANCELLED:
            request_id = members(message.params).get(REFERENCES[CANCELLED])
            if isinstance(request_id, int | str):
                self._leave(request_id)
        said = self.matching.find_notification(message.method)
        if said is not None:
            self._act(said)

    def _leave(self, request_id: Id) -> None:
        """The client wants to hear no more of a request."""
        if request_id in self._scopes:
            self._scopes[request_id].cancel()
        left = [index for index, request in self._live.items() if request.id == request_id]
        for index in left:
            del self._live[index]

    def _hear_reply(self, question_id: Id | None) -> None:
        index = index_of(question_id)
        if index is None or index not in self._unreplied:
            return
        self._unreplied.pop(index).set()
        reply = self._recorded.answers.get(index)
        if reply is not None:
            self._act(reply)

    # What the server says due to it.

    def _act(self, owner: Said | None, request_id: Id | None = None) -> None:
        """Say now what nothing has to be waited for, and the rest in a task of its own."""
        lines = self._recorded.owned_by(None if owner is None else owner.index)
        place = 0
        while place < len(lines) and self._may_say(lines, place):
            self._say(lines[place])
            place += 1
        if place < len(lines):
            begin_ns = 0 if owner is None else owner.time_ns
            scope = trio.CancelScope()
            if request_id is not None:
                self._scopes[request_id] = scope
            self._nursery.start_soon(self._perform, lines, place, begin_ns, scope)

    async def _perform(
        self, lines: Sequence[Said], begin_place: int, begin_ns: int, scope: trio.CancelScope
    ) -> None:
        begin = trio.current_time()
        with scope:
            for place in range(begin_place, len(lines)):
                while (replied := self._awaited(lines, place)) is not None:
                    await replied.wait()
                if self._is_paced:
                    await trio.sleep_until(begin + (lines[place].time_ns - begin_ns) / 1e9)
                self._say(lines[place])

    def _may_say(self, lines: Sequence[Said], place: int) -> bool:
        return not self._is_paced and self._awaited(lines, place) is None

    def _awaited(self, lines: Sequence[Said], place: int) -> trio.Event | None:
        """A reply that the recorded server had before it went on here, and that is not there."""
        for question in lines[:place]:
            reply = self._recorded.answers.get(question.index)
            is_due = reply is not None and reply.index < lines[place].index
            if is_due and question.index in self._unreplied:
                return self._unreplied[question.index]
        return None

    def _say(self, said: Said) -> None:
        match said.kind:
            case "request":
                self._asked.add(said.index)
                self._unreplied[said.index] = trio.Event()
                self._wire.say(request_frame(said, members(said.body)))
            case "notification":
                self._tell(said)
            case _:
                if said.about in self._live:
                    self._wire.say(answer_frame(said, self._live[said.about].id))

    def _tell(self, said: Said) -> None:
        frame = notification_frame(said, members(said.body), self._live_reference(said))
        if frame is not None:
            self._wire.say(frame)

    def _live_reference(self, said: Said) -> Id | None:
        """The token or id that the live client gave, or the id of what is taken back."""
        about = said.about
        if about in self._live and said.method == PROGRESS:
            return token_of(self._live[about].params)
        if about in self._live:
            return self._live[about].id
        return None if about is None or about not in self._asked else id_of(about)
