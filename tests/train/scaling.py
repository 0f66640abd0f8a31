"""Where a test can scale the loss of fp16."""

import pytest
import torch

SCALES_ON_CPU = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this PyTorch scales losses on CUDA alone"
)
