"""`mcp-trio new`: create a project with a server, its tests, and a recording that they replay."""

import importlib.util
import keyword
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from mcp_trio._version import __version__

# The arguments of a first call, by template. A template is a folder of this name in `templates`.
# Each also gets the files in `shared`; its own file of the same name is appended to a shared one.
FIRST_CALLS: Final[Mapping[str, str]] = {
    "minimal": "greet name=Ada",
    "http": "add_note text=Hello",
    "full": """add_books author=Austen 'titles=["Emma"]'""",
}

TEMPLATES: Final = Path(__file__).with_name("templates")
TEMPLATE_PACKAGE: Final = "my_server"

# https://packaging.python.org/en/latest/specifications/name-normalization/
_DISTRIBUTION_NAME: Final = re.compile(r"[A-Z0-9]|[A-Z0-9][A-Z0-9._-]*[A-Z0-9]", re.IGNORECASE)
_SEPARATORS: Final = re.compile(r"[-_.]+")


@click.command(
    short_help="Create a project.",
    epilog="""\b
The project has pyproject.toml, a package with the server, tests, a README and record.py, which
records the session that the tests replay. The command runs it once, so the tests pass at once.

\b
  minimal  one tool, over stdio
  http     a tool, a resource and a lifespan, over HTTP
  full     tools with progress and elicitation, a resource template, a prompt, and a SQLite
           database that is used through effects, over stdio

\b
NAME is the name of the distribution, such as my-server or weather. The folder has this name, and
the package its normalized form: my_server for My-Server.

\b
Exit status: 0 success; 1 the project cannot be written, or its session cannot be recorded; 2 NAME
is not a valid name, or the folder exists and is not empty.

\b
Examples:
  mcp-trio new my-server
  mcp-trio new weather --template full --into ~/projects
""",
)
@click.argument("name")
@click.option(
    "--template",
    type=click.Choice(list(FIRST_CALLS)),
    default="minimal",
    show_default=True,
    help="The template of the project, as described below.",
)
@click.option(
    "--into",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Create the project's folder in this folder; the working directory by default.",
)
def new_command(name: str, template: str, into: Path) -> None:
    """Create the folder NAME with a server, and tests that replay a recorded session of it."""
    package = package_name(name)
    folder = into / name
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise click.UsageError(
            f"{folder} exists and is not an empty folder: choose another NAME or --into DIR"
        )
    try:
        into.mkdir(parents=True, exist_ok=True)
        # The project moves to its place when it is complete.
        with tempfile.TemporaryDirectory(dir=into, prefix=".mcp-trio-new-") as temporary:
            project = Path(temporary) / name
            write_project(project, template, package)
            # -B and the variable: no byte code is left in the project.
            done = subprocess.run(
                [sys.executable, "-B", "record.py"],
                check=False,
                cwd=project,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise click.ClickException(
                    "nothing was created, because record.py of the new project failed:\n"
                    f"{done.stderr}"
                )
            project.rename(folder)
    except OSError as error:
        raise click.ClickException(f"cannot create {folder}: {error.strerror}") from error
    click.echo(
        f"created {folder} from the template {template}, with a recorded session\n\nnext:\n"
        f"  cd {shlex.quote(str(folder))}\n"
        "  python -m pytest\n"
        f"  mcp-trio call {package}.server {FIRST_CALLS[template]}"
    )


def package_name(name: str) -> str:
    """Return the name of the package for a distribution: `my_server` for `My-Server`."""
    if not _DISTRIBUTION_NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} is not a valid name for a distribution: write ASCII letters, digits, '-',"
            " '_' and '.', with a letter or digit at both ends, such as my-server"
        )
    package = _SEPARATORS.sub("_", name).lower()
    if keyword.iskeyword(package) or not package.isidentifier():
        raise click.UsageError(
            f"the package of {name!r} cannot be named {package}: write a NAME that begins with a"
            " letter and is not a keyword of Python, such as my-server"
        )
    spec = importlib.util.find_spec(package)
    # A folder without modules, such as an empty one of this name, has no origin.
    if package == "tests" or (spec is not None and spec.origin is not None):
        raise click.UsageError(
            f"the package of {name!r} would hide another one named {package}: write another NAME,"
            f" such as {_SEPARATORS.sub('-', package)}-server"
        )
    return package


def write_project(project: Path, template: str, package: str) -> None:
    """Write the files of a template to the new folder `project`, with the name of the package."""
    description = (TEMPLATES / template / TEMPLATE_PACKAGE / "__init__.py").read_text("utf-8")
    replacements = {
        "DESCRIPTION": description.strip().strip('"'),
        TEMPLATE_PACKAGE: package,
        "my-server": package.replace("_", "-"),
        "mcp-trio>=0.0.0": f"mcp-trio>={__version__}",
    }
    folders = (TEMPLATES / "shared", TEMPLATES / template)
    for source, file in ((folder, file) for folder in folders for file in folder.rglob("*")):
        # An installed package has byte code.
        if file.is_dir() or "__pycache__" in file.parts:
            continue
        text = file.read_text(encoding="utf-8")
        for old, new in replacements.items():
            text = text.replace(old, new)
        target = project / str(file.relative_to(source)).replace(TEMPLATE_PACKAGE, package)
        if file.name.startswith("git"):  # in this repository, Git would use a file .gitignore
            target = target.with_name(f".{file.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a", encoding="utf-8") as opened:  # a template adds to a shared file
            opened.write(text)
