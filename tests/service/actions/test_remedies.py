from __future__ import annotations

import pytest

from curate.service.runs.remedies import failed_stage, remedy


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("embed: worker 2 was killed by signal 9", "memory"),
        ("CUDA out of memory. Tried to allocate 2 GiB", "memory"),
        ("[Errno 28] No space left on device", "disk space"),
        ("12 rows were lost to failures, the budget is 3", "failure_budget"),
        ("ModuleNotFoundError: No module named 'curate'", "install"),
        ("something never seen before", "read the stage's log"),
    ],
)
def test_a_failure_has_a_remedy(error: str, says: str) -> None:
    assert says in remedy(error)
    assert "\n" not in remedy(error)


def test_without_an_error_there_is_no_remedy() -> None:
    assert remedy("") == ""


def test_the_stage_that_an_error_names_has_failed() -> None:
    begun = ["embed", "embed_2", "text.clean"]
    assert failed_stage("embed_2: it broke", begun) == "embed_2"
    assert failed_stage("recipe.yaml:3: text.clean: it broke", begun) == "text.clean"
    assert failed_stage("it broke", begun) is None
    assert failed_stage("it broke", ["embed"]) == "embed"
