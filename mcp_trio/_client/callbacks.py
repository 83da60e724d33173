"""Callbacks of a client: roots, sampling, elicitation, logs and changes."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from inspect import isawaitable, signature
from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import attrs
import msgspec

from mcp_trio._client.subscriptions import notifications_of
from mcp_trio._protocol.forms import OpenElicitations, form_errors, with_defaults
from mcp_trio._protocol.methods import ACKNOWLEDGED, METHODS, RESOURCE_UPDATED, Method
from mcp_trio._protocol.sampling import forbidden_tool_use, unbalanced_tool_use
from mcp_trio._session.handlers import AccompaniedSession, Handling
from mcp_trio.errors import INVALID_PARAMS, RequestError, UserRejected
from mcp_trio.limits import DEFAULT_LIMITS, Limits
from mcp_trio.types import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitationCompleteParams,
    ElicitMode,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    LoggingMessageParams,
    ResourceUpdatedParams,
    Root,
    RootsCapability,
    SamplingCapability,
)

# --------------------
# Roots: the places that a client lets its server work in, from people's words to the wire's.


RootList: TypeAlias = Sequence[Root | str | PathLike[str]]
"""Roots, their `file://` URIs, or paths: these are made absolute, without symbolic links."""

Roots: TypeAlias = RootList | Callable[[], RootList | Awaitable[RootList]]
"""A list is read, and a function called, whenever a server asks."""

_SCHEME: Final = "file://"


def wire_roots(roots: object) -> list[Root]:
    """What a server is told.

    Raises:
        TypeError: This is no list of roots: a single one, say, which as text is a sequence too.
        ValueError: A URI is not a `file://` one, or could mean another place than it seems to
            (ROOT-05, ROOT-09).
    """
    if not isinstance(roots, Sequence) or isinstance(roots, str | bytes):
        raise TypeError(f"roots are a list, or a function that gives one, not {roots!r}")
    return [_wire_root(root) for root in cast("Sequence[object]", roots)]


def _wire_root(root: object) -> Root:
    if isinstance(root, PathLike):
        root = Path(cast("PathLike[str]", root)).resolve().as_uri()
    if isinstance(root, str):
        root = Root(uri=root)
    if not isinstance(root, Root):
        raise TypeError(f"a root is a Root, a URI or a path, not {root!r}")
    _check_uri(root.uri)
    return root


def _check_uri(uri: str) -> None:
    if not uri.startswith(_SCHEME):
        raise ValueError(f"the URI of a root starts with {_SCHEME}, unlike {uri!r}")
    path = unquote(urlsplit(uri).path)
    if "\0" in path or ".." in path.replace("\\", "/").split("/"):
        raise ValueError(f"the URI of a root has no '..' and no NUL, unlike {uri!r}")


# --------------------
# From what a client's callback says of a form or a URL to the answer that its server gets.


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
    mistakes = form_errors(content, params.requested_schema)
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


# --------------------
# What a client does when its server asks or tells something: people's callbacks.


LogCallback: TypeAlias = Callable[[LoggingMessageParams], Awaitable[None] | None]
ResourceUpdatedCallback: TypeAlias = Callable[[ResourceUpdatedParams], Awaitable[None] | None]

ListChangedCallback: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the kind of the list: "tools", "resources" or "prompts"."""


class Report(Protocol):
    """Tells the server how far a request of its own has come; nothing if it did not ask for that.

    The progress grows with each report. A cancellation check.
    """

    async def __call__(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Reports."""
        ...


Sampled: TypeAlias = CreateMessageResult | Awaitable[CreateMessageResult]
SamplingCallback: TypeAlias = (
    Callable[[CreateMessageParams], Sampled] | Callable[[CreateMessageParams, Report], Sampled]
)
"""Asks a model; with a second parameter it can say how far that has come."""

ElicitationCallback: TypeAlias = Callable[[ElicitParams], Any]
"""Shows the user a form or a URL, and says what they did with it; see `elicit_result`.

Nothing is done with a URL but to hand it on. The callback shows the whole of it and who asks, and
opens it, if the user agrees, where neither we nor a model see what is there (ELIC-37 to ELIC-41).
"""

ElicitationCompleteCallback: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the id of a visit that is over."""

_MODES: Final = frozenset({"form", "url"})
_LISTS: Final = ("tools", "resources", "prompts")


def _check_given_roots(_callbacks: object, _field: object, roots: Roots | None) -> None:
    if roots is not None and not callable(roots):
        wire_roots(roots)


def _check_modes(_callbacks: object, _field: object, modes: Collection[str]) -> None:
    if not modes or not _MODES.issuperset(modes):
        raise ValueError(f"elicitation_modes are some of 'form' and 'url', not {modes!r}")


async def _no_report(
    progress: float, total: float | None = None, message: str | None = None
) -> None:
    """In a round nobody hears of progress."""


@attrs.define(kw_only=True, eq=False)
class Callbacks:
    """The `Application` of a client's session.

    The engine hands in one notification after the other and logs what a callback raises. Each
    request runs in a task of its own; what its callback raises is the answer: a `RequestError` as
    it is, anything else as an internal error. `roots` may be replaced at any time.

    Raises:
        TypeError, ValueError: The roots are no function, and not what `wire_roots` takes.
        ValueError: There is no such mode of elicitation, or none is given (ELIC-03).
    """

    log: LogCallback | None
    resource_updated: ResourceUpdatedCallback | None
    list_changed: ListChangedCallback | None
    roots: Roots | None = attrs.field(validator=_check_given_roots)
    sampling: SamplingCallback | None
    sampling_tools: bool = False
    elicitation: ElicitationCallback | None = None
    elicitation_modes: Collection[ElicitMode] = attrs.field(
        default=("form",), validator=_check_modes
    )
    elicitation_complete: ElicitationCompleteCallback | None = None
    limits: Limits = DEFAULT_LIMITS
    _visits: OpenElicitations = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._visits = OpenElicitations(self.limits.requests.elicitations_remembered_max)

    def capabilities(self) -> ClientCapabilities:
        """What the client announces: that for which it has a callback."""
        return ClientCapabilities(
            roots=None if self.roots is None else RootsCapability(list_changed=True),
            sampling=None if self.sampling is None else self._sampling_capability(),
            elicitation=None if self.elicitation is None else self._elicitation_capability(),
        )

    def _sampling_capability(self) -> SamplingCapability:
        return SamplingCapability(tools={} if self.sampling_tools else None)

    def _elicitation_capability(self) -> ElicitationCapability:
        return ElicitationCapability(
            form={} if "form" in self.elicitation_modes else None,
            url={} if "url" in self.elicitation_modes else None,
        )

    async def handle(self, handling: Handling) -> msgspec.Struct:
        """The answer to a request; what was not announced never comes here."""
        request = handling.request
        return await self.answer(request.method.name, request.params, handling.progress)

    async def answer(self, method: str, params: Any, report: Report = _no_report) -> msgspec.Struct:
        """The answer to what a server asks, by a request or in a round.

        Raises:
            RequestError: The server must not ask so.
            UserRejected: The user says no.
            Exception: What the callback raised, or why what it returned is no answer.
        """
        return await _REQUESTS[method](self, params, report)

    def hears(self, method: Method) -> bool:
        """Return whether there may be a callback for a notification."""
        return method.name in _NOTIFICATIONS

    async def notified(self, method: Method, params: Any) -> None:
        """Hand a notification to its callback, if there is one."""
        await _settled(_NOTIFICATIONS[method.name](self, params))

    def accompany(self, session: AccompaniedSession) -> None:
        """A client does nothing by itself."""

    def depart(self) -> None:
        """See `accompany`."""

    async def list_roots(self, _params: Any, _report: Report) -> ListRootsResult:
        """The answer to `roots/list`.

        Raises:
            TypeError, ValueError: What was given are no roots; see `wire_roots`.
        """
        roots: RootList = await _settled(self.roots() if callable(self.roots) else self.roots)
        return ListRootsResult(roots=wire_roots(roots))

    async def create_message(
        self, params: CreateMessageParams, report: Report
    ) -> CreateMessageResult:
        """The answer to `sampling/createMessage`.

        Raises:
            RequestError: It brings tools, and they were not announced (SAMP-05), or their results
                do not belong to what the model said (SAMP-20).
            TypeError: The callback returned something else.
            ValueError: The model used tools as it must not (SAMP-21).
        """
        has_tools = params.tools is not None or params.tool_choice is not None
        if has_tools and not self.sampling_tools:
            raise _rejection("sampling/createMessage", "sampling.tools was not announced")
        fault = unbalanced_tool_use(params.messages)
        if fault is not None:
            raise _rejection("sampling/createMessage", fault)
        sampling: Any = self.sampling
        given = [params, report]
        result: Any = await _settled(sampling(*given[: 2 if _wants_report(sampling) else 1]))
        if not isinstance(result, CreateMessageResult):
            raise TypeError(f"a sampling callback returns a CreateMessageResult, not {result!r}")
        misuse = forbidden_tool_use(params, result)
        if misuse is not None:
            raise ValueError(f"the model's answer: {misuse}")
        return result

    async def elicit(self, params: ElicitParams, _report: Report) -> ElicitResult:
        """The answer to `elicitation/create`; a callback that raises `UserRejected` declines.

        Raises:
            RequestError: Its mode was not announced (ELIC-36).
            TypeError, ValueError: What the callback returned is no answer; see `elicit_result`.
        """
        mode = params.mode or "form"
        if mode not in self.elicitation_modes:
            raise _rejection("elicitation/create", f"the mode {mode!r} was not announced")
        if params.elicitation_id is not None:
            self.awaits(params.elicitation_id)
        elicitation: Any = self.elicitation
        try:
            return elicit_result(params, await _settled(elicitation(params)))
        except UserRejected:
            return ElicitResult(action="decline")

    def awaits(self, elicitation_id: str) -> None:
        """Listen for the end of a visit that the server needs (ELIC-33)."""
        self._visits.begin(elicitation_id)

    def visited(self, params: ElicitationCompleteParams) -> Awaitable[None] | None:
        """A visit is over; of one that nobody asked for, or that was over before, nobody hears."""
        is_known = self._visits.end(params.elicitation_id)
        if not is_known or self.elicitation_complete is None:
            return None
        return self.elicitation_complete(params.elicitation_id)

    def logged(self, params: LoggingMessageParams) -> Awaitable[None] | None:
        """The server wrote to its log."""
        return None if self.log is None else self.log(params)

    def updated(self, params: ResourceUpdatedParams) -> Awaitable[None] | None:
        """A resource that was subscribed to has changed."""
        return None if self.resource_updated is None else self.resource_updated(params)

    def changed(self, kind: str) -> Awaitable[None] | None:
        """One of the server's lists has changed."""
        return None if self.list_changed is None else self.list_changed(kind)


def _list_changed(kind: str) -> Callable[[Callbacks, Any], Awaitable[None] | None]:
    return lambda callbacks, _params: callbacks.changed(kind)


_REQUESTS: Final[dict[str, Callable[[Callbacks, Any, Report], Awaitable[msgspec.Struct]]]] = {
    "elicitation/create": Callbacks.elicit,
    "roots/list": Callbacks.list_roots,
    "sampling/createMessage": Callbacks.create_message,
}

_NOTIFICATIONS: Final[dict[str, Callable[[Callbacks, Any], Awaitable[None] | None]]] = {
    "notifications/elicitation/complete": Callbacks.visited,
    "notifications/message": Callbacks.logged,
    RESOURCE_UPDATED: Callbacks.updated,
    **{f"notifications/{kind}/list_changed": _list_changed(kind) for kind in _LISTS},
}


def _rejection(method: str, why: str) -> RequestError:
    return RequestError(INVALID_PARAMS, f"{method}: {why}")


async def _settled(value: Any) -> Any:
    """The value that a callback gave, at once or to whoever awaits it."""
    return await value if isawaitable(value) else value


def _wants_report(sampling: Callable[..., object]) -> bool:
    """Whether one argument is not enough; a second parameter with a default is somebody's own."""
    try:
        signature(sampling).bind(None)
    except TypeError:
        return True
    return False


logger = logging.getLogger("mcp_trio")


@attrs.define(kw_only=True, eq=False)
class ClientApplication(Callbacks):
    """The callbacks; `notice` hears of each notification before they do."""

    notice: Callable[[str, Any], None]

    def hears(self, method: Method) -> bool:
        """See `Application.hears`."""
        return method.name == ACKNOWLEDGED or super().hears(method)

    async def notified(self, method: Method, params: Any) -> None:
        """See `Application.notified`; a subscription that began again may have missed anything."""
        if method.name == ACKNOWLEDGED:
            for name, missed in notifications_of(params.notifications):
                await self._tell_of_missed(METHODS[name], missed)
            return
        self.notice(method.name, params)
        await super().notified(method, params)

    async def _tell_of_missed(self, method: Method, params: Any) -> None:
        """What one callback raises keeps nothing from the next."""
        try:
            await super().notified(method, params)
        except Exception:
            logger.exception("the callback for %s failed", method.name)
