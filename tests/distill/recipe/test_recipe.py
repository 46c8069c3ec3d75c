import pytest
import yaml

from curate.core.errors import RecipeError
from distill.recipe import RECIPES, Recipe, apply_overrides, load_recipe, parse_recipe


def with_value(values: dict, place: str, value: object) -> dict:
    *parents, last = place.split(".")
    node = values
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    node[last] = value
    return values


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_recipes_of_the_package_are_valid_by_name_and_by_path(name):
    assert load_recipe(name) == load_recipe(str(RECIPES / f"{name}.yaml"))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("train.stepz", 5, r"r: train\.stepz: unknown; did you mean 'steps'\?"),
        ("colour", 5, r"r: colour: unknown; known: name, seed, run"),
        ("teachers.0.waight", 5, r"r: teachers\.0\.waight: unknown; known: encoder"),
        ("train.steps", "many", r"r: train\.steps: 'many': input should be a valid integer"),
        ("train.steps", 0, r"r: train\.steps: 0: input should be greater than or equal to 1"),
        ("student.heads", 5, r"r: student: width 16 is not a multiple of 2 x heads \(5\)"),
        ("data.sequence_tokens", 18, "18 is less than the tokens of the largest image, 19"),
        ("teachers", [], "no training objective; set teachers, or contrastive with student.text"),
        ("teachers", [{"encoder": "descriptor"}] * 2, "teachers: two have the same name"),
        (
            "teachers",
            [{"encoder": "descriptor"} | {kind: {"weight": 0} for kind in ("summary", "patches", "registers")}],
            "no training objective: every loss of every teacher has weight 0; set a weight above 0",
        ),
        ("train", 3, r"r: train: 3: input should be"),
        ("train.steps", True, r"r: train\.steps: expected a number, a name or a mapping, not true"),
        ("student.moe", True, r"r: student\.moe: expected a number, a name or a mapping, not true"),
        ("train.steps", 10**20, r"r: train\.steps: 10+: input should be less than or equal to"),
        ("student.patch", 5000, r"r: student\.patch: 5000: input should be less than or equal to"),
        (
            "teachers.0.encoder",
            {"timm": None},
            r"r: teachers\.0\.encoder: YAML reads timm: as a mapping; quote",
        ),
        ("data.sources.0.texts", {"json": 1}, r"texts: 'json' is not a text; give a member of the tar \(txt\) or a"),
        ("train.warmup_steps", 4, r"r: train: warmup_steps 4 must be less than steps 4; lower it"),
        ("train.betas", [0.9], r"r: train\.betas: \[0\.9\]: expected more values than 1"),
        ("train.betas", [0.9, 2], r"r: train\.betas\.1: 2: input should be less than 1"),
        ("train.learning_rate", 1e38, r"r: train\.learning_rate: 1e\+38: input should be less than or equal to"),
        ("train.clip_norm", float("inf"), r"r: train\.clip_norm: inf: input should be a finite number"),
        ("evaluate.gamma", float("nan"), r"r: evaluate\.gamma: nan: input should be a finite number"),
        ("teachers.0.summary", {"weight": 1e308}, r"r: teachers\.0\.summary\.weight: 1e\+308: input should be less"),
        (
            "train.standardise_samples",
            {"summary": 9},
            "no number for patches, which teachers.0 standardises; add it, or",
        ),
        ("train.standardise_samples", {"patch": 9}, r"r: train\.standardise_samples\.patch"),
        (
            "teachers.0.standardised",
            ["cls"],
            r"r: teachers\.0\.standardised\.0: 'cls': input should be 'summary', 'pat",
        ),
        (
            "data.sources.0.natural_side",
            [384, 256],
            r"natural_side: \[384, 256\]: expected the smaller side first, as in",
        ),
        ("seed", 2**63, r"r: seed: 9223372036854775808: input should be less than"),
    ],
)
def test_mistakes_are_one_line_with_their_place(values, place, value, message):
    with pytest.raises(RecipeError, match=message) as caught:
        parse_recipe(with_value(values, place, value), "r")
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_file_names_its_line(tmp_path, values):
    values["train"]["steps"] = 0
    path = tmp_path / "r.yaml"
    path.write_text(text := yaml.safe_dump(values))
    line = text.splitlines().index("  steps: 0") + 1
    with pytest.raises(RecipeError, match=rf"r\.yaml:{line}: train\.steps: 0: input should be"):
        load_recipe(str(path))


def test_a_missing_value_is_reported(values):
    del values["train"]["steps"]
    with pytest.raises(RecipeError, match=r"train\.steps: missing; set it in the recipe or by --set train\.steps="):
        parse_recipe(values, "r")


def test_overrides_from_the_command_line(tmp_path, values):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(values))
    sets = [
        "train.steps=7e0",
        "student.moe.experts=4",
        "student.moe.active=1",
        "teachers.0.encoder=timm:x",
        "evaluate.temperature=1e-1",
        "data.sources.0.dataset=/d",
    ]
    recipe = load_recipe(str(path), sets)
    assert (recipe.train.steps, recipe.teachers[0].encoder, recipe.evaluate.temperature) == (7, "timm:x", 0.1)
    assert apply_overrides(recipe, ["seed=3"], "r").seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", r"^--set train\.steps: expected name=value, as in train\.steps=100$"),
        ("=4", "^--set =4: expected name=value"),
        ("seed=2024-99-99", "^--set seed=2024-99-99: the value is not YAML"),
        ("train.steps = 4", r"^r: train\.steps : unknown; did you mean 'steps'"),
        ("name.x=3", r"--set name\.x: cannot set 'x' in a single value; set the whole value"),
        ("teachers.4.encoder=x", r"--set teachers\.4\.encoder: teachers has the entries 0 to 0"),
        ("train.steps=[", "the value is not YAML"),
        ("data.sources.-1.dataset=x", "data.sources has the entries 0 to 0"),
        ("train..steps=3", r"--set train\.\.steps: a part of the name is empty"),
        ("train={steps: 3, steps: 4}", "--set train:1: steps is set twice"),
        ("train.step=4", r"train\.step: unknown; did you mean 'steps'"),
    ],
)
def test_wrong_overrides(recipe, override, message):
    with pytest.raises(RecipeError, match=message):
        apply_overrides(recipe, [override], "r")


@pytest.mark.parametrize("label", ["timm:vit_base_patch16_224", "vit b/32"])
def test_a_text_encoder_is_set_by_the_label_of_its_teacher(recipe, label):
    changed = apply_overrides(recipe, [f"evaluate.text_encoders.{label}=open_clip:ViT-B-16/webli"], "r")
    assert changed.evaluate.text_encoders == {label: "open_clip:ViT-B-16/webli"}


def test_files_that_are_not_recipes(tmp_path):
    with pytest.raises(RecipeError, match=r"no such recipe file; give a path, or one of: .*quickstart"):
        load_recipe(str(tmp_path / "nothing.yaml"))
    for text, message in (("- a", "a recipe is a mapping"), ("a: [", "not YAML"), ("", "a recipe is a mapping")):
        (tmp_path / "r.yaml").write_text(text)
        with pytest.raises(RecipeError, match=message):
            load_recipe(str(tmp_path / "r.yaml"))


def test_execution_parameters_stay_outside_of_the_fingerprint(recipe):
    same = [
        "run.workers=7",
        "data.sources.0.dataset=/elsewhere",
        "evaluate.k=2",
        "name=other",
        "data.max_bad_fraction=1",
    ]
    assert apply_overrides(recipe, same, "r").semantic() == recipe.semantic()
    for change in ("seed=1", "train.steps=9", "student.depth=1", "teachers.0.patches.weight=2", "data.lanes=1"):
        assert apply_overrides(recipe, [change], "r").semantic() != recipe.semantic(), change


def test_texts_that_a_source_may_have(recipe):
    texts = "data.sources.0.texts={original: 0.2, short: 0.8}"
    before = apply_overrides(recipe, [texts], "r")
    assert not {"single_sentence", "text_pair"} & before.semantic()["data"]["sources"][0].keys()  # as older runs
    for change in ("single_sentence=0.1", "text_pair=[original, short]"):
        changed = apply_overrides(recipe, [texts, f"data.sources.0.{change}"], "r")
        assert changed.semantic() != before.semantic()
        assert changed.data.paired == change.startswith("text_pair")
    for change, message in (
        (
            "text_pair=[original, long]",
            r"text_pair: 'long' is not one of `texts` \(original, short\); add it there, with",
        ),
        ("text_pair=[short, short]", r"text_pair: 'short' twice; expected two different texts"),
        ("text_pair=[short]", "expected more values than 1"),
        ("single_sentence=1.5", "single_sentence: 1.5: .*less than or equal to 1"),
    ):
        with pytest.raises(RecipeError, match=message):
            apply_overrides(recipe, [texts, f"data.sources.0.{change}"], "r")


def test_a_recipe_survives_its_own_yaml(recipe):
    assert Recipe.model_validate(yaml.safe_load(yaml.safe_dump(recipe.model_dump(mode="json")))) == recipe


def test_a_stage_changes_what_it_names(values):
    values["stages"] = [
        {"train": {"steps": 3}},
        {"train": {"steps": 2, "learning_rate": 1e-5}, "data": {"sequence_tokens": 128}},
    ]
    recipe = parse_recipe(values, "r")
    first, second = recipe.staged()
    assert recipe.steps == 5
    assert (first.train.steps, first.data.sequence_tokens, first.stages) == (3, 64, [])
    assert (second.train.learning_rate, second.data.sequence_tokens, second.student) == (1e-5, 128, first.student)
    changed = parse_recipe(values | {"stages": values["stages"][:1]}, "r")
    assert changed.semantic() != recipe.semantic()
    same = apply_overrides(recipe, ["stages.1.data.max_bad_fraction=1"], "r")
    assert same.semantic() == recipe.semantic()
    with pytest.raises(RecipeError, match=r"learning_rat"):
        apply_overrides(recipe, ["stages.1.train.learning_rat=1"], "r")


def test_a_stage_may_train_without_texts_before_one_with_texts(values):
    values["student"]["text"], values["contrastive"] = {"vocabulary": 300, "width": 8, "heads": 1}, {}
    values["data"]["sources"][0]["texts"] = {"txt": 1}
    mae = {"objective": "distill.objectives.mae:Mae"}
    values["stages"] = [{"student": {"text": None}, "contrastive": None, "objectives": [mae]}, {}]
    first, second = parse_recipe(values, "r").staged()
    assert (first.student.text, first.contrastive, len(first.objectives)) == (None, None, 1)
    assert second.student.text is not None and second.contrastive is not None and not second.objectives


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("contrastive", {}, "contrastive requires student.text and the reverse"),
        ("contrastive", {"temperature": 0.001}, r"contrastive\.temperature: 0\.001: input should be greater than or"),
        ("data.sources.0.max_tokens", {}, r"max_tokens: empty; give a number of patches"),
        ("data.sources.0.max_tokens", 0, r"^r: data\.sources\.0\.max_tokens: 0: input should be greater"),
        ("data.sources.0.max_tokens", {16: -1}, r"^r: data\.sources\.0\.max_tokens\.16: -1: input should be greater"),
        (
            "data.augment",
            {"crop": [0.9, 0.1]},
            r"data\.augment\.crop: \[0\.9, 0\.1\]: expected the smaller share first",
        ),
        ("stages", [{}, {"train": {"stepz": 3}}], r"^r: stages\.1\.train\.stepz: unknown; did you mean 'steps'\?"),
        ("stages", [{"data": {"sources": [{}]}}], r"^r: stages\.0\.data\.sources\.0\.dataset: missing"),
        ("stages", [{"data": {"sequence_tokens": 9}}], r"^r: stages\.0: data\.sequence_tokens 9 is less"),
        ("student.moe", {"experts": 4, "active": 5}, "active 5 is more than the 4 experts"),
        ("student.head_dim", 3, "head_dim 3 is odd"),
        ("teachers.0.relations", {"kin": "arkd"}, r"unknown; did you mean 'kind'\?"),
        ("data.sources", [{"dataset": "a", "weight": 1}, {"dataset": "b"}], "only some have a weight"),
    ],
)
def test_mistakes_of_sections_that_nest(values, place, value, message):
    with pytest.raises(RecipeError, match=message) as caught:
        parse_recipe(with_value(values, place, value), "r")
    assert "\n" not in str(caught.value)
