"""What can be chosen about a client and about a call, by name."""

import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from mcp_trio._client.callbacks import (
    ElicitationCallback,
    ElicitationCompleteCallback,
    ListChangedCallback,
    LogCallback,
    Report,
    ResourceUpdatedCallback,
    Sampled,
    SamplingCallback,
)
from mcp_trio._client.era_memory import EraMemory
from mcp_trio._client.roots import RootList, Roots
from mcp_trio._client.targets import Stderr
from mcp_trio._engine import ProgressCallback
from mcp_trio._limits import Limits
from mcp_trio._protocol import ALL_REVISIONS
from mcp_trio._recorder.options import RecordTo
from mcp_trio._schema import (
    CreateMessageParams,
    ElicitMode,
    ElicitParams,
    LoggingLevel,
    LoggingMessageParams,
    ResourceUpdatedParams,
)
from mcp_trio._transports.condition import OnState

if TYPE_CHECKING:
    import ssl

    import httpx

DEFAULT_REVISIONS: Final = ALL_REVISIONS
"""What a client speaks that was not told otherwise: modern servers are tried first."""

Trace: TypeAlias = Callable[[], Mapping[str, str]]
"""The trace that a request belongs to: of what it gives, `traceparent`, `tracestate`, `baggage`."""

_Told: TypeAlias = Awaitable[None] | None


class CallOptions(TypedDict, total=False):
    """How long a call may take, and who hears of its progress; see `Client.request`."""

    idle_seconds: float | None
    total_seconds: float | None
    progress: ProgressCallback | None


def shortest_seconds(options: CallOptions) -> float | None:
    """How long a call may take at most, if its options say so."""
    given = (options.get("idle_seconds"), options.get("total_seconds"))
    return min((seconds for seconds in given if seconds is not None), default=None)


class _SharedOptions(TypedDict, total=False):
    """The options of `Client` that are the same for a group."""

    name: str
    version: str
    revisions: Sequence[str]
    limits: Limits
    record: RecordTo | None
    restart: bool
    cache: bool
    raise_tool_errors: bool
    log_level: LoggingLevel | None
    eras: EraMemory | None
    extensions: Mapping[str, Mapping[str, Any]] | None
    sampling_tools: bool
    elicitation_modes: Collection[ElicitMode]
    methods: Mapping[str, Any] | None


class ClientOptions(_SharedOptions, total=False):
    """The options of `Client`, for functions that pass them on."""

    env: Mapping[str, str] | None
    inherit_env: bool
    cwd: str | os.PathLike[str] | None
    stderr: Stderr | None
    http: "httpx.AsyncClient | None"
    headers: Mapping[str, str] | None
    token: str | None
    ssl_context: "ssl.SSLContext | None"
    state_changed: OnState | None
    progress: ProgressCallback | None
    log: LogCallback | None
    resource_updated: ResourceUpdatedCallback | None
    list_changed: ListChangedCallback | None
    roots: Roots | None
    sampling: SamplingCallback | None
    elicitation: ElicitationCallback | None
    elicitation_complete: ElicitationCompleteCallback | None
    trace: Trace | None


class GroupOptions(_SharedOptions, total=False):
    """The options of `ClientGroup`; its callbacks get the server's name first."""

    stderr: Callable[[str, str], None] | Literal["inherit"] | None
    progress: Callable[[str, Any], _Told] | None
    log: Callable[[str, LoggingMessageParams], _Told] | None
    resource_updated: Callable[[str, ResourceUpdatedParams], _Told] | None
    list_changed: Callable[[str, str], _Told] | None
    roots: RootList | Callable[[str], RootList | Awaitable[RootList]] | None
    sampling: (
        Callable[[str, CreateMessageParams], Sampled]
        | Callable[[str, CreateMessageParams, Report], Sampled]
        | None
    )
    elicitation: Callable[[str, ElicitParams], Any] | None
    elicitation_complete: Callable[[str, str], _Told] | None
    trace: Callable[[str], Mapping[str, str]] | None
