"""Install the pinned peers, unless they are installed: `python tools/interop/install.py`.

Python packages are installed into environments under `.nox/peers`, npm packages beside their
package.json.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from peers import (
    ENVIRONMENTS,
    HOME,
    INSPECTOR,
    NODE,
    PEERS,
    PYTHON_1,
    PYTHON_2,
    PYTHON_OTEL,
    PYTHON_SERVERS,
    PYTHON_WEB,
    TYPESCRIPT,
    Command,
    Environment,
    NodeEnvironment,
    PythonEnvironment,
    is_installed,
    node_path,
)

AT_ONCE: Final = 3


def install_python(environment: PythonEnvironment) -> None:
    """Make a virtual environment, with uv where it is installed, or else with pip."""
    venv.create(environment.folder, clear=True, symlinks=True)
    python = environment.python
    if uv := shutil.which("uv"):
        install = [uv, "pip", "install", "--python", python, "--compile-bytecode"]
    else:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "--python", python, "install"]
    ours = ["--editable", str(HOME)] if environment.has_us else []
    run([*install, "--quiet", *environment.requirements(), *ours])


def install_npm(environment: NodeEnvironment) -> None:
    """Install what package-lock.json pins, without running scripts of packages."""
    ensure(environment.node)
    # The wheel's `bin/npm` is a copy of a link, and looks for its files in the wrong place.
    npm = environment.bin().parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    prefix = ["--prefix", str(environment.folder)]
    run([str(environment.bin() / "node"), str(npm), *prefix, "ci", *options])


def ensure(environment: Environment) -> None:
    """Install an environment unless it is up to date; a lock keeps other processes out."""
    if is_installed(environment):
        return
    begin = time.monotonic()
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{environment.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed(environment):
            return
        if isinstance(environment, PythonEnvironment):
            install_python(environment)
        else:
            install_npm(environment)
        environment.stamp.write_text(environment.fingerprint(), encoding="utf-8")
    print(f"{environment.name}: installed in {time.monotonic() - begin:.0f} s", flush=True)


def run(command: Command) -> None:
    """Run a command, and exit with its output if it fails."""
    environment = {**os.environ, "PATH": node_path()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


# Environments of the second stage need the first. Slow installations come first.
STAGES: Final[Sequence[Sequence[Environment]]] = (
    (NODE, PYTHON_SERVERS),
    (INSPECTOR, TYPESCRIPT, PYTHON_WEB, PYTHON_2, PYTHON_1, PYTHON_OTEL),
)


def main() -> None:
    for environments in STAGES:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(ensure, environments))
    for peer in PEERS.values():
        print(f"{peer.name}: {peer.package} {peer.version}")


if __name__ == "__main__":
    main()
