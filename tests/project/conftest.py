"""What holds for the tests of the tools."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def unmeasured_tools(unmeasured):
    """Tools run what the package's own tests have measured."""
