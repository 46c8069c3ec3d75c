"""Fields of `meta` that a recipe names: a misspelled one would be null in every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from curate.core.errors import did_you_mean
from curate.core.hashing import digest
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node
from curate.core.rows import Rows
from curate.engine.context import Context
from curate.engine.units.common import fetched
from curate.kernels.meta import META, field_of, fields_of

SAMPLED = 64
"""Shards that are searched, chosen by hash; the others for what these lack."""
FEW = 0.5
"""Share of the rows below which a field is worth a warning."""


def count_fields(task: tuple[Rows, Sequence[Shard], Sequence[str]]) -> Counter[str]:
    """Live rows of the shards that have each field; all live rows under ""."""
    (rows, shards, names), counts = task, Counter[str]()
    for table in fetched(lambda shard: rows.live_table(shard, ("meta",)), shards):
        metas = table.column("meta").to_pylist()
        counts[""] += len(metas)
        counts.update({name: sum(field_of(meta, name) is not None for meta in metas) for name in names})
    return counts


def check_fields(ctx: Context, nodes: Iterable[Node], rows: Rows, shards: Sequence[Shard], place: str) -> None:
    """Say which fields few rows have. Raises RecipeError for a field that none has. place: the stage of the rows."""
    named = [(node, name) for node in nodes for name in node.stage.meta_fields() if name.startswith(META)]
    if not named or not shards:
        return
    order = sorted(shards, key=lambda shard: digest([shard.id]))
    first, *rest = [tuple(order[at : at + SAMPLED]) for at in range(0, len(order), SAMPLED)]
    names = tuple(dict.fromkeys(name for _, name in named))
    sample = count_fields((ctx.outputs.placed(rows, first), first, names))
    lacking = tuple(name for name in names if not sample[name])
    tasks = [(ctx.outputs.placed(rows, part), part, lacking) for part in rest if lacking]
    whole = sum(ctx.tasks.must(count_fields, tasks, ctx.pipeline.nodes[place].stage, place), sample)
    for node, name in named:
        counts = whole if name in lacking else sample
        have, of = counts[name], counts[""]
        if of and not have:
            metas = rows.live_table(order[0], ("meta",)).column("meta").to_pylist()
            known = sorted({META + field for meta in metas for field in fields_of(meta)})
            hint = did_you_mean(name, known, f"the fields are {', '.join(known[:10]) or 'none'}")
            raise node.fail(f"none of the {of:,} rows of {place!r} has {name!r}; {hint}")
        if have < FEW * of:
            found = f"only {have:,} of {of:,} rows of {place!r} have {name} ({have / of:.2%})"
            seen = "" if name in lacking or not rest else f", in {len(first)} of {len(order):,} shards"
            ctx.progress.say(f"warning: {node.name}: {found}{seen}")
