"""Corrupt model folders, and models that cannot be written: errors in one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import distill
from curate.core.errors import InputError, StorageError
from curate.core.hashing import make_key
from curate.encoders.student.model_folder import CONFIG, TOKENIZER, WEIGHTS, read_config
from curate.encoders.student.tokenizer import Tokenizer
from distill import export
from tests.distill.exports import save_distill, standardisers

LARGER = Tokenizer.train([make_key("word", str(number)) for number in range(50)] * 2, 330).json().encode()


def _without(name):
    return lambda place: (place / name).unlink()


def _config(**values):
    def change(place):
        config = json.loads((place / CONFIG).read_text())
        (place / CONFIG).write_text(json.dumps({**config, **values}))

    return change


def _inside(section, **values):
    """Update a section of the configuration, such as `teachers.1`."""

    def change(place):
        config = json.loads((place / CONFIG).read_text())
        at = config
        for part in section.split("."):
            at = at[int(part)] if isinstance(at, list) else at[part]
        at.update(values)
        (place / CONFIG).write_text(json.dumps(config))

    return change


def _weights(**values):
    """Replace weights; None removes one."""

    def change(place):
        tensors = load_file(place / WEIGHTS) | {name: value for name, value in values.items() if value is not None}
        save_file({name: value for name, value in tensors.items() if values.get(name, 0) is not None}, place / WEIGHTS)

    return change


def _bytes(name, data):
    return lambda place: (place / name).write_bytes(data)


def _truncate(place):
    (place / WEIGHTS).write_bytes((place / WEIGHTS).read_bytes()[:500])


DAMAGES = {
    "no config.json in": _without(CONFIG),
    "no model.safetensors in": _without(WEIGHTS),
    "no tokenizer.json in": _without(TOKENIZER),
    "is of another kind of model": _config(format="llama"),
    "is a model of version 2, but this package reads versions up to 1; update the package": _config(version=2),
    "config.json': trained: Input should be": _config(trained=None),
    "is not JSON": lambda place: (place / CONFIG).write_text("{"),
    "cannot read .*model.safetensors'": _truncate,
    "does not match its configuration: 14 weights differ, first 'heads.0.body.0.bias'; export": _config(teachers=[]),
    "tokenizer.json is not a tokenizer": lambda place: (place / TOKENIZER).write_text("{}"),
    "version must be an integer, not '1'; export again": _config(version="1"),
    "config.json' is not JSON .'utf-8' codec": _bytes(CONFIG, b"\xff{}"),
    "cannot read .*tokenizer.json .'utf-8' codec": _bytes(TOKENIZER, b"\xff{}"),
    r"tokenizer.json has \d+ tokens, the model 300": _bytes(TOKENIZER, LARGER),
    "teachers.0.head.summary: Input should be greater": _inside("teachers.0.head", summary=0),
    "teachers.0.head.hidden: Field required": _inside("teachers.0", head={"summary": 10, "patches": None}),
    "weights differ, first 'heads.0.out.bias'": _inside("teachers.0.head", summary=11),
    "the head of 'plain' has no width for patch features": _inside("teachers.0", patches=True),
    "the pooler of 'dense' does not take the features of its head": _inside("teachers.1", pooler={"width": 7}),
    "no model has these sizes .'out'": _inside("teachers.1", pooler={"width": 6}),
    "preprocessing.patch is 16, student.patch 8": _inside("preprocessing", patch=16),
    "preprocessing.max_tokens: Input should be greater": _inside("preprocessing", max_tokens=0),
    "preprocessing: the student needs pixels scaled by": _inside("preprocessing", mean=[0, 0, 0]),
    "preprocessing.interpolation: Input should be": _inside("preprocessing", interpolation="nearest"),
    "weights differ, first 'backbone.blocks.0": _inside("student", width=1_000_000),
    "weights for 9000 layers": _inside("student", depth=9_000),
    "does not match its configuration: standards.0.summary_mean; ex": _weights(**{"standards.0.summary_mean": None}),
    "does not match its configuration: standards.1.patches_scale": _weights(**{"standards.1.patches_scale": None}),
    "standards.0.summary_rotation; export": _weights(**{"standards.0.summary_rotation": torch.eye(4)}),
    "1 weights are not finite .*, first 'student.project.weight'": _weights(
        **{"student.project.weight": torch.full((24, 32), torch.nan)}
    ),
    "first 'standards.0.summary_scale'": _weights(**{"standards.0.summary_scale": torch.tensor(torch.inf)}),
}


@pytest.mark.parametrize("says", DAMAGES)
@pytest.mark.long
def test_a_corrupt_folder_is_an_error_in_one_line(tmp_path, says):
    save_distill(tmp_path / "model")
    DAMAGES[says](tmp_path / "model")
    with pytest.raises(InputError, match=says) as error:
        distill.load(tmp_path / "model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", ["/proc/student", "FILE/student"])
def test_a_folder_that_cannot_be_written_is_an_error_before_export(tmp_path, place, monkeypatch):
    (tmp_path / "file").write_text("all of it")
    monkeypatch.setattr(export, "_tensors", None)
    with pytest.raises(StorageError, match=r"cannot write the model to .*student \(.*give another folder with --to"):
        save_distill(Path(place.replace("FILE", str(tmp_path / "file"))))


def test_weights_too_large_for_half_precision_are_an_error(tmp_path):
    student = save_distill(tmp_path / "model")
    with torch.no_grad():
        student.project.weight.fill_(1e5)
    config = read_config(tmp_path / "model").model_copy(update={"precision": "float16"})
    with pytest.raises(InputError, match="not be finite on disk: too large for float16; give --precision float32"):
        export.write_model(tmp_path / "half", config, student, standardisers(2))
    assert not (tmp_path / "half").exists()
