"""Configuration of all tests: Hypothesis profiles, order of collection, and requirement ids."""

import gc
import os
import sys

import httpx
import httpx2
import hypothesis
import pytest
import requirements

pytest_plugins = ["tests.token_search"]

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("few", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.register_profile("quick", derandomize=True, deadline=None, max_examples=10)
hypothesis.settings.register_profile("full", deadline=None, max_examples=2000)
_DEFAULT_PROFILE = "ci" if os.environ.get("CI") else "local"
hypothesis.settings.load_profile(os.environ.get("MCP_TRIO_EXAMPLES", _DEFAULT_PROFILE))


# Coverage measures the processes that run tests, and not those that tests start: that would take a
# third of the time of all tests, and such processes run little code that no other test runs. The
# fixture `measured_processes` is for tests of code that runs in processes of its own only.
_COVERAGE = "COVERAGE_PROCESS_CONFIG"
_coverage = os.environ.get(_COVERAGE)
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop(_COVERAGE, None)


@pytest.fixture(scope="session")
def measuring():
    """The environment variables that let coverage measure a process."""
    return {} if _coverage is None else {_COVERAGE: _coverage}


@pytest.fixture
def measured_processes(measuring, monkeypatch):
    """Let coverage measure the processes that a test starts."""
    for name, value in measuring.items():
        monkeypatch.setenv(name, value)


class ReversedDir(pytest.Dir):
    """A directory collected backwards, so that two processes share the rewriting of test files."""

    def collect(self):
        return reversed(list(super().collect()))


def pytest_collect_directory(path, parent):
    is_second = getattr(parent.config, "workerinput", {}).get("workerid") == "gw1"
    return ReversedDir.from_parent(parent, path=path) if is_second else None


def pytest_collection_finish():
    """Exclude all collected objects from garbage collection, which would visit them each time.

    From here on no byte code is written: tests rewrite modules within one second, and Python would
    load the byte code of the earlier version.
    """
    gc.collect()
    gc.freeze()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(params=[httpx2, httpx], ids=["httpx2", "httpx"])
def library(request):
    """Each HTTP library whose clients, transports and authentication flows users may pass."""
    return request.param


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # pytest-xdist needs the same order in all processes
        items.sort(key=lambda item: item.path.parts)
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
