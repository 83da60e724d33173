"""`mcp-trio new`: a project of each template, whose tests pass, and names that are rejected."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest

from mcp_trio import __version__
from mcp_trio._cli import new
from mcp_trio.recording import open_recording, read_recording

EVERY_TEMPLATE = [
    "minimal",
    pytest.param("http", marks=pytest.mark.slow),
    pytest.param("full", marks=pytest.mark.slow),
]


@pytest.fixture
def create(invoke, tmp_path):
    """Create a project in `tmp_path`; returns its folder."""

    def create(name, template="minimal"):
        shown = invoke("new", name, "--template", template, "--into", tmp_path)
        assert shown.exit_code == 0, shown.output
        return tmp_path / name

    return create


def run_tests(project):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        check=False,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
    )


def files_of(project):
    return sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file())


@pytest.mark.parametrize("template", EVERY_TEMPLATE)
def test_the_tests_of_a_new_project_pass_and_its_server_is_called(create, mcp_trio, template):
    project = create("My-Weather", template)
    files = files_of(project)
    done = run_tests(project)
    assert done.returncode == 0, done.stdout
    assert "warning" not in done.stdout
    called = mcp_trio(
        "call", "my_weather.server", *shlex.split(new.FIRST_CALLS[template]), cwd=project
    )
    assert (called.returncode, called.stderr) == (0, "")
    assert called.stdout
    read = {name: (project / name).read_text(encoding="utf-8") for name in files}
    assert [name for name, text in read.items() if "my_server" in text or "my-server" in text] == []


@pytest.mark.parametrize("template", EVERY_TEMPLATE)
def test_the_recording_is_one_of_the_installed_version(create, template):
    file = create("weather", template) / "tests" / "session.mcprec.jsonl"
    opened, *_, end = read_recording(open_recording(file))
    assert f'"writer":"mcp_trio/{__version__} '.encode() in bytes(opened.body)
    assert b'"name":"weather"' in bytes(opened.body)
    assert end.kind == "end"


def test_a_change_of_the_server_fails_the_replay_until_record_py_has_run(create):
    project = create("weather")
    server = project / "weather" / "server.py"
    server.write_text(server.read_text().replace("It is", "Now it is"))
    done = run_tests(project)
    assert "1 failed, 1 passed" in done.stdout
    assert "replay diverged" in done.stdout
    subprocess.run([sys.executable, "record.py"], check=True, cwd=project, timeout=30)
    assert "2 passed" in run_tests(project).stdout


def test_the_name_is_normalized_in_the_package_and_the_project_file(create):
    project = create("My-Own.Gitignore")
    assert files_of(project) == [
        ".gitattributes",
        ".gitignore",
        "README.md",
        "my_own_gitignore/__init__.py",
        "my_own_gitignore/server.py",
        "pyproject.toml",
        "record.py",
        "tests/session.mcprec.jsonl",
        "tests/test_server.py",
    ]
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert table["description"] == "An MCP server with one tool."
    assert table["name"] == "my-own-gitignore"
    assert table["scripts"] == {"my-own-gitignore": "my_own_gitignore.server:main"}
    assert f"mcp-trio>={__version__}" in table["dependencies"]


def test_files_that_a_server_writes_are_ignored_besides_those_of_every_template(tmp_path):
    for template, file in [("minimal", ""), ("http", "/notes.jsonl"), ("full", "/books.db")]:
        new.write_project(tmp_path / template, template, "weather")
        lines = (tmp_path / template / ".gitignore").read_text().splitlines()
        assert "__pycache__/" in lines
        assert not file or lines[-1] == file


def test_git_keeps_the_ends_of_lines_of_recordings(tmp_path):
    new.write_project(tmp_path / "weather", "minimal", "weather")
    lines = (tmp_path / "weather" / ".gitattributes").read_text().splitlines()
    assert "*.mcprec.jsonl -text" in lines


@pytest.mark.parametrize("template", new.FIRST_CALLS)
def test_the_readme_has_the_sections_of_every_template_and_those_of_its_own(tmp_path, template):
    new.write_project(tmp_path / "weather", template, "weather")
    text = (tmp_path / "weather" / "README.md").read_text()
    assert text.startswith("# weather\n\nAn MCP server ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        *("Install", "Test", "Run", "Record", "Install into a host")
    ]
    assert new.FIRST_CALLS[template].split()[0] in text


def test_the_next_commands_are_printed(invoke, tmp_path):
    folder = tmp_path / "new folder"
    shown = invoke("new", "weather", "--into", folder)
    assert shown.stdout.splitlines()[-3:] == [
        f"  cd '{folder}/weather'",
        "  python -m pytest",
        "  mcp-trio call weather.server greet name=Ada",
    ]


def test_an_empty_folder_is_filled_and_another_one_is_not_touched(invoke, create, tmp_path):
    (tmp_path / "weather").mkdir()
    project = create("weather")
    (project / "README.md").write_text("mine")
    before = files_of(tmp_path)
    shown = invoke("new", "weather", "--into", tmp_path)
    assert shown.exit_code == 2
    assert "weather exists and is not an empty folder: choose another NAME" in shown.stderr
    assert files_of(tmp_path) == before
    assert (project / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "'' is not a valid name"),
        ("a/b", "write ASCII letters, digits, '-', '_' and '.', with a letter or digit at both"),
        ("weather-", "'weather-' is not a valid name"),
        ("wetter-für-alle", "is not a valid name"),
        ("3d-server", "cannot be named 3d_server: write a NAME that begins with a letter"),
        ("class", "is not a keyword of Python"),
        ("json", "would hide another one named json: write another NAME, such as json-server"),
        ("MCP_trio", "would hide another one named mcp_trio"),
        ("tests", "would hide another one named tests"),
    ],
)
def test_a_name_that_cannot_be_used_is_rejected_in_one_line(invoke, tmp_path, name, text):
    shown = invoke("new", "--into", tmp_path, "--", name)
    assert shown.exit_code == 2
    assert text in shown.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(invoke, tmp_path):
    (tmp_path / "file").touch()
    shown = invoke("new", "weather", "--into", tmp_path / "file" / "below")
    assert shown.exit_code == 1
    assert shown.stderr.endswith("below/weather: Not a directory\n")
    assert shown.stderr.count("\n") == 1


def test_nothing_is_left_behind_if_the_session_cannot_be_recorded(invoke, tmp_path, monkeypatch):
    templates, into = tmp_path / "templates", tmp_path / "into"
    shutil.copytree(new.TEMPLATES, templates)
    (templates / "minimal" / "record.py").write_text("raise SystemExit('no session')")
    monkeypatch.setattr(new, "TEMPLATES", templates)
    shown = invoke("new", "weather", "--into", into)
    assert shown.exit_code == 1
    assert "record.py of the new project failed:\nno session" in shown.stderr
    assert list(into.iterdir()) == []


def test_every_template_has_a_first_call():
    folders = {path.name for path in new.TEMPLATES.iterdir() if path.is_dir()}
    assert folders == {"shared", *new.FIRST_CALLS}
