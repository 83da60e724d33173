"""The examples, commands, links and tables of the README and the documentation."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import msgspec
import pytest
from documentation_references import on_page_markdown

import mcp_trio.errors
import mcp_trio.limits

ROOT = Path(__file__).parents[2]
PAGES = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
README = "\n\n".join(
    page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *(ROOT / "docs" / page for page in PAGES))
)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
NEWCOMER_COMMANDS = [
    "python3 -m venv .venv && .venv/bin/pip install -q -e . && .venv/bin/mcp-trio demo",
    "python3 -m venv .venv && .venv/bin/pip install -q nox && .venv/bin/nox -s tests",
]

pytestmark = pytest.mark.slow


def run_python(block, folder):
    name = re.match(r"# (\w+\.py)\n", block)[1]
    (folder / name).write_text(block, encoding="utf-8")
    runner = ["-m", "pytest", "-q", "--assert=plain"] if name.startswith("test_") else []
    run([sys.executable, *runner, name], folder)


PROGRAMS = {"mcp-trio": [sys.executable, "-m", "mcp_trio"], "python": [sys.executable]}


def run_console(block, folder):
    for line in block.splitlines():
        words, _, ending = line.removeprefix("$ ").partition("# exits with")
        program, *arguments = words.split()
        run([*PROGRAMS[program], *arguments], folder, status=int(ending or 0))


def run(command, folder, *, status=0):
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
    )
    assert done.returncode == status, (command, done.stdout, done.stderr)


@pytest.mark.timeout(600)  # some sixty processes, one after the other
def test_every_example_runs_in_order(tmp_path):
    runners = {"python": run_python, "console": run_console}
    shown = [(language, block) for language, block in BLOCKS if language in runners]
    assert len(shown) == 88
    for language, block in shown:
        runners[language](block, tmp_path)


def test_every_page_of_the_documentation_is_in_the_navigation():
    there = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert set(PAGES) == there


def test_the_readme_is_short_and_of_normal_width():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    assert [line for line in lines if len(line) > 100] == []


def test_the_readme_has_the_commands_to_try_the_demo_and_run_the_tests():
    assert [block.strip() for language, block in BLOCKS if language == "sh"] == NEWCOMER_COMMANDS


def test_the_command_reference_has_the_help_of_every_command(invoke):
    from mcp_trio._cli.commands import COMMANDS

    page = on_page_markdown((ROOT / "docs/reference/commands.md").read_text(encoding="utf-8"))
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == list(COMMANDS)
    for name in COMMANDS:
        section = page.split(f"### {name}\n")[1].split("```text\n")[1].split("```")[0]
        shown = invoke(name, "--help", prog_name="mcp-trio").output
        assert "".join(section.split()) == "".join(shown.split())


def test_the_api_reference_has_every_public_name():
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: (\S+)$", on_page_markdown(page), re.MULTILINE))
    modules = [f"mcp_trio.{stub.stem}" for stub in Path(mcp_trio.__file__).parent.glob("[!_]*.pyi")]
    assert len(modules) == 10
    for module in ("mcp_trio", *modules):
        names = importlib.import_module(module).__all__
        # The page shows the module of the exceptions; the limits have a page of their own.
        elsewhere = {"__version__", *dir(mcp_trio.errors), *dir(mcp_trio.limits)}
        assert {f"{module}.{name}" for name in names if name not in elsewhere} <= shown
    assert {"mcp_trio.errors", "mcp_trio.types"} <= shown


def test_other_pages_do_not_change_when_they_are_built():
    assert on_page_markdown("# Tutorial\n") == "# Tutorial\n"


def test_the_documentation_lists_every_nox_session():
    noxfile = (Path(__file__).parents[2] / "noxfile.py").read_text(encoding="utf-8")
    sessions = re.findall(r"^@nox\.session.*\ndef (\w+)", noxfile, re.MULTILINE)
    table = README.split("| session | does |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `nox -s (\w+)`", table, re.MULTILINE)) == set(sessions)


def test_the_tools_that_the_documentation_names_exist():
    root = Path(__file__).parents[2]
    named = set(re.findall(r"\btools/[\w/]+\.py", README))
    assert named
    assert {name for name in named if not (root / name).exists()} == set()


def test_the_limits_that_the_documentation_names_exist():
    from mcp_trio.limits import DEFAULT_LIMITS
    from mcp_trio.observers import RequestLog
    from mcp_trio.recording import RecordOptions, RecordPolicy

    kinds = (RecordOptions, RecordPolicy, RequestLog)
    known = {field.name for kind in kinds for field in attrs.fields(kind)}
    # The names of metrics for Prometheus begin with `mcp_`.
    named = set(re.findall(r"`(?!mcp_)(\w+_(?:max|seconds|ms|bytes))\b", README))
    # These are options of servers, calls, verifiers and authorization servers.
    others = {
        *("ttl_seconds", "list_ttl_seconds", "idle_seconds", "total_seconds"),
        *("key_seconds", "grant_seconds", "session_seconds", "cache_seconds"),
    }
    assert named - known == others

    limits = {
        f"limits.{group}.{name}"
        for group, options in msgspec.structs.asdict(DEFAULT_LIMITS).items()
        for name in options.__struct_fields__
    }
    named = set(re.findall(r"`(limits(?:\.\w+)+)", README))
    assert len(named) > 10
    assert named <= limits


def test_the_documentation_lists_every_pytest_fixture():
    from mcp_trio import pytest_plugin

    table = README.split("| fixture | gives |")[1].split("\n\n")[0]
    source = Path(pytest_plugin.__file__).read_text(encoding="utf-8")
    fixtures = re.findall(r"@pytest\.fixture\ndef (\w+)", source)
    assert set(re.findall(r"^\| `(\w+)", table, re.MULTILINE)) == set(fixtures)


def test_every_message_that_is_explained_is_one_of_the_package():
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.+)$", page, re.MULTILINE)
    sources = [each.read_text(encoding="utf-8") for each in (ROOT / "mcp_trio").rglob("*.py")]
    assert len(headings) > 10
    assert [each for each in headings if not any(each in source for source in sources)] == []
