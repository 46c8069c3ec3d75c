"""A pool with synthetic texts in memory, so that pages are tested without the engine and an endpoint."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from curate.core.hashing import make_key
from curate.core.ledger import Entry
from tests.report.memory_view import TYPES, MemoryView, drawing, manifest

ANSWERS = {
    "outcome": pa.string(), "model": pa.string(), "fingerprint": pa.string(), "prompt": pa.string(),
    "endpoint": pa.string(), "seed": pa.int64(), "prompt_tokens": pa.int32(), "completion_tokens": pa.int32(),
}  # fmt: skip
THINGS = ("dog", "boat", "bridge", "lamp", "bicycle", "kettle", "statue", "market", "mountain", "violin")
PLACES = ("on a beach", "in a garden", "beside a road", "under a grey sky", "in a narrow street", "near the water")
PHRASES = (
    "A {thing} stands {place}, with soft light from the left.",
    "This photo shows a {thing} {place}. Its colours are warm, and the background is out of focus.",
    "{place}, a small {thing} catches the eye of a passer-by.",
    "Seen from above, a {thing} {place} casts a long shadow.",
)


def answered(name: str) -> dict[str, pa.DataType]:
    """The columns of an asking stage."""
    return {name: pa.string()} | {f"{name}_{part}": kind for part, kind in ANSWERS.items()}


def caption(number: int, other: int = 0) -> str:
    """A text that a model might have written."""
    draw = random.Random(1000 * other + number)
    text = draw.choice(PHRASES).format(thing=THINGS[number % len(THINGS)], place=draw.choice(PLACES))
    return text[0].upper() + text[1:]


def said(name: str, text: str | None, outcome: str = "ok", **more: Any) -> dict[str, Any]:
    """The values of an asking stage's columns."""
    tokens = None if text is None else len(text.split())
    values = {"outcome": outcome, "model": "tiny-vlm", "fingerprint": "fp_1", "prompt": "caption_short@1"}
    values |= {"endpoint": "local", "seed": 7, "prompt_tokens": 200, "completion_tokens": tokens} | more
    return {name: text} | {f"{name}_{part}": value for part, value in values.items()}


def captioned_pool(count: int = 120, images: Sequence[bytes] = (), texts: Sequence[str] = ()) -> MemoryView:
    """Rows with an original, a generated, a repaired and a chosen text. One in 20 generated texts is truncated,
    one is refused, three fail a check and one is in error; the first row is rejected before."""
    types = {**TYPES, **answered("generated"), "generated_check": pa.string(), "generated_injection": pa.string()}
    types |= {
        "generated_words": pa.int32(),
        "generated_chats": pa.bool_(),
        **answered("repaired"),
        "chosen": pa.string(),
        "chosen_from": pa.string(),
    }
    rows, encoded = [], {}
    for number in range(count):
        key = make_key("captioned", str(number))
        row = {"key": key, "source_id": f"photo {number}.jpg", "cluster_1": number % 7, "copies": 1}
        row["caption"] = texts[number] if texts else f"IMG_{number} {THINGS[number % len(THINGS)]}"
        encoded[key] = images[number] if images else drawing(number)
        rows.append(row | _answers(number))
    rows[0] = {"key": rows[0]["key"], "source_id": "photo 0.jpg", "caption": rows[0]["caption"]}
    rows[0] |= {"rejected_by": "inspect", "reject_reason": "truncated"}
    view = MemoryView(rows, _stages(rows), encoded, types=types)
    view.absent = ("cluster_2", "cluster_3", "item_copies", "item_expected", "concepts")
    return view


def _answers(number: int) -> dict[str, Any]:
    text = caption(number)
    part = number % 20
    if part == 5:
        return {"rejected_by": "generate", "reject_reason": "http_503", "copies": 0}
    row = said("generated", text, fingerprint="fp_2" if number > 80 else "fp_1")
    row |= {
        "generated_check": None,
        "generated_injection": None,
        "generated_chats": number % 2 == 0,
        "generated_words": len(text.split()),
    }
    if part == 7:
        row |= said("generated", text[: len(text) // 2], "truncated") | {"generated_check": "truncated"}
    if part == 9:
        return {**said("generated", None, "refused"), "chosen": "the original", "chosen_from": "caption"}
    if part in (11, 12):
        row |= said("generated", "a red car and " * 9) | {"generated_check": "repetition"}
    if part == 13:
        row |= said("generated", "BUY NOW at example.com") | {
            "generated_check": "injection",
            "generated_injection": "payload",
        }
    if row["generated_check"]:
        better = caption(number, 1)
        return row | said("repaired", better) | {"chosen": better, "chosen_from": "repaired"}
    return row | {"chosen": row["generated"], "chosen_from": "generated"}


def _stages(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made, live = {}, len(rows)
    for stage, op, output in (
        ("import", "acquire.folder", None),
        ("inspect", "image.inspect", None),
        ("generate", "caption.generate", "generated"),
        ("check", "caption.check", None),
        ("repair", "caption.repair", "repaired"),
        ("choose", "caption.choose", None),
    ):
        lost = Counter(row["reject_reason"] for row in rows if row.get("rejected_by") == stage)
        prompt = {"name": "caption_short", "version": 1, "user": "Describe the image in one sentence."}
        parameters = {"output": output, "prompt": prompt} if output else {}
        entry = Entry(live, error=lost, after=live - lost.total())
        made[stage] = manifest("pool" if stage == "import" else "columns", op, entry, parameters=parameters)
        live = entry.after
    return made


JUDGEMENTS = (
    ("first", "second", "a"),
    ("second", "first", "b"),
    ("second", "first", "b"),
    ("tie", "tie", "tie"),
    ("first", "first", "inconsistent"),
)
"""Answers with either text first, and their verdict."""


def judged_pool(count: int = 120, images: Sequence[bytes] = (), texts: Sequence[str] = ()) -> MemoryView:
    """The captioned pool with a second text `long`, similarities of both, and a judge's verdicts. Every ninth pair of
    texts is equal."""
    view = captioned_pool(count, images, texts)
    types = {**answered("long"), **answered("judge"), "judge_ab": pa.string(), "judge_ba": pa.string()}
    types |= {"judge_verdict": pa.string(), "near_a": pa.list_(pa.float32()), "near_b": pa.float32()}
    view.types = {**view.types, **types}
    for number, row in enumerate(view.rows):
        if row.get("generated") is None:
            continue
        long = f"{caption(number, 2)} {caption(number, 3)}" if number % 9 else row["generated"]
        row |= said("long", long, prompt="caption_long@1", endpoint="large")
        row |= {"near_a": [0.2 + number / 1000], "near_b": 0.25 + number / 1000}
        if long != row["generated"]:
            ab, ba, verdict = JUDGEMENTS[number % len(JUDGEMENTS)]
            answers = {order: {"reason": f"reason {order}", "verdict": one} for order, one in (("ab", ab), ("ba", ba))}
            row |= said("judge", json.dumps(answers), prompt="judge@1")
            row |= {"judge_ab": ab, "judge_ba": ba, "judge_verdict": verdict}
    return view
