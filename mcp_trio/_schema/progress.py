"""Basic, progress."""

from mcp_trio._schema.base import Number, Params, ProgressToken


class ProgressParams(Params, kw_only=True):
    """How far the request that gave the token has come."""

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None
