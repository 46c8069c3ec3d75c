import numpy as np
import pytest

from distill.evaluation.tasks.fidelity import Agreement


def test_agreement_by_hand():
    true = np.random.default_rng(7).normal(size=(50, 4)) + 2
    parts = []
    for predicted in (true, np.broadcast_to(true.mean(0), true.shape), -true):
        agreement = Agreement.empty(4)
        agreement.add(predicted[:20], true[:20])
        agreement.add(predicted[20:], true[20:])
        parts.append(agreement.result())
    assert parts[0] == {"cosine": pytest.approx(1.0), "explained": pytest.approx(1.0)}
    assert parts[1]["explained"] == pytest.approx(0.0, abs=1e-12)
    assert parts[2]["cosine"] == pytest.approx(-1.0)
    assert parts[2]["explained"] < 0
    assert Agreement.empty(4).result() == {}
    one = Agreement.empty(4)
    one.add(true[:1] + 1, true[:1])
    assert one.result()["explained"] is None and one.result()["cosine"] < 1
