"""Check the imports of the package: `python tools/layers.py [PACKAGE_FOLDER]`.

The layers, and the packages that have to stay pure, are contracts of import-linter in
pyproject.toml. This script checks them, and what import-linter cannot see: folders without
`__init__.py`, calls of a pure package to files or clocks, code in modules that only re-export,
imports of `mcp_trio` itself from inside the package, and import cycles. It prints each layer, each
finding and the longest chain of imports, and exits with 1 if there is a finding.

Imports inside functions count like others. Imports for type checkers count between packages; inside
one package they may form a cycle, because the alternative is a `Protocol` with one implementation.
"""

import argparse
import ast
import graphlib
import importlib
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import grimp
from importlinter.application.use_cases import read_user_options
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

REPOSITORY: Final = Path(__file__).resolve().parent.parent

REEXPORTING: Final = (
    "__init__",
    "transports",
    "auth",
    "recording",
    "http",
    "auth",
    "hosts",
    "middleware",
    "observers",
    "tools",
    "redis",
    "testing",
)
TEMPLATES: Final = "_cli/templates"  # projects that `mcp-trio new` copies, no modules
LAZY_IMPORT_HOOKS: Final = ("__getattr__", "__dir__")

IMPURE_CALLS: Final = (
    *("open", "print", "input", "breakpoint", "__import__"),
    *("*datetime.now", "*datetime.utcnow", "*datetime.today", "*date.today"),
    *("time.*", "os.*", "random.*"),
    *("*.read_text", "*.read_bytes", "*.write_text", "*.write_bytes"),
)


class Finding(NamedTuple):
    """A broken rule: the module, the line (0 if it concerns the whole module), and the problem."""

    module: str
    line: int
    text: str


class Layers:
    """A package folder with its imports and the contracts that it has to keep."""

    def __init__(self, folder: Path) -> None:
        """Read the imports without running the package, and the contracts in pyproject.toml."""
        sys.path.insert(0, str(folder.parent.resolve()))
        importlib.invalidate_caches()
        configure()
        self.folder = folder
        self.name = folder.name
        self.options = read_user_options(str(REPOSITORY / "pyproject.toml"))
        contracts = {contract["id"]: contract for contract in self.options.contracts_options}
        self.pure = [name.rpartition(".")[2] for name in contracts["pure"]["source_modules"]]
        self.layers = [self._packages_of(row) for row in contracts["layers"]["layers"]]
        self.imports = grimp.build_graph(self.name, include_external_packages=True, cache_dir=None)
        at_run_time = grimp.build_graph(
            self.name, exclude_type_checking_imports=True, cache_dir=None
        )
        self.run_time_imports = {
            name: frozenset(at_run_time.find_modules_directly_imported_by(name))
            for name in sorted(at_run_time.modules)
        }

    @staticmethod
    def _packages_of(row: str) -> list[str]:
        names = [name.strip(" ()") for name in row.split("|")]
        return list(REEXPORTING) if REEXPORTING[1] in names else names

    def package_of(self, module: str) -> str:
        """Return the name, directly below the top level, of the package or module with `module`."""
        return module.removeprefix(self.name).lstrip(".").partition(".")[0] or "__init__"

    def modules_of(self, packages: list[str]) -> Iterator[tuple[str, ast.Module]]:
        """Yield name and syntax tree of each module of these packages."""
        for path in self._source_files():
            parts = path.relative_to(self.folder.parent).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            if self.package_of(module) in packages:
                yield module, ast.parse(path.read_bytes())

    def findings(self) -> list[Finding]:
        """Return every finding, sorted by module and line."""
        checks = (
            self.broken_contracts,
            self.folders_without_init,
            self.imports_of_the_top_level,
            self.impure_calls,
            self.code_in_reexporting_modules,
            self.cycles,
        )
        return sorted({finding for check in checks for finding in check()})

    def broken_contracts(self) -> Iterator[Finding]:
        """Find imports that point up or sideways, or from a pure package to an impure module."""
        kinds = {"layers": LayersContract, "forbidden": ForbiddenContract}
        for options in self.options.contracts_options:
            contract = kinds[options["type"]](
                options["name"], self.options.session_options, options
            )
            report = contract.check(self.imports, verbose=False).metadata
            links = [
                link
                for dependency in report.get("invalid_dependencies", ())
                for route in dependency["routes"]
                for link in (*route["chain"], *route["extra_firsts"], *route["extra_lasts"])
            ]
            for dependency in report.get("invalid_chains", ()):
                links += [link for chain in dependency["chains"] for link in chain]
            for link in links:
                line = link["line_numbers"][0] or 0
                yield Finding(link["importer"], line, f"must not import {link['imported']}")
            for module in sorted(report.get("undeclared_modules", ())):
                yield Finding(module, 0, "is in no layer; add it to a layer in pyproject.toml")

    def _source_files(self) -> list[Path]:
        templates = self.folder / TEMPLATES
        files = self.folder.rglob("*.py")
        return sorted(file for file in files if not file.is_relative_to(templates))

    def folders_without_init(self) -> Iterator[Finding]:
        """Find folders that are no packages, so that no import of theirs is seen."""
        for folder in sorted({path.parent for path in self._source_files()}):
            if not (folder / "__init__.py").exists():
                module = ".".join(folder.relative_to(self.folder.parent).parts)
                yield Finding(module, 0, "has no __init__.py, so its imports cannot be checked")

    def imports_of_the_top_level(self) -> Iterator[Finding]:
        """Find imports of `mcp_trio` itself from a layer below the modules that re-export."""
        above = self.layers[: self.layers.index(list(REEXPORTING))]
        allowed = [package for packages in above for package in packages]
        for module in sorted(self.imports.find_modules_that_directly_import(self.name)):
            if self.package_of(module) not in allowed:
                details = self.imports.get_import_details(importer=module, imported=self.name)
                yield Finding(module, details[0]["line_number"], f"must not import {self.name}")

    def impure_calls(self) -> Iterator[Finding]:
        """Find calls in a pure package that reach files, clocks, random numbers or the terminal."""
        for module, tree in self.modules_of(self.pure):
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    if any(fnmatchcase(name, pattern) for pattern in IMPURE_CALLS):
                        text = f"must not call {name}() in a pure package"
                        yield Finding(module, node.lineno, text)

    def code_in_reexporting_modules(self) -> Iterator[Finding]:
        """Find statements other than imports, tables and docstrings in modules that re-export."""

        def reexports(statement: ast.stmt) -> bool:
            match statement:
                case ast.Import() | ast.ImportFrom() | ast.Assign() | ast.AnnAssign():
                    return True
                case ast.Expr(value=ast.Constant(value=str())):
                    return True
                case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
                    return all(isinstance(part, ast.Import | ast.ImportFrom) for part in body)
                case ast.FunctionDef(name=name):
                    return name in LAZY_IMPORT_HOOKS
                case _:
                    return False

        for module, tree in self.modules_of(list(REEXPORTING)):
            for statement in tree.body:
                if not reexports(statement):
                    yield Finding(module, statement.lineno, "this module may only re-export")

    def cycles(self) -> Iterator[Finding]:
        """Find one cycle of run-time imports, inside one package or across several."""
        try:
            graphlib.TopologicalSorter(self.run_time_imports).prepare()
        except graphlib.CycleError as error:
            cycle = error.args[1]
            yield Finding(cycle[0], 0, "import cycle: " + " > ".join(cycle))

    def longest_chain(self) -> list[str]:
        """Return the longest chain of run-time imports, `__init__` modules not counted.

        The imports must have no cycle.
        """
        packages = {name.rpartition(".")[0] for name in self.run_time_imports}

        @cache
        def chain_from(name: str) -> tuple[str, ...]:
            chains = [chain_from(other) for other in sorted(self.run_time_imports[name])]
            below = max(chains, key=len, default=())
            return below if name in packages else (name, *below)

        longest: tuple[str, ...] = ()
        for name in self.run_time_imports:
            longest = max(longest, chain_from(name), key=len)
        return list(longest)


def main(arguments: list[str]) -> int:
    """Check one package and print the report; return the exit status."""
    parser = argparse.ArgumentParser(description="Check the imports of the package.")
    parser.add_argument("package", nargs="?", type=Path, default=REPOSITORY / "mcp_trio")
    package = Layers(parser.parse_args(arguments).package)
    findings = package.findings()
    broken = {package.package_of(finding.module) for finding in findings}
    for row in package.layers:
        names = " | ".join(f"{name} PURE" if name in package.pure else name for name in row)
        print(f"  {'FAIL' if broken.intersection(row) else 'PASS'}  {names}")
    for finding in findings:
        print(f"{finding.module}:{finding.line}: {finding.text}")
    if not any(finding.text.startswith("import cycle") for finding in findings):
        chain = [name.removeprefix(f"{package.name}.") for name in package.longest_chain()]
        print(f"longest chain of imports: {len(chain)} modules")
        print("  " + " > ".join(chain))
    print(f"{len(findings)} found" if findings else "all layers hold")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
