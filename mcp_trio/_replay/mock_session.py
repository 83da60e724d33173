"""One client of a mocked server, from its first message to its last.

A request is answered as the recorded one was that it is the same as. What the recorded server said
due to a request (see `Conversation`) comes with it, in order: notifications before the answer, and
questions, whose replies are waited for where the recorded server had them before it went on.
Requests in flight at once do not wait for each other.

All modern clients over HTTP together are one client here, who asks the same more often than one.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import trio
from msgspec import Raw

from mcp_trio._errors import INVALID_PARAMS, METHOD_NOT_FOUND, ConnectionLost
from mcp_trio._journal.conversation import (
    CANCELLED,
    PROGRESS,
    Conversation,
    Id,
    Said,
    members,
    reference_of,
    token_of,
)
from mcp_trio._limits import Limits
from mcp_trio._protocol import INITIALIZE, REVISIONS, Revision
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
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.channel import Channel
from mcp_trio._wire import (
    ErrorResponse,
    Lost,
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
    nobody has asked. With `repeats`, each of these may be asked anew once it is answered.
    `negotiated` is set when the handshake has been answered, under `revision`; `closing` when the
    session begins to end. The client `has_begun` when it has asked something.
    """

    def __init__(
        self,
        recorded: Conversation,
        channel: Channel,
        *,
        is_paced: bool,
        limits: Limits,
        repeats: bool = False,
    ) -> None:
        self.misses: list[Miss] = []
        self.matching = Matching(recorded)
        self.negotiated = Milestone()
        self.closing = Milestone()
        self.revision: Revision | None = None
        self.has_begun = False
        self._repeats = repeats
        self._playing = trio.CancelScope()
        self._recorded = recorded
        self._wire = Wire(channel, limits)
        self._is_paced = is_paced
        self._nursery: trio.Nursery
        self._scopes: dict[Id, trio.CancelScope] = {}
        self._live: dict[int | None, Request] = {}
        self._unanswered: set[int] = set()
        self._asked: set[int] = set()
        self._unreplied: dict[int, trio.Event] = {}

    @property
    def connection(self) -> Self:
        """Where the revision is, as in an engine's session."""
        return self

    @property
    def may_be_followed(self) -> bool:
        """No: nothing is recorded of a mock."""
        return False

    @property
    def peer_info(self) -> None:
        """Who the client is does not matter to a mock."""

    @property
    def peer_capabilities(self) -> None:
        """What the client can do, as little."""

    def shut(self, cause: str) -> None:  # noqa: ARG002  nothing that plays on asks why
        """Stops playing, from any task."""
        self.closing.set()
        self._playing.cancel()

    async def run(self) -> None:
        """Plays until the client leaves, or `shut`; closes the channel."""
        try:
            with self._playing:
                await self._play()
        finally:
            self.closing.set()
            await self._wire.channel.aclose()

    async def _play(self) -> None:
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

    # What the client says.

    def _hear(self, message: Message | Lost) -> None:
        match message:
            case Request():
                self._hear_request(message)
            case Notification():
                self._hear_notification(message)
            case Response() | ErrorResponse():
                self._hear_reply(message.id)
            case Malformed(id=int() | str(), is_request=True):
                frame = encode_error(message.id, message.code, message.message)
                self._wire.say(frame, message.id, is_answer=True)
            case _:
                pass

    def _hear_request(self, request: Request) -> None:
        self.has_begun = True
        matching, method, params = self.matching, request.method, request.params
        if (said := self._found(method, params)) is not None:
            self._live[said.index] = request
            self._unanswered.add(said.index)
            self._act(said, request.id)
        elif (said := matching.find_again(method, params)) is not None:
            self._answer_again(said, request.id)
        elif (answer := answer_of_era(self._recorded, request)) is not None:
            self._wire.say(answer, request.id, is_answer=True)
        else:
            self._refuse(request)

    def _found(self, method: str, params: Raw | None) -> Said | None:
        """The recorded request that is to be played; None if there is none any more."""
        said = self.matching.find(method, params)
        if said is None and self._repeats:
            said = self.matching.find_anew(method, params, self._unanswered)
        return said

    def _answer_again(self, said: Said, request_id: Id) -> None:
        answer = self._recorded.answers.get(said.index)
        if answer is not None:
            self._wire.say(answer_frame(answer, request_id), request_id, is_answer=True)

    def _refuse(self, request: Request) -> None:
        miss = self.matching.miss(request.method, request.params)
        self.misses.append(miss)
        code = INVALID_PARAMS if miss.nearest else METHOD_NOT_FOUND
        frame = encode_error(request.id, code, f"this is a mock: {miss}")
        self._wire.say(frame, request.id, is_answer=True)

    def _hear_notification(self, message: Notification) -> None:
        if message.method == CANCELLED:
            request_id = reference_of(message)
            if request_id is not None:
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
        self._unanswered.difference_update(left)

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
        lines = self._due_to(owner)
        place = 0
        while place < len(lines) and self._may_say(lines, place):
            self._say(lines[place])
            place += 1
        if place < len(lines):
            scope = trio.CancelScope()
            if request_id is not None:
                self._scopes[request_id] = scope
            self._nursery.start_soon(self._perform, owner, place, request_id, scope)

    def _due_to(self, owner: Said | None) -> Sequence[Said]:
        return self._recorded.owned_by(None if owner is None else owner.index)

    async def _perform(
        self, owner: Said | None, begin_place: int, request_id: Id | None, scope: trio.CancelScope
    ) -> None:
        lines, begin_ns = self._due_to(owner), 0 if owner is None else owner.time_ns
        begin = trio.current_time()
        with scope:
            for place in range(begin_place, len(lines)):
                while (replied := self._awaited(lines, place)) is not None:
                    await replied.wait()
                if self._is_paced:
                    await trio.sleep_until(begin + (lines[place].time_ns - begin_ns) / 1e9)
                self._say(lines[place])
        if request_id is not None:
            self._scopes.pop(request_id, None)

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
                frame = request_frame(said, members(said.body))
                self._wire.say(frame, self._live_about(said))
            case "notification":
                self._tell(said)
            case _:
                if said.about in self._live:
                    self._answer(said, self._live[said.about].id)

    def _answer(self, said: Said, request_id: Id) -> None:
        assert said.about is not None
        self._unanswered.discard(said.about)
        if said.method == INITIALIZE and said.kind == "result":
            agreed = members(said.body).get("protocolVersion")
            self.revision = REVISIONS.get(agreed) if isinstance(agreed, str) else None
            self.negotiated.set()
        self._wire.say(answer_frame(said, request_id), request_id, is_answer=True)

    def _tell(self, said: Said) -> None:
        frame = notification_frame(said, members(said.body), self._live_reference(said))
        if frame is not None:
            self._wire.say(frame, self._live_about(said))

    def _live_about(self, said: Said) -> Id | None:
        """The live request that it comes with: the one that it is about, or is due to."""
        for index in (said.about, said.owner):
            if index in self._live:
                return self._live[index].id
        return None

    def _live_reference(self, said: Said) -> Id | None:
        """The token or id that the live client gave, or the id of what is taken back."""
        about = said.about
        if about in self._live and said.method == PROGRESS:
            return token_of(self._live[about].params)
        if about in self._live:
            return self._live[about].id
        return None if about is None or about not in self._asked else id_of(about)
