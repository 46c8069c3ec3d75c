import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import RecipeError
from curate.encoders.spec import Spec, is_public, parse_spec

_NAMES = st.from_regex(r"[a-z][a-z0-9_.\-]{0,20}", fullmatch=True)


def test_names_are_parsed():
    assert parse_spec("descriptor") == Spec("descriptor")
    assert parse_spec("timm:vit_tiny_patch16_224") == Spec("timm", "vit_tiny_patch16_224")
    assert parse_spec("timm:vit@/w/a.safetensors") == Spec("timm", "vit", {}, "/w/a.safetensors")
    assert parse_spec("open_clip:ViT-B-32/laion2b") == Spec("open_clip", "ViT-B-32/laion2b")
    assert parse_spec("hf:/models/a@b") == Spec("hf", "", {}, "/models/a@b")
    assert parse_spec("distill:runs/a@b?head=dinov3&max_tokens=64") == Spec(
        "distill", "", {"head": "dinov3", "max_tokens": 64}, "runs/a@b"
    )
    assert parse_spec("tiny").public == "tiny"
    assert parse_spec(parse_spec("distill:/a?head=b").public).public == "distill:local?head=b"
    assert parse_spec("hf:google/siglip?revision=abc") == Spec("hf", "google/siglip", {"revision": "abc"})


def test_options_are_typed():
    options = parse_spec("timm:v?depth=2&drop=0.5&dynamic_img_size=true&global_pool=token&random=7").options
    assert options == {"depth": 2, "drop": 0.5, "dynamic_img_size": True, "global_pool": "token", "random": 7}


@given(name=_NAMES, options=st.dictionaries(_NAMES.filter(lambda key: key != "random"), st.integers() | _NAMES))
def test_the_public_name_can_be_parsed_and_hides_the_path(name, options):
    spec = Spec("timm", name, options, "/secret/path.pt")
    assert "secret" not in spec.public
    assert parse_spec(spec.public).public == spec.public


@given(first=_NAMES, second=_NAMES)
def test_the_order_of_options_does_not_matter(first, second):
    one = parse_spec(f"timm:v?a_{first}=1&b_{second}=2")
    other = parse_spec(f"timm:v?b_{second}=2&a_{first}=1")
    assert one.public == other.public


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vitb",
        "timm:",
        "timm:?random=0",
        "timm:v@",
        "distill:",
        "keras:v",
        "tiny:v",
        "descriptor?size=3",
        "descriptor:a",
    ],
)
def test_an_unknown_name_is_an_error_with_examples(text):
    with pytest.raises(RecipeError) as error:
        parse_spec(text)
    message = str(error.value)
    assert "\n" not in message
    assert repr(text) in message
    assert "timm:vit_base_patch16_dinov3" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timm:v?depth", "'depth'"),
        ("timm:v?random=x", "random must be an integer"),
        ("hf:/a?depth=2", "hf takes random, revision"),
        ("distill:/a?depth=2", "distill takes head, max_tokens"),
        ("open_clip:ViT-B-32?crop=2", "open_clip takes random, image_size"),
    ],
)
def test_a_bad_option_is_an_error_with_its_name(text, message):
    with pytest.raises(RecipeError, match=message):
        parse_spec(text)


@pytest.mark.parametrize(
    "text",
    [
        "tiny",
        "descriptor",
        "timm:vit_small_patch16_224",
        "timm:vit_small_patch16_224.augreg_in1k",
        "timm:vit_base_patch16_224?depth=2&random=7&img_size=[224,224]",
        "open_clip:ViT-B-32/laion2b_s34b_b79k",
        "open_clip:ViT-B-32?random=1&resize_mode=squash",
    ],
)
def test_included_and_listed_models_are_public(text):
    assert is_public(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vitb",
        "timm:/models/vits",
        "timm:../vits",
        "timm:local-dir:/models/vits",
        "timm:hf-hub:somebody/model",
        "timm:vit_small_patch16_224@/weights/vits.pth",
        "timm:vit_small_patch16_224?random=7@/weights/vits.pth",
        "timm:vit_small_patch16_224?checkpoint_path=/weights/vits.pth",
        'timm:vit_small_patch16_224?pretrained_cfg={"file":"/x"}',
        "timm:vit_small_patch16_224?cache_dir=x",
        "timm:vit_small_patch16_224?depth=../x",
        "open_clip:/models/tiny",
        "open_clip:ViT-B-32/../../x",
        "open_clip:ViT-B-32@/weights/b32.pt",
        "open_clip:hf-hub:somebody/model",
        "hf:google/siglip-base-patch16-224",
        "hf:/models/siglip",
        "distill:/models/student",
        "timm:vit_small_patch16_224\n",
    ],
)
def test_files_and_other_repositories_are_not_public(text):
    assert not is_public(text)
