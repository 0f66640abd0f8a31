"""Files of the small base and of LoRA for it."""

import pytest

from lib_lora.families.sd1 import SD1
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import write_tensors
from tests.merge.small import LAYERS, base_tensors


@pytest.fixture
def make_base(tmp_path):
    def make(dtype, name="base", metadata=None):
        file = tmp_path / f"{name}.safetensors"
        write_tensors(file, base_tensors(dtype), metadata or {})
        return file

    return make


@pytest.fixture
def make_lora(tmp_path):
    def make(network, name="lora", dialect="kohya"):
        file = tmp_path / f"{name}.safetensors"
        write_network(file, network, LAYERS, SD1.components, dialect)
        return file

    return make
