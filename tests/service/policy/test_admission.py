from typing import Any

import pytest

from curate.service.policy.admission import Admission
from curate.service.policy.rules import Rules

PLUGIN = "tests.service.policy.plugin:Odd"
RULES = Rules(
    "main",
    "/ws",
    {
        "root": {"photos": "/data/photos"},
        "file": {"list": "/etc/curate/list.txt", "mine": "/etc/curate/mine.yaml"},
        "endpoints": {"llava": "/etc/curate/llava.yaml"},
        "encoder": {"siglip": "hf:/models/siglip", "tuned": "timm:vit_tiny_patch16_224@/models/x.pth"},
        "proxy": {"squid": "http://squid:3128"},
        "network": {"lan": "10.1.0.0/16"},
        "op": {"odd": PLUGIN},
    },
)


def _admitted(**values: Any) -> tuple[dict[str, Any], list[str]]:
    """(values of the stage, messages)."""
    admission = Admission(RULES, lambda stage, path: "recipe:1")
    stages = admission.stages({"stage": values})
    return stages["stage"], [str(problem) for problem in admission.problems]


REPLACED = [
    ("acquire.folder", "path", "photos/2024", "/data/photos/2024"),
    ("acquire.list", "path", ["photos/a.csv", "list"], ["/data/photos/a.csv", "/etc/curate/list.txt"]),
    ("acquire.download", "deny_hosts", "list", "/etc/curate/list.txt"),
    ("acquire.download", "deny_urls", None, None),
    ("acquire.download", "proxy", "squid", "http://squid:3128"),
    ("acquire.download", "allow_networks", ["lan"], ["10.1.0.0/16"]),
    ("acquire.download", "allow_networks", [], []),
    ("acquire.download", "contact", "https://example.org/about", "https://example.org/about"),
    ("text.language", "model", "list", "/etc/curate/list.txt"),
    ("text.vocabulary", "entries", "list", "/etc/curate/list.txt"),
    ("text.hashtag_map", "edits", "/data/photos/edits.tsv", "/data/photos/edits.tsv"),
    ("image.embed", "encoder", "tiny", "tiny"),
    ("image.embed", "encoder", "timm:vit_small_patch16_224.augreg_in1k", "timm:vit_small_patch16_224.augreg_in1k"),
    ("image.embed", "encoder", "siglip", "hf:/models/siglip"),
    ("align.similarity", "encoder", "hf:/models/siglip", "hf:/models/siglip"),
    ("caption.generate", "endpoints", "llava", "/etc/curate/llava.yaml"),
    ("caption.report", "endpoints", {}, {}),
    ("caption.generate", "prompt", "caption_long", "caption_long"),
    ("caption.generate", "prompt", "mine", "/etc/curate/mine.yaml"),
    ("caption.check", "prompts", ["caption_long", "mine"], ["caption_long", "/etc/curate/mine.yaml"]),
    ("caption.repair", "rewrite", None, None),
    ("caption.ask", "variants", [{"prompt": "mine"}], [{"prompt": "/etc/curate/mine.yaml"}]),
    ("odd", "folder", "photos/x", "/data/photos/x"),
    ("odd", "note", "photos/x", "/data/photos/x"),
    ("odd", "note", "plain words", "plain words"),
    ("odd", "more", {"a": ["b", "photos/x"]}, {"a": ["b", "/data/photos/x"]}),
]


@pytest.mark.parametrize(("op", "name", "given", "read"), REPLACED)
def test_registered_names_are_replaced(op: str, name: str, given: Any, read: Any) -> None:
    values, problems = _admitted(op=op, **{name: given})
    assert (values[name], problems) == (read, [])


REJECTED = [
    ("acquire.folder", "path", "/etc"),
    ("acquire.folder", "path", "list/x"),
    ("acquire.folder", "path", 5),
    ("acquire.folder", "path", {"a": "/etc"}),
    ("acquire.folder", "path", b"/etc"),
    ("acquire.list", "path", ["photos/a.csv", "/etc/shadow"]),
    ("acquire.list", "path", [["/etc/shadow"]]),
    ("acquire.download", "deny_hosts", "file:///etc/shadow"),
    ("acquire.download", "proxy", "http://127.0.0.1:8265"),
    ("acquire.download", "allow_networks", ["127.0.0.0/8"]),
    ("acquire.download", "allow_networks", "169.254.0.0/16"),
    ("text.language", "model", "/etc/shadow"),
    ("text.language", "model", "photos/lid.bin"),
    ("text.vocabulary", "entries", "~/.ssh/id_rsa"),
    ("image.embed", "encoder", "hf:attacker/model"),
    ("image.embed", "encoder", "timm:hf-hub:attacker/model"),
    ("image.embed", "encoder", "timm:vit_tiny_patch16_224@/data/photos/evil.pth"),
    ("image.embed", "encoder", "timm:vit_tiny_patch16_224?random=1&checkpoint_path=/data/photos/evil.pth"),
    ("align.similarity", "encoder", "open_clip:/data/photos/model"),
    ("image.embed", "encoder", "distill:/data/photos/model"),
    ("image.embed", "encoder", ["hf:attacker/model"]),
    ("caption.generate", "endpoints", "/etc/shadow"),
    ("caption.generate", "endpoints", "https://attacker.example/endpoints.yaml"),
    ("caption.generate", "endpoints", {"mine": {"base_urls": ["https://attacker.example/v1"], "model": "x",
                                                "key": "file:/etc/shadow"}}),
    ("caption.generate", "endpoints", {"mine": {"model": "x", "launch": {"server": "vllm", "environment": "/tmp"}}}),
    ("caption.report", "endpoints", "photos/endpoints.yaml"),
    ("caption.generate", "prompt", "/etc/shadow.yaml"),
    ("caption.generate", "prompt", "http://169.254.169.254/latest.yaml"),
    ("caption.generate", "prompt", {"name": "x", "version": 1, "user": "x", "sampling": {"max_tokens": 5}}),
    ("caption.check", "prompts", ["/etc/x.yaml"]),
    ("caption.check", "prompts", "/etc/x.yaml"),
    ("caption.ask", "variants", [{"prompt": "/etc/x.yaml"}]),
    ("caption.ask", "variants", {"0": {"prompt": "/etc/x.yaml"}}),
    ("caption.repair", "rewrite", "/etc/x.yaml"),
    ("odd", "folder", "etc"),
    ("odd", "note", "/etc/shadow"),
    ("odd", "note", "file:/etc/shadow"),
    ("odd", "note", "~root"),
    ("odd", "note", ".."),
    ("odd", "more", {"a": ["/etc/shadow"]}),
    ("odd", "more", {"/etc/shadow": []}),
    ("odd", "inner", {"place": "/etc/shadow"}),
    (PLUGIN, "note", "/etc/shadow"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "name", "given"), REJECTED)
def test_what_is_not_registered_is_rejected(op: str, name: str, given: Any) -> None:
    _, problems = _admitted(op=op, **{name: given})
    assert problems
    assert problems[0].startswith(f"recipe:1: stage.{name}")


@pytest.mark.parametrize(
    "op", ["os:system", "curate.acquire.folder:AcquireFolder", "tests.service.policy.plugin:Inner"]
)
def test_classes_only_by_registration(op: str) -> None:
    values, problems = _admitted(op=op)
    assert "not registered" in problems[0]
    assert values["op"] == op


def test_a_registered_class_by_name() -> None:
    assert _admitted(op="odd", act="nothing") == ({"op": PLUGIN, "act": "nothing"}, [])


def test_a_registered_class_that_cannot_be_imported_is_a_message() -> None:
    admission = Admission(Rules("w", "/ws", {"op": {"gone": "missing.module:Class"}}), lambda stage, path: "recipe:1")
    admission.stages({"a": {"op": "gone"}})
    assert "cannot import" in str(admission.problems[0])


@pytest.mark.parametrize("values", [{}, {"op": 5}, {"op": "unknown"}])
def test_building_explains_what_is_not_a_stage(values: dict[str, Any]) -> None:
    assert _admitted(**values)[0] == values


def test_the_text_of_a_secret_is_not_repeated() -> None:
    from curate.core.secrets import Secret
    from curate.service.policy.admission import _Part

    admission = Admission(Rules("w", "/ws", {"secret": {"key": "env:KEY"}}), lambda stage, path: "recipe:1")
    part = _Part(admission, "ask", ("key",), foreign=False)
    assert part.admitted(Secret, (), "key") == part.admitted(Secret, (), "env:KEY") == "env:KEY"
    assert not admission.problems
    part.admitted(Secret | None, (), "hunter2")
    assert "hunter2" not in str(admission.problems[0])
