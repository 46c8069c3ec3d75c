"""README.md of a release: a header that the Hub and `datasets` read, and the card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from curate.release import layout
from curate.release.public import REASONS

SIZES = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M", 10**7: "1M<n<10M",
         10**8: "10M<n<100M", 10**9: "100M<n<1B", 10**10: "1B<n<10B", 10**11: "10B<n<100B"}  # fmt: skip
"""The Hub's categories, by their upper end."""
SHOWN = 10
_ACTIVE = re.compile(r"[\\`*\[\]<>&|~$@]|#(?=#*$)|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""What Markdown, HTML, tables, mathematics and mentions would not show as it is."""


def plain(text: str) -> str:
    """Words of a source, as one line of Markdown that shows them: without markup, HTML, links and ends of cells."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", line)


def code(name: str) -> str:
    """A name as code, if nothing of it could end that."""
    return f"`{name}`" if re.fullmatch(r"[\w.:/-]+", name) else plain(name)


def card(about: Mapping[str, Any]) -> str:
    """about: what release.json says."""
    parts = [f"---\n{_header(about)}---\n", f"# {plain(about['title'])}\n", _summary(about)]
    parts += [_statistics(about), _balance(about["balance"]), _funnel(about["funnel"]), _columns(about)]
    parts += [_provenance(about), _use(about)]
    return "\n".join(part for part in parts if part)


def _header(about: Mapping[str, Any]) -> str:
    files = [{"split": layout.SPLIT, "path": f"{layout.DATA}/*.parquet"}]
    top = next((name for most, name in SIZES.items() if about["rows"] < most), "n>1T")
    header = {
        "pretty_name": " ".join(about["title"].split()), "license": " ".join(about["license"].split()),
        "size_categories": [top],
        "task_categories": _tasks(about), "configs": [{"config_name": "default", "data_files": files}],
    }  # fmt: skip
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True)


def _tasks(about: Mapping[str, Any]) -> list[str]:
    texts = any(words["rows"] for words in about["words"].values())
    if "video" in about["media"]:
        return ["text-to-video", "video-text-to-text"] if texts else ["video-classification"]
    return ["text-to-image", "image-to-text"] if texts else ["image-feature-extraction"]


def _summary(about: Mapping[str, Any]) -> str:
    rows, samples = about["rows"], about["samples"]
    copies = "" if rows == samples else f", {samples:,} with the copies by which the dataset repeats some"
    lines = [f"{rows:,} rows{copies}. The pixels are not part of the release: a row has the URL of its source, and a"
             " digest that tells whether the bytes there are still the same, where these are known."]  # fmt: skip
    if (before := about.get("predecessor")) is not None:
        lines.append(f"\nThe predecessor is {code(before['name'])} {plain(before['dataset'])} (digest "
                     f"{code(before['digest'])}): "
                     f"{about['added']:,} keys were added and {about['removed']:,} removed; `{layout.CHANGES}` lists "
                     "them.")  # fmt: skip
    return "\n".join(lines) + "\n"


def _statistics(about: Mapping[str, Any]) -> str:
    percentiles = [f"p{p}" for p in (5, 25, 50, 75, 95)]
    lines = [[f"{name} (pixels)", *(f"{found[p]:,}" for p in percentiles)]
             for name, found in about["pixels"].items() if found]  # fmt: skip
    lines += [[f"words of {code(name)} ({found['rows']:,} rows)", *(f"{found[p]:,}" for p in percentiles)]
              for name, found in about["words"].items() if found["rows"]]  # fmt: skip
    table = _table(["", "5 %", "25 %", "median", "75 %", "95 %"], lines) if lines else ""
    counted = [("rows", about["rows"]), ("rows with a URL", about["urls"]),
               ("rows with a digest of the bytes at the URL", about["digests"])]  # fmt: skip
    licences = [[plain(name) or "not known", f"{count:,}"] for name, count in list(about["licences"].items())[:SHOWN]]
    return "\n".join([
        "## Statistics\n", _table(["", "count"], [[name, f"{count:,}"] for name, count in counted]), table,
        "Licences, as the sources give them:\n", _table(["licence", "rows"], licences),
    ])  # fmt: skip


def _balance(found: Mapping[str, Any]) -> str:
    if not found:
        return "## Balance\n\nNot known: the sample was not drawn from groups of rows.\n"
    lines = [[what, f"{sizes['groups']:,}", f"{sizes['entropy_bits']:.2f}", f"{sizes['gini']:.3f}"]
             for what, sizes in (("before the selection", found["before"]), ("after", found["after"]))]  # fmt: skip
    return "## Balance\n\n" + _table(
        ["groups of rows (clusters, if it was drawn from these)", "groups with rows", "entropy (bits)", "Gini"], lines
    )


def _funnel(funnel: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for stage in funnel:
        reasons = sorted(stage["lost"].items(), key=lambda item: -item[1])[:SHOWN]
        why = ", ".join(f"{plain(reason)} {count:,}" for reason, count in reasons)
        lines.append([code(stage["stage"]), plain(stage["op"]), f"{stage['before']:,}", f"{stage['after']:,}", why])
    return "## How the rows were chosen\n\n" + _table(["stage", "op", "rows before", "after", "rejected"], lines)


def _columns(about: Mapping[str, Any]) -> str:
    return "## Columns\n\n" + _table(
        ["column", ""], [[code(name), plain(text)] for name, text in about["columns"].items()]
    )


def _provenance(about: Mapping[str, Any]) -> str:
    lines = [f"- {what}: {value}" for what, value in about["provenance"].items()]
    lines.append(f"- Recipe: `{layout.RECIPE}`, digest `{about['recipe_digest']}`; places and settings that change no "
                 "result are left out.")  # fmt: skip
    lines.append(f"- Dataset: {code(about['name'])}, fingerprint `{about['dataset']}`, of {about['committed']}.")
    opted = ", ".join(f"{plain(reason)} {count:,}" for reason, count in about["opt_outs"].items())
    lines.append(f"- Opt-outs honoured: {opted or 'none were met'}.")
    out, down = about["tombstoned"], about["taken_down"]
    lines.append(f"- Tombstones: {out:,} samples of the dataset were left out, and {down:,} of earlier versions must "
                 f"not be used any more (`{layout.REMOVED}`).")  # fmt: skip
    for column, reasons in about["withheld"].items():
        why = ", ".join(f"{count:,} {reason} ({REASONS[reason]})" for reason, count in reasons.items())
        lines.append(f"- Not published, null in {code(column)}: {why}.")
    return "## Provenance\n\n" + "\n".join(lines) + "\n"


def _use(about: Mapping[str, Any]) -> str:
    return f"""## Use

```python
from datasets import load_dataset

rows = load_dataset("parquet", data_files="{layout.DATA}/*.parquet", split="train", streaming=True)
```

`curate fetch FOLDER` downloads the sources into a pool, compares each with its digest, leaves out what
`{layout.REMOVED}` names, and says what is gone and why. `sha256sum -c {layout.SUMS}` checks the files. The rights in
the sources remain with their owners; `license` is what the sources say.
"""


def _table(names: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *lines)) + "\n"
