"""Two processes give the losses and gradients of one, in float64, with torchrun's agent and gloo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from distill.cli import main
from distill.commands.explain import explain, where
from distill.commands.train import train
from distill.context import StageContext
from distill.parallel import World
from distill.recipe import load_recipe, parse_recipe
from distill.samples.sources.mixture import open_mixture
from distill.training.checkpoint import last_checkpoint
from distill.training.run_folder import RunFolder
from distill.training.steps import PastSteps
from distill.training.trainer import Trainer
from tests.distill.clips import clip, write_clips
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.ranks import LOGGED, SAVED, log_samples, take_steps

ROOT = Path(__file__).parents[3]
ALONE = World(0, 1, torch.device("cpu"))
pytestmark = pytest.mark.long
PATCHES = "timm:vit_tiny_patch16_224?depth=1&embed_dim=24&num_heads=2&img_size=32&random=7"


STAGED = [
    "train.optimizer=lamb",
    "train.sequences=2",
    'stages=[{"train": {"steps": 2, "rates": {"backbone.blocks": 0}}}, {"train": {"steps": 2},'
    ' "objectives": [{"objective": "tests.distill.objectives.toys:Colours"}]}]',
]


def everything(dataset: str, run: str) -> dict[str, Any]:
    """Recipe with experts, relations of both kinds, contrastive loss, divergence from a teacher of pairs, an objective
    with own heads and a dense loss, labels, moving average, gradient clipping, frozen parts and rates of others."""
    values = recipe_values(dataset, run)
    values["data"]["sources"][0]["texts"] = {"txt": 1}
    moe = {"experts": 4, "active": 2, "hidden": 8, "balance_rate": 0.01, "shared": 2, "shared_active": 1}
    text = {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}
    values["student"] |= {"moe": moe, "text": text, "embed": 8}
    values["teachers"] = [
        {"encoder": "descriptor", "name": name, "standardise": "scale", "relations": {"kind": kind, "weight": 2},
         "summary": {"loss": "smooth_l1"}}
        for name, kind in (("one", "arkd"), ("two", "rkd"))
    ]  # fmt: skip
    values["teachers"] += [{"encoder": "tests.distill.objectives.toys:Pairs", "name": "pairs", "standardise": "scale"}]
    values["contrastive"] = {"weight": 0.5}
    kl = {"objective": "distill.objectives.kl:Kl", "teacher": "pairs", "teacher_scale": 20, "weight": 0.7}
    labels = {"objective": "distill.objectives.labels:Labels", "column": "txt", "classes": 12, "outside": "ignore"}
    values["objectives"] = [{"objective": "tests.distill.objectives.toys:Colours", "weight": 2}, kl, labels]
    rates = {"heads": 0.5, "text.positions": 0, "backbone.blocks.0.mlp_norm": 0}
    values["train"] |= {"rates": rates, "layer_decay": 0.9}
    values["train"] |= {"precision": "float64", "epsilon": 1e-6, "ema": 0.9, "clip_norm": 3.0, "steps": 4}
    return values


def captioned(dataset: str, run: str) -> dict[str, Any]:
    """A recipe of 40 short steps with texts of which one is drawn, and sizes that differ by epoch."""
    values = recipe_values(dataset, run)
    source = {"texts": {"txt": 1, "json.key": 2}, "single_sentence": 0.5, "max_tokens": {4: 1.0, 9: 1.0}}
    values["data"]["sources"][0] |= source
    values["data"]["sequence_tokens"] = 24
    values["student"] |= {"text": {"vocabulary": 300, "context": 8, "width": 8, "depth": 1, "heads": 1}, "embed": 8}
    values |= {"contrastive": {"weight": 0.5}, "evaluate": {"tasks": []}}
    values["train"] |= {"steps": 40}
    values["run"] |= {"log_every": 3, "checkpoint_every": 10}
    return values


@dataclass(frozen=True)
class Finished:
    """Results of two ranks: of the jobs' steps, and of the commands."""

    place: Path
    jobs: dict[str, dict[str, Any]]
    codes: dict[str, list[int]]
    """Exit codes of the failed ranks, by command."""

    def ranks(self, name: str) -> list[dict[str, Any]]:
        return [torch.load(self.place / f"{name}-{rank}.pt") for rank in range(2)]

    def lines(self, name: str) -> list[str]:
        """Output lines of both ranks of a command."""
        texts = [(self.place / f"{name}-{rank}.txt").read_text() for rank in range(2)]
        return [line for text in texts for line in text.splitlines()]

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.place / name / "metrics.jsonl").read_text().splitlines()]

    def losses(self, name: str) -> list[float]:
        return [line["loss"] for line in self.metrics(name)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images, each with a different text."""
    items = drawn_items(40)
    captions = [f"{item.columns['label']} number {number}".encode() for number, item in enumerate(items)]
    return write_dataset(tmp_path_factory.mktemp("texts") / "toy", items, texts=captions)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Recipe with two texts per image, of which every third image lacks one, and objectives with further views. No
    experts, so no routing to replay; the student is PE's, with stochastic depth."""
    items = drawn_items(40)
    captions = [None if number % 3 == 1 else f"number {number}".encode() for number in range(len(items))]
    documents = [
        {"texts": {} if number % 3 == 2 else {"tags": item.columns["label"]}} for number, item in enumerate(items)
    ]
    place = tmp_path_factory.mktemp("pairs")
    values = everything(
        str(write_dataset(place / "toy", items, texts=captions, documents=documents)), str(place / "run")
    )
    values["data"]["sources"][0] |= {"texts": {"txt": 1, "tags": 1}, "text_pair": ["txt", "tags"]}
    values["student"] |= {
        "moe": None, "norm": "layer", "mlp": "gelu", "bias": True, "qk_norm": False, "pre_norm": True, "drop_path": 0.4,
        "positions": "absolute + axial", "position_grid": 3, "pool": "attention", "pool_heads": 2, "layer_scale": 0.5,
    }  # fmt: skip
    values["data"]["augment"] = {"crop": [0.5, 1.0], "flip": True}
    values["objectives"] += [
        {"objective": "distill.objectives.mae:Mae", "decoder": {"depth": 1, "width": 8, "heads": 1}},
        {"objective": "distill.objectives.masking:Masking", "share": 0.5},
        {"objective": "distill.objectives.denoising:Denoising"},
        {"objective": "distill.objectives.slip:Slip", "hidden": 8, "embed": 4},
    ]
    return values


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Recipe with clips of one to four frames, of which two are a pair, and layers that leave fewer tokens."""
    place, samples = tmp_path_factory.mktemp("clips"), [clip(number, 1 + number % 4) for number in range(24)]
    dataset = write_clips(place / "toy", samples, texts=[f"number {number}" for number in range(24)])
    values = everything(str(dataset), str(place / "run"))
    values["data"]["sources"][0] |= {"modality": "video", "max_tokens": 12}
    values["data"] |= {"sequence_tokens": 150, "sequence_images": 8}
    values["student"] |= {"moe": None, "keep": 0.6, "keep_layers": [1], "merge": 2}
    values["contrastive"]["frame_pairs"], values["objectives"] = 0.7, []
    for teacher in values["teachers"]:
        teacher["patches"] = {"weight": 0}
    return values


@pytest.fixture(scope="module")
def alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Steps of one process with one batch; other jobs replay its routing."""
    return take_steps(everything(str(texts), str(tmp_path_factory.mktemp("alone"))), ALONE)


@pytest.fixture(scope="module")
def finished(
    folder: Path,
    texts: Path,
    pairs: dict[str, Any],
    clips: dict[str, Any],
    alone: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Finished:
    """All jobs run in one process, because importing torch takes seconds."""
    place = tmp_path_factory.mktemp("ranks")
    plain = recipe_values(str(folder), str(place / "plain"))
    plain["train"] |= {"precision": "float64", "steps": 9}
    plain["teachers"][0]["standardise"] = "scale"
    jobs = {"plain": plain}
    for name, own in (("pairs", pairs), ("clips", clips)):
        jobs[name] = own | {"run": own["run"] | {"micro_sequences": 1, "parallel": "fsdp"}}
    for name, run in (
        ("micro", {"micro_sequences": 1}),
        ("sharded", {"parallel": "fsdp", "activation_checkpointing": True}),
        ("sharded-micro", {"parallel": "fsdp", "micro_sequences": 1}),
    ):
        jobs[name] = everything(str(texts), str(place / name))
        jobs[name]["run"] |= run
        torch.save([step["routing"] for step in alone["steps"]], place / f"{name}-routing.pt")
    recipe = recipe_values(str(folder), str(place / "one"))
    recipe["teachers"][0]["standardise"] = "scale"
    recipe["train"] |= {"sequences": 1, "precision": "float64", "epsilon": 1e-6}
    recipe["evaluate"] |= {"tasks": ["knn", "probe", "fidelity"], "every": 2}
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    commands = {"two": ["run.folder={place}/two"]}
    commands["killed"] = ["run.folder={place}/lost", "run.checkpoint_every=1", "evaluate.tasks=[]"]
    commands["again"] = commands["killed"]
    commands["staged"] = ["run.folder={place}/staged", "run.parallel=fsdp", "evaluate.tasks=[]", *STAGED]
    commands["unshared"] = ["run.folder={place}/unshared-{rank}"]
    commands["other seed"] = ["run.folder={place}/two", "seed=9"]
    commands["mistaken"] = ["train.stepz=3"]
    commands = {
        name: ["train", str(place / "recipe.yaml"), *(f"--set={item.replace('{place}', str(place))}" for item in sets)]
        for name, sets in commands.items()
    }
    (place / "captioned.yaml").write_text(yaml.safe_dump(captioned(str(texts), str(place / "captioned"))))
    commands[LOGGED] = commands["logged again"] = ["train", str(place / "captioned.yaml")]
    (place / "jobs.yaml").write_text(yaml.safe_dump({"steps": jobs, "commands": commands}, sort_keys=False))
    # ranks are forked, which CUDA does not survive
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.distill.ranks", str(place)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return Finished(place, jobs, yaml.safe_load((place / "codes.yaml").read_text()))


def assert_same(one: dict[str, Any], ranks: list[dict[str, Any]], rtol: float = 1e-8) -> None:
    assert {step["own"] > 0 for rank in ranks for step in rank["steps"][:1]} == {True}
    for number, step in enumerate(one["steps"]):
        assert sum(rank["steps"][number]["own"] for rank in ranks) == step["own"]
        for rank in ranks:
            assert rank["steps"][number]["sums"] == pytest.approx(step["sums"], rel=rtol, abs=1e-9)
            for name, grad in step["grads"].items():
                assert torch.allclose(rank["steps"][number]["grads"][name], grad, rtol=rtol, atol=1e-12), name
    for kind in ("student", "averaged"):
        for name, weight in one[kind].items():
            assert torch.equal(ranks[0][kind][name], ranks[1][kind][name])
            assert torch.allclose(ranks[0][kind][name], weight, atol=1e-6)


def test_two_ranks_equal_one(finished):
    """With three sequences per step, the ranks have two and one; in an epoch's last step, one rank may have none."""
    one, ranks = take_steps(finished.jobs["plain"], ALONE), finished.ranks("plain")
    assert len(one["steps"]) == 9
    assert_same(one, ranks)
    for name, value in one["standards"][0].items():
        assert torch.allclose(ranks[0]["standards"][0][name], value, rtol=1e-12)


def test_micro_batches_equal_the_whole_batch(texts, alone, tmp_path):
    values = everything(str(texts), str(tmp_path))
    values["run"] |= {"micro_sequences": 1}
    parts = take_steps(values, ALONE, routing=[step["routing"] for step in alone["steps"]])
    for one, two in zip(alone["steps"], parts["steps"], strict=True):
        assert two["sums"] == pytest.approx(one["sums"], rel=1e-10)
        logged = {"one/relations", "two/relations", "contrastive", "pairs/kl", "colours", "colours/patches"}
        assert logged < set(one["sums"])
        for name, grad in one["grads"].items():
            assert torch.allclose(two["grads"][name], grad, rtol=1e-9, atol=1e-13), name
    assert any(step["grads"]["logit_scale"].abs() > 1e-6 for step in alone["steps"])


@pytest.mark.parametrize("name", ["micro", "sharded", "sharded-micro"])
def test_two_ranks_equal_one_with_losses_between_images(finished, alone, name):
    """Also with experts, clipping and the moving average, however weights and batches are divided."""
    assert_same(alone, finished.ranks(name))


def test_two_ranks_equal_one_with_two_texts_per_image_and_views(finished, pairs):
    """Two ranks with micro-batches and sharded weights against one process with whole batches."""
    one = take_steps(pairs, ALONE)
    assert_same(one, finished.ranks("pairs"))
    assert all(step["sums"]["contrastive"] > 0 for step in one["steps"])


def test_two_ranks_equal_one_with_clips(finished, clips):
    """A clip is never divided between ranks, nor between micro-batches. With sharded weights."""
    assert_same(take_steps(clips, ALONE), finished.ranks("clips"))


@pytest.mark.parametrize("name", ["micro", "sharded"])
def test_one_process_resumes_from_two_ranks(finished, alone, name):
    """From a checkpoint that is sharded or not."""
    recipe = parse_recipe(
        finished.jobs[name] | {"run": finished.jobs[name]["run"] | {"parallel": "replicated"}}, "test"
    )
    saved = last_checkpoint(RunFolder(finished.place / f"{name}-run"), "fingerprint")
    context = StageContext.of(recipe, open_mixture(recipe.data), ALONE)
    context.tokenizer = context.fit_tokenizer()
    context.find_classes({})
    trainer = Trainer(context, "fingerprint")
    trainer.load(saved)
    assert trainer.step == SAVED
    for share, step in zip(trainer.loader, alone["steps"][SAVED:], strict=False):
        sums, _ = trainer.update(share)
        assert sums["loss"] == pytest.approx(step["sums"]["loss"], rel=1e-6)
    for name, weight in alone["averaged"].items():
        assert torch.allclose(trainer.final_student().state_dict()[name], weight, atol=1e-6)


def test_a_killed_rank_ends_the_others_and_the_run_resumes(finished):
    errors = [line for line in finished.lines("killed") if line.startswith("distill: ")]
    # torchrun's agent names the rank that it finds ended first: under load this may be the other rank
    assert -signal.SIGKILL in finished.codes["killed"] or (errors and finished.codes["killed"] == [1])
    assert len(errors) <= 1  # none if torchrun's agent ends the other rank before it prints its error
    for line in errors:
        assert line.startswith("distill: rank 0 of 2: another rank ended or did not answer for 600 s")
        assert line.endswith("run again to resume from the last checkpoint")
    assert finished.codes["again"] == []
    # the checkpoint of the step before was being written
    assert any(re.search(rf"resuming after step [{SAVED - 1}{SAVED}]\b", line) for line in finished.lines("again"))
    assert finished.losses("lost") == finished.losses("two")


def test_sharded_stages_with_other_weights_equal_one_process(finished, tmp_path):
    assert finished.codes["staged"] == []
    sets = [f"run.folder={tmp_path}/alone", "evaluate.tasks=[]", *STAGED]
    run = train(load_recipe(str(finished.place / "recipe.yaml"), sets), Console(quiet=True))
    alone = [json.loads(line)["loss"] for line in run.metrics.read_text().splitlines()]
    assert finished.losses("staged") == pytest.approx(alone, rel=1e-8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unshared", "distill: run.folder: .*/unshared-[01] is not the same folder for all processes: rank 1 does not"),
        ("other seed", "distill: .*/two holds a run with fingerprint .* set run.folder to another folder"),
        ("mistaken", "distill: .*recipe.yaml.*train.stepz: unknown; did you mean 'steps'"),
    ],
)
def test_only_one_rank_prints_an_error(finished, name, message):
    assert 1 in finished.codes[name]
    [line] = finished.lines(name)
    assert re.match(message, line)


def test_the_command_line_under_torchrun(finished, monkeypatch, capsys):
    """With one sequence per step the second rank has no images; it still takes part in every step."""
    assert finished.codes["two"] == []
    assert sum("trained 4 steps" in line for line in finished.lines("two")) == 1
    monkeypatch.setattr(sys, "argv", ["distill", "train", str(finished.place / "recipe.yaml")])
    with pytest.raises(SystemExit) as exit:
        main()
    assert not exit.value.code
    assert "trained 4 steps" in capsys.readouterr().out
    one, two = finished.losses("one"), finished.losses("two")
    assert len(one) == 4
    assert two == pytest.approx(one, rel=1e-9)
    validated = [[line.get("validation/held-out/knn") for line in finished.metrics(name)] for name in ("one", "two")]
    assert validated[0] == validated[1] and [value is None for value in validated[0]] == [True, False, True, False]
    scores = [json.loads((finished.place / name / "evaluation.json").read_text())["sets"][0] for name in ("one", "two")]
    assert scores[0]["knn"]["models"] == scores[1]["knn"]["models"]
    assert scores[0]["counts"] == scores[1]["counts"]


@pytest.fixture(scope="module")
def logged(finished) -> dict[int, list[list[Any]]]:
    """What the last attempt at each of 40 steps saw: of two ranks that were killed, two that resumed and were killed,
    and one process that finished the run."""
    former = log_samples(finished.place)
    try:
        train(load_recipe(str(finished.place / "captioned.yaml")), Console(quiet=True))
    finally:
        Trainer.update = former
    lines = [
        (rank, *json.loads(line))
        for rank in range(2)
        for line in (finished.place / f"{LOGGED}-{rank}.jsonl").read_text().splitlines()
    ]
    ranks = {step: size for _, step, size, _ in sorted(lines, key=lambda line: -line[2])}
    steps: dict[int, dict[int, Any]] = {}
    for rank, step, size, seen in lines:
        if size == ranks[step]:
            steps.setdefault(step, {})[rank] = seen
    return {step: [[rank, *one] for rank, seen in sorted(own.items()) for one in seen] for step, own in steps.items()}


def test_the_steps_planned_again_are_those_of_training(finished, logged):
    assert sorted(logged) == list(range(1, 41))
    past = PastSteps(RunFolder(finished.place / "captioned"))
    assert [past.ranks(step) for step in (1, 20, 21, 40)] == [2, 2, 1, 1]
    saw: dict[str, list[tuple[int, int]]] = {}
    for step, seen in logged.items():
        plan, ranks = past.plan(step), past.ranks(step)
        pairs = [(number, row) for number, rows in enumerate(plan.sequences) for row in rows]
        found = sorted((number % ranks, number, past.stage(0).mixture.key(row)) for number, row in pairs)
        assert found == sorted((rank, number, key) for rank, number, key, _ in seen)
        for rank, _, key, _ in seen:
            saw.setdefault(key, []).append((step, rank))
    held_out = set(past.stage(0).mixture.strings("key")) - saw.keys()
    assert held_out
    found = past.seen([*saw, *held_out, "0" * 32])
    assert {key: [(one.step, one.rank) for one in seen] for key, seen in found.items() if seen} == saw
    assert {key for key, seen in found.items() if seen == []} == held_out
    assert found["0" * 32] is None


def test_explain_prints_the_samples_of_a_step(finished, logged, capsys):
    run = str(finished.place / "captioned")
    for step in (1, 13, 17, 30, 40):
        found = explain(run, step, None, Console(quiet=True), as_json=True)
        assert json.loads(capsys.readouterr().out) == found
        drawn = [[item["rank"], item["sequence"], item["key"], *item["texts"]] for item in found["samples"]]
        assert sorted(drawn) == sorted(logged[step])
        first, last = found["losses_of_steps"]
        assert first <= step <= last < first + 3
        assert found["losses"]["loss"] > 0
        assert "places" not in found["losses"]
    # the line that covers step 19 was lost at the kill, and the run resumed after step 20
    assert explain(run, 19, None, Console(quiet=True))["losses"] is None
    one = explain(run, 12, 1, Console(quiet=True))
    assert {item["rank"] for item in one["samples"]} == {1}
    assert all(item["tokens"] <= 9 for item in one["samples"])
    key = logged[3][0][2]
    shown = where(run, [key], Console(quiet=True), as_json=True)["keys"][key]
    assert json.loads(capsys.readouterr().out)["keys"][key] == shown
    lost = (10, 19, 20)  # after the last line before each checkpoint that a run resumed from
    timed = [item["time"] for item in shown if item["step"] not in lost]
    assert timed and all(time.time() - 3600 < then <= time.time() for then in timed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "RUN", "--step", "41"], "--step 41: .* has the steps 1 to 40"),
        (["explain", "RUN", "--step", "1", "--rank", "2"], "--rank 2: step 1 was shared by 2 ranks; give 0 to 1"),
        (["explain", "/nowhere", "--step", "1"], "/nowhere is not a run folder"),
        (["where", "RUN", "toy"], "KEY: 'toy' is not a key; expected 32 hex characters"),
    ],
)
def test_questions_without_an_answer_are_one_line(finished, logged, arguments, message, monkeypatch, capsys):
    run = str(finished.place / "captioned")
    monkeypatch.setattr(sys, "argv", ["distill", *(run if item == "RUN" else item for item in arguments)])
    with pytest.raises(SystemExit):
        main()
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(f"distill: {message}", line)
