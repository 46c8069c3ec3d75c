"""`curate text`: what the text stages do to a text one has at hand, and the map of hashtags that a run has made."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from curate.cli.common import RunId, WorkspaceUrl, opened, out

text = typer.Typer(help="Text stages, tried on a text; maps of hashtags.", no_args_is_help=True)

AROUND = 40
"""Characters shown on either side of what a rule changed."""


@text.command("try")
def try_(
    captions: Annotated[
        list[str], typer.Argument(metavar="TEXT…", help="Captions; `-` reads lines of standard input.")
    ],
    rules: Annotated[str, typer.Option(help="Rules to apply, with commas between; the default ones if left out.")] = "",
    without: Annotated[str, typer.Option(help="Rules to leave out.")] = "",
    also: Annotated[str, typer.Option(help="Rules to apply besides the default ones.")] = "",
) -> None:
    """What each rule of `text.clean` does to a caption, and the sentences of what is left."""
    from curate.api import make_stage

    chosen = {"rules": rules, "without": without, "also": also}
    given = {name: tuple(value.replace(",", " ").split()) for name, value in chosen.items() if value}
    clean, sentences = make_stage("text.clean", **given), make_stage("text.sentences")
    lines = sys.stdin.buffer.read().decode("utf-8", "replace").splitlines() if captions == ["-"] else captions
    for number, caption in enumerate(lines):
        if number:
            out.print()
        _show(clean, sentences, caption.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


@text.command("map")
def map_(
    run_id: RunId = None,
    workspace: WorkspaceUrl = "",
    stage: Annotated[str | None, typer.Option(help="Stage that made the map, where the run has several.")] = None,
) -> None:
    """The map of hashtags that a run has made, as lines with tabs: change what is wrong, keep those lines in a file,
    and name it in `edits` of the stage."""
    for line in opened(workspace).run(run_id).hashtag_map(stage):
        sys.stdout.write(line + "\n")


def _show(clean: Any, sentences: Any, caption: str) -> None:
    from curate.api import try_row

    steps = clean.steps(caption)
    if steps:
        table = Table("rule", "before", "after", header_style="bold")
        for rule, before, after in steps:
            table.add_row(rule, *(Text(part) for part in _change(before, after)))
        out.print(table)
    cleaned, batch = try_row(clean, "caption", caption, "text")
    note = "nothing is left" if cleaned is None else "" if steps else "unchanged"
    _line("text", printable(cleaned or ""), ", ".join(batch.unfit.values()) or note)
    if cleaned is not None:
        for number, sentence in enumerate(try_row(sentences, "text", cleaned, "sentences")[0] or ()):
            _line(f"sentence {number}", printable(sentence))
    if batch.counters:
        _line("counted", ", ".join(f"{name} {count}" for name, count in sorted(batch.counters.items())))


def _line(name: str, value: str, note: str = "") -> None:
    out.print(Text.assemble((f"{name:<12}", "bold"), value, (f"  ({note})" if note else "", "dim")), soft_wrap=True)


def _change(before: str, after: str) -> tuple[str, str]:
    """Both texts around the place where they differ."""
    start = _alike(before, after)
    tail = _alike(before[start:][::-1], after[start:][::-1])
    return _cut(before, start, len(before) - tail), _cut(after, start, len(after) - tail)


def _alike(one: str, other: str) -> int:
    """Characters that two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _cut(whole: str, start: int, end: int) -> str:
    """The text from shortly before `start` to shortly after `end`; the middle of what is long is left out."""
    first, last = max(0, start - AROUND), min(len(whole), end + AROUND)
    shown = whole[first:last]
    if len(shown) > 6 * AROUND:
        shown = f"{shown[: 3 * AROUND]} … {shown[-3 * AROUND :]}"
    return printable(f"{'…' if first else ''}{shown}{'…' if last < len(whole) else ''}")


def printable(value: str) -> str:
    """Characters that cannot be seen as their escapes, and white space at the ends as ␠."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    bare = shown.strip(" ")
    if not bare:
        return "␠" * len(shown)
    return "␠" * (len(shown) - len(shown.lstrip(" "))) + bare + "␠" * (len(shown) - len(shown.rstrip(" ")))
