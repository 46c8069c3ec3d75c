import json

import pytest
from rich.console import Console

from curate.core.errors import CurateError, RecipeError
from distill.launch_ray import _group, _said, train_on_ray
from distill.recipe import parse_recipe


def test_a_number_of_workers_or_a_range():
    assert _group("8") == 8
    assert _group("4-8") == (4, 8)
    for wrong in ("0", "8-4", "many", "4-", "-1"):
        with pytest.raises(RecipeError, match=f"--ray {wrong}: expected a number of workers, or least-most"):
            _group(wrong)


def test_what_a_rank_has_said_is_a_line():
    inner = RuntimeError("wrapped")
    inner.__cause__ = CurateError("step 3: too\nmuch")
    outer = RuntimeError("many\nlines")
    outer.worker_failures = {1: inner}
    assert _said(outer) == "step 3: too much"
    assert _said(ValueError("a\nb")) == "ValueError: a b"


@pytest.mark.filterwarnings("ignore")  # Ray Train's own, of Ray Data and of processes that it leaves to its actors
def test_ranks_started_by_ray(values, on_this_ray):
    values["train"] |= {"steps": 2, "sequences": 2}
    recipe = parse_recipe(values, "test")
    run = train_on_ray(recipe, "2", Console(quiet=True))
    assert run.read("finished.json")["step"] == 2
    assert len(run.metrics.read_text().splitlines()) == 2
    assert json.loads((run.checkpoints / "step-00000002/state.json").read_text())["step"] == 2
    assert len(list((run.checkpoints / "step-00000002").glob("*.distcp"))) >= 1
