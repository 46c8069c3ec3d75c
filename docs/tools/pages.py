"""Write the pages that `make docs` turns into a site: `python -m docs.tools.pages FOLDER`.

The pages are docs/, the reference, the architecture diagram, and every file of the repository that they link to. A link
to a missing file is an error; zensical checks links between pages and their anchors.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

import yaml

from docs.tools import architecture, reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[)#])")
"""The target of a Markdown link to another file."""
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"
OTHERS = {
    "reference/training-recipe.md": "Training recipe",
    "reference/curate.md": "Command curate",
    "reference/curate-service.md": "Command curate service",
    "reference/distill.md": "Command distill",
}
"""Pages of the reference other than ops, and their titles in the menu."""
STYLE = ".md-grid { max-width: 80rem }\n.md-typeset table code { word-break: normal }\n"
"""Room for lines of 120 characters; names in tables are not broken within a word."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", "": "text"}


def build(out: Path) -> None:
    """mkdocs.yml and the folder `pages` below `out`."""
    shutil.rmtree(out, ignore_errors=True)
    pages = out / "pages"
    made = reference.pages()
    for path, text in made.items():
        write(pages / path, text)
    write(pages / "architecture.svg", architecture.svg())
    write(pages / "site.css", STYLE)
    known = {DOCS / path for path in (*made, "architecture.svg")}
    waiting = sorted(DOCS.rglob("*.md"))
    done = set(waiting)
    while waiting:
        file = waiting.pop()
        if file.suffix in (".png", ".svg"):
            write(pages / page(file), file.read_bytes())
            continue
        linked = links(file) - known if file.suffix == ".md" else set()
        if broken := [str(path.relative_to(ROOT)) for path in linked if not path.exists()]:
            raise SystemExit(f"{file.relative_to(ROOT)} links to {', '.join(broken)}, which does not exist; correct it")
        write(pages / page(file), shown(file))
        waiting += linked - done
        done |= linked
    write(out / "mkdocs.yml", config(list(made)))


def page(path: Path) -> Path:
    """The page of the site for a file of the repository."""
    plain = path.suffix in (".md", ".png", ".svg")
    if plain and path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    return Path("source", f"{path.relative_to(ROOT)}{'' if plain else '.md'}")


def target(link: str, file: Path) -> Path:
    return Path(os.path.normpath(file.parent / link))


def links(file: Path) -> set[Path]:
    """The files that a Markdown file links to."""
    return {target(link, file) for link in LINK.findall(file.read_text())}


def shown(path: Path) -> str:
    """The page for a path: Markdown with its links rewritten, any other file as code, a folder as a list of names."""
    if path.suffix == ".md":
        here = page(path).parent
        return LINK.sub(lambda link: os.path.relpath(page(target(link[1], path)), here), path.read_text())
    title = f"{HIDDEN}# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        names = sorted(f"{item.name}/" if item.is_dir() else item.name for item in path.iterdir())
        return title + "\n".join(f"- `{name}`" for name in names if not name.startswith(("__", ".")))
    return f"{title}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def config(made: list[str]) -> str:
    """docs/mkdocs.yml with the reference added to its menu, which must list every page of docs/."""
    text = (DOCS / "mkdocs.yml").read_text()
    names = (str(file.relative_to(DOCS)) for file in sorted(DOCS.rglob("*.md")))
    if missing := [name for name in names if f": {name}\n" not in text]:
        raise SystemExit(f"docs/mkdocs.yml: nav lacks {', '.join(missing)}; add a line for each")
    ops = [{Path(path).stem: path} for path in made if path.startswith("reference/ops/")]
    rest = [{OTHERS[path]: path} for path in made if not path.startswith("reference/ops/")]
    return text + textwrap.indent(yaml.safe_dump([{"Reference": [{"Ops": ops}, *rest]}]), "  ")


def write(file: Path, content: str | bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
