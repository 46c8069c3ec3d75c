"""The site of `make docs`: a complete reference, a diagram that follows the imports, links that are checked."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import networkx as nx
import pytest

from curate.api import ops
from distill.recipe import Recipe
from docs.tools import architecture, pages, reference


@pytest.mark.long
def test_every_op_is_in_the_reference_with_its_parameters() -> None:
    made = reference.pages()
    for about in ops():
        page = made[f"reference/ops/{about.name.partition('.')[0]}.md"]
        section = page.partition(f"\n## {about.name}\n")[2].partition("\n## ")[0]
        assert section, about.name
        for part in about.parameters:
            assert f"| `{part.name}` |" in section, (about.name, part.name)


def test_every_section_of_a_training_recipe_is_in_the_reference() -> None:
    page = reference.training_recipe()
    for place, section in reference.sections(Recipe, ""):
        shown = page.partition(f"\n## {place or 'recipe'}\n")[2].partition("\n## ")[0]
        assert all(f"| `{name}` |" in shown for name in section.model_fields), place
    assert "| `width` | `int` ≥ 4 |" in page.partition("\n## student\n")[2]


def test_the_lists_of_commands_have_whole_sentences() -> None:
    page = reference.commands("curate", "curate.cli")
    assert "\n* `retry`: Run a recipe and recompute the rows in error at one stage.\n" in page
    assert [line for line in page.splitlines() if line.startswith("* ") and line.endswith("...")] == []


def test_a_table_survives_bars_tags_and_breaks() -> None:
    made = reference.table(("a", "b", "c"), [("`x | y`", "", "one\ntwo | <name> `<name>`")])
    assert made == "| a | c |\n| --- | --- |\n| `x | y` | one two \\| &lt;name> `<name>` |\n"


@pytest.mark.long
def test_the_diagram_has_every_folder_once_and_arrows_point_down() -> None:
    graph = architecture.imports()
    small = architecture.reduced(graph)
    assert sorted(name for box in small for name in box) == sorted(graph)
    level = architecture.levels(small)
    assert all(level[above] > level[below] for above, below in small.edges)
    texts = [node.text for node in ET.fromstring(architecture.svg()).iter("{http://www.w3.org/2000/svg}text")]
    drawn = sorted(name.rpartition(".")[2] for name in graph)
    assert sorted(text or "" for text in texts) == sorted([*drawn, *architecture.PACKAGES])


def test_arrows_that_follow_from_others_are_left_out() -> None:
    graph = nx.DiGraph([("curate.cli", "curate.api"), ("curate.api", "curate.core"), ("curate.cli", "curate.core")])
    graph.add_edges_from([("distill.a", "distill.b"), ("distill.b", "distill.a"), ("distill.b", "curate.core")])
    small = architecture.reduced(graph)
    assert set(small.edges) == {
        (("curate.cli",), ("curate.api",)),
        (("curate.api",), ("curate.core",)),
        (("distill.a", "distill.b"), ("curate.core",)),
    }


def test_folders_with_the_same_arrows_share_a_box() -> None:
    graph = nx.DiGraph([(("curate.image",), ("curate.codec",)), (("curate.pack",), ("curate.codec",))])
    made, level = architecture.joined(graph, {("curate.image",): 1, ("curate.pack",): 1, ("curate.codec",): 0})
    assert set(made.edges) == {(("curate.image", "curate.pack"), ("curate.codec",))}
    assert level == {("curate.image", "curate.pack"): 1, ("curate.codec",): 0}


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one page and one module."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "mkdocs.yml").write_text("nav:\n  - Home: index.md\n")
    (tmp_path / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(reference, "pages", lambda: {"reference/ops/a.md": "# a\n"})
    monkeypatch.setattr(architecture, "svg", lambda: "<svg/>")
    return tmp_path / "docs"


def test_links_to_code_lead_to_pages_of_the_site(docs: Path, tmp_path: Path) -> None:
    (docs / "index.md").write_text(
        "[code](../module.py#L1) [op](reference/ops/a.md) [site](https://example.org/a.md)\n"
    )
    pages.build(tmp_path / "out")
    page = (tmp_path / "out" / "pages" / "index.md").read_text()
    assert page == "[code](source/module.py.md#L1) [op](reference/ops/a.md) [site](https://example.org/a.md)\n"
    assert "x = 1" in (tmp_path / "out" / "pages" / "source" / "module.py.md").read_text()
    assert "a: reference/ops/a.md" in (tmp_path / "out" / "mkdocs.yml").read_text()


def test_a_broken_link_and_a_page_outside_the_menu_are_errors(docs: Path, tmp_path: Path) -> None:
    (docs / "index.md").write_text("[gone](../gone.py)\n")
    with pytest.raises(SystemExit, match=r"docs/index.md links to gone.py, which does not exist; correct it"):
        pages.build(tmp_path / "out")
    (docs / "index.md").write_text("")
    (docs / "other.md").write_text("")
    with pytest.raises(SystemExit, match=r"nav lacks other.md; add a line for each"):
        pages.build(tmp_path / "out")
