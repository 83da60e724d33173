"""A search for tokens and secrets in what each test of authorization has logged, raised or recorded.

A test fails if a token is in a log message, in what it printed, in a recording, in an error that it
has caught, or in the `repr` of an object of `mcp_trio._auth`. JSON Web Tokens, and the tokens and
secrets that servers of tests issue, are known by their form (`TOKENS`). A helper that gets a random
token says so with `plant`.
"""

import contextlib
import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from authorization_attacks import SEARCHED, TOKENS

# The least length of a planted token: a shorter text may be found by chance.
_LENGTH_MIN = 16
_RECORDING = ".jsonl"
_HOME = Path(__file__).resolve().parent.parent
_PATHS = tuple(_HOME / path for path in SEARCHED)


class Handler(logging.Handler):
    """A handler that keeps all messages, with the errors that belong to them."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.texts = []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record):
        self.texts.append(self.format(record))


class Search:
    """What one test has made, and the tokens that it knows."""

    def __init__(self):
        self.planted = set()
        self.caught = []
        self.handler = Handler()

    def texts(self, item) -> Iterator[tuple[str, str]]:
        """Yield each text, with the place where it was found."""
        yield from (("a log message", text) for text in self.handler.texts)
        for context in self.caught:
            info = getattr(context, "excinfo", context)
            error = getattr(info, "value", None) if info is not None else None
            yield from (("an error", text) for text in texts_of(error))
        # The youngest objects are those of this test.
        for value in (*gc.get_objects(0), *gc.get_objects(1)):
            kind = type(value)
            if kind.__module__.startswith("mcp_trio._auth"):
                with contextlib.suppress(AttributeError):  # its constructor has failed
                    yield f"repr() of {kind.__qualname__}", repr(value)
        folder = item.funcargs.get("tmp_path")
        if folder is not None:
            for path in folder.rglob("*"):
                if _RECORDING in path.name and path.is_file():
                    yield f"the recording {path.name}", path.read_text("utf-8", "replace")

    def leaks(self, texts) -> list[str]:
        """Return a line for each text that has a token."""
        lines = {}
        for place, text in texts:
            found = TOKENS.search(text)
            token = found[0] if found else next((it for it in self.planted if it in text), None)
            if token is not None:
                lines[f"{place} has the token {token[:20]}…"] = None
        return [*lines]


def texts_of(error) -> Iterator[str]:
    """Yield the texts of an error, its notes, its members, and the errors that led to it."""
    seen, waiting = set(), [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield str(each)
        yield repr(each)
        yield from getattr(each, "__notes__", ())
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


_running: Search | None = None


def plant(*tokens):
    """Let the running test fail if one of these tokens is found."""
    if _running is not None:
        _running.planted.update(token for token in tokens if len(token) >= _LENGTH_MIN)


def pytest_addoption(parser):
    parser.addoption(
        "--token-search",
        choices=["authorization", "all", "none"],
        default="authorization",
        help="the tests in whose logs, errors and recordings tokens are searched for",
    )


def pytest_configure(config):
    raises = pytest.raises

    def noted_raises(*arguments, **keywords):
        context = raises(*arguments, **keywords)
        if _running is not None:
            _running.caught.append(context)
        return context

    pytest.raises = noted_raises
    config.add_cleanup(lambda: setattr(pytest, "raises", raises))


def is_searched(item):
    """Return whether tokens are searched for in what a test makes."""
    chosen = item.config.getoption("--token-search")
    if chosen != "authorization":
        return chosen == "all"
    return any(path in (item.path, *item.path.parents) for path in _PATHS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    global _running  # noqa: PLW0603  tests run one after the other
    if not is_searched(item):
        return (yield)
    search = _running = Search()
    logging.getLogger().addHandler(search.handler)
    gc.collect(1)  # what earlier tests have left is old from now on
    try:
        result = yield
        item.stash[_SEARCH] = search
        lines = search.leaks(search.texts(item))
    finally:
        _running = None
        logging.getLogger().removeHandler(search.handler)
        search.caught.clear()
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    search = item.stash.get(_SEARCH, None)
    if search is not None and call.when == "call" and report.passed:
        lines = search.leaks(report.sections)
        if lines:
            report.outcome, report.longrepr = "failed", "\n".join(lines)
    return report


_SEARCH = pytest.StashKey[Search]()
