"""Which run starts next, and why the others wait."""

from __future__ import annotations

import pytest

from curate.service.reconcile.queue import Active, TargetState, UserQuota, Verdict, Waiting, choose

BIG = {"big": TargetState(2, gpus=8)}


def waiting(run: str, **about: object) -> Waiting:
    return Waiting(run, **{"user": "ann", "target": "big", **about})  # type: ignore[arg-type]


def started(found: dict[str, Verdict]) -> list[str]:
    return [run for run, verdict in found.items() if verdict.start]


def test_priority_comes_first_then_time_then_id() -> None:
    runs = [
        waiting("d", queued=1.0),
        waiting("c", queued=2.0, priority=5),
        waiting("b", queued=1.0, priority=5),
        waiting("a", queued=1.0, priority=-3),
        waiting("e", queued=1.0),
    ]

    found = choose(runs, (), {}, {"big": TargetState(100, gpus=0)})

    assert list(found) == started(found) == ["b", "c", "d", "e", "a"]


def test_a_target_starts_no_more_runs_than_it_may_have() -> None:
    runs = [waiting("a", queued=1.0), waiting("b", queued=2.0)]

    found = choose(runs, [Active("bob", "big")], {}, BIG)

    assert started(found) == ["a"]
    assert found["b"] == Verdict(False, "waits: target big has 2 of 2 runs under way")


@pytest.mark.parametrize(
    ("target", "needs", "why"),
    [
        (TargetState(2, gpus=8), {"gpus": 8, "stage": "embed"}, ""),
        (
            TargetState(2, gpus=0),
            {"gpus": 1, "stage": "embed"},
            "waits: target big has no GPU, its stage embed needs 1",
        ),
        (
            TargetState(2, gpus=1),
            {"gpus": 2, "stage": "embed"},
            "waits: target big has 1 GPU, its stage embed needs 2",
        ),
        (TargetState(2, gpus=4), {"gpus": 8}, "waits: target big has 4 GPUs, it needs 8"),
        (TargetState(2, gpus=0, max_gpus=8), {"gpus": 8}, ""),
        (TargetState(2, gpus=8, max_gpus=4), {"gpus": 8}, ""),
        (TargetState(2, gpus=0, max_gpus=4), {"gpus": 8}, "waits: target big has 4 GPUs, it needs 8"),
        (TargetState(2), {}, "waits: target big has not been checked yet"),
        (
            TargetState(2, healthy=False, error="connection refused"),
            {},
            "waits: target big does not answer (connection refused)",
        ),
    ],
)
def test_a_target_must_be_able_to_run_it(target: TargetState, needs: dict[str, object], why: str) -> None:
    found = choose([waiting("a", needs=needs)], (), {}, {"big": target})

    assert found["a"] == Verdict(not why, why)


def test_a_target_that_is_gone_is_named() -> None:
    assert choose([waiting("a")], (), {}, {})["a"].why == "waits: target big does not exist"


@pytest.mark.parametrize(
    ("quota", "running", "why"),
    [
        (UserQuota(running=2), 1, ""),
        (UserQuota(running=1), 1, "waits: ann has 1 of 1 runs under way"),
        (UserQuota(running=0), 0, "waits: ann has 0 of 0 runs under way"),
        (UserQuota(gpu_hours=10.0, used=9.9), 0, ""),
        (UserQuota(gpu_hours=10.0, used=12.34), 0, "waits: ann has used 12.3 of 10 GPU-hours in 30 days"),
        (UserQuota(), 99, ""),
    ],
)
def test_a_user_stays_within_their_quota(quota: UserQuota, running: int, why: str) -> None:
    active = [Active("ann", "other")] * running

    found = choose([waiting("a")], active, {"ann": quota}, BIG)

    assert found["a"] == Verdict(not why, why)


def test_a_user_s_quota_counts_what_starts_now() -> None:
    runs = [waiting("a", queued=1.0), waiting("b", queued=2.0)]

    assert started(choose(runs, (), {"ann": UserQuota(running=1)}, BIG)) == ["a"]


def test_a_blocked_run_does_not_block_later_ones() -> None:
    runs = [
        waiting("needs a GPU", queued=1.0, needs={"gpus": 99}),
        waiting("over quota", queued=2.0, user="bob"),
        waiting("held", queued=3.0, held="waits before the next try: no space left"),
        waiting("fits", queued=4.0),
        waiting("elsewhere", queued=5.0, target="small"),
    ]
    targets = BIG | {"small": TargetState(1, gpus=0)}

    found = choose(runs, (), {"bob": UserQuota(running=0)}, targets)

    assert started(found) == ["fits", "elsewhere"]
    assert found["held"].why == "waits before the next try: no space left"


def test_a_full_target_does_not_block_other_targets() -> None:
    runs = [waiting("a", queued=1.0), waiting("b", queued=2.0, target="small")]
    targets = {"big": TargetState(0, gpus=0), "small": TargetState(1, gpus=0)}

    assert started(choose(runs, (), {}, targets)) == ["b"]
