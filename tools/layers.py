"""Hold the floors of the house: `python tools/layers.py [PACKAGE_FOLDER]`.

The floors stand in pyproject.toml, as contracts of import-linter. This script checks them and what
no import graph can see: a folder that is no package, a call from a pure floor to the world outside,
a face that does more than re-export, an import of the top face from below, and circles. It prints
the floors, everything found, and the longest chain of imports; it exits 1 when anything was found.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import grimp
from import_graph import Graph, find_circle, longest_chain, own_files, read_imports
from importlinter.application.use_cases import read_user_options
from importlinter.application.user_options import UserOptions
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

HOME: Final = Path(__file__).resolve().parent.parent
CHAIN_FILES_AIM: Final = 7

FACES: Final = ("__init__", "transports", "recording", "http", "hosts", "testing")
FACE_FUNCTIONS: Final = ("__getattr__", "__dir__")

CALLS_OUTSIDE: Final = (
    "open",
    "print",
    "input",
    "breakpoint",
    "__import__",
    "*datetime.now",
    "*datetime.utcnow",
    "*datetime.today",
    "*date.today",
    "time.*",
    "os.*",
    "random.*",
    "*.read_text",
    "*.read_bytes",
    "*.write_text",
    "*.write_bytes",
)


class Finding(NamedTuple):
    """One break of the rules: where, and what it is."""

    module: str
    line: int
    text: str


class House(NamedTuple):
    """A package and the rules that it is held to."""

    folder: Path
    imports: grimp.ImportGraph
    graph: Graph
    floors: list[list[str]]
    pure: list[str]
    rules: UserOptions

    @property
    def name(self) -> str:
        """The package's name."""
        return self.folder.name

    def room_of(self, module: str) -> str:
        """Return the name of the folder or file, at the top of the package, that holds a module."""
        return module.removeprefix(self.name).lstrip(".").partition(".")[0] or "__init__"

    def files_of(self, rooms: list[str]) -> Iterator[tuple[str, Path]]:
        """Yield module name and path of each file in these rooms."""
        for path in sorted(self.folder.rglob("*.py")):
            parts = path.relative_to(self.folder.parent).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            if self.room_of(module) in rooms:
                yield module, path


def rooms_on(floor: str) -> list[str]:
    """Take a row of the contract apart; the package's own face joins the other faces."""
    rooms = [room.strip(" ()") for room in floor.split("|")]
    return list(FACES) if FACES[1] in rooms else rooms


def open_house(folder: Path) -> House:
    """Read the package's imports and the floors in pyproject.toml."""
    configure()
    rules = read_user_options(str(HOME / "pyproject.toml"))
    contracts = {contract["id"]: contract for contract in rules.contracts_options}
    imports = read_imports(folder)
    return House(
        folder=folder,
        imports=imports,
        graph=own_files(imports, folder.name),
        floors=[rooms_on(floor) for floor in contracts["floors"]["layers"]],
        pure=[room.rpartition(".")[2] for room in contracts["pure"]["source_modules"]],
        rules=rules,
    )


def links_in(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each single import that a contract of either kind reports."""
    for dependency in report.get("invalid_dependencies", ()):
        for route in dependency["routes"]:
            yield from [*route["chain"], *route["extra_firsts"], *route["extra_lasts"]]
    for dependency in report.get("invalid_chains", ()):
        for chain in dependency["chains"]:
            yield from chain


def broken_contracts(house: House) -> Iterator[Finding]:
    """Find imports that go up, sideways, or from a pure floor to the world outside."""
    kinds = {"layers": LayersContract, "forbidden": ForbiddenContract}
    for options in house.rules.contracts_options:
        contract = kinds[options["type"]](options["name"], house.rules.session_options, options)
        report = contract.check(house.imports, verbose=False).metadata
        for link in links_in(report):
            line = link["line_numbers"][0] or 0
            yield Finding(link["importer"], line, f"must not import {link['imported']}")
        for module in sorted(report.get("undeclared_modules", ())):
            yield Finding(module, 0, "stands on no floor; give it one in pyproject.toml")


def unseen_folders(house: House) -> Iterator[Finding]:
    """Find folders that no import graph sees, because they are not packages."""
    for folder in sorted({path.parent for path in house.folder.rglob("*.py")}):
        if not (folder / "__init__.py").exists():
            module = ".".join(folder.relative_to(house.folder.parent).parts)
            yield Finding(module, 0, "has no __init__.py, so nothing can check it")


def imports_of_the_top_face(house: House) -> Iterator[Finding]:
    """Find imports of the package itself from below its roof."""
    roof = [room for floor in house.floors[: house.floors.index(list(FACES))] for room in floor]
    for module, imported in house.graph.items():
        if house.name in imported and house.room_of(module) not in roof:
            details = house.imports.get_import_details(importer=module, imported=house.name)
            yield Finding(module, details[0]["line_number"], f"must not import {house.name} itself")


def calls_outside(house: House) -> Iterator[Finding]:
    """Find calls from a pure floor that reach files, clocks, dice or the terminal."""
    for module, path in house.files_of(house.pure):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if any(fnmatchcase(name, pattern) for pattern in CALLS_OUTSIDE):
                    yield Finding(module, node.lineno, f"must not call {name}() on a pure floor")


def may_stand_in_a_face(statement: ast.stmt) -> bool:
    """Tell whether a statement re-exports: an import, a table, a docstring, the lazy hooks."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Assign() | ast.AnnAssign():
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(isinstance(part, ast.Import | ast.ImportFrom) for part in body)
        case ast.FunctionDef(name=name):
            return name in FACE_FUNCTIONS
        case _:
            return False


def work_in_faces(house: House) -> Iterator[Finding]:
    """Find faces that do more than re-export."""
    for module, path in house.files_of(list(FACES)):
        for statement in ast.parse(path.read_bytes()).body:
            if not may_stand_in_a_face(statement):
                yield Finding(module, statement.lineno, "a face only re-exports")


def circles(house: House) -> Iterator[Finding]:
    """Find a circle of imports, inside one folder or over several."""
    circle = find_circle(house.graph)
    if circle:
        yield Finding(circle[0], 0, "imports in a circle: " + " > ".join(circle))


CHECKS: Final = (
    broken_contracts,
    unseen_folders,
    imports_of_the_top_face,
    calls_outside,
    work_in_faces,
    circles,
)


def print_floors(house: House, findings: list[Finding]) -> None:
    """Print each floor with its rooms and whether anything was found in them."""
    bad_rooms = {house.room_of(finding.module) for finding in findings}
    for rooms in house.floors:
        verdict = "FAIL" if bad_rooms.intersection(rooms) else "PASS"
        names = " | ".join(f"{room} PURE" if room in house.pure else room for room in rooms)
        print(f"  {verdict}  {names}")


def print_longest_chain(house: House) -> None:
    """Print the longest chain of imports and whether it keeps to the aim."""
    chain = longest_chain(house.graph)
    verdict = "within" if len(chain) <= CHAIN_FILES_AIM else "beyond"
    print(f"longest chain of imports: {len(chain)} files, {verdict} the aim of {CHAIN_FILES_AIM}")
    print("  " + " > ".join(name.removeprefix(f"{house.name}.") for name in chain))


def main(arguments: list[str]) -> int:
    """Check one package and print the report; return the exit status."""
    parser = argparse.ArgumentParser(description="Hold the floors of the house.")
    parser.add_argument("package", nargs="?", type=Path, default=HOME / "mcp_trio")
    house = open_house(parser.parse_args(arguments).package)
    findings = sorted({finding for check in CHECKS for finding in check(house)})
    print_floors(house, findings)
    for finding in findings:
        print(f"{finding.module}:{finding.line}: {finding.text}")
    if not find_circle(house.graph):
        print_longest_chain(house)
    print(f"{len(findings)} found" if findings else "the house stands")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
