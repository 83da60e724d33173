"""What holds for every test: the Hypothesis profiles, and requirement ids that exist."""

import gc
import os

import hypothesis
import pytest
import requirements

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("full", deadline=None, max_examples=2000)
_USUAL = "ci" if os.environ.get("CI") else "local"
hypothesis.settings.load_profile(os.environ.get("MCP_TRIO_EXAMPLES", _USUAL))


def pytest_sessionstart():
    if os.environ.get("CI") and not os.environ.get("MCP_SCHEMA_DIR"):
        msg = "MCP_SCHEMA_DIR must name the folder of the published JSON schemas when CI is set"
        raise pytest.UsageError(msg)


def pytest_collection_finish():
    """What stays to the end is not looked through by each of the many collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def unmeasured():
    """Of the processes that a module's tests start no coverage is taken, which makes them faster.

    For those that run what other tests run as well, and that there are many of.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        yield


def pytest_collection_modifyitems(items):
    rows = [*requirements.read_requirements(), *requirements.read_traps()]
    known = {row.id for row in rows}
    unknown = [
        f"{item.nodeid}: {id_!r} is no requirement"
        for item in items
        for marker in item.iter_markers("requirement")
        for id_ in marker.args
        if id_ not in known
    ]
    if unknown:
        raise pytest.UsageError(*unknown)
