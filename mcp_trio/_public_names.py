"""The names of the public modules, each listed once, in the stub beside the module."""

from collections.abc import Callable
from typing import Any, cast

import lazy_loader  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]


def lazy_names(
    module: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a public module, from its stub.

    Each name is imported when it is first used, so that a part which is not used costs no time and
    needs no optional library.

    Args:
        module: The `__name__` of the module.
        file: The `__file__` of the module; the stub has the suffix `.pyi` instead.
    """
    attach_stub = cast("Any", lazy_loader).attach_stub
    public_name, list_names, names = attach_stub("mcp_trio", file)

    def get_name(name: str) -> Any:
        # The text of lazy_loader would name the package, and not the module.
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return public_name(name)

    return get_name, list_names, names
