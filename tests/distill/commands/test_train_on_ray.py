import json
from contextlib import nullcontext

import pytest
from rich.console import Console

from curate.core.errors import CurateError, RecipeError
from distill.parallel import LostRankError
from distill.recipe import parse_recipe
from distill.training.run_folder import RunFolder

pytest.importorskip("pandas", reason="Ray Train needs it: uv pip install 'curate[train]'")

from ray.exceptions import RayActorError

from distill.commands.train_on_ray import _fit, _group_size, _one_line, _root_cause, train_on_ray


def test_a_number_of_workers_or_a_range():
    assert _group_size("8") == 8
    assert _group_size("4-8") == (4, 8)
    for wrong in ("0", "8-4", "many", "4-", "-1"):
        with pytest.raises(RecipeError, match=f"--ray {wrong}: expected a number of workers, or least-most"):
            _group_size(wrong)


def failed(**ranks: BaseException) -> RuntimeError:
    """An error as Ray raises it: the errors of ranks, each wrapped in another error."""
    outer = RuntimeError("many\nlines")
    outer.worker_failures = {}
    for rank, (_, inner) in enumerate(sorted(ranks.items())):
        wrapped = RuntimeError("wrapped")
        wrapped.__cause__ = inner
        outer.worker_failures[rank] = wrapped
    return outer


def test_the_error_of_a_rank_is_one_line():
    lost = LostRankError("rank 0: another rank ended")
    assert _one_line(_root_cause(failed(a=lost, b=CurateError("step 3: too\nmuch")))) == "step 3: too much"
    assert _root_cause(failed(a=lost, b=lost)) is lost
    assert _one_line(_root_cause(ValueError("a\nb"))) == "ValueError: a b"


GONE = RayActorError()


@pytest.mark.parametrize(
    ("errors", "fits", "message"),
    [
        ([failed(a=CurateError("step 3: too much"))], 1, "run .*: step 3: too much"),
        ([failed(a=LostRankError("rank 0: another rank ended")), failed(a=GONE)], 3, None),
        ([failed(a=LostRankError("rank 0: another rank ended"), b=KeyError("a"))], 1, "run .*: KeyError: 'a'"),
        ([failed(a=LostRankError("rank 0: another rank ended"))] * 9, 4, "run .*: rank 0: another rank ended"),
    ],
)
def test_a_group_is_restarted_only_after_a_lost_worker(tmp_path, errors, fits, message):
    class Trainer:
        calls = 0

        def fit(self) -> None:
            self.calls += 1
            if self.calls <= len(errors):
                raise errors[self.calls - 1]

    trainer, console = Trainer(), Console(record=True, width=300)
    with pytest.raises(CurateError, match=message) if message else nullcontext():
        _fit(trainer, RunFolder(tmp_path), console)
    assert trainer.calls == fits
    assert console.export_text().count("lost a worker") == fits - 1


@pytest.mark.filterwarnings("ignore")  # Ray Train warns about Ray Data and about processes of its actors
def test_ranks_started_by_ray(values, on_this_ray, tmp_path, monkeypatch):
    values["train"] |= {"steps": 2, "sequences": 2}
    monkeypatch.chdir(tmp_path)  # not the workers' working folder
    (tmp_path / "names.txt").write_text("class-0\tbars\n")
    values["run"]["folder"] = "run"
    values["evaluate"] |= {"class_names": "names.txt", "tasks": ["zero_shot"]}
    recipe = parse_recipe(values, "test")
    run = train_on_ray(recipe, "2", Console(quiet=True))
    assert run.read("finished.json")["step"] == 2
    assert len(run.metrics.read_text().splitlines()) == 2
    assert json.loads((run.checkpoints / "step-00000002/state.json").read_text())["step"] == 2
    assert len(list((run.checkpoints / "step-00000002").glob("*.distcp"))) >= 1
