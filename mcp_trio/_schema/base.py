"""What every page of the specification builds on: the base of all structs, and the common words.

A struct describes one JSON object. Members keep the specification's names in snake case; `Model`
renames them on the wire. Three conventions hold for every struct of this folder:

- A required member has no default. An optional one is `X | None = None`: it is never sent when it
  is None, and an incoming null reads as absent.
- Members that a struct does not know are ignored (BASE-17). What the specification leaves open
  (`_meta`, schemas, experimental capabilities, log data) is kept untouched as plain JSON values.
- A later revision adds members to these structs and rows to `definitions`, never a copy.

The envelope (`jsonrpc`, `id`, `method`) is no part of these structs: it belongs to the wire.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

RequestId: TypeAlias = int | str
ProgressToken: TypeAlias = int | str
Cursor: TypeAlias = str
Role: TypeAlias = Literal["assistant", "user"]

Number: TypeAlias = int | float
"""Any JSON number; an integer stays an integer on the wire."""

UnitInterval: TypeAlias = (
    Annotated[int, msgspec.Meta(ge=0, le=1)] | Annotated[float, msgspec.Meta(ge=0, le=1)]
)
"""A number from 0 (least) to 1 (most)."""


class Model(msgspec.Struct, rename="camel", omit_defaults=True, repr_omit_defaults=True):
    """The base of all structs of the vocabulary.

    Subclasses say `kw_only=True` themselves, because msgspec does not inherit that option.
    """


class Params(Model, kw_only=True):
    """The parameters of a request or notification; absent parameters read as an empty object."""

    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class Result(Model, kw_only=True):
    """The answer to a request."""

    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class EmptyParams(Params, kw_only=True):
    """The parameters of a method that takes none."""


class EmptyResult(Result, kw_only=True):
    """An answer that says only that the request succeeded."""


class Implementation(Model, kw_only=True):
    """The name and version of a client or server."""

    name: str
    version: str


class Annotations(Model, kw_only=True):
    """For whom a piece of content is meant, and how much it matters to them."""

    audience: list[Role] | None = None
    priority: UnitInterval | None = None


class AnnotatedModel(Model, kw_only=True):
    """The base of content and resources, which may carry annotations."""

    annotations: Annotations | None = None
