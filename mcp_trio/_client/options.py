"""What can be chosen about a client, by name."""

import os
from collections.abc import Mapping
from typing import TypedDict

from mcp_trio._client.callbacks import (
    ListChangedCallback,
    LogCallback,
    ResourceUpdatedCallback,
    Roots,
    SamplingCallback,
)
from mcp_trio._client.targets import Stderr
from mcp_trio._engine import ProgressCallback
from mcp_trio._limits import Limits


class ClientOptions(TypedDict, total=False):
    """The options of `Client`, for functions that pass them on."""

    name: str
    version: str
    limits: Limits
    record: str | os.PathLike[str] | None
    raise_tool_errors: bool
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
