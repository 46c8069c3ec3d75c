import numpy as np
import pytest

from distill.evaluation.tasks.segmentation import confusion, mean_iou


def test_mean_iou_by_hand():
    true, predicted = np.array([0, 0, 1, 1, 1, -1, 9]), np.array([0, 1, 1, 1, 0, 1, 0])
    mean, each = mean_iou(confusion(predicted, true, 3))
    assert each[:2] == pytest.approx([1 / 3, 1 / 2])
    assert np.isnan(each[2])
    assert mean == pytest.approx((1 / 3 + 1 / 2) / 2)
