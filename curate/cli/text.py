"""`curate text`: try text stages on a caption, and print the hashtag map of a run."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from curate.cli.common import RunId, WorkspaceUrl, opened, out

text = typer.Typer(help="Try text stages on a caption; print hashtag maps.", no_args_is_help=True)

AROUND = 40
"""Characters shown on either side of a change."""


@text.command("try")
def try_(
    captions: Annotated[
        list[str], typer.Argument(metavar="TEXT…", help="Captions; `-` reads lines from standard input.")
    ],
    rules: Annotated[
        str, typer.Option(help="Rules to apply, separated by commas (default: the defaults of text.clean).")
    ] = "",
    without: Annotated[str, typer.Option(help="Rules to leave out.")] = "",
    also: Annotated[str, typer.Option(help="Rules to apply in addition to the defaults.")] = "",
) -> None:
    """Show what each rule of `text.clean` changes in a caption, and the sentences of the result."""
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
    stage: Annotated[str | None, typer.Option(help="Stage that built the map, if the run has several.")] = None,
) -> None:
    """Print the hashtag map of a run as tab-separated lines; put corrections into a file for the stage's `edits`."""
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
    note = "empty" if cleaned is None else "" if steps else "unchanged"
    _line("text", printable(cleaned or ""), ", ".join(batch.unfit.values()) or note)
    if cleaned is not None:
        for number, sentence in enumerate(try_row(sentences, "text", cleaned, "sentences")[0] or ()):
            _line(f"sentence {number}", printable(sentence))
    if batch.counters:
        _line("counted", ", ".join(f"{name} {count}" for name, count in sorted(batch.counters.items())))


def _line(name: str, value: str, note: str = "") -> None:
    out.print(Text.assemble((f"{name:<12}", "bold"), value, (f"  ({note})" if note else "", "dim")), soft_wrap=True)


def _change(before: str, after: str) -> tuple[str, str]:
    """Both texts around the position where they differ."""
    start = _common(before, after)
    tail = _common(before[start:][::-1], after[start:][::-1])
    return _cut(before, start, len(before) - tail), _cut(after, start, len(after) - tail)


def _common(one: str, other: str) -> int:
    """Length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _cut(whole: str, start: int, end: int) -> str:
    """The text from shortly before `start` to shortly after `end`; the middle of a long text is elided."""
    first, last = max(0, start - AROUND), min(len(whole), end + AROUND)
    shown = whole[first:last]
    if len(shown) > 6 * AROUND:
        shown = f"{shown[: 3 * AROUND]} … {shown[-3 * AROUND :]}"
    return printable(f"{'…' if first else ''}{shown}{'…' if last < len(whole) else ''}")


def printable(value: str) -> str:
    """The text with invisible characters escaped and spaces at its ends shown as ␠."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    bare = shown.strip(" ")
    if not bare:
        return "␠" * len(shown)
    return "␠" * (len(shown) - len(shown.lstrip(" "))) + bare + "␠" * (len(shown) - len(shown.rstrip(" ")))
