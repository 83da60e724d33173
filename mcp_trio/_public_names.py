"""Import the names of a public module when they are first used; its stub lists them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import lazy_loader  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

_PACKAGE: Final = "mcp_trio"


def lazy_names(
    module: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a public module, from its stub.

    Each name is imported when it is first used, so that a part which is not used costs no time and
    needs no optional library.

    Args:
        module: The `__name__` of the module.
        file: The `__file__` of the module; the stub has the suffix `.pyi` instead.

    Raises:
        ImportError: There is no stub.
    """
    stub = Path(file).with_suffix(".pyi")
    if not stub.is_file():  # a tool that makes one file of an application may leave it out
        text = f"{module} needs the file {stub}: install {_PACKAGE} as files, with its .pyi files"
        raise ImportError(text, name=module)
    attach_stub = cast("Any", lazy_loader).attach_stub
    public_name, list_names, names = attach_stub(_PACKAGE, file)

    def get_name(name: str) -> Any:
        # The error of lazy_loader would name the package in place of the module.
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = public_name(name)
        if module != _PACKAGE:
            # lazy_loader keeps the value in the package, of which the name is no public one.
            vars(sys.modules[_PACKAGE]).pop(name, None)
        return value

    return get_name, list_names, names
