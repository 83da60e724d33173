"""Configuration of all tests: Hypothesis profiles, order of collection, and requirement ids."""

import gc
import os
import sys
from typing import Any

import coverage
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


def pytest_configure(config):
    """Measure no coverage in the process that distributes the tests: it runs none of them."""
    measurement = coverage.Coverage.current()
    if measurement is not None and config.getoption("dist", "no") != "no":
        measurement.stop()


# While Python 3.11 traces a thread for coverage, all code runs more slowly there, also code that is
# not measured, such as pytest's. So after the collection, which imports the package, only fixtures,
# the functions of tests, and finalizers are traced.
_TRACE = pytest.StashKey[Any]()


def _traced(config):
    """Trace the inner part of a hook, unless coverage is off or tracing is on already."""
    trace = config.stash.get(_TRACE, None)
    if trace is None or sys.gettrace() is not None:
        return (yield)
    sys.settrace(trace)
    try:
        return (yield)
    finally:
        sys.settrace(None)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_fixture_setup(request):
    return (yield from _traced(request.config))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pyfunc_call(pyfuncitem):
    return (yield from _traced(pyfuncitem.config))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item):
    return (yield from _traced(item.config))


class SharedDir(pytest.Dir):
    """A directory that each process collects in another order, to share the rewriting of test files.

    A process loads the byte code of the files that another one has rewritten. The first process
    begins with the first file, the second with the last, and the others in the middle.
    """

    def collect(self):
        children = list(super().collect())
        if self.config.workerinput["workerid"] == "gw1":
            return reversed(children)
        middle = len(children) // 2
        places = sorted(range(len(children)), key=lambda place: abs(place - middle))
        return [children[place] for place in places]


def pytest_collect_directory(path, parent):
    worker = getattr(parent.config, "workerinput", {}).get("workerid", "gw0")
    return None if worker == "gw0" else SharedDir.from_parent(parent, path=path)


def pytest_collection_finish(session):
    """Exclude all collected objects from garbage collection, which would visit them each time.

    From here on no byte code is written: tests rewrite modules within one second, and Python would
    load the byte code of the earlier version.
    """
    if coverage.Coverage.current() is not None:
        session.config.stash[_TRACE] = sys.gettrace()
        sys.settrace(None)
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
