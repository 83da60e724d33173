"""The names of members, headers and variables that hold secrets: *secret names*.

A value is secret if the last words of its name are a secret name, however they are joined: that of
`github_token` is secret, those of `max_tokens` and `token_type` are not. A long secret name also
counts as the end of a word: `PGPASSWORD`.
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

_NAMES_CACHED_MAX: Final = 4096
# A longer text is a value and not a name: the items of lists are checked as well.
_NAME_CHARS_MAX: Final = 128

# A word: capitals, or small letters after at most one capital, as in `apiKey`. Letters outside of
# ASCII are words of their own.
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
# A run of letters, whatever their case.
_LETTERS: Final = re.compile(r"[^\W\d_]+")

# A name: words and separators alone. Secret values often have digits and other characters.
_NAME: Final = re.compile(r"[^\W\d_]+(?:[ ._-]+[^\W\d_]+)*")

# The members of an object such as `{"name": "api_key", "value": "…"}`: the first has the name of
# the secret, the second the secret.
NAME_MEMBERS: Final = frozenset({"name", "key", "header", "Name", "Key", "Header"})
VALUE_MEMBERS: Final = frozenset({"value", "Value"})

# Words that may follow a secret name: a `password_hash` is as secret as a password. "base" is the
# word in `token_base64`, and "v" that in `token_v2`.
_FOLLOWING_WORDS: Final = frozenset(
    {"base", "confirmation", "encoded", "hash", "header", "hex", "pem", "plain", "raw", "repeat"}
    | {"string", "text", "v", "value"}
)

# A name of this length is unlikely to end another word by chance.
_ENDING_CHARS_MIN: Final = 6

# The protocol's `progressToken` ends with a secret name, but is no secret.
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
        self._word_lists = {_words(name) for name in names}
        # The same names without separators, as in `PGPASSWORD`.
        self._joined = {"".join(words) for words in self._word_lists}
        self._long_joined = tuple(each for each in self._joined if len(each) >= _ENDING_CHARS_MIN)
        self._covers = functools.lru_cache(_NAMES_CACHED_MAX)(self._covers_uncached)

    def covers(self, name: str) -> bool:
        """Return whether the value with this name is secret."""
        return len(name) <= _NAME_CHARS_MAX and self._covers(name)

    def is_listed(self, name: str) -> bool:
        """Return whether this text is one of the secret names, and so no secret itself.

        A text with digits or other signs is none of them: it may be a secret that has a name in it.
        """
        is_short = len(name) <= _NAME_CHARS_MAX
        return is_short and _NAME.fullmatch(name) is not None and _words(name) in self._word_lists

    def _covers_uncached(self, name: str) -> bool:
        words = _words(name)
        if words == _PROGRESS_TOKEN:
            return False
        # The last letters of the name, not divided by capitals: `PGPASSWORD`, `APIkey`.
        last = "".join(_LETTERS.findall(name)[-1:]).lower()
        if last in self._joined or last.endswith(self._long_joined):
            return True
        while words[1:] and words[-1] in _FOLLOWING_WORDS and words not in self._word_lists:
            words = words[:-1]
        return any(words[begin:] in self._word_lists for begin in range(len(words)))


@functools.lru_cache(16)
def secret_names(names: frozenset[str]) -> SecretNames:
    """Return the same `SecretNames` for equal names, so that all sessions share its cache.

    Raises:
        ValueError: A name has no letter.
    """
    return SecretNames(names)


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))
