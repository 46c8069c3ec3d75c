"""`curate text`: what the text stages do to a text one has at hand, and the map of hashtags that a run has made. Stages
are reached by their names."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from curate.core import registry
from curate.core.errors import InputError, RecipeError
from curate.core.storage import open_workspace

if TYPE_CHECKING:
    from curate.core.contracts import Batch, Map

text = typer.Typer(help="Text stages, tried on a text; maps of hashtags.", no_args_is_help=True)
out = Console(width=None if sys.stdout.isatty() else 150)

HASHTAG_MAP = "hashtag_map"
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
    chosen = {"rules": rules, "without": without, "also": also}
    clean = _clean({name: tuple(value.replace(",", " ").split()) for name, value in chosen.items() if value})
    sentences = registry.resolve("text.sentences")()
    lines = sys.stdin.buffer.read().decode("utf-8", "replace").splitlines() if captions == ["-"] else captions
    for number, caption in enumerate(lines):
        if number:
            out.print()
        _show(clean, sentences, caption.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


@text.command("map")
def map_(
    run_id: Annotated[str | None, typer.Argument(help="Run id; the latest run when left out.")] = None,
    workspace: Annotated[
        str, typer.Option("--workspace", "-w", envvar="CURATE_WORKSPACE", help="Folder or URL (s3://…) of all outputs.")
    ] = "",
    stage: Annotated[str | None, typer.Option(help="Stage that made the map, where the run has several.")] = None,
) -> None:
    """The map of hashtags that a run has made, as lines with tabs: change what is wrong, keep those lines in a file,
    and name it in `edits` of the stage."""
    from curate.core.nouns import StoredArtifact
    from curate.engine.record.runs import latest

    if not workspace:
        raise RecipeError("--workspace is missing; give a folder or URL, or set CURATE_WORKSPACE")
    run = latest(open_workspace(workspace, create=False), run_id)
    made = [name for name, kind in run.kinds().items() if kind == HASHTAG_MAP and name in run.outputs]
    if stage is not None and stage not in made:
        raise InputError(f"--stage {stage}: made no map in run {run.run_id}; stages that did are {_names(made)}")
    if stage is None and len(made) != 1:
        hint = "name one with --stage" if made else "name a run whose recipe has `text.hashtag_map`"
        raise InputError(f"run {run.run_id}: has maps of {_names(made)}; {hint}")
    held = StoredArtifact(run.storage, str(run.outputs[stage or made[0]]["base"]))
    for line in registry.resolve("text.hashtag_map").lines(held):  # type: ignore[attr-defined]
        sys.stdout.write(line + "\n")


def _names(stages: list[str]) -> str:
    return ", ".join(stages) or "none"


def _clean(parameters: dict[str, tuple[str, ...]]) -> Any:
    """The stage, or RecipeError in one line for a rule that is none."""
    from pydantic import ValidationError

    try:
        return registry.resolve("text.clean")(**parameters)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"--{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None


def _show(clean: Any, sentences: Any, caption: str) -> None:
    steps = clean.steps(caption)
    if steps:
        table = Table("rule", "before", "after", header_style="bold")
        for rule, before, after in steps:
            table.add_row(rule, *(Text(part) for part in _change(before, after)))
        out.print(table)
    cleaned, batch = _processed(clean, "caption", caption, "text")
    note = "nothing is left" if cleaned is None else "" if steps else "unchanged"
    _line("text", printable(cleaned or ""), ", ".join(batch.unfit.values()) or note)
    if cleaned is not None:
        for number, sentence in enumerate(_processed(sentences, "text", cleaned, "sentences")[0] or ()):
            _line(f"sentence {number}", printable(sentence))
    if batch.counters:
        _line("counted", ", ".join(f"{name} {count}" for name, count in sorted(batch.counters.items())))


def _processed(stage: Map, column: str, value: str, output: str) -> tuple[Any, Batch]:
    """What a stage writes into a column for one row, and the batch, which has its counters."""
    import pyarrow as pa

    from curate.core.contracts import Batch

    batch = Batch(pa.table({"key": ["0" * 32], column: pa.array([value], pa.string())}))
    return stage.process(batch)[output][0].as_py(), batch


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
