"""URI templates (RFC 6570, levels 1 to 3): expansion and matching.

The table `OPERATORS` is the RFC's own (appendix A), with two columns added for matching a URI.

The RFC does not define matching, and a template may be ambiguous. These rules make it unambiguous:

- A sign is the character with which the expansion of an operator begins, such as the `/` of `{/a}`.
- A value ends where the text or sign that follows it *first* occurs; the value of `{+path}`, which
  may span such text, ends where it *last* occurs. No text begins or ends within a percent-encoded
  character.
- Two expressions without text or a sign between them are an error, as are a second `{+path}`, and
  `{#fragment}` anywhere but at the end.
- A value is not empty, except after a name (`?a=`) and those of `{+a}` and `{#a}`.
- Expressions that begin with a sign may be left out, and named values stand in any order.

A value that ends at the first occurrence is matched possessively, so a hostile URI costs linear
time; a `{+path}` in the middle may make it quadratic, which `limits.messages.uri_chars_max` bounds.
Matched values are decoded, and then checked for path traversal: see `TraversalError`.
"""

import functools
import itertools
import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from mcp_trio.errors import MCPError
from mcp_trio.limits import DEFAULT_LIMITS


class TemplateError(MCPError, ValueError):
    """A template is malformed or ambiguous, or does not suit its handler."""


class UriError(MCPError):
    """A URI is rejected before any resource is looked up."""


class TraversalError(UriError):
    """A matched value could lead out of its path segment; handlers never receive it."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which the expressions of an operator expand and match.

    Attributes:
        first: The sign that begins an expansion ("first" in the RFC).
        separator: The text between two values ("sep").
        is_named: Whether each value follows its name and `=` ("named").
        if_empty: The text after the name of an empty value ("ifemp").
        keeps_reserved: Whether reserved characters stay as they are ("allow").
        excludes: For matching, the characters that a value cannot contain.
        may_hold_slash: For matching, whether a decoded value may contain a slash.
    """

    first: str = ""
    separator: str = ","
    is_named: bool = False
    if_empty: str = ""
    keeps_reserved: bool = False
    excludes: str = ""
    may_hold_slash: bool = False


_QUERY: Final = Operator(
    first="?", separator="&", is_named=True, if_empty="=", excludes="#", may_hold_slash=True
)
OPERATORS: Final = {
    "": Operator(excludes="/?#"),
    "+": Operator(keeps_reserved=True, may_hold_slash=True),
    "#": Operator(first="#", keeps_reserved=True, may_hold_slash=True),
    ".": Operator(first=".", separator=".", excludes="/?#"),
    "/": Operator(first="/", separator="/", excludes="?#"),
    ";": Operator(first=";", separator=";", is_named=True, excludes="/?#"),
    "?": _QUERY,
    "&": msgspec.structs.replace(_QUERY, first="&"),
}

_RESERVED: Final = ":/?#[]@!$&'()*+,;="
_ASCII: Final = "".join(map(chr, range(128)))
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_TRIPLET: Final = re.compile("%[0-9A-Fa-f]{2}")
_BROKEN_TRIPLET: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_LITERAL: Final = re.compile(r'[\x00-\x20"<>\\^`{|}\x7f]|' + _BROKEN_TRIPLET.pattern)
_NAME: Final = re.compile(r"(?:\w|%[0-9A-Fa-f]{2})+(?:\.(?:\w|%[0-9A-Fa-f]{2})+)*", re.ASCII)
_TRAVERSAL: Final = re.compile(r"\0|\\|\A/|(?:\A|/)\.\.(?:/|\Z)")


class Expression(msgspec.Struct, frozen=True):
    """An expression between braces."""

    operator: Operator
    names: tuple[str, ...]

    def expand(self, values: Mapping[str, str]) -> str:
        """Return the text for the variables that have a value; "" if none has."""
        operator = self.operator
        parts: list[str] = []
        for name in self.names:
            if name not in values:
                continue
            if operator.keeps_reserved:
                # Characters that a URI cannot contain are encoded; encoded ones are kept.
                pieces = re.split(f"({_TRIPLET.pattern})", values[name])
                pieces[::2] = [quote(piece, safe=_RESERVED) for piece in pieces[::2]]
                text = "".join(pieces)
            else:
                text = quote(values[name], safe="")
            if operator.is_named:
                text = f"{name}={text}" if text else name + operator.if_empty
            parts.append(text)
        return operator.first + operator.separator.join(parts) if parts else ""

    def pattern(self, ends: list[str]) -> str:
        """Return a pattern with one group: the text after the first sign, up to any of `ends`."""
        operator = self.operator
        # A single character is excluded by the class, which is far cheaper than a lookahead, as it
        # matches a whole run.
        excluded = "%" + operator.excludes + "".join(end for end in ends if len(end) == 1)
        texts = "".join(f"(?!{re.escape(end)})" for end in ends if len(end) > 1)
        # A run of characters is matched possessively, unless a longer text may end the value within
        # the run, or the value has to give characters back to end where the text *last* occurs.
        run = "" if texts or operator.keeps_reserved else "++"
        character = f"(?:[^{re.escape(excluded)}]{run}|{_TRIPLET.pattern})"
        # The group is atomic, and not possessive, because CPython before 3.11.5 gives up too early
        # in a possessive group: https://github.com/python/cpython/issues/106052
        repeated = f"(?:{texts}{character})"
        group = f"({repeated}*)" if operator.keeps_reserved else f"((?>{repeated}+))"
        return f"(?:{re.escape(operator.first)}{group})?" if operator.first else group

    def read(self, text: str) -> dict[str, str] | None:
        """Return the decoded values in the text; None if the text does not match the expression.

        Raises:
            TraversalError: A value could lead out of its path segment.
        """
        operator = self.operator
        if operator.is_named:
            pairs = [part.partition("=") for part in text.split(operator.separator)]
            parts = {name: part for name, _, part in pairs}
            if len(parts) < len(pairs) or not parts.keys() <= set(self.names):
                return None
        else:
            texts = text.split(operator.separator, len(self.names) - 1)
            has_slash = not operator.may_hold_slash and any("/" in part for part in texts)
            has_empty_value = not operator.keeps_reserved and not all(texts)
            if has_slash or has_empty_value:
                return None
            parts = dict(zip(self.names, texts, strict=False))
        try:
            decoded = {name: unquote(part, errors="strict") for name, part in parts.items()}
        except UnicodeDecodeError:
            return None
        for name, value in decoded.items():
            # Handlers may decode a value once more by mistake, so that is checked too.
            is_unsafe = any(_TRAVERSAL.search(text) for text in (value, unquote(value)))
            if is_unsafe or ("/" in value and not operator.may_hold_slash):
                # Do not change this text: responses in existing recordings contain it.
                raise TraversalError(
                    f"{name}: a value that could leave its place in the path is refused"
                )
        return decoded


Piece = str | Expression


class UriTemplate(msgspec.Struct, frozen=True, dict=True):
    """A parsed template: `pieces`, the last of them an expression, and then the literal `tail`."""

    text: str
    pieces: tuple[Piece, ...]
    tail: str

    @classmethod
    def parse(cls, text: str) -> "UriTemplate":
        """Parse a template; a template without braces matches and expands to itself.

        Raises:
            TemplateError: The template is malformed, beyond level 3, or ambiguous.
        """
        parts = _BRACES.split(text)
        pieces: list[Piece] = []
        for literal, body in zip(parts[:-1:2], parts[1::2], strict=True):
            symbol = body[:1] if body[:1] in OPERATORS else ""
            names = tuple(body.removeprefix(symbol).split(","))
            for name in names:
                if not _NAME.fullmatch(name):
                    raise TemplateError(
                        f"the template {text!r}: {name!r} in {{{body}}} is no variable name "
                        "(operators beyond + # . / ; ? & and the modifiers * and :n are not "
                        "supported)"
                    )
            pieces += [_encoded_literal(literal, text), Expression(OPERATORS[symbol], names)]
        return cls(text, tuple(filter(None, pieces)), _encoded_literal(parts[-1], text))

    def __post_init__(self) -> None:
        operators = [expression.operator for expression in self.expressions]
        # In `{/a,b}{/c}` the sign between the expressions could also be that between `a` and `b`.
        is_touching = any(
            isinstance(left, Expression)
            and isinstance(right, Expression)
            and (
                not right.operator.first
                or (right.operator.first == left.operator.separator and len(left.names) > 1)
            )
            for left, right in itertools.pairwise(self.pieces)
        )
        ambiguities = {
            "a variable occurs twice": len(set(self.variables)) < len(self.variables),
            "{+…} occurs twice": operators.count(OPERATORS["+"]) > 1,
            "{#…} is not at the end": OPERATORS["#"] in operators[: None if self.tail else -1],
            "two expressions have no text or sign between them": is_touching,
        }
        found = [ambiguity for ambiguity, is_present in ambiguities.items() if is_present]
        if found:
            raise TemplateError(f"the template {self.text!r} is ambiguous: {'; '.join(found)}")

    @functools.cached_property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions, from left to right."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Expression))

    @functools.cached_property
    def variables(self) -> tuple[str, ...]:
        """The names of all variables, from left to right."""
        return tuple(name for expression in self.expressions for name in expression.names)

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        # The pattern is built from right to left, because a value ends where the next sign or text
        # begins. The signs of several expressions in a row all end the value, since each of these
        # expressions may be left out.
        patterns: list[str] = []
        signs: list[str] = []
        text: list[str] = []
        for piece in reversed(self.pieces):
            if isinstance(piece, str):
                patterns.append(re.escape(piece))
                signs, text = [], [piece]
            else:
                patterns.append(
                    piece.pattern(signs if piece.operator.keeps_reserved else signs + text)
                )
                signs = [*signs, piece.operator.first]
        return re.compile("".join(reversed(patterns)), re.DOTALL)

    def expand(self, values: Mapping[str, str]) -> str:
        """Return the URI for these values; a variable without a value is left out (RFC 6570)."""
        texts = [piece if isinstance(piece, str) else piece.expand(values) for piece in self.pieces]
        return "".join(texts) + self.tail

    def match(
        self, uri: str, *, uri_chars_max: int = DEFAULT_LIMITS.messages.uri_chars_max
    ) -> dict[str, str] | None:
        """Return the decoded values of the variables in `uri`; None if `uri` does not match.

        A variable that the URI leaves out has no entry.

        Raises:
            UriError: The URI is longer than `uri_chars_max`.
            TraversalError: A value contains a `..` segment, a backslash or NUL, or begins with a
                slash, as it is or after being decoded once more; or a value outside of `{+a}`,
                `{#a}`, `{?a}` and `{&a}` contains an encoded slash.
        """
        if len(uri) > uri_chars_max:
            raise UriError(
                f"the URI is longer than limits.messages.uri_chars_max ({uri_chars_max})"
            )
        ascii_uri = quote(uri, safe=_ASCII)
        if not ascii_uri.endswith(self.tail) or _BROKEN_TRIPLET.search(ascii_uri):
            return None
        found = self._pattern.fullmatch(ascii_uri.removesuffix(self.tail))
        if found is None:
            return None
        values: dict[str, str] = {}
        for expression, text in zip(self.expressions, found.groups(), strict=True):
            read = {} if text is None else expression.read(text)
            if read is None:
                return None
            values |= read
        return values

    def check_parameters(self, parameters: Collection[str]) -> None:
        """Check that the parameters of a handler are exactly the variables.

        Raises:
            TemplateError: They differ; the text names each missing variable and parameter.
        """
        sides = {
            "no parameter for the variable": set(self.variables) - set(parameters),
            "no variable for the parameter": set(parameters) - set(self.variables),
        }
        lacks = [f"{lack} {name!r}" for lack, names in sides.items() for name in sorted(names)]
        if lacks:
            raise TemplateError(f"the template {self.text!r}: {'; '.join(lacks)}")


def _encoded_literal(text: str, template: str) -> str:
    """Return the text between expressions as it is in a URI, where only ASCII is allowed.

    Raises:
        TemplateError: The text contains a character that RFC 6570 does not allow.
    """
    bad = _BAD_LITERAL.search(text)
    if bad:
        raise TemplateError(f"the template {template!r} has the invalid text {bad[0]!r}")
    return quote(text, safe=_ASCII)
