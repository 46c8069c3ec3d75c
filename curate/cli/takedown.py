"""`curate takedown`: where a sample is, taking it out with a receipt, and verifying the receipt."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from curate.cli.common import Known, WorkspaceUrl, end_unknown, opened, out
from curate.core.errors import CurateError, RecipeError, some

takedowns = typer.Typer()


@takedowns.command()
def takedown(
    entries: Annotated[
        list[str],
        typer.Argument(help="Keys, URLs, sha256 digests, source ids or paths of images; or `verify RECEIPT`."),
    ],
    apply: Annotated[
        bool, typer.Option("--apply", help="Exclude them from now on, and make each dataset again without them.")
    ] = False,
    erase: Annotated[
        bool, typer.Option("--erase", help="Like --apply, and remove their bytes and all that was computed of them.")
    ] = False,
    why: Annotated[str, typer.Option(help="Reason, kept with the tombstones and the receipt.")] = "",
    releases: Annotated[list[str] | None, typer.Option(help="Folder of a release; may be repeated.")] = None,
    runs: Annotated[list[str] | None, typer.Option(help="Folder of a training run; may be repeated.")] = None,
    known: Known = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    workspace: WorkspaceUrl = "",
) -> None:
    """Find samples in pools, facts, selections, datasets, releases and training runs; take them out, with a receipt.

    Near copies are listed apart: people decide about them. `curate takedown verify RECEIPT` reads files, not indexes,
    and fails if one has the bytes.
    """
    if entries[0] == "verify":
        _verify(entries[1:])
        return
    place = opened(workspace)
    if not apply and not erase:
        found = place.find_samples(entries, releases or [], runs or [], known)
        _show(found, as_json)
    elif not why.strip():
        raise RecipeError("--why is missing; give the reason, which stays with the receipt")
    else:
        receipt = place.takedown(entries, why, erase=erase, releases=releases or [], runs=runs or [], known=known)
        if as_json:
            print(json.dumps(receipt))
        else:
            _show_receipt(receipt, erase)
        found = receipt["found"]
    end_unknown(found.get("unknown", []), known, as_json)


def _show_receipt(receipt: dict[str, Any], erase: bool) -> None:
    _show(receipt["found"], False)
    for old, new in receipt["datasets"].items():
        unchanged = receipt["unchanged_tars"].get(old)
        what = "made before" if unchanged is None else f"{unchanged} tars unchanged"
        _print(f"{old} -> {new}; {what}{', the old removed' if erase else ''}")
    left = receipt["left"]
    for name in left["source_files"]:
        _print(f"left: {name} is yours; remove it there")
    for key in left["parents"]:
        _print(f"left: {key}, of which it was made, still has it; take that down too")
    for run in left["weights"]:
        _print(f"left: the weights of {run['run']} were trained on it")
    for name in left["releases"]:
        _print(f"left: {name} was released; publish a version that lists the keys as removed")
    for name in left["pins"]:
        _print(f"left: pin:{name} names a removed version; pin the new one")
    _print(f"receipt: {receipt['workspace'].rstrip('/')}/{receipt['receipt']}")


def _verify(paths: list[str]) -> None:
    from curate.api import verify_takedown

    if len(paths) != 1:
        raise RecipeError("takedown verify: expected one RECEIPT, a file that a takedown wrote")
    files, never = verify_takedown(paths[0])
    if never:
        _print(f"never stored or unknown, so that no bytes were looked for: {some(never)}")
    if not files:
        _print(f"{paths[0]}: nothing was verified: no file that it covers had a sample; `--erase` covers all files")
        return
    hits = [url for url, found in files.items() if found]
    for url in hits:
        _print(f"{url} has the bytes")
    if hits:
        raise CurateError(
            f"{paths[0]}: the bytes are still in {len(hits)} files, such as {hits[0]}: another sample with the same "
            "bytes, the one that it was made of, or a file that a takedown does not change; take that sample down by "
            "its key, or remove the file"
        )
    _print(f"{paths[0]}: none of {len(files):,} files has the bytes")


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for key in found["keys"]:
        _print(f"key {key}")
    for pool in found["pools"]:
        _print(f"{', '.join(pool['pools'])}: {len(pool['rows'])} rows of shard {pool['shard']['id']} ({pool['index']})")
    _print(f"facts: {len(found['facts'])} tables")
    for line in found["selections"]:
        _print(f"{line['selection']}: {line['copies']} copies")
    for line in found["datasets"]:
        _print(f"{line['dataset']}: {len(line['rows'])} of {line['of']:,} samples ({line['index']})")
    for line in found["releases"]:
        _print(f"{line['release']}: {sum(line['files'].values())} rows")
    for run in found["runs"]:
        steps = sorted({one["step"] for seen in run["seen"].values() for one in seen})
        _print(f"{run['run']}: seen in {len(steps)} of {run['steps']} steps{f', first in {steps[0]}' if steps else ''}")
    for line in found["near"]:
        _print(f"near copy, to be decided: {line['key']} (of the set of {line['duplicate_set']})")


def _print(line: str) -> None:
    out.print(line, highlight=False, soft_wrap=True, markup=False)
