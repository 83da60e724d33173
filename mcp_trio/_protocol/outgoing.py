"""What leaves one end of a conversation, and what both directions know.

What goes out is returned as an encoded frame, and it is the caller's duty to send frames in the
order in which they were returned. Everything is fitted to the revision of the other side: what that
does not have is left out, or said in its words.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs
import msgspec
from msgspec import UNSET, Raw

from mcp_trio import _schema as s
from mcp_trio._errors import LocalProtocolError, RemoteProtocolError
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import methods
from mcp_trio._protocol.budgets import Budget
from mcp_trio._protocol.fitting import fitted
from mcp_trio._protocol.metadata import (
    COMPLETE,
    INPUT_REQUIRED,
    SERVER_INFO,
    SUBSCRIPTION_ID,
    dressed,
    said_by_client,
    with_meta,
)
from mcp_trio._protocol.methods import METHODS, Method, Need, ParamsToSend, announced, unknown
from mcp_trio._protocol.peers import Capabilities, Peer
from mcp_trio._protocol.progress import check_reserved, report, with_token
from mcp_trio._protocol.requests import OurRequest, OurRequests, TheirRequest, TheirRequests
from mcp_trio._protocol.revisions import (
    ALL_REVISIONS,
    NEWEST_LEGACY,
    REVISIONS,
    Revision,
    newest,
)
from mcp_trio._protocol.states import (
    SESSION_MOVES,
    Input,
    Role,
    SessionState,
    TheirMove,
)
from mcp_trio._wire import encode_error, encode_notification, encode_request, encode_response

# What a client says before it knows its server.
_FIRST_WORDS: Final = frozenset({methods.INITIALIZE, methods.DISCOVER})

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def _counter() -> Counter[str]:
    return Counter()  # `Counter[str]()` remembers that, in each session


@attrs.define(kw_only=True, eq=False)
class Outgoing:
    """The state of one end, and what leaves it; `Connection` adds what arrives.

    `revision`, `peer_info`, `peer_capabilities` and `instructions` (a client's view of the server's
    text, a server's own) are settled by the handshake, or by a client's discovery, and `peer` is
    all of them. `counts` holds every fault and curiosity that was not worth an error, by name.

    Attributes:
        methods: Those that both sides know; people's own rows may join them at any time.
        declare: Tells a server's capabilities, as of a handshake or of a modern request.
        revisions: The names of those that are spoken here, from the newest.
        own_metadata: What a client wants to say in each of its requests, beside what it has to.
        result_types: What a modern result may be besides complete, by extensions (BASE-40).
    """

    our_role: Role
    our_info: s.Implementation
    our_capabilities: Capabilities
    instructions: str | None = None
    limits: Limits = DEFAULT_LIMITS
    methods: Mapping[str, Method] = METHODS
    declare: Callable[[], s.ServerCapabilities] | None = None
    revisions: Sequence[str] = ALL_REVISIONS
    own_metadata: Callable[[], Mapping[str, Any]] = dict[str, Any]
    result_types: Mapping[str, Any] = _NONE

    state: SessionState = attrs.field(default=SessionState.FRESH, init=False)
    peer: Peer | None = attrs.field(default=None, init=False)
    their_role: Role = attrs.field(init=False)
    _signature: dict[str, Any] | None = attrs.field(default=None, init=False)
    theirs: TheirRequests = attrs.field(factory=TheirRequests, init=False)
    ours: OurRequests = attrs.field(init=False)
    counts: Counter[str] = attrs.field(factory=_counter, init=False)

    def __attrs_post_init__(self) -> None:
        self.their_role = self.our_role.peer
        self.ours = OurRequests(remembered_max=self.limits.requests_remembered_max)

    @property
    def signature(self) -> dict[str, Any]:
        """Who we are, as every modern result says it in `_meta`: text already, and one for all."""
        if self._signature is None:
            self._signature = {SERVER_INFO: Raw(msgspec.json.encode(self.our_info))}
        return self._signature

    @property
    def revision(self) -> Revision | None:
        """What was agreed on; None before."""
        return None if self.peer is None else self.peer.revision

    @property
    def peer_info(self) -> s.Implementation | None:
        """The name of the other side, if it was said."""
        return None if self.peer is None else self.peer.info

    @property
    def peer_capabilities(self) -> Capabilities | None:
        """What the other side can do; None before it was said."""
        return None if self.peer is None else self.peer.capabilities

    # Requests of ours.

    def open_request(
        self,
        method: str,
        params: ParamsToSend | None,
        *,
        now: float,
        idle_seconds: float = math.inf,
        total_seconds: float = math.inf,
        wants_progress: bool = False,
    ) -> OurRequest:
        """Enter a request of ours; its `frame` must leave next.

        Raises:
            LocalProtocolError: No such request, wrong direction, too early, not negotiated, or
                `params` hold metadata that are not the caller's to say; nothing was entered.
            Unencodable: The params cannot be written as JSON; nothing was entered.
        """
        row = self._sendable(method, self._revision_of(method), is_request=True)
        check_reserved(params)
        request_id = self.ours.next_id()
        params = self._complete(row, params)
        if wants_progress:
            params = with_token(params, request_id)
        depth_max = self.limits.json_depth_max
        frame = encode_request(request_id, method, params, json_depth_max=depth_max)
        self._move(self.our_role, self._kind(row, self._revision_of(method)))
        budget = Budget(started=now, idle_seconds=idle_seconds, total_seconds=total_seconds)
        request = OurRequest(request_id, row, frame, budget, wants_progress)
        self.ours.add(request)
        return request

    def _complete(self, row: Method, params: ParamsToSend | None) -> ParamsToSend | None:
        """The params in the words of the other side, with what each request has to say."""
        revision = self._revision_of(row.name)
        params = fitted(params, revision)
        own = self.own_metadata() if self.our_role is Role.CLIENT else dict[str, Any]()
        if revision.is_modern:
            own = {**own, **said_by_client(revision, self.our_capabilities, self.our_info)}
        return with_meta(params, own) if own else params

    def _revision_of(self, method: str) -> Revision:
        """What a message of ours is written in, also before anything was agreed on."""
        if self.peer is not None:
            return self.peer.revision
        modern = newest(self.revisions, has_handshake=False)
        if method == methods.DISCOVER and modern is not None:
            return modern
        return newest(self.revisions, has_handshake=True) or NEWEST_LEGACY

    def decode_result(self, request: OurRequest, raw: Raw) -> Any:
        """The typed result of a request of ours; of a modern one perhaps that it wants input.

        Raises:
            RemoteProtocolError: The result does not have the shape of the method's, or is of a kind
                that was not to be expected (BASE-39, MRTR-03).
        """
        method, kind = request.method, COMPLETE
        try:
            if self.revision is not None and self.revision.is_modern:
                kind = msgspec.json.decode(raw, type=_Kind).result_type
            if kind == COMPLETE:
                return method.decode_result(raw)
            if kind == INPUT_REQUIRED and method.has_rounds:
                return msgspec.json.decode(raw, type=s.InputRequiredResult)
            if kind in self.result_types:
                return msgspec.json.decode(raw, type=self.result_types[kind])
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(
                f"the answer to {method.name} is not a valid result: {error}"
            ) from error
        raise RemoteProtocolError(f"the answer to {method.name} is of an unknown kind: {kind!r}")

    def abandon(self, request: OurRequest, reason: str | None = None) -> bytes | None:
        """Nobody waits for a request of ours any more: the cancellation to send, if one is due.

        None when it has ended already, for `initialize`, which is never cancelled (CANC-03), and
        for the first discovery, of which a silent server may know nothing.
        """
        is_first = self.peer is None and request.method.name in _FIRST_WORDS
        if not self.ours.abandon(request) or is_first:
            return None
        params = s.CancelledParams(request_id=request.id, reason=reason)
        return encode_notification(methods.CANCELLED, params)

    # A client learns whom it talks with.

    def initialize_params(self) -> s.InitializeParams:
        """What a client sends first: our newest revision with a handshake (LIFE-02, LIFE-04)."""
        assert isinstance(self.our_capabilities, s.ClientCapabilities)
        return s.InitializeParams(
            protocol_version=self._revision_of(methods.INITIALIZE).name,
            capabilities=self.our_capabilities,
            client_info=self.our_info,
        )

    def accept_initialize(self, result: s.InitializeResult) -> bytes:
        """Settle what the server answered; returns the frame of `notifications/initialized`.

        Raises:
            RemoteProtocolError: The server chose a revision that is not spoken here; the caller
                disconnects (LIFE-09).
            LocalProtocolError: There was no such answer; nothing is settled.
        """
        revision = REVISIONS.get(result.protocol_version)
        if (
            revision is None
            or not revision.has_handshake
            or result.protocol_version not in self.revisions
        ):
            known = ", ".join(self.revisions)
            raise RemoteProtocolError(
                f"the server chose revision {result.protocol_version!r}; known here: {known}"
            )
        frame = self.notification(methods.INITIALIZED)
        self.settle(revision, result.capabilities, result.server_info)
        self.instructions = result.instructions
        return frame

    def can_offer_another(self, supported: Sequence[str]) -> bool:
        """Whether a server that refused our offer may take the next one, of what it `supported`.

        From then on nothing else is spoken here (TRAP-16).
        """
        refused = self._revision_of(methods.INITIALIZE).name
        common = [name for name in self.revisions if name in supported and name != refused]
        if newest(common, has_handshake=True) is None:
            return False
        self.revisions = common
        return True

    def choose(self, supported: Sequence[str]) -> Revision | None:
        """The newest modern revision that both sides speak; None if there is none (TRAP-19)."""
        return newest([name for name in self.revisions if name in supported], has_handshake=False)

    def accept_discovery(self, result: s.DiscoverResult) -> None:
        """Settle what a modern server says of itself.

        Raises:
            RemoteProtocolError: There is no modern revision that both sides speak.
        """
        revision = self.choose(result.supported_versions)
        if revision is None:
            theirs, ours = ", ".join(result.supported_versions), ", ".join(self.revisions)
            raise RemoteProtocolError(
                f"the server speaks {theirs or 'nothing'}; known here: {ours}"
            )
        said = (result.meta or {}).get(SERVER_INFO)
        try:
            info = None if said is None else msgspec.convert(said, s.Implementation)
        except msgspec.ValidationError:  # nothing may depend on it (DISC-07)
            info = None
        self.settle(revision, result.capabilities, info)
        self.instructions = result.instructions

    def settle(
        self,
        revision: Revision,
        capabilities: Capabilities,
        info: s.Implementation | None,
        principal: str | None = None,
    ) -> None:
        """It is known from now on whom we talk with."""
        self.peer = Peer(
            revision=revision, capabilities=capabilities, info=info, principal=principal
        )

    # Answers, and what is told.

    def response(self, request: TheirRequest, result: msgspec.Struct | Raw) -> bytes:
        """The frame of an answer, in the words of the request's revision.

        Raises:
            LocalProtocolError: The revision cannot say this at all.
            Unencodable: The result cannot be written as JSON, or is too large.
        """
        revision = request.peer.revision
        result = fitted(result, revision)
        if revision.is_modern:
            result = dressed(result, request.method, self.signature)
        return encode_response(request.id, result, json_depth_max=self.limits.json_depth_max)

    def error(self, request: TheirRequest, code: int, message: str, data: Any = UNSET) -> bytes:
        """The frame of an error that answers a request, with a code that its revision has.

        Raises:
            Unencodable: The data cannot be written as JSON.
        """
        return encode_error(request.id, request.peer.revision.code_of(code), message, data)

    def notification(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        request: TheirRequest | None = None,
    ) -> bytes:
        """The frame of a notification of ours, but for those that `progress` and `abandon` make.

        `request` is the modern one that it belongs to, if it belongs to one.

        Raises:
            LocalProtocolError: No such notification, wrong direction, too early, not negotiated,
                or about a request.
            Unencodable: The params cannot be written as JSON.
        """
        revision = self._revision_of(method) if request is None else request.peer.revision
        is_honoured = request is not None and request.method.is_standing
        row = self._sendable(method, revision, is_request=False, is_honoured=is_honoured)
        if row.input is Input.REFERENCE:
            raise LocalProtocolError(f"{method} is about a request: call progress() or abandon()")
        params = fitted(params, revision)
        frame = encode_notification(method, params, json_depth_max=self.limits.json_depth_max)
        self._move(self.our_role, self._kind(row, revision))
        return frame

    def progress(
        self,
        request: TheirRequest,
        progress: float,
        total: float | None = None,
        message: str | None = None,
    ) -> bytes | None:
        """The frame that reports on a request of theirs; None when it must not be sent.

        That is when nobody asked (no token), when the request is not running any more (PROG-05,
        PROG-09), when the value has not grown (PROG-06), and when the session is closed.

        Raises:
            LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
        """
        params = report(request, progress, total, message)
        if params is None or not self._is_legal(self.our_role, Input.REFERENCE):
            return None
        return encode_notification(methods.PROGRESS, fitted(params, request.peer.revision))

    def tear_down(self, request: TheirRequest) -> bytes:
        """The frame that tells a client of the end of its subscription (SUB-15)."""
        meta = {SUBSCRIPTION_ID: request.id}
        params = s.CancelledParams(request_id=request.id, meta=meta)
        return encode_notification(methods.CANCELLED, params)

    # Requests of theirs.

    def start(self, request: TheirRequest) -> None:
        """The handler of a request of theirs begins.

        Raises:
            LocalProtocolError: It was started, answered or cancelled before.
        """
        request.move(TheirMove.START)

    def finish(self, request: TheirRequest) -> bool:
        """A request of theirs has an answer or an error; True when that may be sent.

        Its id is free from now on. A cancelled request is finished like any other (CANC-06).

        Raises:
            LocalProtocolError: It was answered before.
        """
        return self.theirs.finish(request)

    def close(self) -> list[OurRequest]:
        """The session is over; returns the requests of ours that are lost by it. Idempotent."""
        self._move(self.our_role, Input.CLOSE)
        return self.ours.lose_all()

    # What both directions ask.

    def _sendable(
        self, method: str, revision: Revision, *, is_request: bool, is_honoured: bool = False
    ) -> Method:
        """The row of a message that may leave; one that is `honoured` was promised before."""
        row = self.methods.get(method)
        if row is None or row.is_request is not is_request:
            raise LocalProtocolError(unknown(method, self.our_role, is_request=is_request))
        if self.our_role not in row.senders:
            raise LocalProtocolError(f"a {self.our_role.value} does not send {method}")
        if not row.is_of(revision):
            raise LocalProtocolError(f"there is no {method} in revision {revision.name}")
        if not self._is_legal(self.our_role, self._kind(row, revision)):
            raise LocalProtocolError(
                f"{method} is not allowed now: the session is {self.state.name}"
            )
        if not (is_honoured or self._is_announced(row.need, revision)):
            raise LocalProtocolError(f"{method} needs the {row.need}, which is not announced")
        return row

    def _kind(self, row: Method, revision: Revision) -> Input:
        """What a message of ours is to the session table."""
        if row.input is Input.REFERENCE:
            return row.input
        return Input.STATELESS if revision.is_modern else row.input

    def _is_announced(self, need: Need | None, revision: Revision) -> bool:
        if need is None:
            return True
        if need.holder is not self.our_role:
            return announced(self.peer_capabilities, need.path)
        is_declared_anew = revision.is_modern and self.our_role is Role.SERVER
        ours = self.declared() if is_declared_anew else self.our_capabilities
        return announced(ours, need.path)

    def declare_once(self) -> s.ServerCapabilities:
        """What a server can do now, and has said for the whole session."""
        capabilities = self.our_capabilities = self.declared()
        return capabilities

    def declared(self) -> s.ServerCapabilities:
        """What a server can do now."""
        if self.declare is not None:
            return self.declare()
        capabilities = self.our_capabilities
        assert isinstance(capabilities, s.ServerCapabilities)
        return capabilities

    def _is_legal(self, sender: Role, kind: Input) -> bool:
        return (sender, kind) in SESSION_MOVES[self.state]

    def _move(self, sender: Role, kind: Input) -> bool:
        after = SESSION_MOVES[self.state].get((sender, kind))
        self.state = after or self.state
        return after is not None


class _Kind(msgspec.Struct, rename="camel", gc=False):
    """As much of a result as tells how to read it; without a word it is complete (BASE-38)."""

    result_type: str = COMPLETE
