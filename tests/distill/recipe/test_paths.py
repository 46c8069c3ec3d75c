"""A recipe recorded by a run means the same in every working folder."""

import pytest

from curate.core.errors import RecipeError
from distill.recipe import apply_overrides, parse_recipe
from distill.recipe.paths import absolute_encoder, local_folder, with_absolute_paths


def test_paths_become_absolute_and_do_not_enter_the_fingerprint(values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values["run"] |= {"folder": "runs/{name}", "teacher_cache": "~/said"}
    values["teachers"] = [{"encoder": "distill:student?max_tokens=9"}, {"encoder": "hf:x@weights", "name": "x"}]
    judged = [{"name": "a", "dataset": "other", "train": "s3://b/c", "class_names": "own.txt"}]
    values["evaluate"] |= {"prompts": "p.txt", "datasets": judged, "text_encoders": {"x": "timm:./y?a=1"}}
    recipe = parse_recipe(values, "test")
    found = with_absolute_paths(recipe)
    assert found.run.folder == f"{tmp_path}/runs/{{name}}"
    assert found.run.teacher_cache.endswith("/said") and found.run.teacher_cache.startswith("/")
    assert [teacher.encoder for teacher in found.teachers] == [
        f"distill:{tmp_path}/student?max_tokens=9", f"hf:x@{tmp_path}/weights",
    ]  # fmt: skip
    assert [teacher.label for teacher in found.teachers] == [teacher.label for teacher in recipe.teachers]
    assert (found.evaluate.prompts, found.evaluate.class_names) == (f"{tmp_path}/p.txt", None)
    [other] = found.evaluate.datasets
    assert (other.dataset, other.train, other.class_names) == (f"{tmp_path}/other", "s3://b/c", f"{tmp_path}/own.txt")
    assert found.evaluate.text_encoders == {"x": f"timm:{tmp_path}/y?a=1"}
    assert found.semantic() == recipe.semantic()
    monkeypatch.chdir("/")
    assert with_absolute_paths(found) == found


def test_an_object_store_is_not_a_local_folder():
    with pytest.raises(RecipeError, match=r"^--to: 's3://b/x' is not a local folder; give one on a disk$"):
        local_folder("s3://b/x", "--to")


@pytest.mark.parametrize("value", ["2024-99-99", "0b_", "[" * 1000, "{a: 1, a: 2}"])
def test_values_that_are_not_yaml(recipe, value):
    with pytest.raises(RecipeError, match=r"^--set name(=.{1,95}: the value is not YAML|:1: a is set twice)"):
        apply_overrides(recipe, [f"name={value}"], "test")


@pytest.mark.parametrize(
    "spec", ["tiny", "descriptor", "hf:google/siglip", "timm:x?a=1", "hf:/a/b", "distill:", "x:", ""]
)
def test_encoders_without_a_relative_path_stay(spec):
    assert absolute_encoder(spec) == spec
