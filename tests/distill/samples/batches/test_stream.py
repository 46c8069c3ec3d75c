import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.errors import InputError
from distill.samples.batches.stream import Packing, Position, Stream, TrackPosition
from distill.samples.sources.dataset import Dataset

PACKING = Packing(capacity=30, images=4, lookahead=16, lanes=2, window_shards=2)


def make(dataset: Dataset, *, seed: int = 0, sequences: int = 3, packing: Packing = PACKING) -> Stream:
    rows = np.arange(len(dataset))[::-1][:50].copy()
    return Stream(dataset, rows, seed=seed, sequences=sequences, tokens=3 + rows % 9, packing=packing)


def flat(steps) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
    return [(step.epoch, tuple(tuple(item.tolist()) for item in step.sequences)) for step in steps]


def test_an_epoch_has_every_sample_once_and_ends_with_a_short_step(dataset):
    stream = make(dataset)
    first = [step for step in islice(stream.steps(), 20) if step.epoch == 0]
    assert sorted(row for step in first for item in step.sequences for row in item) == sorted(stream.rows)
    assert {len(step.sequences) for step in first[:-1]} == {3}
    assert 1 <= len(first[-1].sequences) <= 3


@settings(max_examples=25)
@given(st.integers(0, 30), st.integers(1, 5), st.integers(0, 2))
def test_resuming_at_any_step_gives_the_remaining_steps(dataset, taken, sequences, seed):
    undisturbed = flat(islice(make(dataset, seed=seed, sequences=sequences).steps(), taken + 8))
    stream = make(dataset, seed=seed, sequences=sequences)
    position = Position()
    for step in islice(stream.steps(), taken):
        position = step.after
    again = make(dataset, seed=seed, sequences=sequences)
    resumed = flat(islice(again.steps(again.position(stream.state(position))), 8))
    assert resumed == undisturbed[taken:]


def test_the_state_of_another_plan_is_rejected(dataset):
    position = Position(4, (TrackPosition((16,), 1),))
    state = json.loads(json.dumps(make(dataset, seed=0).state(position)))
    assert make(dataset, seed=0).position(state) == position
    for other in (make(dataset, seed=1), make(dataset, sequences=2), make(dataset, packing=Packing(30, 5))):
        with pytest.raises(InputError, match="start a new run"):
            other.position(state)


def test_nothing_to_read_is_an_error(dataset):
    with pytest.raises(InputError, match=r"no training samples; lower data\.test_fraction or add samples"):
        Stream(dataset, np.empty(0, dtype=np.int64), seed=0, sequences=1)
