"""Arguments and options that commands have in common: several of them as one decorator."""

from collections.abc import Callable
from typing import Any, TypeVar

_Command = TypeVar("_Command", bound=Callable[..., Any])


def together(*parameters: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """A decorator that gives a command all of these, which `--help` shows in this order."""

    def decorate(command: _Command) -> _Command:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorate
