"""The half precisions, for tests that compute with both: before PyTorch 2.3 the CPU cannot with float16, and no WebUI asks it to."""

import pytest
import torch
from torch.nn import functional


def computes(dtype):
    """Tell whether this PyTorch has what layers need on the CPU."""
    one = torch.ones(1, 1, 1, 1, dtype=dtype)
    try:
        functional.layer_norm(functional.conv2d(one, one).flatten(1) @ one[0, 0], (1,))
    except RuntimeError:
        return False
    return True


def needs(dtype):
    """Return the mark that skips a case where this PyTorch's CPU cannot compute with the dtype."""
    return pytest.mark.skipif(not computes(dtype), reason=f"this PyTorch's CPU has no {dtype}")


HALVES = [pytest.param(dtype, marks=needs(dtype)) for dtype in (torch.float16, torch.bfloat16)]
