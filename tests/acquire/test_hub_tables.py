"""An image folder that Hugging Face's `push_to_hub` made: base names as paths, classes by number, on the Hub."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

from tests.acquire.helpers import encoded_image
from tests.release.hub import TOKEN, started

READ = """
import json, sys
from curate.acquire.parquet import AcquireParquet

source = AcquireParquet(namespace="test", path=sys.argv[1])
portions = source.plan()
rows = [row for portion in portions for row in source.read(portion)]
skips = {kind: one.count for portion in portions for kind, one in portion.skipped.items()}
print(json.dumps([[[row.source_id, row.meta, row.reject] for row in rows], skips]))
"""


def test_every_image_of_an_image_folder_is_a_sample() -> None:
    feature = {"_type": "ClassLabel", "names": ["cat", "dog"]}
    about = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    files = {"README.md": b"# photos", ".gitattributes": b""}
    for shard in range(2):
        numbers = [20 * shard + row for row in range(20)]
        images = [{"bytes": encoded_image(number), "path": f"{number % 5}.png"} for number in numbers]
        table = pa.table({"image": images, "label": pa.array([number % 2 for number in numbers])})
        sink = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), sink)
        files[f"data/train-{shard:05d}-of-00002.parquet"] = sink.getvalue()
    with started() as hub:
        hub.repos["me/photos"] = files
        own = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", READ, "hf://datasets/me/photos"],
            env=os.environ | own, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows, skips = json.loads(done.stdout)
    assert len({name for name, _, _ in rows}) == 40 and not any(reject for _, _, reject in rows)
    assert rows[21][:2] == ["data/train-00001-of-00002:1", {"label": "dog"}]
    assert skips == {"hidden": 1, "other_extension .md": 1}
