"""FSDP2: weights, gradients and optimiser states split over the ranks (Zhao et al. 2023), block by block.

Gradients are summed over ranks, as for replicated weights. Each forward and each backward pass is a collective of all
ranks: a rank without images passes an empty batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from curate.encoders.student.network.student import Student
from distill.parallel import World


def shard(student: Student, world: World) -> None:
    """Shard the student in place. Scalar weights (a temperature) stay replicated."""
    # the outputs are views, and nothing changes them in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(world.device.type, (world.size,))
    scalars = {parameter for parameter in student.parameters() if parameter.ndim == 0}
    frozen = {parameter for parameter in student.parameters() if not parameter.requires_grad}
    for block in student.backbone.blocks:
        fully_shard(block, mesh=mesh)
    # heads and text tower belong to the root, whose weights stay gathered until the backward pass has used them
    fully_shard(student, mesh=mesh, reshard_after_forward=False, ignored_params=scalars | frozen)
    for module in student.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True)


def sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """The unsharded weight; a collective of all ranks if it is sharded."""
    if not isinstance(tensor, DTensor):
        return tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.full_tensor()


def full_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: full_tensor(value.detach()) for name, value in state.items()}


def same_layout(shape: torch.Size, dtype: torch.dtype, like: Tensor) -> Tensor:
    """Zeros on the device of the weight `like`, sharded as it is if they have its shape, otherwise replicated."""
    if shape == like.shape:
        return torch.zeros_like(like.detach(), dtype=dtype)
    return torch.zeros(shape, dtype=dtype, device=like.device)
