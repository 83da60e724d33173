"""The checks of the project, each in an environment of its own: `nox -s tests`, `nox --list`."""

from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = True

GROUPS = nox.project.load_toml("pyproject.toml")
SCRIPTS = ("mcp_trio", "recordings", "tests", "tools", "noxfile.py")
COMPILED = ("mcp_trio", "recordings", "tools")
QUICK = tuple(
    f"tests/{name}" for name in ("jsonrpc", "protocol", "journal", "schema", "server", "client")
)
QUICK_OPTIONS = ("-n", "2", "-m", "not slow and not real_time")


def share_byte_code(session: nox.Session) -> None:
    """Let the processes that collect the tests find the byte code that the others have written.

    Rewriting the assertions of all tests takes half a minute.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = ""


def install(session: nox.Session, *groups: str, package: bool = True) -> None:
    """Install the package, where it is needed, and the dependency groups of a session."""
    own = ("-e", ".") if package else ()
    session.install("-q", *own, *nox.project.dependency_groups(GROUPS, *groups))
    if package:  # hundreds of processes import it, and some of them may not write byte code
        session.run("python", "-m", "compileall", "-q", *COMPILED, silent=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that are not slow, with the floor of branch coverage; with arguments, without.

    Property tests try a quarter of their examples. The session `slow` runs them with all, and the
    tests marked `slow`. It measures no coverage, as other tests cover the same code.
    """
    install(session, "test")
    # One data file per run, named in full: tests start processes in other folders.
    session.env["COVERAGE_FILE"] = str(Path(session.create_tmp(), "coverage").resolve())
    share_byte_code(session)
    if not session.posargs:
        session.env["MCP_TRIO_EXAMPLES"] = "few"
    session.run("coverage", "erase")
    selected = session.posargs or ["-m", "not slow"]
    # Three processes keep two cores busy, as tests wait for processes and on the clock. Each one
    # gets a third of the tests, in their order, so that tests of one file share fixtures.
    thirds = ("-n", "3", "--dist", "worksteal")
    session.run("coverage", "run", "-m", "pytest", *thirds, *selected)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report", *(["--fail-under=0"] if session.posargs else []))


@nox.session(default=False)
def quick(session: nox.Session) -> None:
    """Run the tests of everything pure, of servers and of clients, in less than a minute."""
    install(session, "test")
    share_byte_code(session)
    session.env["MCP_TRIO_EXAMPLES"] = "quick"
    session.run("pytest", "-q", *QUICK_OPTIONS, *(session.posargs or QUICK))


@nox.session(default=False)
def pythons(session: nox.Session) -> None:
    """Run the quick tests on each newer Python, which is installed if need be.

    A version that cannot be installed is named at the end; with `-- --may-miss` it is no failure.
    """
    install(session, "pythons", package=False)
    session.run("python", "tools/pythons.py", *session.posargs, "--", *QUICK_OPTIONS, *QUICK)


@nox.session(default=False, venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """Run the quick tests with the lowest versions of the dependencies that are allowed."""
    lowest = ("--resolution", "lowest-direct")
    session.install("-q", *lowest, "-e", ".", *nox.project.dependency_groups(GROUPS, "test"))
    share_byte_code(session)
    session.env["MCP_TRIO_EXAMPLES"] = "quick"
    session.run("pytest", "-q", *QUICK_OPTIONS, *(session.posargs or (*QUICK, "tests/auth")))


@nox.session(default=False)
def slow(session: nox.Session) -> None:
    """Run the tests that take long or test a tool, and property tests with all their examples."""
    install(session, "test")
    share_byte_code(session)
    # `redis` runs the tests that need a Redis server.
    options = ("-n", "2", "-m", "slow or hypothesis", "--ignore=tests/redis")
    session.run("pytest", *options, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check the style, the format and the tables of requirements."""
    install(session, "lint", package=False)
    session.run("ruff", "check", *SCRIPTS)
    session.run("ruff", "format", "--check", *SCRIPTS)
    session.run("python", "tools/requirements.py", "--check", silent=True)
    session.run("python", "tools/requirements.py", "--gate", silent=True)


@nox.session
def types(session: nox.Session) -> None:
    """Check all types twice, also for macOS and Windows, and that the public ones are complete."""
    install(session, "types")
    session.run("mypy")
    session.run("mypy", "--platform", "darwin", "mcp_trio")
    # The example of named pipes needs a system on which they are files.
    session.run("mypy", "--platform", "win32", "--exclude", "examples/named_pipes", "mcp_trio")
    session.run("pyright")
    session.run("pyright", "--verifytypes", "mcp_trio", "--ignoreexternal")


@nox.session
def layers(session: nox.Session) -> None:
    """Check the layers: imports point down only, and the core is pure."""
    install(session, "layers", package=False)
    session.run("python", "tools/layers.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; warnings are errors."""
    install(session, "docs")
    session.run("mkdocs", "build", "--strict", "--quiet", *session.posargs)


@nox.session
def recordings(session: nox.Session) -> None:
    """Replay every golden recording of a server, check and show the others."""
    install(session)
    session.run("python", "tools/check_recordings.py", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Record a session, replay it, and show it."""
    install(session)
    session.run("mcp-trio", "demo", *session.posargs)


@nox.session(default=False)
def steps(session: nox.Session) -> None:
    """Take the first steps in a clean environment, from `pip install` to a replay in pytest."""
    session.run("python", "tools/first_steps.py")


@nox.session(default=False)
def mutations(session: nox.Session) -> None:
    """Turn rules off, one at a time, and check that their tests fail; 20 random ids by default."""
    install(session, "test")
    session.run("python", "tools/mutate.py", *(session.posargs or ["--draw", "20"]))


@nox.session(default=False)
def proof(session: nox.Session) -> None:
    """Prove the guarantees of replay by many examples, and by 1,400 recordings in 20 processes."""
    install(session, "test")
    session.run("python", "tools/proof/properties.py", "--full")
    session.run("python", "tools/proof/mutated_servers.py")
    session.run("python", "tools/proof/outside.py")
    session.run("python", "tools/proof/transports.py")
    session.run("python", "tools/proof/sweeps.py", "--schedules", "200")
    for kind, programs in (("blocks", 200), ("lifespans", 200), ("calls", 1000)):
        options = session.posargs or ["--programs", str(programs)]
        session.run("python", "tools/proof/replays.py", kind, *options)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure the cost of a call over stdio, HTTP and sockets, beside the official SDKs."""
    install(session, "bench")
    session.run("python", "tools/interop/install.py")
    session.run("python", "tools/bench/stdio.py", *session.posargs)
    session.run("python", "tools/bench/recording_cost.py")
    session.run("python", "tools/bench/stateless_cost.py")
    session.run("python", "tools/bench/token_cost.py")
    session.run("python", "tools/bench/over_http.py", *session.posargs)
    session.run("python", "tools/bench/over_sockets.py", *session.posargs)
    session.run("python", "tools/bench/round_trips.py")
    session.run("python", "tools/bench/curves.py", "--plots", "docs/curves")


@nox.session(default=False)
def interop(session: nox.Session) -> None:
    """Test with the official SDKs in both roles, and compare the proxy and mocks with servers."""
    install(session, "interop")
    session.run("python", "tools/interop/install.py")
    session.run("python", "tools/interop/run.py", *session.posargs)
    session.run("python", "tools/interop/protocol_versions.py")
    session.run("python", "tools/interop/websocket_framing.py")
    session.run("python", "tools/interop/inspector.py")
    session.run("python", "tools/interop/login.py")
    session.run("python", "tools/interop/token_pairs.py")
    session.run("python", "tools/interop/token_pairs.py", "--demo")
    session.run("python", "tools/interop/transparency.py")
    session.run("python", "tools/interop/mocks.py")
    session.run("python", "tools/interop/composed.py")
    session.run("python", "tools/interop/traces.py")


@nox.session(default=False)
def hosts(session: nox.Session) -> None:
    """Let agent frameworks and gateways use our server and a control; print where they differ."""
    install(session, "interop")
    session.run("python", "tools/hosts/run_hosts.py", *session.posargs)


@nox.session(default=False)
def port(session: nox.Session) -> None:
    """Run each row of the port table with FastMCP and with our package, and compare the results.

    Without arguments, also compare public servers with their ports.
    """
    install(session, "interop")
    session.install("-q", "pydantic>=2.11")
    session.run("python", "tools/port/port_table.py", *session.posargs)
    if not session.posargs:
        session.run("python", "tools/port/ported_servers.py")


@nox.session(default=False)
def mounts(session: nox.Session) -> None:
    """Use our server at every mount, or the named ones, and pair protocol versions on the web."""
    install(session, "interop")
    session.run("python", "tools/interop/install.py")
    session.run("python", "tools/interop/mounts.py", *session.posargs)
    for transport in ("http", "websocket") if not session.posargs else ():
        session.run("python", "tools/interop/protocol_versions.py", "--transport", transport)


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """Let pages in a headless Chromium use our servers, or check that they are rejected."""
    install(session)
    session.run("python", "tools/browser/run_browser.py")


@nox.session(default=False)
def hostile(session: nox.Session) -> None:
    """Attack servers at both HTTP hosts, and measure the cost and the delay of other clients."""
    install(session, "test")
    session.run("python", "tools/attacks/run_attacks.py", *session.posargs)
    session.run("python", "tools/attacks/authorization_attacks.py")


@nox.session(default=False)
def redis(session: nox.Session) -> None:
    """Test the stores in Redis with a real one; a minute of instances that are killed; limits.

    Without arguments, the coverage of the stores has to be at least 95 percent. Needs
    redis-server, and the peers of `interop`.
    """
    install(session, "test")
    session.env["COVERAGE_FILE"] = str(Path(session.create_tmp(), "coverage").resolve())
    share_byte_code(session)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-q", "tests/redis", *session.posargs)
    if not session.posargs:
        session.run("coverage", "combine", "--quiet")
        stores = "--include=mcp_trio/_redis/*,mcp_trio/redis.py"
        session.run("coverage", "report", stores, "--omit=none", "--fail-under=95")
        session.run("python", "tools/interop/install.py")
        session.run("python", "tools/interop/instances_failures.py", "--clients", "20")
        session.run("python", "tools/interop/instances_limits.py")


@nox.session(default=False)
def floods(session: nox.Session) -> None:
    """Measure floods of servers, schemas and clients on cores that are idle; `-- --full`: longer.

    Each attack has a quick test, too. The bounds on the delay of other clients hold only where
    nothing else runs, so CI does not measure them.
    """
    install(session)
    session.install("-q", "httpx>=0.28")
    session.run("python", "tools/attacks/fairness.py", *session.posargs)
    session.run("python", "tools/attacks/floods.py", *session.posargs)
    session.run("python", "tools/attacks/schema_attacks.py")
    session.run("python", "tools/attacks/client_attacks.py")


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Fuzz every parser for a minute in all, or as the arguments say: `-- --seconds 36000`.

    Without arguments the inputs are the same each time, so that only a change causes a new finding.
    """
    install(session, "fuzz")
    session.run("python", "tools/fuzz/run_fuzz.py", *(session.posargs or ["--seed", "1"]))
    if not session.posargs:  # faults that are planted, which the fuzzer has to find
        session.run("python", "tools/fuzz/run_fuzz.py", "--planted", "sealed_states")


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Cause faults on sockets, and check how servers and clients handle them."""
    install(session)
    session.run("python", "tools/attacks/run_faults.py", *session.posargs)


@nox.session(default=False)
def conformance(session: nox.Session) -> None:
    """Run the official conformance suite against our server and our client, without exceptions."""
    install(session, "interop")
    session.run("python", "tools/conformance/suite.py", *session.posargs)
    session.run("python", "tools/conformance/suite.py", "--leg=server", "--server=hypercorn")
