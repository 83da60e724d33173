"""What every page of the specification builds on: the base of all structs, and the common words.

A struct describes one JSON object. Members keep the specification's names in snake case; `Model`
renames them on the wire. Three conventions hold for every struct of this folder:

- A required member has no default. An optional one is `X | None = None`: it is never sent when it
  is None, and an incoming null reads as absent.
- Members that a struct does not know are ignored (BASE-17). What the specification leaves open
  (`_meta`, schemas, experimental capabilities, log data) is kept untouched as plain JSON values.
- One struct has the members of all revisions, with rows in `definitions`; there is never a copy for
  a revision. `fitting`, on the floor above, leaves out what the one spoken with does not have.

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
    """The answer to a request; `result_type` says whether it is the last word (None: it is)."""

    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)
    result_type: str | None = None


class EmptyParams(Params, kw_only=True):
    """The parameters of a method that takes none."""


class EmptyResult(Result, kw_only=True):
    """An answer that says only that the request succeeded."""


class Icon(Model, kw_only=True):
    """A picture to show for something, by its `https:` or `data:` URI."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["dark", "light"] | None = None


class Icons(Model, kw_only=True):
    """The base of what has pictures in several sizes and formats."""

    icons: list[Icon] | None = None


class BaseMetadata(Model, kw_only=True):
    """The base of what has a name for programs, and perhaps a title for people."""

    name: str
    title: str | None = None


class Implementation(Icons, kw_only=True):
    """The name and version of a client or server, and what to show of it."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None


class Annotations(Model, kw_only=True):
    """For whom a piece of content is meant, how much it matters to them, and how old it is."""

    audience: list[Role] | None = None
    priority: UnitInterval | None = None
    last_modified: str | None = None


class AnnotatedModel(Model, kw_only=True):
    """The base of content and resources, which may carry annotations."""

    annotations: Annotations | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)
