"""Runs an epoch of open_clip's trainer, then its reader: `python -m tests.interop.trainer WORK OUT FOLDER`.

Its reader gives pixels and a text, so those are what it writes, and how many samples the epoch had.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import open_clip
from open_clip_train.data import get_wds_dataset
from open_clip_train.main import main as train
from open_clip_train.params import parse_args

VISION = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
TEXT = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}


def pixels(image: Any) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()


def main(work: str, out: str, folder: str) -> None:
    place = Path(work)
    place.mkdir(parents=True)
    (place / "toy.json").write_text(json.dumps({"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT}))
    open_clip.add_model_config(place)
    tars = sorted(Path(folder).glob("*.tar"))
    shards = str(tars[0]).replace("000000.tar", f"{{000000..{len(tars) - 1:06d}}}.tar")
    options = ["--train-data", shards, "--val-data", shards, "--dataset-type", "webdataset", "--workers", "1"]
    train(
        [
            *options, "--model", "toy", "--epochs", "1", "--batch-size", "4", "--device", "cpu", "--precision", "fp32",
            "--logs", str(place / "logs"), "--name", "toy", "--log-every-n-steps", "1", "--val-frequency", "0",
        ]
    )  # fmt: skip
    log = (place / "logs" / "toy" / "out.log").read_text()
    trained = [[int(done), float(loss)] for done, loss in re.findall(r"\[ *(\d+)/.*?Loss: ([\d.]+)", log)]
    read = get_wds_dataset(parse_args(options), pixels, is_train=False, tokenizer=lambda text: [text]).dataloader
    found = [pair for images, texts in read for pair in zip(images, texts, strict=True)]
    Path(out).write_text(json.dumps({"trained": trained, "read": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
