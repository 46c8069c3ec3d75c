import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from curate import encoders
from curate.core.errors import CurateError
from tests.encoders.models import blob_image


@pytest.fixture(scope="module")
def encoder():
    return encoders.load("descriptor")


def _cosine(encoder, one, other):
    a, b = encoder.encode([encoder.prepare(one), encoder.prepare(other)]).summary
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_shape(encoder):
    features = encoder.encode([encoder.prepare(blob_image(seed=seed)) for seed in range(3)])
    assert features.summary.shape == (3, encoder.dim) == (3, 728)
    assert features.summary.dtype == np.float32
    assert features.patches is None
    assert encoder.patch_dim is None
    assert encoder.encode([]).summary.shape == (0, 728)


def test_batch_equals_single_to_the_bit(encoder):
    prepared = [encoder.prepare(blob_image(seed=seed)) for seed in range(40)]
    alone = np.concatenate([encoder.encode([one]).summary for one in prepared])
    assert np.array_equal(encoder.encode(prepared).summary, alone)


def test_form_and_colour_have_the_same_weight(encoder):
    vector = encoder.encode([encoder.prepare(blob_image())]).summary[0]
    assert np.linalg.norm(vector[:512]) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(vector[512:]) == pytest.approx(1, abs=1e-5)
    assert vector[:512].mean() == pytest.approx(0, abs=1e-6)


def test_a_smaller_copy_is_nearer_than_another_image(encoder):
    original = blob_image(400, 300)
    copy = original.resize((131, 97), Image.Resampling.BILINEAR)
    assert _cosine(encoder, original, copy) > 0.95
    assert _cosine(encoder, original, copy) > _cosine(encoder, original, blob_image(400, 300, seed=1)) + 0.2


def test_form_and_colour_both_count(encoder):
    original = blob_image()
    mirrored, faded = ImageOps.mirror(original), ImageEnhance.Color(original).enhance(0)
    assert _cosine(encoder, original, mirrored) < 0.95
    assert _cosine(encoder, original, faded) < 0.95


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 2)])
def test_an_image_of_any_shape_has_a_vector(encoder, size):
    vector = encoder.encode([encoder.prepare(Image.new("RGB", size, (9, 200, 30)))]).summary
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) > 0.9


def test_texts_are_an_error_in_one_line(encoder):
    with pytest.raises(CurateError, match="'descriptor' has no text tower"):
        encoder.encode_text(["a star"])


def test_no_torch_is_loaded():
    code = (
        "import sys\nfrom PIL import Image\nfrom curate import encoders\n"
        "e = encoders.load('descriptor'); e.encode([e.prepare(Image.new('RGB', (9, 9)))])\n"
        "assert e.identity() == encoders.identity('descriptor') and not encoders.problems('descriptor')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
