"""Run tests on the newer versions of Python: `python tools/pythons.py -- PYTEST_ARGUMENT …`.

`nox -s pythons` runs the tests of `nox -s quick`. Each version gets an environment of its own with
the package and the group `test`.

An interpreter is looked for on PATH and among those of pyenv. If there is none, it is installed by
uv, or else, on Debian, from the packages of Debian's testing release. These are unpacked into a
folder, together with the C library that they need, so that the system stays as it is.

A version that is not found is reported at the end, on a line that begins with NOT TESTED, and
counts as a failure unless `--may-miss` is given.
"""

import argparse
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSIONS: Final = ("3.12", "3.13", "3.14")
INSTALL_SECONDS: Final = 300

_VERSION: Final = "import platform; print(platform.python_version(), end='')"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"


class NotFoundError(Exception):
    """No interpreter can be found or installed; the text says why."""


def output_of(*command: str | Path, cwd: Path | None = None) -> str:
    """Return what a command prints.

    Raises:
        NotFoundError: The command is missing, fails, or takes too long; the text has its last line.
    """
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFoundError(str(error)) from None
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise NotFoundError(f"{command[0]}: {reason.strip()}")
    return done.stdout


def full_version(python: Path, version: str) -> str:
    """Return "3.13.0" for a `python` of version "3.13".

    Raises:
        NotFoundError: The interpreter does not start, or has another version.
    """
    found = output_of(python, "-c", _VERSION)
    if not found.startswith(f"{version}."):
        raise NotFoundError(f"{python} is Python {found}")
    return found


def installed_here(version: str) -> Path:
    """Return the interpreter on PATH, or the newest of pyenv.

    Raises:
        NotFoundError: There is none that starts.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    candidates = [
        *([Path(on_path)] if on_path else []),
        *sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True),
    ]
    for python in candidates:
        try:
            full_version(python, version)
        except NotFoundError:  # a shim of pyenv for a version that is not chosen
            continue
        return python
    raise NotFoundError(f"no python{version} on PATH or in {pyenv}")


def installed_by_uv(version: str) -> Path:
    """Install an interpreter by uv; raise `NotFoundError` if that fails."""
    output_of("uv", "python", "install", "--quiet", version)
    return Path(output_of("uv", "python", "find", "--managed-python", version).strip())


def unpacked_from_debian(version: str, folder: Path) -> Path:
    """Unpack the packages of Debian's testing release; raise `NotFoundError` if that fails."""
    root = folder / f"debian-{version}"
    python = root / f"usr/bin/python{version}"
    try:
        full_version(python, version)
    except NotFoundError:  # It is not there, or an earlier attempt has failed half-way.
        pass
    else:
        return python
    shutil.rmtree(root, ignore_errors=True)
    apt = root / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    archive = output_of(
        *("apt-get", "indextargets", "--format", "$(REPO_URI)"),
        *("Created-By: Packages", "Label: Debian"),
    ).split()
    if not archive:
        raise NotFoundError("apt-get knows no archive of Debian")
    (apt / "sources.list").write_text(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        f" {archive[0]} testing main\n"
    )
    # As nothing counts as installed, the packages come with everything that they need.
    (apt / "status").touch()
    options = (
        *("-q", "-y", "-o", f"Dir::Etc::sourcelist={apt / 'sources.list'}"),
        *("-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::State::status={apt / 'status'}"),
        *("-o", f"Dir::State::lists={apt / 'lists'}", "-o", f"Dir::Cache={apt}"),
        *("-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root"),
    )
    output_of("apt-get", *options, "update")
    output_of("apt-get", *options, "install", "--download-only", f"python{version}")
    for package in sorted((apt / "archives").glob("*.deb")):
        output_of("dpkg-deb", "--extract", package, root)
    libraries = root / _LIBRARIES
    output_of(
        *("patchelf", "--set-interpreter", libraries / "ld-linux-x86-64.so.2"),
        *("--force-rpath", "--set-rpath", libraries, python),
    )
    shutil.rmtree(apt)
    return python


def find(version: str, folder: Path) -> Path:
    """Return an interpreter of a version, installed into `folder` if need be.

    Raises:
        NotFoundError: There is none; the text has the reason of each attempt.
    """
    reasons: list[str] = []
    for attempt in (
        installed_here,
        installed_by_uv,
        functools.partial(unpacked_from_debian, folder=folder),
    ):
        try:
            return attempt(version)
        except NotFoundError as error:
            reasons.append(str(error))
    raise NotFoundError("; ".join(reasons))


def run_tests(python: Path, folder: Path, arguments: Sequence[str]) -> str | None:
    """Run pytest in an environment of `python`; return its closing line, None if tests failed."""
    environment = folder / "environment"
    output_of("uv", "venv", "--quiet", "--clear", "--python", python, environment)
    executable = environment / "bin" / "python"
    output_of(
        *("uv", "pip", "install", "--quiet", "--python", executable, "--editable", "."),
        *("--group", "test"),
        cwd=ROOT,
    )
    variables = {
        **os.environ,
        "PATH": f"{executable.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(environment),
        "MCP_TRIO_EXAMPLES": "quick",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [str(executable), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    return (
        None if done.returncode else re.sub(r"^=+ | =+$", "", done.stdout.strip().split("\n")[-1])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--may-miss", action="store_true", help="a missing version is no failure")
    parser.add_argument("--folder", type=Path, default=ROOT / ".nox" / "pythons" / "tmp")
    parser.add_argument("arguments", nargs="+", metavar="PYTEST_ARGUMENT")
    options = parser.parse_args()
    folder = options.folder.resolve()
    lines: list[str] = []
    failed = missing = 0
    for version in options.versions:
        try:
            python = find(version, folder)
            name = full_version(python, version)
            print(f"== Python {name}: {shlex.join(options.arguments)}", flush=True)
            result = run_tests(python, folder / version, options.arguments)
        except NotFoundError as error:
            missing += 1
            lines.append(f"NOT TESTED on Python {version}: {error}")
            continue
        failed += result is None
        lines.append(f"Python {name}: {result or 'tests FAILED'}")
    print("\n".join(lines), flush=True)
    return 1 if failed or (missing and not options.may_miss) else 0


if __name__ == "__main__":
    sys.exit(main())
