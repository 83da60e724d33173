"""Targets: servers in Python files or modules, as the argument TARGET of the command names them.

`import_server` imports one. `fresh_server` imports its modules anew for a replay, so that nothing
of earlier sessions is left in their variables. `target_of` finds the TARGET of a server object.
"""

import functools
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from mcp_trio._server.server import IMPORTED_TARGET, Server
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.call_sites import signature_of
from mcp_trio._session.untracked_calls import noting_imports
from mcp_trio.errors import MCPError

# The name of the module made of a file. Code under `if __name__ == "__main__"` does not run.
FILE_MODULE_NAME: Final = "__mcp_main__"

_OWN_PACKAGE: Final = __name__.partition(".")[0]
_LIBRARY_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})


class TargetError(MCPError):
    """A TARGET names no server, or cannot be imported."""


def split_target(target: str) -> tuple[str, str, str]:
    """Split a TARGET as `str.partition` does: the file or module, a colon, the name of the object.

    The colon after a drive letter of Windows is part of the file.
    """
    drive, rest = os.path.splitdrive(target)
    source, colon, name = rest.partition(":")
    return drive + source, colon, name


def import_server(target: str) -> Server:
    """Import the server that `file.py[:object]` or `package.module[:object]` names.

    The object is a `Server`, or a function without parameters that makes one. Without an object,
    the module's only `Server` is used that is not mounted into another of its servers. Modules next
    to the file can be imported, as in a script, and so can the package that the file is in; for a
    module name, the working directory is searched.

    Raises:
        TargetError: There is no such file, module or server, or importing or making it raises.
    """
    source, _, name = split_target(target)
    module = _import_source(source)
    servers = {key: value for key, value in vars(module).items() if isinstance(value, Server)}
    choices = f"servers in this module: {', '.join(servers) or 'none'}"
    if name:
        if name in servers:
            return servers[name]
        if not hasattr(module, name):
            raise TargetError(f"{source} has no object {name!r}; {choices}")
        found = getattr(module, name)
        if isinstance(found, FunctionType):
            found = _call_factory(found, target)
            if isinstance(found, Server):
                return found
            raise TargetError(f"{target} returned an object of type {type(found).__name__}")
        kind = type(found).__name__
        raise TargetError(f"{target} is not a Server but an object of type {kind}; {choices}")
    distinct = list({id(server): server for server in servers.values()}.values())
    mounted = {
        id(mount.inner.server) for each in distinct for mount in sessions_of(each).registry.mounts
    }
    distinct = [each for each in distinct if id(each) not in mounted]
    if not distinct:
        raise TargetError(
            f"{target} defines no Server at its top level; name a function that makes one with"
            f" {target}:function"
        )
    if len(distinct) > 1:
        raise TargetError(
            f"{target} defines {len(distinct)} servers; choose one with {target}:object; {choices}"
        )
    return distinct[0]


def _call_factory(factory: FunctionType, target: str) -> Any:
    """Call a factory of servers; return its result."""
    if iscoroutinefunction(factory):
        raise TargetError(f"{target} is `async def`: a factory of a server is a `def` function")
    try:
        signature_of(factory).bind()
    except TypeError as error:
        raise TargetError(f"{target} needs arguments: {error}; a factory has none") from error
    with _running_code_of(target, f"{target} makes no server"):
        return factory()


@contextmanager
def _running_code_of(target: str, problem: str) -> Generator[None]:
    """Let the block run the user's code; raise its error as a `TargetError` about `problem`."""
    token = IMPORTED_TARGET.set(target)
    try:
        yield
    except TargetError:
        raise
    except Exception as error:
        # The traceback begins with frames that are not the user's.
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(
            (__file__, importlib.__file__, "<frozen importlib")
        ):
            frames = frames.tb_next
        lines = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        raise TargetError(f"{problem}:\n{lines}") from error
    finally:
        IMPORTED_TARGET.reset(token)


def _import_source(source: str) -> ModuleType:
    """Import a file, or a module by its name."""
    path = Path(source) if source.endswith(".py") else None
    if path is not None and not path.is_file():
        raise TargetError(f"{path}: no such file")
    if path is None and not all(map(str.isidentifier, source.split("."))):
        raise TargetError(f"{source!r} is not a module name; a file name must end with .py")
    if path is None:
        sys.path.insert(0, str(Path.cwd()))
    else:
        folders = path.resolve().parents
        sys.path.insert(0, str(folders[0]))
        # A file in a package may import the package by its name, although it is not installed.
        # The folder comes last, so that it hides no other module.
        root = next((each for each in folders if not (each / "__init__.py").is_file()), folders[0])
        sys.path.append(str(root))
    with _running_code_of(source, f"{path or source} cannot be imported"):
        if path is None:
            try:
                return importlib.import_module(source)
            except ModuleNotFoundError as error:
                # An error with another name says that the module imports one that does not exist.
                if error.name is None or not f"{source}.".startswith(f"{error.name}."):
                    raise
                text = f"{source}: no such module; a file name must end with .py"
                raise TargetError(text) from error
        spec = importlib.util.spec_from_file_location(FILE_MODULE_NAME, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[FILE_MODULE_NAME] = module
        spec.loader.exec_module(module)
        return module


# Importing afresh ---------------------------------------------------------------------------------


@contextmanager
def fresh_server(target: str) -> Generator[Server]:
    """Import the server and its modules anew for the block, and restore the old modules after it.

    So nothing that earlier sessions or replays left in variables of the modules is found. What the
    modules read while they are imported is noted, since a divergence may follow from it. The
    modules of a server are those in its package, or in the folder of its file and below; installed
    packages, test modules and `conftest` are not imported anew. No other thread may import
    meanwhile.

    Raises:
        TargetError: As `import_server`.
    """
    before, path = _own_modules(target), [*sys.path]
    for name in before:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        with noting_imports():
            server = import_server(target)
        yield server
    finally:
        for name in _own_modules(target):
            del sys.modules[name]
        sys.modules.update(before)
        for name, module in before.items():
            parent, _, tail = name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], tail, module)
        sys.path[:] = path


def own_files(target: str) -> list[str]:
    """Return the files of a target's modules that are imported, also after a failed import."""
    return sorted(str(module.__file__) for module in _own_modules(target).values())


def target_of(server: Server) -> str | None:
    """Return the target that names a server; None if it is no variable of a module."""
    for name, module in tuple(sys.modules.items()):
        if _is_of_tests(name) or name in {"__main__", FILE_MODULE_NAME}:
            continue
        variables = getattr(module, "__dict__", {})
        for variable, value in tuple(variables.items()):
            if value is server:
                return f"{name}:{variable}"
    return None


def _own_modules(target: str) -> dict[str, ModuleType]:
    """Return the imported modules that belong to a target, by name."""
    source = split_target(target)[0]
    file: str | None = source
    if not source.endswith(".py"):
        top = source.partition(".")[0]
        if top == _OWN_PACKAGE:
            top = source  # an example
        # A namespace package has no file.
        modules = (sys.modules.get(name) for name in (top, source))
        files = (getattr(module, "__file__", None) for module in modules)
        file = next(filter(None, files), None)
    if file is None:
        return {}
    folder = Path(file).resolve().parent
    return {
        name: module
        for name, module in tuple(sys.modules.items())
        if name == FILE_MODULE_NAME or _is_own(name, getattr(module, "__file__", None), folder)
    }


# Cached, since it is asked twice for each replay and each of many modules, and reads the disk.
@functools.lru_cache(maxsize=10_000)
def _is_own(name: str, file: object, folder: Path) -> bool:
    """Return whether a module of this name and file is in a folder, and not installed."""
    if not isinstance(file, str) or not file.endswith(".py") or _is_of_tests(name):
        return False
    is_example = name.startswith(f"{_OWN_PACKAGE}.examples.")
    is_of_this_package = not is_example and f"{name}.".startswith(f"{_OWN_PACKAGE}.")
    if name == "__main__" or is_of_this_package:
        return False
    # The folders of libraries, and the files in them, may be symbolic links to other places.
    path, stdlib = Path(file).resolve(), Path(sysconfig.get_path("stdlib")).resolve()
    if not path.is_relative_to(folder) or path.is_relative_to(stdlib):
        return False
    return _LIBRARY_FOLDERS.isdisjoint([*Path(file).parts, *path.parts])


def _is_of_tests(name: str) -> bool:
    return any(
        part.startswith("test_") or part.endswith("_test") or part == "conftest"
        for part in name.split(".")
    )
