"""What a handler's docstring says about it and its parameters.

A style of docstring is a row of patterns; one function reads them all. The style in which a
docstring has the most parameters is its own.
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

    `section` splits a docstring into prose and pairs of title and body, `end` a body from the prose
    after it, and `item` a dedented body into pairs of names and text. `parameter_titles` are the
    sections that describe parameters.
    """

    section: re.Pattern[str]
    end: re.Pattern[str]
    item: re.Pattern[str]
    parameter_titles: frozenset[str]


GOOGLE: Final = DocstringStyle(
    section=re.compile(
        r"^(Args|Arguments|Parameters|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises"
        r"|Attributes|Examples?|Notes?|Warnings?|Warns|References|See Also|Todo):[ \t]*$",
        re.MULTILINE,
    ),
    end=re.compile(r"\n(?=\S)"),
    item=re.compile(r"^(\w+)[ \t]*(?:\([^\n]*?\))?[ \t]*:", re.MULTILINE),
    parameter_titles=frozenset(
        {"Args", "Arguments", "Parameters", "Keyword Args", "Keyword Arguments"}
    ),
)

# A parameter stands where a section begins, so that only its form tells it from prose.
_NUMPY_NAMES: Final = r"\w+(?:,[ \t]*\w+)*"
_NUMPY_TYPE: Final = r"[ \t]*(?::[^\n]*)?$"

NUMPY: Final = DocstringStyle(
    section=re.compile(
        r"^(Parameters|Other Parameters|Returns|Yields|Receives|Raises|Warns|Warnings|See Also"
        r"|Notes|References|Examples|Attributes|Methods)[ \t]*\n-{3,}[ \t]*$",
        re.MULTILINE,
    ),
    end=re.compile(rf"\n(?=\S)(?!{_NUMPY_NAMES}{_NUMPY_TYPE})", re.MULTILINE),
    item=re.compile(rf"^({_NUMPY_NAMES}){_NUMPY_TYPE}", re.MULTILINE),
    parameter_titles=frozenset({"Parameters", "Other Parameters"}),
)

SPHINX: Final = DocstringStyle(
    section=re.compile(
        r"^:(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except"
        r"|exception|yields?|ytype|var|ivar|cvar|vartype|meta)\b",
        re.MULTILINE,
    ),
    end=re.compile(r"\n(?=\S)"),
    item=re.compile(r"\A[^:\n]*?(\w+)[ \t]*:"),
    parameter_titles=frozenset({"param", "parameter", "arg", "argument", "key", "keyword"}),
)

STYLES: Final = (GOOGLE, NUMPY, SPHINX)


@attrs.frozen
class Docstring:
    """The prose outside of sections, and a text for each parameter."""

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """Read a docstring; sections that are not about parameters are left out.

    What stands between the parameters and cannot be read as one belongs to the description.
    """
    clean = inspect.cleandoc(text)
    return max((_read(clean, style) for style in STYLES), key=_weight)


def _weight(found: Docstring) -> tuple[int, int]:
    """How much of a docstring a style explains; sections of any kind make the prose shorter."""
    return len(found.parameters), -len(found.description)


def _read(text: str, style: DocstringStyle) -> Docstring:
    start, *sections = style.section.split(text)
    prose, parameters = [start], dict[str, str]()
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        inside, *after = style.end.split(body, maxsplit=1)
        if title in style.parameter_titles:
            unread, *items = style.item.split(textwrap.dedent(inside))
            prose.append(unread)
            parameters.update(_items(items))
        prose += after
    parts = filter(None, (part.strip() for part in prose))
    return Docstring("\n\n".join(parts), parameters)


def _items(items: list[str]) -> Iterator[tuple[str, str]]:
    for names, text in zip(items[::2], items[1::2], strict=True):
        for name in names.split(","):
            yield name.strip(), " ".join(text.split())
