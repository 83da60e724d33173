"""The shapes that secrets of well-known kinds have, wherever they stand."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

SHAPES: Final[Mapping[str, re.Pattern[str]]] = {
    "private key": re.compile(
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?P<secret>.+?)(?:-----END|\Z)", re.DOTALL
    ),
    "JSON Web Token": re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    "AI service key": re.compile(r"\bsk-(?:proj-|ant-)?[\w-]{20,}"),
    "payment service key": re.compile(r"\b[sr]k_(?:live|test)_\w{16,}"),
    "GitHub token": re.compile(r"\b(?:gh[pousr]_\w{36,}|github_pat_\w{36,})"),
    "GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "Google key": re.compile(r"\bAIza[\w-]{35}|\bya29\.[\w-]{20,}"),
    "Slack token": re.compile(r"\bxox[abeprs]-[\w-]{10,}"),
    "package registry token": re.compile(r"\b(?:npm_\w{36}|pypi-[\w-]{50,}|hf_\w{30,})"),
}

# One of them stands in each of the shapes, none of which is shorter.
_SIGNS: Final = (
    *("PRIVATE KEY", "eyJ", "sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "AKIA", "ASIA", "AIza", "ya29.", "xox", "npm_", "pypi-", "hf_"),
)
_CHARS_MIN: Final = 15


def shaped(text: str) -> Iterator[tuple[str, int, int]]:
    """What has the shape of a secret: which kind it is of, where it begins and ends."""
    if len(text) < _CHARS_MIN or not any(sign in text for sign in _SIGNS):
        return
    for kind, pattern in SHAPES.items():
        for match in pattern.finditer(text):
            yield kind, *match.span(match.lastgroup or 0)
