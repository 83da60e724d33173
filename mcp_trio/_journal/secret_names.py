"""The names of members, headers and variables that hold secrets.

A name is secret if its last words are those of a secret name, however they are joined:
`github_token` is secret, `max_tokens` and `token_type` are not. A long secret name also counts as
the end of a word: `PGPASSWORD`.
"""

import functools
import re
from collections.abc import Collection
from typing import Final

DEFAULT_SECRET_NAMES: Final = frozenset(
    {
        "access key",
        "access keys",
        "access token",
        "access tokens",
        "api key",
        "api keys",
        "auth",
        "auth token",
        "authorization",
        "bearer",
        "card number",
        "client secret",
        "connection string",
        "cookie",
        "cookies",
        "credential",
        "credentials",
        "cvc",
        "cvv",
        "dsn",
        "encryption key",
        "iban",
        "id token",
        "jwt",
        "otp",
        "pass",
        "passcode",
        "passphrase",
        "passphrases",
        "passwd",
        "password",
        "passwords",
        "private key",
        "private keys",
        "pwd",
        "refresh token",
        "refresh tokens",
        "secret",
        "secret key",
        "secret keys",
        "secrets",
        "session id",
        "signing key",
        "ssn",
        "token",
    }
)

_NAMES_REMEMBERED_MAX: Final = 4096
_NAME_CHARS_MAX: Final = 128

# A word by its capitals, as in `apiKey`; and a run of letters, whatever their case.
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")

# Words and separators. A value often has other characters.
_NAME: Final = re.compile(r"[^\W\d_]+(?:[ ._-]+[^\W\d_]+)*")

# Members that name the value beside them, and the members with that value.
NAME_MEMBERS: Final = frozenset({"name", "key", "header", "Name", "Key", "Header"})
VALUE_MEMBERS: Final = frozenset({"value", "Value"})

# Words that may follow a secret name: a `password_hash` is as secret as a password.
_NEUTRAL: Final = frozenset(
    {"base", "confirmation", "encoded", "hash", "header", "hex", "pem", "plain", "raw", "repeat"}
    | {"string", "text", "value"}
)

# A name of this length is unlikely to end another word by chance.
_ENDING_CHARS_MIN: Final = 6

# `progressToken` of the protocol ends like a secret name, and is no secret.
_PROGRESS_TOKEN: Final = ("progress", "token")


class SecretNames:
    """The names of members, headers and variables that hold secrets.

    Raises:
        ValueError: A name has no letter.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        for name in self.names:
            if not _words(name):
                raise ValueError(f"a secret name needs a letter: {name!r}")
        self._endings = {_words(name) for name in names}
        self._joined = {"".join(words) for words in self._endings}
        self._long = tuple(each for each in self._joined if len(each) >= _ENDING_CHARS_MIN)
        self._covers = functools.lru_cache(_NAMES_REMEMBERED_MAX)(self._covers_uncached)

    def covers(self, name: str) -> bool:
        """Return whether the value with this name is secret."""
        return len(name) <= _NAME_CHARS_MAX and self._covers(name)

    def is_listed(self, name: str) -> bool:
        """Return whether this is one of the secret names itself, which is no secret.

        A name with digits or signs beside the words may be a secret that begins like a name.
        """
        is_short = len(name) <= _NAME_CHARS_MAX
        return is_short and _NAME.fullmatch(name) is not None and _words(name) in self._endings

    def _covers_uncached(self, name: str) -> bool:
        words = _words(name)
        if words == _PROGRESS_TOKEN:
            return False
        last = "".join(_LETTERS.findall(name)[-1:]).lower()
        if last in self._joined or last.endswith(self._long):
            return True
        while words[1:] and words[-1] in _NEUTRAL and words not in self._endings:
            words = words[:-1]
        return any(words[begin:] in self._endings for begin in range(len(words)))


@functools.lru_cache(16)
def secret_names(names: frozenset[str]) -> SecretNames:
    """Return the names, which all sessions of the process share, with what they remember.

    Raises:
        ValueError: As `SecretNames`.
    """
    return SecretNames(names)


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))
