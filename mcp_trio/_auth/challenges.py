"""Challenges: the elements of a `WWW-Authenticate` header, parsed and formatted.

A server sends a challenge to a client whose token is missing or does not suffice. It names the URL
of the metadata of the server (`resource_metadata`), the scopes that the request needs (`scope`),
and the error of the token (`error`).

https://www.rfc-editor.org/rfc/rfc9110#section-11.6.1
https://www.rfc-editor.org/rfc/rfc6750#section-3
https://www.rfc-editor.org/rfc/rfc9728#section-5.1
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

WWW_AUTHENTICATE: Final = "WWW-Authenticate"

BEARER: Final = "Bearer"
DPOP: Final = "DPoP"

INVALID_REQUEST: Final = "invalid_request"
INVALID_TOKEN: Final = "invalid_token"  # noqa: S105  no secret
INSUFFICIENT_SCOPE: Final = "insufficient_scope"
INVALID_DPOP_PROOF: Final = "invalid_dpop_proof"
USE_DPOP_NONCE: Final = "use_dpop_nonce"

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  the syntax of RFC 9110, section 5.6.2
# A scheme ends at white space, at a comma or with the header; a parameter's name does not.
_SCHEME: Final = re.compile(rf"[ \t,]*({_TOKEN})(?![^ \t,])")
_TOKEN_68: Final = re.compile(r"[ \t]+([A-Za-z0-9._~+/-]+=*)[ \t]*(?:,|\Z)")
# RFC 9110 requires quotes around a URL, but some servers send URLs without them. So a value without
# quotes may have all characters except separators and quotes.
_PARAMETER: Final = re.compile(
    rf"""[ \t]*({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^ \t,"=][^ \t,"]*))[ \t,]*""",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
# The characters that a quoted string may have; quotes and backslashes are escaped.
_QUOTABLE: Final = re.compile(r"[\t !-~\x80-\xff]*")

# RFC 6749, section 3.3.
_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """One challenge of a `WWW-Authenticate` header.

    Attributes:
        scheme: The authentication scheme as it was sent; compare it with `is_for`.
        parameters: The parameters by their names in lower case; a name that is repeated has its
            first value.
        token68: The data of a scheme that has data in place of parameters.
    """

    scheme: str
    parameters: Mapping[str, str] = MappingProxyType({})
    token68: str | None = None

    def is_for(self, scheme: str) -> bool:
        """Return whether the challenge is for a scheme; upper and lower case are the same."""
        return self.scheme.lower() == scheme.lower()

    @property
    def error(self) -> str | None:
        """The error code, such as "invalid_token"; None if the request had no credentials."""
        return self.parameters.get("error")

    @property
    def resource_metadata(self) -> str | None:
        """The URL of the protected resource metadata (RFC 9728), if the server named it."""
        return self.parameters.get("resource_metadata")

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """The scopes that the request needs, in the order of the server; None if it named none."""
        text = self.parameters.get("scope")
        return None if text is None else tuple(dict.fromkeys(text.split()))


def parse_challenges(values: Iterable[str]) -> list[Challenge]:
    """Return the challenges of all `WWW-Authenticate` headers of a response, in their order.

    Of a malformed header, the challenges before the first error are returned.

    Args:
        values: The value of each header, or one value in which they are joined by commas.
    """
    challenges: list[Challenge] = []
    for value in values:
        position = 0
        while (scheme := _SCHEME.match(value, position)) is not None:
            position = scheme.end()
            token68 = _TOKEN_68.match(value, position)
            if token68 is not None:
                challenges.append(Challenge(scheme=scheme[1], token68=token68[1]))
                position = token68.end()
                continue
            parameters: dict[str, str] = {}
            while (parameter := _PARAMETER.match(value, position)) is not None:
                name, quoted, plain = parameter.groups()
                text = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
                parameters.setdefault(name.lower(), text)
                position = parameter.end()
            challenges.append(Challenge(scheme=scheme[1], parameters=parameters))
    return challenges


def format_challenge(scheme: str, parameters: Mapping[str, str]) -> str:
    """Return a challenge as the value of a `WWW-Authenticate` header.

    Raises:
        ValueError: A value has a character that a header cannot have.
    """
    formatted: list[str] = []
    for name, value in parameters.items():
        if not _QUOTABLE.fullmatch(value):
            raise ValueError(f"the parameter {name} has a character that no header may have")
        escaped = value.replace("\\", r"\\").replace('"', r"\"")
        formatted.append(f'{name}="{escaped}"')
    return f"{scheme} {', '.join(formatted)}".rstrip()  # without parameters, the scheme alone


def checked_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return scopes sorted and without duplicates.

    Raises:
        TypeError: The scopes are one string, or are not strings.
        ValueError: A scope is empty or has a character that RFC 6749, section 3.3, does not allow.
    """
    if isinstance(scopes, str):
        raise TypeError(f"scopes are a set of strings: write {{{scopes!r}}}")
    found = dict.fromkeys(scopes)
    for scope in found:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"not a valid scope: {scope!r}")
    return tuple(sorted(found))
