"""Place and speed of a run: nothing here changes its result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from curate.core.contracts import Runtime
from curate.core.recipe.section import Section


class RunRecipe(Section):
    folder: Annotated[str, Runtime()] = "runs/distill/{name}-{fingerprint}"
    """Local folder of checkpoints, metrics and results. `{fingerprint}` gives every configuration a separate folder."""
    device: Annotated[str, Runtime()] = "auto"
    """auto (the GPU if present), cpu, cuda, or one of several GPUs: cuda:1."""
    threads: Annotated[int, Runtime(), Field(ge=0)] = 0
    """Threads of torch; 0 leaves its default."""
    workers: Annotated[int, Runtime(), Field(ge=1)] = 2
    """Reading and decoding threads of each rank."""
    prefetch_steps: Annotated[int, Runtime(), Field(ge=0)] = 2
    cache_bytes: Annotated[int, Runtime(), Field(ge=0)] = 1 << 30
    """Memory of each rank for decoded images and teacher targets, so that later epochs decode nothing."""
    teacher_cache: Annotated[str | None, Runtime()] = None
    """Folder of teacher features computed by `distill teach`; missing ones are computed."""
    checkpoint_every: Annotated[int, Runtime(), Field(ge=1)] = 500
    """Steps between checkpoints."""
    keep_checkpoints: Annotated[int, Runtime(), Field(ge=1)] = 2
    log_every: Annotated[int, Runtime(), Field(ge=1)] = 10
    """Steps averaged into one line of metrics.jsonl."""
    tensorboard: Annotated[bool, Runtime()] = True
    """Event files beside metrics.jsonl."""
    trackers: Annotated[list[Literal["wandb", "mlflow", "trackio"]], Runtime()] = []
    """Libraries that get the same values, and the recipe and the datasets' fingerprints; each has to be installed."""
    attention: Annotated[Literal["auto", "flex", "varlen", "sdpa_loop"], Runtime()] = "auto"
    """auto: flex on a GPU, sdpa_loop elsewhere."""
    parallel: Annotated[Literal["replicated", "fsdp"], Runtime()] = "replicated"
    """fsdp: weights, gradients and optimiser states are split over the ranks (FSDP2)."""
    micro_sequences: Annotated[int, Runtime(), Field(ge=0)] = 0
    """Sequences of a rank per forward pass, with gradients accumulated over passes. 0: all in one pass."""
    activation_checkpointing: Annotated[bool, Runtime()] = False
    """Recompute each block's activations in the backward pass instead of keeping them."""
    compile: Annotated[bool, Runtime()] = False
    """torch.compile the student's blocks."""
    timeout_seconds: Annotated[float, Runtime(), Field(gt=0, le=1e7)] = 600.0
    """The run fails if a rank waits longer for another."""
