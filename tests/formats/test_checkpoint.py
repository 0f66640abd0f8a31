"""Opening a base model by its header."""

import pytest
import torch

from lib_lora.errors import FileFormatError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.stream import write_tensors
from tests.tiny import tiny_checkpoint


def test_a_tiny_model_is_a_whole_sd1(tmp_path):
    file = tiny_checkpoint(tmp_path, dtype=torch.float16)
    checkpoint = open_checkpoint(file)
    assert (checkpoint.path, checkpoint.family.id) == (file, "sd1")
    placed = {layer.weight.key for layer in checkpoint.layers.values()}
    placed |= {layer.bias.key for layer in checkpoint.layers.values() if layer.bias}
    left = checkpoint.header.tensors.keys() - placed
    assert len(left) == 13  # twelve buffers of the noise schedule and position_ids
    assert all("." not in key or key.endswith("position_ids") for key in left)


def test_what_is_no_checkpoint_is_refused_with_the_files_name(tmp_path):
    file = tmp_path / "style.safetensors"
    write_tensors(file, {"lora_unet_conv_in.lora_up.weight": torch.zeros(2, 2)}, {})
    with pytest.raises(FileFormatError, match=r"style\.safetensors: This is a LoRA file"):
        open_checkpoint(file)
