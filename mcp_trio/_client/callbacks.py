"""Callbacks of a client: the answers to its server's requests, and received notifications."""

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from inspect import isawaitable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import attrs
import msgspec
import trio

from mcp_trio._client.subscriptions import CHANGE_KINDS, notifications_in
from mcp_trio._protocol.client_features import (
    OpenElicitations,
    forbidden_tool_use,
    form_errors,
    unbalanced_tool_use,
    with_defaults,
)
from mcp_trio._protocol.methods import ACKNOWLEDGED, RESOURCE_UPDATED, Method
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._protocol.shares import Rate, TokenBuckets
from mcp_trio._session.call_sites import signature_of
from mcp_trio._session.handlers import Handling
from mcp_trio._session.session import Session
from mcp_trio.errors import INVALID_PARAMS, RateLimited, RequestError, UserRejected
from mcp_trio.types import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsResult,
    LoggingMessageParams,
    ResourceUpdatedParams,
    Root,
    RootsCapability,
    SamplingCapability,
    TextContent,
)

if TYPE_CHECKING:
    from mcp_trio._client.client import Client

logger = logging.getLogger("mcp_trio")

LogCallback: TypeAlias = Callable[[LoggingMessageParams], Awaitable[None] | None]
ResourceUpdatedCallback: TypeAlias = Callable[[ResourceUpdatedParams], Awaitable[None] | None]

ListChangedCallback: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the kind of the list: "tools", "resources" or "prompts"."""

RootList: TypeAlias = Sequence[Root | str | PathLike[str]]
"""Roots, their `file://` URIs, or paths; a path is made absolute, with symbolic links resolved."""

Roots: TypeAlias = RootList | Callable[[], RootList | Awaitable[RootList]]
"""A list of roots, or a function that returns one whenever the server asks."""


class ReportProgress(Protocol):
    """The second argument of a `sampling` callback: reports its progress to the server."""

    def __call__(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Report progress, which has to grow. Awaiting the result checks for cancellation.

        Nothing is sent if the server has not asked for progress.
        """
        ...


SamplingResult: TypeAlias = (
    CreateMessageResult | str | Awaitable[CreateMessageResult] | Awaitable[str]
)
SamplingCallback: TypeAlias = (
    Callable[[CreateMessageParams], SamplingResult]
    | Callable[[CreateMessageParams, ReportProgress], SamplingResult]
)
"""Asks a model; a second parameter gets a function that reports progress.

A string is the text of a message whose model is called "unknown".
"""

ElicitationCallback: TypeAlias = Callable[[ElicitParams], Any]
"""Asks the user, by a form or by a URL, and returns the answer; see `elicit_result`.

A URL is only passed to the callback, never opened or fetched. The callback has to show the complete
URL and the server's name, and open it only with the user's consent, where neither the client nor a
model can read the page.
https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#safe-url-handling
"""

ElicitationCompleteCallback: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the id of a URL elicitation that is complete."""

_ROOT_SCHEME: Final = "file://"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # "C:" is a drive
_LOG_MESSAGE: Final = "notifications/message"
_ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
_NOTIFICATIONS: Final = {ACKNOWLEDGED, _LOG_MESSAGE, _ELICITATION_COMPLETE, *CHANGE_KINDS}
_METHOD_OF_CALLBACK: Final = {
    "sampling": "sampling/createMessage",
    "elicitation": "elicitation/create",
    "roots": "roots/list",
}
_MODES: Final = frozenset({"form", "url"})


def check_roots(_client: object, _field: object, roots: Roots | None) -> None:
    """Raise the errors of `checked_roots` if the option `roots` of a client is invalid."""
    if roots is not None and not callable(roots):
        checked_roots(roots)


def check_modes(_client: object, _field: object, modes: Collection[str]) -> None:
    """Raise `ValueError` if the option `elicitation_modes` of a client is invalid."""
    if not modes or not _MODES.issuperset(modes):
        raise ValueError(f"elicitation_modes must contain 'form', 'url', or both, not {modes!r}")


def checked_roots(roots: object) -> list[Root]:
    """Return the roots as the server gets them.

    Raises:
        TypeError: `roots` is no list of roots. A single root as text is rejected, too, although it
            is a sequence.
        ValueError: A URI is not a `file://` URI, or contains "..", so that it could point outside
            of the path that it seems to name.
    """
    if not isinstance(roots, Sequence) or isinstance(roots, str | bytes):
        raise TypeError(f"roots must be a list, or a function that returns one, not {roots!r}")
    checked: list[Root] = []
    for root in cast("Sequence[object]", roots):
        if isinstance(root, PathLike) or (isinstance(root, str) and not _SCHEME.match(root)):
            root = Path(cast("str | PathLike[str]", root)).resolve().as_uri()
        if isinstance(root, str):
            root = Root(uri=root)
        if not isinstance(root, Root):
            raise TypeError(f"a root must be a Root, a URI or a path, not {root!r}")
        uri = root.uri
        if not uri.startswith(_ROOT_SCHEME):
            raise ValueError(f"the URI of a root must start with {_ROOT_SCHEME}, unlike {uri!r}")
        path = unquote(urlsplit(uri).path)
        if "\0" in path or ".." in path.replace("\\", "/").split("/"):
            raise ValueError(f"the URI of a root must not contain '..' or NUL, unlike {uri!r}")
        checked.append(root)
    return checked


def elicit_result(params: ElicitParams, returned: object) -> ElicitResult:
    """Return the answer to an elicitation, from the value that the callback returned.

    True accepts and False declines. A mapping, or an object with fields, is the content of the
    form, and accepts; so is the bare value of a form with a single field. An `ElicitResult` is
    taken as it is. Missing members get the defaults of the form.

    Raises:
        TypeError: The callback returned another value.
        ValueError: The content does not match the form, or is given for a URL.
    """
    fields: dict[str, Any] = (params.requested_schema or {}).get("properties", {})
    is_one_flag = [each.get("type") for each in fields.values()] == ["boolean"]
    if isinstance(returned, ElicitResult):
        result = returned
    elif isinstance(returned, bool) and not (returned and is_one_flag):
        result = ElicitResult(action="accept" if returned else "decline")
    else:
        try:
            plain: object = msgspec.to_builtins(returned, str_keys=True, enc_hook=_model_fields)
        except TypeError:
            plain = None
        if not isinstance(plain, Mapping) and plain is not None and len(fields) == 1:
            plain = dict.fromkeys(fields, plain)
        if not isinstance(plain, Mapping):
            raise TypeError(
                "an elicitation callback must return an ElicitResult, True, False, the content of"
                f" the form, or the value of its only field, not {returned!r}"
            )
        members = cast("Mapping[str, Any]", plain)
        form = {name: value for name, value in members.items() if value is not None}
        result = ElicitResult(action="accept", content=form)
    if result.action != "accept":
        return msgspec.structs.replace(result, content=None)
    if params.requested_schema is None:
        if result.content:
            raise ValueError("the answer to a URL elicitation must have no content")
        return msgspec.structs.replace(result, content=None)
    content = with_defaults(result.content or {}, params.requested_schema)
    errors = form_errors(content, params.requested_schema)
    if errors:
        raise ValueError(f"the content does not match the form: {'; '.join(errors)}")
    return msgspec.structs.replace(result, content=content)


def _model_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a pydantic model, a type that msgspec does not know."""
    if not hasattr(value, "model_dump"):
        raise TypeError(f"{value!r} has no fields")
    fields: dict[str, Any] = value.model_dump(mode="json", by_alias=True)
    return fields


async def _ignore_progress(
    progress: float, total: float | None = None, message: str | None = None
) -> None:
    """Ignore the progress of a callback in a multi round-trip request, which cannot send it."""


@attrs.define(eq=False, repr=False)
class ClientApplication:
    """The `Application` of a client's session: calls the callbacks that the user gave.

    The session passes one notification after the other, and logs an exception of a callback. Each
    request runs in its own task. A `RequestError` of a callback is the response to the request, any
    other exception an internal error.

    Attributes:
        client: The client, whose options are the callbacks.
        on_notification: Called with the method and params of each notification, before its
            callback.

    Raises:
        ValueError: `callback_rates` names an unknown callback, or a text in it is not a rate.
    """

    client: "Client"
    on_notification: Callable[[str, Any], None]
    _rates: Mapping[str, Rate] = attrs.field(init=False)
    _open_elicitations: OpenElicitations = attrs.field(init=False)
    _buckets: TokenBuckets = attrs.field(factory=TokenBuckets, init=False)

    def __attrs_post_init__(self) -> None:
        rates = self.client.callback_rates
        unknown = sorted(rates.keys() - _METHOD_OF_CALLBACK.keys())
        if unknown:
            known = ", ".join(_METHOD_OF_CALLBACK)
            raise ValueError(f"callback_rates= has no callback {unknown[0]!r}: choose from {known}")
        self._rates = {
            _METHOD_OF_CALLBACK[name]: Rate.parse(rate) if isinstance(rate, str) else rate
            for name, rate in rates.items()
        }
        remembered_max = self.client.limits.requests.elicitations_remembered_max
        self._open_elicitations = OpenElicitations(remembered_max)

    def capabilities(self) -> ClientCapabilities:
        """Return the capabilities of the client: one for each kind of callback that it has."""
        sampling = SamplingCapability(tools={} if self.client.sampling_tools else None)
        elicitation = ElicitationCapability(
            form={} if "form" in self.client.elicitation_modes else None,
            url={} if "url" in self.client.elicitation_modes else None,
        )
        return ClientCapabilities(
            roots=None if self.client.roots is None else RootsCapability(list_changed=True),
            sampling=None if self.client.sampling is None else sampling,
            elicitation=None if self.client.elicitation is None else elicitation,
        )

    async def handle(self, handling: Handling) -> msgspec.Struct:
        """Return the result of a request; the session rejects those that were not announced."""
        request = handling.request
        return await self.answer(request.method.name, request.params, handling.progress)

    async def ask_in_session(self, handling: Handling, required: InputRequiredResult) -> NoReturn:
        """Raise an error: no callback may return an `InputRequiredResult`."""
        kind, name = type(required).__name__, handling.request.method.name
        raise TypeError(f"the callback for {name} cannot ask the server by an {kind}")

    async def answer(
        self, method: str, params: Any, report: ReportProgress = _ignore_progress
    ) -> msgspec.Struct:
        """Return the answer to a request of the server, or to one of its input requests.

        Raises:
            RequestError: The server must not send this request.
            RateLimited: The server sends such requests faster than `callback_rates` allows.
            UserRejected: The user rejects the request.
            Exception: The callback raised it, or returned a value that is no answer.
        """
        rate = self._rates.get(method)
        if rate is not None:
            seconds = self._buckets.take(method, rate, trio.current_time())
            if seconds:
                text = f"{method}: too many requests: try again in {seconds:.3f} s"
                raise RateLimited(text, retry_after=round(seconds, 3))
        return await _REQUESTS[method](self, params, report)

    sends_error_texts = False  # The server need not be one that the user trusts.

    def failure_result(self, request: IncomingRequest, text: str) -> None:
        """Return None: the results of a client's methods cannot report a failure."""

    def handles_notification(self, method: Method) -> bool:
        """Return whether `notified` handles notifications of this method."""
        return method.name in _NOTIFICATIONS

    async def notified(self, method: Method, params: Any) -> None:
        """Pass a notification to its callback.

        The acknowledgement of a resumed subscription stands for all notifications that may have
        been missed; each is passed, even if the callback for another one raises.
        """
        if method.name != ACKNOWLEDGED:
            self.on_notification(method.name, params)
            await _awaited(self._call_back(method.name, params))
            return
        for name, missed in notifications_in(params.notifications):
            try:
                await _awaited(self._call_back(name, missed))
            except Exception:
                logger.exception("the callback for %s failed", name)

    def on_session_open(self, session: Session) -> None:
        """Do nothing: a client has no tasks of its own in a session."""

    def on_session_restart(self) -> None:
        """Do nothing: servers do not initialize."""

    def on_session_close(self) -> None:
        """Do nothing; see `on_session_open`."""

    async def list_roots(self, _params: Any, _report: ReportProgress) -> ListRootsResult:
        """Answer `roots/list`."""
        roots = self.client.roots
        listed: RootList = await _awaited(roots() if callable(roots) else roots)
        return ListRootsResult(roots=checked_roots(listed))

    async def create_message(
        self, params: CreateMessageParams, report: ReportProgress
    ) -> CreateMessageResult:
        """Answer `sampling/createMessage`."""
        has_tools = params.tools is not None or params.tool_choice is not None
        if has_tools and not self.client.sampling_tools:
            raise _rejection("sampling/createMessage", "sampling.tools was not announced")
        error = unbalanced_tool_use(params.messages)
        if error is not None:
            raise _rejection("sampling/createMessage", error)
        sampling: Any = self.client.sampling
        arguments = [params, report]
        try:
            signature_of(sampling).bind(params)
        except TypeError:
            pass  # the callback has a second parameter without a default, for `report`
        else:
            del arguments[1]
        result: Any = await _awaited(sampling(*arguments))
        if isinstance(result, str):
            content = TextContent(text=result)
            result = CreateMessageResult(role="assistant", content=content, model="unknown")
        if not isinstance(result, CreateMessageResult):
            raise TypeError(
                f"a sampling callback must return a CreateMessageResult or a str, not {result!r}"
            )
        misuse = forbidden_tool_use(params, result)
        if misuse is not None:
            raise ValueError(f"the model's answer: {misuse}")
        return result

    async def elicit(self, params: ElicitParams, _report: ReportProgress) -> ElicitResult:
        """Answer `elicitation/create`; a callback that raises `UserRejected` declines."""
        mode = params.mode or "form"
        if mode not in self.client.elicitation_modes:
            raise _rejection("elicitation/create", f"the mode {mode!r} was not announced")
        if params.elicitation_id is not None:
            self.expect_completion(params.elicitation_id)
        elicitation: Any = self.client.elicitation
        try:
            return elicit_result(params, await _awaited(elicitation(params)))
        except UserRejected:
            return ElicitResult(action="decline")

    def expect_completion(self, elicitation_id: str) -> None:
        """Let the server's next completion of this URL elicitation reach the callback."""
        self._open_elicitations.begin(elicitation_id)

    def _call_back(self, method: str, params: Any) -> Awaitable[None] | None:
        """Call the callback for a notification, if the user gave one."""
        callback: Callable[[Any], Awaitable[None] | None] | None
        argument: Any = params
        if method == _LOG_MESSAGE:
            callback = self.client.log
        elif method == _ELICITATION_COMPLETE:
            # The callback gets each elicitation that the server has started, once.
            is_open = self._open_elicitations.end(params.elicitation_id)
            callback = self.client.elicitation_complete if is_open else None
            argument = params.elicitation_id
        elif method == RESOURCE_UPDATED:
            callback = self.client.resource_updated
        else:
            callback, argument = self.client.list_changed, CHANGE_KINDS[method]
        return None if callback is None else callback(argument)


_REQUESTS: Final[
    dict[str, Callable[[ClientApplication, Any, ReportProgress], Awaitable[msgspec.Struct]]]
] = {
    "elicitation/create": ClientApplication.elicit,
    "roots/list": ClientApplication.list_roots,
    "sampling/createMessage": ClientApplication.create_message,
}


def _rejection(method: str, reason: str) -> RequestError:
    return RequestError(INVALID_PARAMS, f"{method}: {reason}")


async def _awaited(value: Any) -> Any:
    """Return the value of a callback that may be a normal or an async function."""
    return await value if isawaitable(value) else value
