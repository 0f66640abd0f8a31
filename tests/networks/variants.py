"""The networks and the live layers on which the tests of the network types run."""

from dataclasses import replace

import torch
from torch import nn

from lib_lora.networks.boft import BOFT
from lib_lora.networks.contract import CreateOptions, LayerShape
from lib_lora.networks.dora import with_dora
from lib_lora.networks.full import FULL
from lib_lora.networks.glora import GLORA
from lib_lora.networks.ia3 import IA3
from lib_lora.networks.loha import LOHA
from lib_lora.networks.lokr import LOKR
from lib_lora.networks.lora import LORA
from lib_lora.networks.oft import OFT

MODULES = {
    "linear": lambda: nn.Linear(12, 20),
    "conv1x1": lambda: nn.Conv2d(12, 20, 1),
    "conv3x3": lambda: nn.Conv2d(12, 20, 3, padding=1),
    "strided": lambda: nn.Conv2d(12, 20, 3, stride=2, padding=1),
    "circular": lambda: nn.Conv2d(12, 20, 3, padding=1, padding_mode="circular"),
}
OPTIONS = CreateOptions(rank=4, alpha=2.0, dtype=torch.float64)
COLUMNS = replace(OPTIONS, per_input=True)

# LoHa: the product of rank 2 * 2 is smaller than the weight on each layer above, that of rank 5 * 5 is not.
# LoKr: w2 is (5, 4), which rank 1 makes a product and rank 4 leaves whole.
PLAIN = {
    "lora": (LORA, OPTIONS),
    "loha": (LOHA, replace(OPTIONS, rank=2)),
    "loha-wide": (LOHA, replace(OPTIONS, rank=5)),
    "lokr": (LOKR, replace(OPTIONS, rank=1)),
    "lokr-whole": (LOKR, OPTIONS),
    "lokr-factors": (LOKR, replace(OPTIONS, rank=1)),
}
TUCKER = {
    f"{name}-tucker": (kind, replace(options, tucker=True))
    for name, (kind, options) in PLAIN.items()
    if name in ("lora", "loha", "lokr")
}
DORA = {
    "dora-lora": (with_dora(LORA), OPTIONS),
    "dora-lora-columns": (with_dora(LORA), COLUMNS),
    "dora-loha": (with_dora(LOHA), replace(OPTIONS, rank=2)),
    "dora-loha-columns": (with_dora(LOHA), replace(COLUMNS, rank=5)),
    "dora-lokr": (with_dora(LOKR), replace(OPTIONS, rank=1)),
    "dora-lokr-columns": (with_dora(LOKR), COLUMNS),
}
# The delta of these depends on the weight.
BASED = {
    "ia3": (IA3, OPTIONS),
    "ia3-columns": (IA3, OPTIONS),
    "oft": (OFT, OPTIONS),
    "oft-bounded": (OFT, OPTIONS),
    "oft-rescaled": (OFT, OPTIONS),
    "boft": (BOFT, OPTIONS),
    "boft-bounded": (BOFT, OPTIONS),
    "boft-rescaled": (BOFT, OPTIONS),
    "glora": (GLORA, OPTIONS),
    "glora-old": (GLORA, OPTIONS),
}
TUCKER["glora-tucker"] = (GLORA, replace(OPTIONS, tucker=True))
VARIANTS = PLAIN | TUCKER | DORA | BASED | {"full": (FULL, OPTIONS)}


def cases(variants):
    """Return the pairs of variant and layer that differ from each other: a core needs a kernel."""
    return [
        (variant, module)
        for variant in variants
        for module in MODULES
        if variant not in TUCKER or module not in ("linear", "conv1x1")
    ]


def a_module(name, dtype=torch.float64):
    torch.manual_seed(0)
    return MODULES[name]().to(dtype).requires_grad_(False)


def shape_of(module):
    return LayerShape(tuple(module.weight.shape))


def fresh(variant, module):
    """Return the type of a variant and new tensors for a layer."""
    kind, options = VARIANTS[variant]
    options = replace(options, base=module.weight)
    tensors = kind.create(shape_of(module), options, torch.Generator().manual_seed(1))
    return kind, in_form(variant, tensors, module.weight)


def in_form(variant, tensors, weight):
    """Return fresh tensors in a form that files hold and `create` does not make."""
    ones = [1] * (weight.ndim - 2)
    if variant == "lokr-factors":
        rows, columns = tensors.pop("lokr_w1").shape
        tensors["lokr_w1_a"] = torch.zeros(rows, 1, dtype=torch.float64)
        tensors["lokr_w1_b"] = torch.zeros(1, columns, dtype=torch.float64)
    elif variant == "ia3-columns":
        size = (1, weight.shape[1], *ones) if ones else weight.shape[1:]
        return {"weight": torch.zeros(size, dtype=torch.float64), "on_input": torch.tensor(True)}
    elif variant.endswith("-bounded"):
        tensors["alpha"] = torch.tensor(0.05)  # times the rows it is less than the norm of a Q
    elif variant.endswith("-rescaled"):
        tensors["rescale"] = torch.ones(weight.shape[0], 1, *ones, dtype=torch.float64)
    elif variant == "glora-old":
        names = {"a1": "a2", "a2": "a1", "b1": "b2", "b2": "b1"}
        renamed = {f"{names[s[:2]]}.weight": t for s, t in tensors.items() if s != "alpha"}
        return {**renamed, "alpha": tensors["alpha"]}
    return tensors


def trained(variant, module):
    """Return a network off its initial point: every trainable tensor moved at random."""
    draw = torch.Generator().manual_seed(2)
    kind, tensors = fresh(variant, module)
    for suffix in sorted(kind.trainable & tensors.keys()):
        moved = torch.randn(tensors[suffix].shape, generator=draw, dtype=torch.float64)
        tensors[suffix] = tensors[suffix] + 0.3 * moved
    return kind, tensors


def an_input(module):
    draw = torch.Generator().manual_seed(3)
    size = (2, 12, 8, 8) if isinstance(module, nn.Conv2d) else (2, 7, 12)
    return torch.randn(size, generator=draw, dtype=torch.float64).to(module.weight.dtype)


def arrays(tensors):
    """Return tensors as NumPy arrays."""
    return {suffix: tensor.detach().numpy() for suffix, tensor in tensors.items()}
