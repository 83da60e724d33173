"""Comparing what a server gave back with what it should have been, and counting how often."""

import base64
from collections.abc import Awaitable
from typing import Final

from parties import Json, Rejected

PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


class Unexpected(Exception):  # noqa: N818  it is the verdict, not a fault of this program
    """The server gave back something else."""


_checks = 0


def checks() -> int:
    """How much was checked so far."""
    return _checks


def expect(what: str, found: object, expected: object) -> None:
    """Compare.

    Raises:
        Unexpected: They differ.
    """
    global _checks  # noqa: PLW0603  one story is told in a process
    _checks += 1
    if found != expected:
        raise Unexpected(f"{what}: {found!r}, not {expected!r}")


def expect_that(what: str, is_so: object) -> None:
    """Hold that something is so.

    Raises:
        Unexpected: It is not.
    """
    expect(what, bool(is_so), expected=True)


async def expect_rejection(what: str, request: Awaitable[object], *codes: int) -> None:
    """Await a request that has to be answered with an error of one of these codes.

    Raises:
        Unexpected: It is answered otherwise.
    """
    try:
        found = await request
    except Rejected as error:
        expect_that(f"the code of {what}, {error.code}, is of {codes}", error.code in codes)
    else:
        raise Unexpected(f"{what}: {found!r}, not an error")


def text_of(result: Json) -> str:
    """The text of a result that has only that."""
    expect("isError", result.get("isError", False), expected=False)
    expect("kinds of content", [part["type"] for part in result["content"]], ["text"])
    text: str = result["content"][0]["text"]
    return text


def expect_image(part: Json, data: str = "data") -> None:
    """A part is a PNG."""
    expect("MIME type", part["mimeType"], "image/png")
    expect("PNG", base64.b64decode(part[data])[:8], PNG_SIGNATURE)
