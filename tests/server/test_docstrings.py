from mcp_trio._server.docstrings import parse_docstring


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


def test_text_after_a_section_belongs_to_nothing():
    found = parse_docstring("Short.\n\nArgs:\n    a: One.\n\nAnd b: more.")
    assert (found.description, found.parameters) == ("Short.", {"a": "One."})


def test_empty_and_odd_docstrings_give_what_they_have():
    assert parse_docstring("").description == ""
    assert parse_docstring("\n  Args:\n      a: One.\n").parameters == {"a": "One."}
    assert parse_docstring("Short.\n\nArgs:\n").parameters == {}
    assert parse_docstring("Short.\n\nArgs:\n\nmore").parameters == {}
    assert parse_docstring("Short.\n\nArgs:\n    no colon here").parameters == {}
