"""What was chosen for a client: its attributes that everybody may give, and read."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from mcp_trio import _schema as s
from mcp_trio._client.callbacks import (
    ElicitationCallback,
    ElicitationCompleteCallback,
    ListChangedCallback,
    LogCallback,
    ResourceUpdatedCallback,
    SamplingCallback,
)
from mcp_trio._client.era_memory import EraMemory
from mcp_trio._client.options import DEFAULT_REVISIONS, Trace
from mcp_trio._client.roots import Roots
from mcp_trio._client.targets import ProcessOptions, Stderr, Target, WebOptions
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import checked_revisions
from mcp_trio._recorder.options import RecordTo
from mcp_trio._transports.condition import OnState
from mcp_trio._version import __version__

if TYPE_CHECKING:
    import ssl

    import httpx


@attrs.define(eq=False, repr=False)
class Settings:
    """The words of `Client` say what each of them means."""

    target: Target
    name: str = attrs.field(default="mcp_trio", kw_only=True)
    version: str = attrs.field(default=__version__, kw_only=True)
    revisions: Sequence[str] = attrs.field(
        default=DEFAULT_REVISIONS, kw_only=True, converter=checked_revisions
    )
    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True)
    record: RecordTo | None = attrs.field(default=None, kw_only=True)
    restart: bool = attrs.field(default=False, kw_only=True)
    env: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    inherit_env: bool = attrs.field(default=False, kw_only=True)
    cwd: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    stderr: Stderr | None = attrs.field(default=None, kw_only=True)
    http: "httpx.AsyncClient | None" = attrs.field(default=None, kw_only=True)
    headers: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    token: str | None = attrs.field(default=None, kw_only=True)
    ssl_context: "ssl.SSLContext | None" = attrs.field(default=None, kw_only=True)
    state_changed: OnState | None = attrs.field(default=None, kw_only=True)
    eras: EraMemory | None = attrs.field(default=None, kw_only=True)
    cache: bool = attrs.field(default=True, kw_only=True)
    log: LogCallback | None = attrs.field(default=None, kw_only=True)
    log_level: s.LoggingLevel | None = attrs.field(default=None, kw_only=True)
    resource_updated: ResourceUpdatedCallback | None = attrs.field(default=None, kw_only=True)
    list_changed: ListChangedCallback | None = attrs.field(default=None, kw_only=True)
    roots: Roots | None = attrs.field(default=None, kw_only=True)
    sampling: SamplingCallback | None = attrs.field(default=None, kw_only=True)
    sampling_tools: bool = attrs.field(default=False, kw_only=True)
    elicitation: ElicitationCallback | None = attrs.field(default=None, kw_only=True)
    elicitation_modes: Collection[s.ElicitMode] = attrs.field(default=("form",), kw_only=True)
    elicitation_complete: ElicitationCompleteCallback | None = attrs.field(
        default=None, kw_only=True
    )
    trace: Trace | None = attrs.field(default=None, kw_only=True)
    extensions: Mapping[str, Mapping[str, Any]] | None = attrs.field(default=None, kw_only=True)
    methods: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)

    def _process_options(self) -> ProcessOptions:
        """How a command is started."""
        return ProcessOptions(
            env=self.env, inherit_env=self.inherit_env, cwd=self.cwd, stderr=self.stderr
        )

    def _web_options(self, **facts: Any) -> WebOptions:
        """How a URL is asked."""
        return WebOptions(
            http=self.http,
            headers=self.headers,
            token=self.token,
            ssl_context=self.ssl_context,
            **facts,
        )

    # What may be chosen anew; set here, or type checkers would see other attributes in subclasses.

    def _want_log_level(self, level: s.LoggingLevel) -> None:
        """A modern server hears of it with the next request."""
        self.log_level = level

    def _choose_roots(self, roots: Roots) -> None:
        """What the server gets to see when it asks."""
        self.roots = roots
