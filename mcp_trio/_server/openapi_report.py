"""The report on the operations of an OpenAPI document: `Server.openapi_report`.

The types are in a module of their own, since `mcp_trio.http` exports them, and reading documents
needs far more imports.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs


@attrs.frozen(kw_only=True)
class OpenApiOperation:
    """An operation of an OpenAPI document.

    Attributes:
        method: The HTTP method, such as `GET`.
        path: The path, with its parameters in braces.
        id: The `operationId`, else the method and the path, such as `GET /pets`.
        summary: The summary.
        description: The description.
        tags: The tags.
        is_deprecated: Whether the document calls it deprecated.
    """

    method: str
    path: str
    id: str
    summary: str = ""
    description: str = ""
    tags: Sequence[str] = ()
    is_deprecated: bool = False


Outcome: TypeAlias = Literal["tool", "resource", "resource template", "excluded", "refused"]


@attrs.frozen(kw_only=True)
class OpenApiEntry:
    """The outcome of an operation.

    Attributes:
        operation: The operation.
        outcome: "tool", "resource" or "resource template"; "excluded" by `include=` or `exclude=`;
            or "refused", because it cannot be called.
        name: The name of the tool, the URI of the resource, or the template; "" if there is none.
        reason: The reason for which the operation is refused; for others, the parts that are left
            out, if any.
    """

    operation: OpenApiOperation
    outcome: Outcome
    name: str = ""
    reason: str = ""

    def __str__(self) -> str:
        operation = self.operation
        name = f" {self.name}" if self.name else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{operation.method} {operation.path} → {self.outcome}{name}{reason}"


@attrs.frozen(kw_only=True)
class OpenApiReport:
    """The outcome of each operation of an OpenAPI document; `str()` has a line for each.

    Attributes:
        title: The title of the document.
        entries: The operations, in the order of the document.
    """

    title: str
    entries: Sequence[OpenApiEntry]

    @property
    def taken(self) -> Sequence[OpenApiEntry]:
        """The operations that became tools or resources."""
        return [each for each in self.entries if each.outcome not in ("excluded", "refused")]

    @property
    def refused(self) -> Sequence[OpenApiEntry]:
        """The operations that cannot be called."""
        return [each for each in self.entries if each.outcome == "refused"]

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))
