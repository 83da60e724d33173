"""What a handler's docstring says about it and its parameters.

A style of docstring is a row of patterns; one function reads them all.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class DocstringStyle:
    """How a style marks its sections and, inside them, its parameters.

    `section` splits a docstring into prose and pairs of title and body, `item` a dedented body
    into pairs of name and text. `parameter_titles` are the sections that describe parameters.
    """

    section: re.Pattern[str]
    item: re.Pattern[str]
    parameter_titles: frozenset[str]


GOOGLE: Final = DocstringStyle(
    section=re.compile(
        r"^(Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises"
        r"|Attributes|Examples?|Notes?|Warnings?|Warns|References|See Also|Todo):[ \t]*$",
        re.MULTILINE,
    ),
    item=re.compile(r"^(\w+)[ \t]*(?:\([^\n]*?\))?[ \t]*:", re.MULTILINE),
    parameter_titles=frozenset(
        {"Args", "Arguments", "Parameters", "Keyword Args", "Keyword Arguments"}
    ),
)

_SECTION_END: Final = re.compile(r"\n(?=\S)")


@attrs.frozen
class Docstring:
    """The prose before the first section, and a text for each parameter."""

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str, style: DocstringStyle = GOOGLE) -> Docstring:
    """Read a docstring; sections that are not about parameters are left out."""
    prose, *sections = style.section.split(inspect.cleandoc(text))
    parameters: dict[str, str] = {}
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title in style.parameter_titles:
            parameters.update(_items(body, style.item))
    return Docstring(prose.strip(), parameters)


def _items(body: str, item: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    indented = _SECTION_END.split(body, maxsplit=1)[0]
    _, *items = item.split(textwrap.dedent(indented))
    texts = (" ".join(text.split()) for text in items[1::2])
    return zip(items[::2], texts, strict=True)
