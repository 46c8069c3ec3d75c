"""A pipeline that cannot run is rejected before anything is computed, with one line: the place and the remedy."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pytest

from curate.core.contracts import Filter, Map
from curate.core.errors import CurateError, RecipeError
from curate.core.items import places_of
from curate.core.recipe.pipeline import Pipeline
from tests.engine import toys


def base(**source: Any) -> Pipeline:
    return Pipeline().add("pool", toys.Numbers(namespace="n", **source), place="r.yaml:1")


def rejects(pipeline: Pipeline, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        pipeline.check()
    assert str(caught.value) == message
    assert "\n" not in str(caught.value)


def test_stages_come_after_those_they_depend_on() -> None:
    pipeline = Pipeline()
    for name, (cls, inputs, ports) in reversed(toys.STAGES.items()):
        pipeline.add(name, cls(**({"namespace": "n"} if name == "pool" else {})), inputs, **ports)
    order = list(pipeline.check().nodes)
    for node in pipeline.nodes.values():
        assert all(order.index(up) < order.index(node.name) for up in node.upstream)
    assert [node.name for node in pipeline.along("even")] == [
        n for n in order if n not in ("total", "even", "dataset", "page")
    ]
    assert pipeline.pool_of("page") == pipeline.pool_of("pool") == "pool"


def test_an_empty_pipeline() -> None:
    rejects(Pipeline(), "pipeline: no stages; add at least a source")


def test_two_stages_with_the_same_name() -> None:
    with pytest.raises(RecipeError, match=r"^r.yaml:9: pool: a stage of this name exists; choose another name$"):
        base().add("pool", toys.Numbers(namespace="m"), place="r.yaml:9")


def test_a_name_that_is_too_long_for_a_folder() -> None:
    with pytest.raises(RecipeError, match="xxx…: a stage's name of 201 characters; at most 200"):
        Pipeline().add("x" * 201, toys.Numbers(namespace="m"))


def test_an_unknown_input() -> None:
    pipeline = base().add("bright", toys.Brightness(), "pol", place="r.yaml:5")
    rejects(pipeline, "r.yaml:5: bright: unknown input 'pol'; did you mean 'pool'?")
    pipeline = base().add("bright", toys.Brightness(), "zzz")
    rejects(pipeline, "pipeline: bright: unknown input 'zzz'; stages are pool, bright")


def test_a_cycle() -> None:
    pipeline = base().add("one", toys.Brightness(), "two").add("two", toys.Costly(), ["pool", "one"])
    with pytest.raises(
        RecipeError, match=r"cycle (one <- two <- one|two <- one <- two); a stage cannot be its own input$"
    ):
        pipeline.check()
    with pytest.raises(RecipeError, match="cycle a <- a; a stage cannot be its own input"):
        Pipeline().add("a", toys.Brightness(), "a").check()


def test_a_source_with_an_input() -> None:
    pipeline = base().add("more", toys.Numbers(namespace="m"), "pool")
    rejects(pipeline, "pipeline: more: `from` does not apply to toy.numbers, which is a source; remove it")


def test_a_stage_without_an_input() -> None:
    message = "pipeline: bright: `from` is missing; give the stage (or stages) whose rows it reads"
    rejects(base().add("bright", toys.Brightness()), message)


def test_rows_from_an_artifact_or_a_dataset() -> None:
    pipeline = base().add("bright", toys.Brightness(), "pool").add("total", toys.Total(), "bright")
    pipeline.add("next", toys.Costly(), "total")
    rejects(pipeline, "pipeline: next: from 'total': toy.total makes an artifact; give a stage with rows")
    pipeline = toys.pipeline().add("next", toys.Costly(column="x"), "dataset")
    message = "toy.costly cannot read a dataset; only reports and training can"
    rejects(pipeline, f"pipeline: next: from 'dataset': {message}")


def test_a_report_shows_artifacts_too() -> None:
    pipeline = base().add("bright", toys.Brightness(), "pool").add("total", toys.Total(), "bright")
    pipeline.add("page", toys.Page(), ["bright", "total"]).check()
    assert [node.name for node in pipeline.reaches("page")] == ["pool", "bright", "total"]


def test_rows_of_two_pools() -> None:
    pipeline = base().add("other", toys.Numbers(namespace="m")).add("bright", toys.Brightness(), ["pool", "other"])
    rejects(pipeline, "pipeline: bright: rows come from 2 pools (pool, other); they must come from one")


def test_exactly_one_selection() -> None:
    pipeline = base().add("dataset", toys.PlainPack(), "pool")
    rejects(pipeline, "pipeline: dataset: toy.pack needs exactly one selection upstream, found 0; add `select.all`")
    pipeline = toys.pipeline().add("more", toys.Even(seed=1), "brighter").add("next", toys.Shifted(), ["more", "even"])
    message = "rows come from 2 selections (even, more); they must come from one"
    rejects(pipeline, f"pipeline: next: {message}")


def test_ports_missing_unknown_and_of_the_wrong_kind() -> None:
    pipeline = base().add("bright", toys.Brightness(), "pool").add("brighter", toys.Brighter(), "bright")
    message = "port 'total' is missing; give the stage that makes the toy_total, or pin:NAME"
    rejects(pipeline, f"pipeline: brighter: {message}")
    pipeline = (
        base().add("bright", toys.Brightness(), "pool").add("brighter", toys.Brighter(), "bright", total="bright")
    )
    rejects(
        pipeline,
        "pipeline: brighter: total: 'bright' (toy.brightness) does not make a toy_total; give a stage that does",
    )
    pipeline = base().add("bright", toys.Brightness(), "pool", tree="pool")
    rejects(pipeline, "pipeline: bright: 'tree' is neither a parameter nor a port of toy.brightness")


def test_columns_that_are_missing_upstream() -> None:
    pipeline = base().add("parity", toys.Parity(), "pool")
    rejects(pipeline, "pipeline: parity: column 'brightness' is missing upstream; add a stage that writes it")
    pipeline = base().add("bright", toys.Brightness(), "pool").add("parity", toys.Parity(), "pool")
    rejects(pipeline, "pipeline: parity: column 'brightness' is missing upstream; add 'bright' to `from`")


def test_a_column_written_by_two_stages() -> None:
    pipeline = base().add("one", toys.Brightness(), "pool").add("two", toys.Shifted(), "pool")
    pipeline.add("parity", toys.Parity(), ["one", "two"])
    rejects(pipeline, "pipeline: parity: column 'brightness' is written by 'one' and 'two'; rename one")


def test_a_report_reads_each_column_from_one_stage() -> None:
    """A report reads everything upstream, along `from` and ports."""
    two = base().add("one", toys.Brightness(), "pool").add("two", toys.Shifted(), "pool")
    message = "column 'brightness' is written by 'one' and 'two'; rename one"
    rejects(two.add("page", toys.Page(), ["one", "two"]), f"pipeline: page: {message}")
    behind = base().add("one", toys.Brightness(), "pool").add("two", toys.Shifted(), "pool")
    behind.add("total", toys.Total(), "two").add("brighter", toys.Brighter(), "one", total="total").check()
    rejects(behind.add("page", toys.Page(), "brighter"), f"pipeline: page: {message}")
    renamed = base().add("one", toys.Brightness(), "pool").add("two", toys.Brightness(column="other"), "pool")
    assert len(renamed.add("page", toys.Page(), ["one", "two"]).check().nodes) == 4


def test_a_report_reads_one_pool() -> None:
    """An artifact from another pool may have been computed from columns with the same names."""
    two = base().add("other", toys.Numbers(namespace="m"))
    two.add("theirs", toys.Brightness(), "other").add("total", toys.Total(), "theirs")
    two.add("ours", toys.Brightness(), "pool").add("brighter", toys.Brighter(), "ours", total="total")
    two.add("page", toys.Page(), "brighter").check()
    assert [node.name for node in two.reaches("page")] == ["pool", "ours", "brighter"]


def test_a_report_reads_one_selection() -> None:
    pipeline = toys.pipeline().add("more", toys.Even(seed=1), "brighter")
    message = "rows come from 2 selections (even, more); they must come from one"
    rejects(pipeline.add("both", toys.Page(), ["dataset", "more"]), f"pipeline: both: {message}")


@pytest.mark.parametrize("each", [0, -3])
def test_a_target_below_one(each: int) -> None:
    pipeline = toys.pipeline()
    pipeline.nodes["even"] = type(pipeline.nodes["even"])("even", toys.Even(each=each), ("brighter",))
    rejects(pipeline, f"pipeline: even: target {each}: must be at least 1")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "ä", "a b", "a\n"])
def test_a_namespace_names_a_folder(name: str) -> None:
    with pytest.raises(ValueError, match="expected letters, digits"):
        toys.Numbers(namespace=name)


class Words(Map):
    """Makes items, counts them, and writes a value for each."""

    op: ClassVar[str] = "tests.words"

    def schema(self) -> pa.Schema:
        texts, scores = pa.list_(pa.string()), pa.list_(pa.float32())
        return pa.schema(
            [
                pa.field("words", texts, metadata=places_of("words")),
                pa.field("score", scores, metadata=places_of("words")),
                pa.field("words_count", pa.int32()),
            ]
        )


class ByColumn(Filter):
    """Judges rows or items by a column."""

    op: ClassVar[str] = "tests.judged"
    column: str = "words"
    items: bool = True
    wrong: bool = False

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def places(self) -> str | None:
        return self.column if self.items else None

    def check_columns(self, columns: pa.Schema) -> None:
        assert self.column in columns.names and "key" in columns.names
        if self.wrong:
            raise CurateError("column: cannot be judged; name another")


def filtered(**values: Any) -> Pipeline:
    made = base().add("words", Words(), "pool")
    return made.add("judged", ByColumn(**values), "words", place="r.yaml:7")


def test_a_filter_judges_columns_that_reach_it() -> None:
    filtered().check()
    filtered(column="words_count", items=False).check()
    missing = "column 'brightness' is missing upstream; add a stage that writes it"
    rejects(filtered(column="brightness", items=False), f"r.yaml:7: judged: {missing}")


def test_a_filter_checks_its_columns_itself() -> None:
    with pytest.raises(CurateError, match=r"^r.yaml:7: judged: column: cannot be judged; name another$"):
        filtered(wrong=True).check()


def test_a_column_without_items() -> None:
    rule = "has one value per row, not a list with a value per item; give a list column"
    for column in ("words_count", "caption"):
        rejects(filtered(column=column), f"r.yaml:7: judged: column '{column}' {rule}")


def test_columns_of_one_family_follow_the_column_that_made_the_items() -> None:
    assert filtered().check().families("judged") == {"words": "words", "score": "words"}


def test_keep_null_applies_to_maps_only() -> None:
    pipeline = base().add("bright", toys.Brightness(), "pool", keep_null=True).check()
    pipeline.add("light", toys.Light(), "bright", keep_null=True)
    message = "keep_null does not apply to toy.light, but to stages that compute facts; remove it"
    rejects(pipeline, f"pipeline: light: {message}")


def test_a_stage_that_decides_for_nothing_is_a_caution() -> None:
    """Columns and artifacts are on pages even if no stage reads them; and a recipe may still end with a filter."""
    made = base().add("bright", toys.Brightness(), "pool").add("light", toys.Light(), "bright")
    assert made.check().cautions("light") == []
    made.add("parity", toys.Parity(), "bright").add("even", toys.Even(), "parity")
    made.add("dataset", toys.PlainPack(), "even")
    assert {name: found for name in made.check().nodes if (found := made.cautions(name))} == {
        "light": ["leads nowhere: no stage reads it; name it in the `from` of one"]
    }
    assert made.upto("light").cautions("light") == []
