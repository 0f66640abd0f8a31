"""The random base model that the tests of this folder share, and what is made of it."""

import pytest
import torch

from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.train.base_model import load_base_model
from tests.tiny import CONFIG, tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    """The file of a random base model."""
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_file):
    """A random base model in memory; tests copy what they change."""
    return load_base_model(open_checkpoint(tiny_file), CONFIG)


@pytest.fixture(scope="session")
def contexts(tiny):
    """Embeddings of three captions, the empty one first: (3, 77, 64)."""
    ids = tiny.tokenizer(
        ["", "a red circle", "a blue square"], padding="max_length", return_tensors="pt"
    ).input_ids
    with torch.no_grad():
        return tiny.text_encoders["te1"](ids).last_hidden_state
