"""Roots: the places that a client lets its server work in, from people's words to the wire's."""

from collections.abc import Awaitable, Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from mcp_trio._schema import Root

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
