"""The public hashes, each computed here from its description in a few lines of its own."""

import hashlib

import pytest
import torch
from safetensors.torch import save

from lib_lora.formats.hashes import (
    autov1,
    autov2,
    autov3,
    file_hashes,
    file_sha256,
    modelspec_hash,
    sshs_model_hash,
    tensors_hash,
)
from lib_lora.formats.stream import write_tensors

MIB = 1 << 20


@pytest.fixture(scope="module")
def tensors():
    draw = torch.Generator().manual_seed(0)
    return {
        "wide": torch.randn(MIB // 4 + 99, generator=draw),
        "half": torch.randn(MIB, generator=draw).half(),
        "alpha": torch.tensor(4.0),
    }


@pytest.fixture(scope="module")
def file(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("hashes") / "network.safetensors"
    write_tensors(path, tensors, {"ss_network_dim": "4"})
    return path


def sha(content):
    return hashlib.sha256(content).hexdigest()


def test_hashes_of_the_whole_file(file):
    content = file.read_bytes()
    assert file_sha256(file) == sha(content)
    assert autov2(file) == sha(content)[:10]
    assert autov1(file) == sha(content[MIB : MIB + 64 * 1024])[:8]


def test_hashes_of_the_data(file, tensors):
    # kohya hashes what safetensors.torch.save writes after its header.
    theirs = save(tensors)
    of_data = sha(theirs[8 + int.from_bytes(theirs[:8], "little") :])
    assert sshs_model_hash(file) == of_data
    assert tensors_hash(tensors) == of_data
    assert autov3(file) == of_data[:12]
    assert modelspec_hash(file) == "0x" + of_data


def test_one_reading_gives_them_all(file):
    assert file_hashes(file) == {
        "sshs_model_hash": sshs_model_hash(file),
        "autov1": autov1(file),
        "autov2": autov2(file),
        "autov3": autov3(file),
        "modelspec": modelspec_hash(file),
    }


def test_metadata_change_the_hash_of_the_file_only(file, tensors, tmp_path):
    other = tmp_path / "other.safetensors"
    write_tensors(other, tensors, {"ss_network_dim": "8"})
    assert sshs_model_hash(other) == sshs_model_hash(file)
    assert file_sha256(other) != file_sha256(file)


def test_autov1_of_a_file_below_one_mebibyte_is_that_of_nothing(tmp_path):
    small = tmp_path / "small.safetensors"
    write_tensors(small, {"w": torch.zeros(1)}, {})
    assert autov1(small) == "e3b0c442"  # the first digits of the sha256 of no bytes
