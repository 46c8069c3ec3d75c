"""Checkpoints: complete or absent, the last few kept, and only of the run's own fingerprint."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from curate.core.errors import InputError, PinnedError
from distill.folder import RunFolder

State = dict[str, Any]


def save_checkpoint(run: RunFolder, step: int, state: State, keep: int) -> Path:
    """state: tensors and plain values, with its `fingerprint`."""
    path = run.checkpoints / f"step-{step:08d}.pt"
    with run.storage.publish(f"checkpoints/{path.name}") as aside:
        torch.save(state, aside)
    for old in sorted(run.checkpoints.glob("step-*.pt"))[:-keep]:
        old.unlink()
    return path


def last_checkpoint(run: RunFolder, fingerprint: str, device: torch.device | str = "cpu") -> State | None:
    """The newest state; None when there is none. Raises PinnedError for one of another fingerprint."""
    paths = sorted(run.checkpoints.glob("step-*.pt"))
    if not paths:
        return None
    try:
        state = torch.load(paths[-1], map_location=device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{paths[-1]} cannot be read ({type(error).__name__}); remove it to go on before it"
        ) from error
    if state["fingerprint"] != fingerprint:
        raise PinnedError(
            f"{paths[-1]} is of fingerprint {state['fingerprint']}, this recipe's is {fingerprint}; "
            f"set run.folder to another folder"
        )
    return state
