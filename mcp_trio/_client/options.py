"""What can be chosen about a client and about a call, by name."""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict

from mcp_trio._client.callbacks import (
    ListChangedCallback,
    LogCallback,
    Report,
    ResourceUpdatedCallback,
    Sampled,
    SamplingCallback,
)
from mcp_trio._client.roots import RootList, Roots
from mcp_trio._client.targets import Stderr
from mcp_trio._engine import ProgressCallback
from mcp_trio._limits import Limits
from mcp_trio._recorder.options import RecordTo
from mcp_trio._schema import CreateMessageParams, LoggingMessageParams, ResourceUpdatedParams

_Told: TypeAlias = Awaitable[None] | None


class CallOptions(TypedDict, total=False):
    """How long a call may take, and who hears of its progress; see `Client.request`."""

    idle_seconds: float | None
    total_seconds: float | None
    progress: ProgressCallback | None


class _SharedOptions(TypedDict, total=False):
    """The options of `Client` that are the same for a group."""

    name: str
    version: str
    limits: Limits
    record: RecordTo | None
    raise_tool_errors: bool
    methods: Mapping[str, Any] | None


class ClientOptions(_SharedOptions, total=False):
    """The options of `Client`, for functions that pass them on."""

    env: Mapping[str, str] | None
    inherit_env: bool
    cwd: str | os.PathLike[str] | None
    stderr: Stderr | None
    progress: ProgressCallback | None
    log: LogCallback | None
    resource_updated: ResourceUpdatedCallback | None
    list_changed: ListChangedCallback | None
    roots: Roots | None
    sampling: SamplingCallback | None


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
