import subprocess
import sys

import pytest

from curate import encoders
from curate.core.errors import InputError
from tests.encoders.models import TINY, save_hf, save_open_clip, save_timm

NAME = f"timm:vit_base_patch16_224?{TINY}"


def test_identity_is_the_same_before_and_after_loading(tmp_path):
    save_timm(tmp_path / "a.safetensors", seed=0)
    save_open_clip(tmp_path / "b", seed=0)
    save_hf(tmp_path / "c", "dinov2")
    for spec in (f"{NAME}@{tmp_path}/a.safetensors", f"open_clip:{tmp_path}/b", f"hf:{tmp_path}/c", f"{NAME}&random=3"):
        assert encoders.problems(spec) == []
        assert encoders.load(spec, device="cpu").identity() == encoders.identity(spec)


def test_identity_depends_on_weights_and_not_on_paths(tmp_path):
    save_timm(tmp_path / "a.safetensors", seed=0)
    save_timm(tmp_path / "b.safetensors", seed=1)
    (tmp_path / "copy.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    a, b, copy = (encoders.identity(f"{NAME}@{tmp_path}/{name}.safetensors") for name in ("a", "b", "copy"))
    assert a == copy
    assert a["weights"] != b["weights"]
    assert str(tmp_path) not in repr(a)
    save_timm(tmp_path / "a.safetensors", seed=2)
    assert encoders.identity(f"{NAME}@{tmp_path}/a.safetensors")["weights"] != a["weights"]


def test_identity_depends_on_a_folders_configuration(tmp_path):
    save_hf(tmp_path / "m", "dinov2")
    before = encoders.identity(f"hf:{tmp_path}/m")
    file = tmp_path / "m" / "preprocessor_config.json"
    file.write_text(file.read_text().replace("32", "48"))
    after = encoders.identity(f"hf:{tmp_path}/m")
    assert before["weights"] == after["weights"]
    assert before["preprocessing"] != after["preprocessing"]


def test_identity_depends_on_precision():
    one, other = (encoders.identity(f"{NAME}&random=0", precision=p) for p in ("float32", "bfloat16"))
    assert one != other


def test_local_files_need_no_torch(tmp_path):
    save_timm(tmp_path / "a.safetensors", seed=0)
    save_hf(tmp_path / "c", "dinov2")
    specs = [f"{NAME}@{tmp_path}/a.safetensors", f"hf:{tmp_path}/c", f"{NAME}&random=0"]
    code = (
        "import sys\nfrom curate import encoders\n"
        f"for spec in {specs!r}: encoders.identity(spec); assert not encoders.problems(spec)\n"
        "sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("timm:vit_tiny_patch16_224", "cannot be reached on the hub"),
        ("timm:vit_tinyy_patch16_224", "did you mean vit_tiny_patch16_224"),
        ("timm:vit_tiny_patch16_224@/no/such.pt", "no weights at '/no/such.pt'"),
        ("open_clip:ViT-B-32", "one of: openai"),
        ("open_clip:ViT-B-32/laion2b_s34b_b79k", "cannot be reached on the hub"),
        ("open_clip:ViT-B-33/openai", "did you mean ViT-B-32"),
        ("hf:google/siglip-base-patch16-224", "cannot be reached on the hub"),
        ("hf:/no/such/folder", "no weights at"),
        ("keras:resnet", "is not 'library:model'"),
    ],
)
def test_problems_have_one_line(monkeypatch, tmp_path, spec, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (line,) = encoders.problems(spec)
    assert message in line
    assert "\n" not in line


def test_a_folder_for_a_file_or_a_file_for_a_folder_is_an_error(tmp_path):
    save_timm(tmp_path / "a.safetensors", seed=0)
    (tmp_path / "empty").mkdir()
    for spec, message in (
        (f"timm:vit_tiny_patch16_224@{tmp_path}", "is a folder"),
        (f"timm:{tmp_path}/a.safetensors", "is a file"),
        (f"hf:name@{tmp_path}/a.safetensors", "is a file"),
        (f"hf:{tmp_path}/empty", "no config.json"),
    ):
        (line,) = encoders.problems(spec)
        assert message in line
    (tmp_path / "empty" / "config.json").write_text("{}")
    assert "no *.safetensors" in encoders.problems(f"hf:{tmp_path}/empty")[0]


def test_loading_a_missing_file_raises_the_same_message():
    spec = "timm:vit_tiny_patch16_224@/no/such.pt"
    with pytest.raises(InputError) as error:
        encoders.load(spec)
    assert [str(error.value)] == encoders.problems(spec)


def test_text_towers_are_known_without_loading(tmp_path):
    for kind in ("clip", "dinov2"):
        save_hf(tmp_path / kind, kind)
    for spec in ("open_clip:ViT-B-32/openai", f"hf:{tmp_path}/clip", "hf:some/name"):
        assert encoders.text_problems(spec) == []
    for spec in ("descriptor", "timm:vit_small_patch16_224", f"hf:{tmp_path}/dinov2"):
        [problem] = encoders.text_problems(spec)
        assert "has no text tower; use an image-text model" in problem
