"""Import the server that a TARGET of the command line names."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

import click

from mcp_trio._server.server import Server

# As multiprocessing calls a main module that it imports a second time: never "__main__", so that
# what a file does when it is run as a script is not done.
FILE_MODULE_NAME: Final = "__mcp_main__"


class TargetError(click.ClickException):
    """A TARGET names no server; ends the command with status 2."""

    exit_code = 2


def load_server(target: str) -> Server:
    """The server that `file.py[:object]` or `package.module[:object]` names.

    Without an object, the only `Server` in the module. As with a script, a file's own folder is
    searched for modules first; for a module's name it is the working folder.

    Raises:
        TargetError: There is no such file, module or server, or people's code raises on import.
    """
    place, _, name = target.partition(":")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    return _named_server(module, target, name) if name else _only_server(module, target)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(FILE_MODULE_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[FILE_MODULE_NAME] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed_import(str(path), error) from error
    return module


def _import_module(name: str) -> ModuleType:
    if not all(map(str.isidentifier, name.split("."))):
        raise TargetError(f"{name!r} is not a module name; the name of a file must end with .py")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed_import(name, error) from error
        raise TargetError(
            f"{name}: no such module; the name of a file must end with .py"
        ) from error
    except Exception as error:
        raise _failed_import(name, error) from error


def _failed_import(place: str, error: Exception) -> TargetError:
    frames = error.__traceback__
    while frames is not None and _is_importing(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames)
    return TargetError(f"{place} cannot be imported:\n{''.join(lines).rstrip()}")


def _is_importing(file: str) -> bool:
    return file in {__file__, importlib.__file__} or file.startswith("<frozen importlib")


def _named_server(module: ModuleType, target: str, name: str) -> Server:
    named = getattr(module, name, None)
    if isinstance(named, Server):
        return named
    found = "there is none of that name" if named is None else f"it is a {type(named).__name__}"
    raise TargetError(f"{target} is no Server: {found}; {_choices(module)}")


def _only_server(module: ModuleType, target: str) -> Server:
    servers = {id(value): value for value in _servers(module).values()}
    if len(servers) == 1:
        return servers.popitem()[1]
    if not servers:
        raise TargetError(f"{target} holds no Server at its top level")
    raise TargetError(
        f"{target} holds {len(servers)} servers, not one: name it as {target}:object;"
        f" {_choices(module)}"
    )


def _choices(module: ModuleType) -> str:
    names = ", ".join(_servers(module))
    return f"servers in it: {names or 'none'}"


def _servers(module: ModuleType) -> dict[str, Server]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Server)}
