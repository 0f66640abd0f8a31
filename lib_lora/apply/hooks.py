"""Forward hooks on live modules: the only way in which a session touches its host."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lib_lora.apply.branch import Branch
from lib_lora.apply.strengths import Strengths


def attach(layer: nn.Module, branch: Branch) -> RemovableHandle:
    """Add a branch's output to a live layer's own from now on; the handle takes the hook off again.

    The sum has the dtype of the layer's output, and its memory where no gradient is asked for; while the branch is inactive the
    output passes as it is.
    """

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if not branch.active:
            return None
        return branch.add(module, inputs[0], output)

    return layer.register_forward_hook(hook)


def follow(unet: nn.Module, strengths: Strengths) -> RemovableHandle:
    """Let every call of the UNet turn to the rows that it computes; the handle takes the hook off again."""

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        strengths.advance(len(inputs[0]) if inputs else 0)

    return unet.register_forward_pre_hook(hook)
