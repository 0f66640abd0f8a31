"""Networks on a tensor of the original checkpoint that is several of our layers, or one of them in another order.

SD3's `qkv` and OpenCLIP's `in_proj` hold three layers as equal blocks of rows, some modulations of SD3 have their halves exchanged.
A delta is cut by cutting, in every tensor of the network, the dimension that runs along the layer's outputs.

kohya's `split_qkv` trains three pairs of factors and saves them as one: `down` stacked, `up` with the three on its diagonal and exact
zeros elsewhere, the alpha that of one pair. A loader that divides it by all rows applies a third of what was trained; here such a file
is known by its zeros and each layer gets its own pair back.

A LoKr whose first factor has rows that belong to two layers is multiplied out; the layers then have whole matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lib_lora.errors import UsageError
from lib_lora.families.table import Part
from lib_lora.formats.suffixes import DORA, LORA_BIAS, SCALE
from lib_lora.networks.compose import network_type_of
from lib_lora.networks.contract import (
    ALPHA,
    LayerShape,
    Shape,
    Shapes,
    Tensors,
    at_least_float32,
    misfit,
    shapes_of,
)
from lib_lora.networks.full import DIFFERENCE
from lib_lora.networks.lokr import LOKR, W1, W1_A, W1_B, W2, W2_A, W2_B
from lib_lora.networks.lora import DOWN, UP

# Tensors whose first dimension runs along the outputs: cutting these cuts the delta. kron(w1, w2) has the rows of w1 in order.
ALONG_OUTPUTS = frozenset(
    {UP, "hada_w1_a", "hada_w2_a", W1, W1_A, "b1.weight", DIFFERENCE, "diff_b"}
    | {"set_weight", DORA, LORA_BIAS}
)
# Tensors that every part of the delta shares.
SHARED = frozenset(
    {DOWN, ALPHA, SCALE, "hada_w1_b", "hada_w2_b", W1_B, W2, W2_A, W2_B}
    | {"a1.weight", "a2.weight", "b2.weight"}
)


def is_whole(part: Part) -> bool:
    """Tell whether a part is the whole tensor as it lies."""
    return part.of == 1 and not part.swap_halves


def cut_misfit(shapes: Shapes, part: Part) -> str | None:
    """Return why a network of these shapes cannot be cut into such parts, `None` when it can."""
    if is_whole(part):
        return None
    for suffix, shape in shapes.items():
        if suffix in SHARED:
            continue
        pieces = part.of * (2 if part.swap_halves else 1)
        if suffix not in ALONG_OUTPUTS or shape[:1] == (1,) or shape[0] % pieces:
            return (
                f"{suffix} {shape} of a tensor that is several layers cannot be divided among them"
            )
    return None


def cut(suffix: str, tensor: Tensor, part: Part) -> Tensor:
    """Return what of a network's tensor belongs to a part of the layer's rows; twice `swap_halves` is nothing."""
    if suffix in SHARED or is_whole(part):
        return tensor
    rows = len(tensor) // part.of
    tensor = tensor[part.index * rows : (part.index + 1) * rows]
    return torch.cat(tensor.chunk(2)[::-1]) if part.swap_halves else tensor


def cut_shapes(shapes: Shapes, part: Part) -> dict[str, Shape]:
    """Return the shapes of what `cut` returns."""
    return {
        suffix: shape if suffix in SHARED else (shape[0] // part.of, *shape[1:])
        for suffix, shape in shapes.items()
    }


def is_cut_kron(shapes: Shapes, part: Part) -> bool:
    """Tell whether these are the factors of a LoKr that cannot be cut between its rows."""
    if cut_misfit(shapes, part) is None or network_type_of(shapes) is not LOKR:
        return False
    return misfit(LOKR, shapes, None) is None


def kron_rows(tensors: Tensors, part: Part) -> Tensor:
    """Return the rows of a LoKr's delta that are a part's, in float32 at least."""
    wide = {suffix: at_least_float32(tensor) for suffix, tensor in tensors.items()}
    whole = LOKR.delta(wide, torch.empty(0), LayerShape(_kron_shape(shapes_of(tensors)))).weight
    assert whole is not None  # a LoKr changes the weight
    return cut(DIFFERENCE, whole, part)


def kron_part(shapes: Shapes, part: Part) -> Shape:
    """Return the shape of what `kron_rows` returns."""
    rows, columns = _kron_shape(shapes)
    return rows // part.of, columns


def _kron_shape(shapes: Shapes) -> tuple[int, int]:
    left = [shapes[one if one in shapes else two] for one, two in ((W1, W1_A), (W2, W2_A))]
    right = [shapes[one if one in shapes else two] for one, two in ((W1, W1_B), (W2, W2_B))]
    return left[0][0] * left[1][0], right[0][1] * right[1][1]


def own_pair(tensors: Tensors, part: Part, *, alpha_of_one: bool) -> dict[str, Tensor]:
    """Return the pair of factors, and its alpha, that a part has to itself, nothing when the parts share their factors.

    tensors: those of the whole tensor, as in the file. alpha_of_one: the alpha there is that of one pair, as kohya's; else it belongs
    to all rows of `down`, and so does the scale.
    """
    up, down = tensors[UP], tensors[DOWN]
    if not _is_diagonal(up, part.of):
        return {}
    rows, rank = len(up) // part.of, len(down) // part.of
    columns = slice(part.index * rank, (part.index + 1) * rank)
    own = {UP: up[part.index * rows : (part.index + 1) * rows, columns], DOWN: down[columns]}
    if ALPHA in tensors and not alpha_of_one:
        own[ALPHA] = tensors[ALPHA] / part.of
    return own


def _is_diagonal(up: Tensor, count: int) -> bool:
    out, rank = up.shape[:2]
    if rank % count or out % count:
        return False
    blocks = up.reshape(count, out // count, count, rank // count)
    return not any(
        bool(blocks[row, :, column].any())
        for row in range(count)
        for column in range(count)
        if row != column
    )


def joined(name: str, parts: Sequence[Tensors | None], *, alpha_of_one: bool) -> dict[str, Tensor]:
    """Return the network on a whole tensor of networks on its parts, `None` where a part is left alone.

    Factors that share `down` become one pair; others are laid on a diagonal, with the alpha of one pair (as kohya's split_qkv) or with
    the alpha that keeps alpha / rank. Raises UsageError, which names the tensor, for what no single network can hold.
    """
    present = [part for part in parts if part is not None]
    first = present[0]
    for part in present:
        _check_alike(name, part, first)
    shared = len(present) == len(parts) and all(
        torch.equal(part[DOWN], first[DOWN]) for part in present
    )
    stacked = torch.cat([part[UP] for part in present])
    if shared and not (alpha_of_one and _is_diagonal(stacked, len(parts))):
        whole = {**first, UP: stacked}
    else:
        filled = [part if part is not None else _nothing(first) for part in parts]
        whole = {
            **first,
            DOWN: torch.cat([part[DOWN] for part in filled]),
            UP: torch.block_diag(*(part[UP].flatten(1) for part in filled)),
        }
        if not alpha_of_one and ALPHA in first:
            whole[ALPHA] = first[ALPHA] * len(parts)
        elif alpha_of_one and ALPHA not in first:
            whole[ALPHA] = torch.tensor(float(len(first[DOWN])))
    if DORA in first:
        if len(present) < len(parts):
            raise UsageError(
                f"{name} holds several layers, not all of which have a DoRA; this dialect cannot tell them apart."
            )
        whole[DORA] = torch.cat([part[DORA] for part in present])
    return whole


def _check_alike(name: str, part: Tensors, first: Tensors) -> None:
    """Refuse parts that are no LoRA, or have another rank, scale or shape than the first."""
    if (
        not {DOWN, UP} <= part.keys() <= {DOWN, UP, ALPHA, DORA}
        or len(part.get(DORA, part[UP])) == 1
    ):
        raise UsageError(
            f"{name} holds several layers, which this dialect joins for LoRA only; found {', '.join(sorted(part))}."
            " The onetrainer dialect keeps them apart."
        )
    alpha, other = (float(tensors.get(ALPHA, len(tensors[DOWN]))) for tensors in (part, first))
    if part.keys() != first.keys() or part[DOWN].shape != first[DOWN].shape or alpha != other:
        raise UsageError(
            f"{name} holds several layers, whose networks must have the same rank and alpha in this dialect; found ranks"
            f" {len(part[DOWN])} and {len(first[DOWN])}, alphas {alpha:g} and {other:g}. The onetrainer dialect keeps them apart."
        )


def _nothing(like: Tensors) -> dict[str, Tensor]:
    return {DOWN: torch.zeros_like(like[DOWN]), UP: torch.zeros_like(like[UP])}
