"""A factor beside the strength: every type's delta times it, live as baked."""

import pytest
import torch

from lib_lora.networks.contract import LayerNetwork, shapes_of
from lib_lora.networks.contract import misfit as misfit_of
from lib_lora.networks.scaled import scaled
from tests.networks.variants import VARIANTS, a_module, an_input, shape_of, trained

FACTOR = 0.3


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_delta_is_multiplied_in_every_form(variant):
    module = a_module("conv3x3")
    kind, tensors = trained(variant, module)
    own = scaled(kind, FACTOR)
    x = an_input(module)
    y = module(x)
    expected = FACTOR * kind.output(tensors, x, module, y)
    assert torch.allclose(own.output(tensors, x, module, y), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(expected, kind.output(tensors, x, module, y), atol=1e-3)
    if kind.prepare is not None:
        ready = own.prepare(tensors, module.weight, shape_of(module))
        assert torch.allclose(own.output(ready, x, module, y), expected, rtol=1e-9, atol=1e-9)
    change = own.delta(tensors, module.weight, shape_of(module)).weight
    inner = kind.delta(tensors, module.weight, shape_of(module)).weight
    assert torch.allclose(change, FACTOR * inner, rtol=1e-12, atol=1e-12)
    product = own.low_rank(tensors, shape_of(module)) if own.low_rank else None
    if product is not None:
        matrix = product.up @ product.down.flatten(1)
        assert torch.allclose(matrix.reshape(change.shape), change, rtol=1e-9, atol=1e-9)
    assert misfit_of(own, shapes_of(LayerNetwork(own, tensors).tensors), module.weight.shape) is (
        misfit_of(kind, shapes_of(tensors), module.weight.shape)
    )
