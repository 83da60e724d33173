"""Malformed and hostile HTTP requests, for tests and for `run_attacks.py`.

All name the host `x` and the path `/outer`. A request that is smuggled inside another is for
`/smuggled`.
"""

import random
import re
from collections.abc import Iterator
from typing import Final

POST: Final = b"POST /outer HTTP/1.1\r\nHost: x\r\n"
SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# With which HTTP/2 begins.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

CONFLICTING_LENGTHS: Final = (
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
    POST + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + SMUGGLED,
    POST + b"Content-Length: 0, 40\r\n\r\n" + SMUGGLED,
    POST + b"Content-Length: +0\r\n\r\n" + SMUGGLED,
    POST + b"Content-Length : 0\r\n\r\n" + SMUGGLED,
)

INVALID_CHUNKING: Final = (
    POST + b"Transfer-Encoding: identity\r\n\r\n" + SMUGGLED,
    POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    CHUNKED + b"0x0\r\n\r\n" + SMUGGLED,
    CHUNKED + b"-1\r\n\r\n" + SMUGGLED,
    CHUNKED + b"1\r\nabc0\r\n\r\n" + SMUGGLED,
    CHUNKED + b"\r\n" + SMUGGLED,
)

BROKEN_HEADERS: Final = (
    POST + b"X: a\x00\r\n\r\n" + SMUGGLED,
    b"POST /outer HTTP/1.1\r\n\r\n" + SMUGGLED,
    b"POST /outer HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" + SMUGGLED,
)

# Other readers forgive these, h11 among them: so hypercorn may, too.
OFTEN_ACCEPTED: Final = (
    POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG" + SMUGGLED,
    POST + b"X: a\r\n Content-Length: 40\r\n\r\n" + SMUGGLED,
    POST + b"X: a\nContent-Length: 40\r\n\r\n" + SMUGGLED,
    POST + b"X: a\rContent-Length: 40\r\n\r\n" + SMUGGLED,
    POST + b"\n" + SMUGGLED,
    CHUNKED + b"0;a\rb\r\n\r\n" + SMUGGLED,
    CHUNKED + b"0 \r\n\r\n" + SMUGGLED,
    CHUNKED + b"0\r\n\n" + SMUGGLED,
    CHUNKED + b"0\r\nX: a\r\n b\r\n\r\n" + SMUGGLED,
    b"PRI * HTTP/2.0\r\nHost: x\r\n\r\nSM\r\n\r\n" + SMUGGLED,
)

HUGE_HEADERS: Final = (
    b"GET /" + b"x" * 2_000_000,
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2_000_000,
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: x\r\n" * 300_000,
)

# Where clients go away.
BROKEN_OFF: Final = (
    b"",
    POST[:20],
    POST + b"Content-Length: 10\r\n\r\nabc",
    CHUNKED + b"5\r\nabc",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
)

_WHOLE: Final = CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"


def damaged(count: int) -> Iterator[bytes]:
    """Yield requests with a few wrong bytes, the same ones each time."""
    random_source = random.Random(31)  # they are to be different, and no secret
    for _ in range(count):
        data = bytearray(_WHOLE)
        for _ in range(random_source.randint(1, 4)):
            data[random_source.randrange(len(data))] = random_source.choice(b"\r\n\0 :;0aZ\xff")
        yield bytes(data)


def statuses(received: bytes) -> list[int]:
    """Return the statuses of all answers on a connection."""
    # A status line may follow a body that ends without one.
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", received)]
