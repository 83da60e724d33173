"""One empty dict in place of the many that idle sessions would have.

An empty dict takes 64 bytes. A session over HTTP, of which a server has thousands, would have a
dozen between two requests. The owner of such a dict sets its attribute to `NO_ITEMS`, replaces that
by a dict of its own before it adds the first item, and may set it again after the last one.
"""

from typing import TYPE_CHECKING, Any, Final, NoReturn


class _NoItems(dict[Any, Any]):
    """An empty dict to which nothing can be added."""

    __slots__ = ()

    def _reject(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("NO_ITEMS is shared: replace it by a dict before adding an item")

    if not TYPE_CHECKING:  # for a type checker, they would have to return what those of a dict do
        __setitem__ = __ior__ = setdefault = update = _reject


NO_ITEMS: Final[dict[Any, Any]] = _NoItems()
"""The empty dict; it raises `TypeError` when an item is added."""
