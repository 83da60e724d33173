"""The tokens that replace secrets in a recording: of the same shape, and made with a key.

Digits become digits, letters become letters of the same case, and all other characters stay, so the
token of an e-mail address looks like one, and those of a number, a UUID or a date can be parsed. A
prefix that all secrets of a kind have (`sk-`, `https://`) stays. The same value always gets the
same token, different values get different tokens, and a token stays as it is.
"""

import hashlib
import hmac
import re
import string
from collections.abc import Iterator, Mapping
from itertools import count
from math import prod
from typing import Final

from mcp_trio.limits import Limits

# The length of a random key.
KEY_BYTES: Final = 32

_DIGITS: Final = string.digits
_NONZERO: Final = "123456789"
_PUNCTUATION: Final = "!#$&*+-./:;=?@^_~"

# The number of tokens of the same length to try, before longer ones, until one is unused.
_SAME_LENGTH_TRIES: Final = 64
# A shorter value may by chance be equal to the token of another value.
_TOKEN_CHARS_MIN: Final = 8
# A prefix stays only if the rest of the value leaves at least so many tokens to choose from.
_TOKENS_MIN: Final = 1000
# Numbers of at most so many digits fit into 64 bits and into the precision of a float.
_EXACT_DIGITS: Final = 15

_PREFIX: Final = re.compile(
    r"(?:(?i:bearer|basic|token) +"
    r"|[a-zA-Z][a-zA-Z0-9+.-]*://"
    r"|sk-(?:proj-|ant-)?|[sr]k_(?:live|test)_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-"
    r"|AKIA|ASIA|AIza|ya29\.|npm_|pypi-|hf_|SG\.|eyJ)"
)
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?P<exponent>[eE][-+]?[0-9]+)?")
_FRACTION: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_HEX: Final = re.compile(r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{2,})*")
_DATE: Final = re.compile(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
    r"(?:[T ][0-2][0-9]:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?(?:Z|[+-][01][0-9]:[0-5][0-9])?)?"
)
# All combinations of these digits are valid dates and times.
_DATE_DIGITS: Final = ("1", "9", "789", _DIGITS, "0", _NONZERO, "01", _NONZERO, "01", _DIGITS)
_MINUTE_DIGITS: Final = ("012345", _DIGITS)

# Characters with the same number of bytes in UTF-8, by that number.
_CHARACTERS_BY_BYTES: Final[Mapping[int, str]] = {
    2: "".join(map(chr, range(0xE0, 0xF7))),
    3: "".join(map(chr, range(0x4E00, 0x4E80))),
    4: "".join(map(chr, range(0x1F600, 0x1F640))),
}

Shape = list[str]
"""The characters to choose from at each position; a single one stays."""


def shape_of(value: str) -> Shape:
    """Return the shape of the token of a value.

    If every character would stay, all are replaced by other punctuation, as those of `----`. Of a
    zero, such as `0.00`, only the last digit is replaced.
    """
    kept = _PREFIX.match(value)
    if kept:
        rest = _shape_of_rest(value[kept.end() :])
        if prod(map(len, rest)) >= _TOKENS_MIN:
            return [*kept[0], *rest]
    shape = _shape_of_rest(value)
    if any(len(choice) > 1 for choice in shape):
        return shape
    zero = _NUMBER.fullmatch(value)
    if zero is None:
        return [_PUNCTUATION] * len(value)
    digits_end = zero.start("exponent") if zero["exponent"] else len(value)
    return [*value[: digits_end - 1], _NONZERO, *value[digits_end:]]


def _shape_of_rest(value: str) -> Shape:
    if number := _NUMBER.fullmatch(value):
        return _number_shape(value, number)
    if _DATE.fullmatch(value):
        # Hours, also of an offset, are 00 to 19.
        digits = iter((*_DATE_DIGITS, *_MINUTE_DIGITS * 2))
        shape = [next(digits, "0") if each.isdigit() else each for each in value[:19]]
        return [*shape, *value[19:]]
    if _HEX.fullmatch(value):
        letters = "ABCDEF" if any(map(str.isupper, value)) else "abcdef"
        return [each if each == "-" else _DIGITS if each.isdigit() else letters for each in value]
    # Other characters become some of the same class and with the same number of bytes.
    choices: Shape = []
    for character in value:
        if not character.isascii():
            choices.append(_CHARACTERS_BY_BYTES[len(character.encode())])
        elif character.isalpha():
            is_lower = character.islower()
            choices.append(string.ascii_lowercase if is_lower else string.ascii_uppercase)
        else:
            choices.append(_DIGITS if character.isdigit() else character)
    return choices


def _number_shape(value: str, match: re.Match[str]) -> Shape:
    """Return the shape of a number; zeros at its beginning and end stay, so that it stays valid."""
    digits_end = match.start("exponent") if match["exponent"] else len(value)
    shape = [_DIGITS if each.isdigit() else each for each in value[:digits_end]]
    first = 1 if value.startswith("-") else 0
    if "." in value:  # leading zeros of a fraction are not significant
        zeros = len(value) - len(value[first:].lstrip("0."))
        shape[first:zeros] = value[first:zeros]
        first = min(zeros, digits_end - 1)
    for at in (first, digits_end - 1):
        shape[at] = "0" if value[at] == "0" else _NONZERO
    # The token of a longer number begins with 10, so that it is not larger than 64 bits or a float
    # allow if the number itself is not.
    if digits_end - first > _EXACT_DIGITS:
        shape[first], shape[first + 1] = "1", shape[first + 1].replace(_DIGITS, "0")
    return [*shape, *value[digits_end:]]


class TooManySecretsError(ValueError):
    """The limits allow no further secret, or no further search; the body must not be written."""


class Tokens:
    """The tokens of one recording, made with its key.

    Attributes:
        by_value: The tokens that were made here, by the values that they replace.
        all: All tokens: those that were made here, and those of earlier recordings.

    Raises:
        ValueError: The key is empty.
    """

    def __init__(self, key: bytes, *, limits: Limits) -> None:
        if not key:
            raise ValueError("a redaction key must not be empty")
        self._key = key
        self._limits = limits
        self._chars = 0
        self.by_value: dict[str, str] = {}
        self.all: set[str] = set()
        self._adopted: set[str] = set()
        self._made_here: set[str] = set()

    def of(self, value: str) -> str:
        """Return the token of a value.

        A value that is a token itself stays as it is, if it was adopted, or is too long to be equal
        to a token by chance.

        Raises:
            TooManySecretsError: A limit of redaction is reached.
        """
        is_token = value in self._adopted or (len(value) >= _TOKEN_CHARS_MIN and value in self.all)
        return value if is_token else self.by_value.get(value) or self._make(value)

    def adopt(self, token: str) -> None:
        """Add a token of an earlier recording; the value that it replaced is not known."""
        self._adopted.add(token)
        self.all.add(token)

    def fingerprint(self) -> str:
        """Return a fingerprint that tells keys apart and reveals nothing else about them."""
        return hmac.digest(self._key, b"mcp_trio redaction", "sha256").hex()[:16]

    def _make(self, value: str) -> str:
        if not value:
            return value
        limits, chars = self._limits.recording, self._chars + len(value)
        for setting, number, number_max in (
            ("limits.recording.secrets_max", len(self.by_value) + 1, limits.secrets_max),
            ("limits.recording.secrets_chars_max", chars, limits.secrets_chars_max),
        ):
            if number > number_max:
                raise TooManySecretsError(f"the recording has more secrets than {setting} allows")
        self._chars = chars
        # A short value may by chance be its own candidate. An adopted token may be used again: an
        # earlier recording may have made it for this value.
        token = next(
            token
            for token in self._candidates(value, shape_of(value))
            if token != value and token not in self._made_here and token not in self.by_value
        )
        self.by_value[value] = token
        self._made_here.add(token)
        self.all.add(token)
        return token

    def _candidates(self, value: str, shape: Shape) -> Iterator[str]:
        for attempt in range(_SAME_LENGTH_TRIES):
            token = self._candidate(value, shape, attempt)
            if _is_canonical(token) or not _is_canonical(value):
                yield token
        longer = _DIGITS if _NUMBER.fullmatch(value) else string.ascii_lowercase
        for size in count(1):  # pragma: no branch  ends when a token is unused
            yield self._candidate(value, [*shape, *[longer] * size], _SAME_LENGTH_TRIES + size)

    def _candidate(self, value: str, shape: Shape, attempt: int) -> str:
        seed = hmac.digest(self._key, f"{attempt} {value}".encode(), "sha256")
        random_source = hashlib.shake_256(seed).digest(len(shape))
        return "".join(
            choice[byte % len(choice)] for choice, byte in zip(shape, random_source, strict=True)
        )


def _is_canonical(value: str) -> bool:
    """Return False for a fraction that JSON encoders write in another way, such as `1.50`."""
    return not _FRACTION.fullmatch(value) or repr(float(value)) == value
