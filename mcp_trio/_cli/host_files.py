"""Read the configuration file of an MCP host strictly, and replace it safely."""

import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import attrs

from mcp_trio.errors import ConfigError

_BOM: Final = b"\xef\xbb\xbf"
_DEFAULT_INDENT: Final = "  "

_SECRET_MODE: Final = 0o600
_NEW_FILE_MODE: Final = 0o644

# A string, which is matched first because it may hold what looks like a comment; or a comment.
_STRING_OR_COMMENT: Final = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LAST_COMMA: Final = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)


@attrs.frozen
class HostFile:
    """A host's configuration file as it was read.

    Attributes:
        path: The file itself, also if a symbolic link was named.
        data: Its bytes; None if there is no such file.
        members: The members of its JSON object.
        has_comments: Whether it has comments or trailing commas, which writing it would lose.
    """

    path: Path
    data: bytes | None
    members: Mapping[str, Any]
    has_comments: bool = False

    def servers(self, key: str) -> dict[str, Any]:
        """Return the entries of the servers by name; none if the file has no member `key`.

        Raises:
            ConfigError: The member is not an object.
        """
        servers = self.members.get(key, {})
        if not isinstance(servers, dict):
            raise ConfigError(
                f"{self.path}: {key}: must be an object with a member for each server"
            )
        return dict(cast("dict[str, Any]", servers))

    def encoded_with(self, key: str, servers: Mapping[str, Any]) -> bytes:
        """Return the file with other servers, in the order and with the indentation that it has.

        Raises:
            ConfigError: A number in the file is too large to be written again.
        """
        members = {**self.members, key: dict(servers)}
        old = self.data or b""
        indent = re.search(rb"^([ \t]+)\S", old, re.MULTILINE)
        margin = _DEFAULT_INDENT if indent is None else indent[1].decode()
        try:
            data = _dumped(members, margin, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can express
            data = _dumped(members, margin, ensure_ascii=True).encode()
        except ValueError as error:
            raise ConfigError(f"{self.path}: {error}; nothing was written") from None
        if b"\r\n" in old:
            data = data.replace(b"\n", b"\r\n")
        return _BOM + data if old.startswith(_BOM) else data


def read_host_file(path: Path, *, may_have_comments: bool = False) -> HostFile:
    """Read a host's configuration file; an empty or missing one has no members.

    Args:
        path: The file, or a symbolic link to it.
        may_have_comments: Whether the file may have comments and trailing commas.

    Raises:
        ConfigError: The file cannot be read, or is not a JSON object; the text names the line and
            column.
    """
    try:
        path = path.resolve()
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path}: is not a file")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return HostFile(path, None, {})
    # If links form a loop, `resolve` raises RuntimeError up to Python 3.12, and `stat` since 3.13.
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        text = data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: line {line}: is not UTF-8") from None
    if not text.strip():
        return HostFile(path, data, {})
    try:
        return HostFile(path, data, _parsed(text))
    except (ValueError, RecursionError) as error:
        if may_have_comments:
            with suppress(ValueError, RecursionError):
                text = _STRING_OR_COMMENT.sub(lambda found: found[1] or " ", text)
                text = _STRING_OR_LAST_COMMA.sub(lambda found: found[1] or "", text)
                return HostFile(path, data, _parsed(text), has_comments=True)
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, json.JSONDecodeError):
            reason = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise ConfigError(f"{path}: {reason}; nothing was written") from None


def replace_host_file(file: HostFile, data: bytes, *, is_secret: bool) -> Path | None:
    """Replace a file in one step, so that it has either its old or its new content at any time.

    Args:
        file: The file as it was read. Its old content is copied to a file beside it first.
        data: The new content.
        is_secret: Whether a file that did not exist is for its owner only.

    Returns:
        The copy of the old file; None if there was none.

    Raises:
        ConfigError: The file was changed since it was read, or cannot be written.
    """
    temporary = None
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        mode = _SECRET_MODE if is_secret else _NEW_FILE_MODE
        if file.data is not None:
            mode = stat.S_IMODE(file.path.stat().st_mode)
        descriptor, temporary = tempfile.mkstemp(dir=file.path.parent, prefix=f".{file.path.name}.")
        _write(descriptor, data)
        Path(temporary).chmod(mode)
        # The host itself may have written the file meanwhile.
        if (file.path.read_bytes() if file.path.exists() else None) != file.data:
            raise ConfigError(f"{file.path}: was changed meanwhile; run the command again")
        backup = None if file.data is None else _write_backup(file.path, file.data, mode)
        Path(temporary).replace(file.path)
        temporary = None
    except OSError as error:
        raise ConfigError(f"{file.path}: cannot be written: {error.strerror}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return backup


def _dumped(members: Mapping[str, Any], indent: str, *, ensure_ascii: bool) -> str:
    text = json.dumps(members, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)
    return f"{text}\n"


def _parsed(text: str) -> dict[str, Any]:
    document = json.loads(text, object_pairs_hook=_unique, parse_constant=_reject_constant)
    if not isinstance(document, dict):
        raise ValueError("line 1, column 1: is not a JSON object")  # noqa: TRY004  as other errors
    return cast("dict[str, Any]", document)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the member {twice!r} twice")
    return members


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _write_backup(path: Path, data: bytes, mode: int) -> Path:
    """Copy the old content to the first name `FILE.bak-N` that is free."""
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.bak-{number}")
        try:
            descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET_MODE)
        except FileExistsError:
            number += 1
        else:
            _write(descriptor, data)
            backup.chmod(mode)
            return backup


def _write(descriptor: int, data: bytes) -> None:
    """Write to a new file, and wait until it is on the disk."""
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
