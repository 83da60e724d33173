import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._server.signatures import parse_docstring


def test_the_prose_before_the_first_section_is_the_description():
    found = parse_docstring(
        """Tell the weather.

        It may rain: bring
        a coat.

        Args:
            city: Where.

        Returns:
            days: not a parameter.
        """
    )
    assert found.description == "Tell the weather.\n\nIt may rain: bring\na coat."
    assert found.parameters == {"city": "Where."}


def test_parameters_may_have_types_several_lines_and_nested_text():
    found = parse_docstring(
        """Short.

        Args:
            city (str): Where to look,
                for instance: Oslo.
            days (dict[str, tuple(int)], optional): How many.

                - one
                - two
            ctx:
                The context.
        Keyword Args:
            units : Metric or not.
        """
    )
    assert found.parameters == {
        "city": "Where to look, for instance: Oslo.",
        "days": "How many. - one - two",
        "ctx": "The context.",
        "units": "Metric or not.",
    }


@pytest.mark.parametrize(
    "section",
    [
        "Args:\n    a: One.\n",
        "Parameters\n----------\na : int\n    One.\n",
        ":param a: One.\n",
    ],
)
def test_text_after_a_section_belongs_to_the_description(section):
    found = parse_docstring(f"Short.\n\n{section}\nAnd b: more words.\nThe end.")
    assert found.description == "Short.\n\nAnd b: more words.\nThe end."
    assert found.parameters == {"a": "One."}


def test_numpy_sections_are_underlined():
    found = parse_docstring(
        """Tell the weather.

        A title
        -------
        is prose.

        Parameters
        ----------
        city : str
            Where to look,
            for instance: Oslo.

            - one
        days, hours : int, optional
            How many.
        units
            Metric or not.
        ctx: Context

        Other Parameters
        ----------------
        exact : {True, False}
            Exactly.

        Returns
        -------
        text : str
            not a parameter.

        Raises
        ------
        ValueError
            never.
        """
    )
    assert found.description == "Tell the weather.\n\nA title\n-------\nis prose."
    assert found.parameters == {
        "city": "Where to look, for instance: Oslo. - one",
        "days": "How many.",
        "hours": "How many.",
        "units": "Metric or not.",
        "ctx": "",
        "exact": "Exactly.",
    }


def test_sphinx_fields_begin_with_colons():
    found = parse_docstring(
        """Tell the weather.

        :param city: Where to look,
            for instance: Oslo.
        :param int days: How many.
        :param dict[str, int] counts : Which.
        :type city: str
        :keyword exact:
            Exactly.
        :returns: The text.
        :rtype: str
        :raises ValueError: never
        """
    )
    assert found.description == "Tell the weather."
    assert found.parameters == {
        "city": "Where to look, for instance: Oslo.",
        "days": "How many.",
        "counts": "Which.",
        "exact": "Exactly.",
    }


def test_a_docstring_without_parameters_loses_its_sections_in_every_style():
    for section in ("Returns:\n    The text.", "Returns\n-------\nstr\n    The.", ":returns: The."):
        assert parse_docstring(f"Short.\n\n{section}").description == "Short."


@pytest.mark.parametrize(
    "text",
    ["Note: words", ":smile: at me", "----", "a\n---\nb", "Args: none", "x : int\n    no section"],
)
def test_text_that_only_resembles_a_section_is_prose(text):
    found = parse_docstring(f"Short.\n\n{text}")
    assert (found.description, found.parameters) == (f"Short.\n\n{text}", {})


def test_empty_and_odd_docstrings_give_what_they_have():
    assert parse_docstring("").description == ""
    assert parse_docstring("\n  Args:\n      a: One.\n").parameters == {"a": "One."}
    assert parse_docstring("Short.\n\nArgs:\n").parameters == {}
    assert parse_docstring("Short.\n\nArgs:\n\nmore").description == "Short.\n\nmore"
    unread = parse_docstring("Short.\n\nArgs:\n    no colon here")
    assert (unread.description, unread.parameters) == ("Short.\n\nno colon here", {})


WORDS = st.lists(st.from_regex(r"\A[a-z]{2,6}\Z"), min_size=2, max_size=4).map(" ".join)
TEXTS = st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), WORDS, min_size=1, max_size=3)
WRITERS = {
    "Google": lambda texts: "Args:\n" + "".join(f"    {k} (int): {v}\n" for k, v in texts.items()),
    "NumPy": lambda texts: (
        "Parameters\n----------\n" + "".join(f"{k} : int\n    {v}\n" for k, v in texts.items())
    ),
    "Sphinx": lambda texts: "".join(f":param int {k}: {v}\n" for k, v in texts.items()),
}


@given(st.sampled_from([*WRITERS.values()]), st.lists(WORDS, min_size=2, max_size=2), TEXTS)
def test_each_style_gives_back_all_that_was_written(write, prose, texts):
    before, after = prose
    found = parse_docstring(f"{before}\n\n{write(texts)}\n{after}\n")
    assert found.parameters == texts
    assert found.description == f"{before}\n\n{after}"


LINES = st.sampled_from(
    [
        "Args:",
        "Parameters",
        "---",
        "----------",
        ":param x: y",
        ":param",
        "x : int",
        "    x: y",
        "",
        "  z",
        "word",
    ]
)


@given(st.text() | st.lists(LINES).map("\n".join))
def test_no_text_is_too_odd_and_prose_before_all_sections_is_kept(text):
    found = parse_docstring(f"All of this.\n\n{text}")
    assert found.description.startswith("All of this.")
    if not any(mark in text for mark in (":", "---")):
        assert found.description == inspect.cleandoc(f"All of this.\n\n{text}").strip()
