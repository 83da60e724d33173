"""Who imports whom inside a package, file by file: any circle, and the longest chain.

In-function imports and imports for type checkers count like all others.
"""

import graphlib
import importlib
import sys
from functools import cache
from pathlib import Path
from typing import TypeAlias

import grimp

Graph: TypeAlias = dict[str, frozenset[str]]


def read_imports(package: Path) -> grimp.ImportGraph:
    """Read every import of the package in this folder, those of foreign packages included.

    The folder's parent goes to the front of the import path; nothing of the package is run.
    """
    sys.path.insert(0, str(package.parent.resolve()))
    importlib.invalidate_caches()
    return grimp.build_graph(package.name, include_external_packages=True, cache_dir=None)


def own_files(imports: grimp.ImportGraph, root: str) -> Graph:
    """Keep only the package's own modules, each with those that it imports."""
    own = {name for name in imports.modules if name == root or name.startswith(f"{root}.")}
    return {
        name: frozenset(imports.find_modules_directly_imported_by(name) & own)
        for name in sorted(own)
    }


def find_circle(graph: Graph) -> list[str]:
    """Return the modules of one circle, the first again at the end; empty when there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        return list(circle.args[1])
    return []


def longest_chain(graph: Graph) -> list[str]:
    """Return the longest chain of imports, from the roof to the ground.

    The faces of packages (`__init__`) are walked through but not counted. The graph has no circle.
    """
    faces = {name.rpartition(".")[0] for name in graph}

    @cache
    def chain_from(name: str) -> tuple[str, ...]:
        below = max((chain_from(other) for other in sorted(graph[name])), key=len, default=())
        return below if name in faces else (name, *below)

    longest = max((chain_from(name) for name in graph), key=len)
    return list(longest)
