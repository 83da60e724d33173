"""Names that say of a value that it is a secret: `password`, `apiKey`, `X-Access-Token`.

A name is covered if its last words are those of a secret name, however they are joined: so
`github_token` is, and neither `max_tokens` nor `token_type`. A long secret name also counts as the
end of a word: `PGPASSWORD`.
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

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_PIECE: Final = re.compile(r"[^\W\d_]+")

# Words and what joins them: a name has nothing else, and a value often has.
_NAME: Final = re.compile(r"[^\W\d_]+(?:[ ._-]+[^\W\d_]+)*")

# Members that say what a value beside them is, and that value.
NAMING: Final = frozenset({"name", "key", "header", "Name", "Key", "Header"})
NAMED: Final = frozenset({"value", "Value"})

# What may follow a secret's name without making it another thing.
_NEUTRAL: Final = frozenset(
    {"base", "confirmation", "encoded", "hash", "header", "hex", "pem", "plain", "raw", "repeat"}
    | {"string", "text", "value"}
)

# So long a name is no chance ending of another word.
_ENDING_CHARS_MIN: Final = 6

# What the protocol itself calls so, and is none.
_NO_SECRET: Final = ("progress", "token")


class SecretNames:
    """Tells whether a member, a header or a variable of some name holds a secret.

    Raises:
        ValueError: One of the names has no letter.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        for name in self.names:
            if not _words(name):
                raise ValueError(f"not the name of a secret: {name!r} has no letter")
        self._endings = {_words(name) for name in names}
        self._joined = {"".join(words) for words in self._endings}
        self._long = tuple(each for each in self._joined if len(each) >= _ENDING_CHARS_MIN)
        self._covers = functools.lru_cache(_NAMES_REMEMBERED_MAX)(self._covers_afresh)

    def covers(self, name: str) -> bool:
        """Whether what stands under this name is secret."""
        return len(name) <= _NAME_CHARS_MAX and self._covers(name)

    def lists(self, name: str) -> bool:
        """Whether this is one of the secret names itself, which everybody may read.

        What has digits or signs beside the words is none: it may be a secret that begins like one.
        """
        is_short = len(name) <= _NAME_CHARS_MAX
        return is_short and _NAME.fullmatch(name) is not None and _words(name) in self._endings

    def _covers_afresh(self, name: str) -> bool:
        words = _words(name)
        if words == _NO_SECRET:
            return False
        last = "".join(_PIECE.findall(name)[-1:]).lower()
        if last in self._joined or last.endswith(self._long):
            return True
        while words[1:] and words[-1] in _NEUTRAL and words not in self._endings:
            words = words[:-1]
        return any(words[begin:] in self._endings for begin in range(len(words)))


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))
