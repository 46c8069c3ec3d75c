"""`curate caption`: try a prompt on a few images; count the verdicts of people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from curate.cli.common import out
from curate.core.errors import CurateError, InputError

if TYPE_CHECKING:
    from curate.api.captions import Tried
    from curate.api.verdicts import Interval, Wins

caption = typer.Typer(help="Try prompts; count the verdicts of people.", no_args_is_help=True)


@caption.command("try")
def try_(
    prompt: Annotated[str, typer.Argument(help="An included prompt by name, or the path or URL of a file.")],
    images: Annotated[list[str] | None, typer.Argument(metavar="IMAGE…", help="Files of images.")] = None,
    endpoints: Annotated[str, typer.Option(help="File of endpoints: path or URL.")] = "endpoints.yaml",
    endpoint: Annotated[str | None, typer.Option(help="Its name (default: the only one of the file).")] = None,
    context: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=TEXT", help="Context of the prompt; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Ask with a prompt as a run would: show the request, the answer, its tokens and what it costs."""
    from curate.api.captions import try_prompt

    pairs = dict(_pair(given) for given in context or ())
    failed = 0
    for number, tried in enumerate(try_prompt(prompt, images or (), endpoints, endpoint, pairs, seed)):
        if number:
            out.print()
        _show(tried)
        failed += bool(tried.problem)
    if failed:
        raise CurateError(f"{failed} of {number + 1} requests got no answer, see above")


@caption.command()
def tally(
    page: Annotated[str, typer.Argument(help="Folder of the page that caption.compare wrote: path or URL.")],
    verdicts: Annotated[list[str], typer.Argument(metavar="VERDICTS…", help="Downloaded files, one per person.")],
) -> None:
    """Count verdicts that were downloaded from a page of caption.compare: the win rate with its interval."""
    from curate.api.verdicts import tally_of

    found = tally_of(page, verdicts)
    table = Table("judged by", header_style="bold")
    for name in ("pairs", f"{found.a} wins", f"{found.b} wins", "ties", f"win rate of {found.b}", "95 % interval"):
        table.add_column(name, justify="right")
    for name, wins in found.people:
        table.add_row(name, *_counted(wins))
    if len(found.people) > 1:
        table.add_section()
        table.add_row("together", *_counted(found.together))
    if found.judged_by_model.judged:
        table.add_section()
        table.add_row("the model", *_counted(found.judged_by_model))
    out.print(table)
    left = found.pairs - found.together.judged
    out.print(f"{found.together.judged} of {found.pairs} pairs are judged" + (f", {left} are not" if left else ""))
    for what, share in (
        ("pairs of people who judged the same texts agree in", found.agreement),
        ("people and the model name the same winner in", found.with_judge),
    ):
        if share is not None:
            out.print(f"{what} {_share(share.value)} of cases (95 % interval {_ends(share)})", highlight=False)


def _counted(wins: Wins) -> list[str]:
    ties = f"{wins.ties:,}" + (f" and {wins.inconsistent:,} inconsistent" if wins.inconsistent else "")
    rate = wins.rate
    ends = ["–", "–"] if rate is None else [_share(rate.value), _ends(rate)]
    return [f"{wins.judged:,}", f"{wins.a:,}", f"{wins.b:,}", ties, *ends]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _ends(interval: Interval) -> str:
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"


def _pair(given: str) -> tuple[str, str]:
    label, equals, text = given.partition("=")
    if not equals or not label:
        raise InputError(f"--context {given!r}: expected LABEL=TEXT")
    return label, text


def _show(tried: Tried) -> None:
    if tried.name:
        _line("image", f"{tried.name}, sent as {tried.image}")
    if tried.empty:
        _line("context", f"without {', '.join(tried.empty)}; --context LABEL=TEXT gives them")
    _line("request", json.dumps(tried.request, indent=2, ensure_ascii=False))
    found = tried.about
    if tried.problem:
        _line("no answer", tried.problem)
    else:
        _line("outcome", str(found["outcome"]))
        _line("answer", "none" if tried.answer is None else tried.answer)
        _line("model", " ".join(filter(None, (found["model"], found["fingerprint"]))) or "not reported")
        tokens = [found["prompt_tokens"], found["completion_tokens"]]
        _line("tokens", "not reported" if None in tokens else f"{tokens[0]:,} in, {tokens[1]:,} out")
    _line("seconds", f"{tried.seconds:.2f}")
    if not tried.problem:
        _line(
            "cost",
            "unknown: no price given, or no tokens reported" if tried.dollars is None else _dollars(tried.dollars),
        )


def _dollars(value: float) -> str:
    return f"${value:.6f}, ${1000 * value:.2f} per 1,000"


def _line(name: str, value: str) -> None:
    out.print(Text.assemble((f"{name:<10}", "bold"), value), soft_wrap=True)
