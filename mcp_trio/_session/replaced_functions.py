"""Replace functions of other modules, such as `time.time`, by wrappers.

`captured.py` and `untracked_calls.py` make the wrappers, which act only if the calling task has
a lane.

A function of a module is replaced by a `staticmethod` object. Like a function in C, this object is
callable, and does not become a method as an attribute of a class: `converter = time.gmtime` in a
`logging.Formatter` works as before.

Types in C reject the assignment of attributes. Their dictionary is found with `gc`, which is no
public API; without it, as in another Python implementation, their methods are not replaced. The
tests of `datetime.now` and of SQLite connections that were opened earlier fail without it.
"""

import copyreg
import functools
import gc
import importlib
import os
import sys
from collections.abc import Callable
from types import ClassMethodDescriptorType, ModuleType
from typing import Any, Final

from mcp_trio._session.call_sites import owner_of

# The functions that were replaced, by their ids, and what replaces them.
_REPLACED: Final[dict[int, tuple[object, Any]]] = {}

# The sets in which `os` lists functions with some ability. `shutil` looks for `os.stat` there.
_ABILITIES: Final = (
    "supports_dir_fd",
    "supports_effective_ids",
    "supports_fd",
    "supports_follow_symlinks",
)


def replace_function(
    name: str, wrap: Callable[[Callable[..., Any]], Any], *, imports: bool = True
) -> bool:
    """Replace the function or method `name`, such as "time.time" or "socket.socket.send".

    `wrap` gets the function and returns its replacement, a function that takes the same arguments;
    for a method, these begin with the instance or class. The function is imported first if
    `imports` is True.

    Returns:
        False if its module is not imported yet. A function that this Python lacks is skipped.
    """
    module, owner, attribute = _owner_of_attribute(name, imports=imports)
    if module is None:
        return False
    found = None if owner is None else getattr(owner, attribute, None)
    if owner is None or found is None:
        return True
    if isinstance(owner, ModuleType):
        replacement = staticmethod(functools.wraps(found)(wrap(found)))
        setattr(owner, attribute, replacement)
        _REPLACED[id(found)] = (found, replacement)
        for ability in _ABILITIES:
            functions = getattr(os, ability)
            if found in functions:
                functions.add(replacement)
    else:
        _replace_method(owner, attribute, wrap)
    return True


def _owner_of_attribute(name: str, *, imports: bool) -> tuple[Any, Any, str]:
    """Return the module of a function, and the module or class whose attribute it is."""
    path, _, attribute = name.rpartition(".")
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        module_name = ".".join(parts[:count])
        module: Any = sys.modules.get(module_name)
        if module is None and imports:
            try:
                module = importlib.import_module(module_name)
            except ImportError:
                continue
        if module is not None:
            owner = module
            for part in parts[count:]:
                owner = getattr(owner, part, None)
            return module, owner, attribute
    return None, None, attribute


def _replace_method(owner: type[Any], attribute: str, wrap: Callable[[Any], Any]) -> None:
    in_class: Any = owner.__dict__.get(attribute)
    replacement: Any
    if isinstance(in_class, ClassMethodDescriptorType):

        def call(class_: type[Any], *args: Any, **keywords: Any) -> Any:
            return in_class.__get__(None, class_)(*args, **keywords)

        replacement = classmethod(functools.wraps(in_class.__get__(None, owner))(wrap(call)))
    else:
        original = getattr(owner, attribute)
        replacement = functools.wraps(original)(wrap(original))
    try:
        setattr(owner, attribute, replacement)
    except TypeError:
        _set_attribute_of_c_type(owner, attribute, replacement)


def _set_attribute_of_c_type(owner: type[Any], attribute: str, value: object) -> None:
    try:
        import ctypes  # Importing it takes milliseconds, which only recordings and replays need.

        modified: Any = ctypes.pythonapi.PyType_Modified
    except (ImportError, AttributeError):  # not CPython
        return
    for attributes in gc.get_referents(owner.__dict__):
        if isinstance(attributes, dict):
            attributes[attribute] = value
            modified(ctypes.py_object(owner))
            return


def _global_name(function: Any) -> str:
    """Return the name by which `pickle` finds a replaced function, as it did the original."""
    name: str = function.__qualname__
    return name


copyreg.pickle(staticmethod, _global_name)


def rebind_in_users_modules() -> None:
    """Replace the functions in users' modules that hold them: `from time import time`.

    In modules of Trio, its own functions are replaced. Default arguments, and attributes of classes
    and instances, keep the original function.
    """
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        code_owner = owner_of(file) if isinstance(file, str) else None
        if code_owner not in {"user", "trio"}:
            continue
        names = vars(module)
        for name, value in [*names.items()]:
            known = _REPLACED.get(id(value))
            if known is None or known[0] is not value:
                continue
            is_of_trio = str(getattr(value, "__module__", "")).partition(".")[0] == "trio"
            if code_owner == "user" or is_of_trio:
                names[name] = known[1]
