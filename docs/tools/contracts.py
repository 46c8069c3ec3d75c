"""Count tests of a stage's class by contract: `python -m docs.tools.contracts [FOLDER OF A CHECKOUT]`.

Only `curate.core.recipe`, which checks the wiring, and `curate.engine.units`, with a folder for each contract, may ask
which contract a stage has. Everything else asks the stage or its step.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAY_KNOW = ("curate/core/recipe/", "curate/engine/units/")
CONTRACTS = {
    "Collect", "Source", "Map", "AsyncMap", "Filter", "Derive", "Reduce", "Fit", "Select", "Pack", "Report",
}  # fmt: skip


def class_tests(root: Path = ROOT) -> Iterator[tuple[str, int]]:
    """(file, line) of each `isinstance`, `issubclass`, class pattern or comparison of types that names a contract."""
    for package in ("curate", "distill"):
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if CONTRACTS & set(_tested(node)):
                    yield str(path.relative_to(root)), getattr(node, "lineno", 0)


def _tested(node: ast.AST) -> Iterator[str]:
    """Names of the classes that an expression tests for."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
            yield from _names(classes)
        case ast.MatchClass(cls=cls):
            yield from _names(cls)
        case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=classes):
            for cls in classes:
                yield from _names(cls)


def _names(classes: ast.AST) -> Iterator[str]:
    for node in ast.walk(classes):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = list(class_tests(root))
    outside = [place for place in found if not place[0].startswith(MAY_KNOW)]
    for file, line in outside:
        sys.stdout.write(f"{file}:{line}\n")
    files = len({file for file, _ in outside})
    words = (
        f"{len(outside)} tests of a contract's class in {files} files; {len(found) - len(outside)} where they belong"
    )
    sys.stdout.write(f"{words}\n")


if __name__ == "__main__":
    main()
