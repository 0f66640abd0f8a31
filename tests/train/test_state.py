"""States on disk: the newest is read, older ones go, and a full disk is told before anything is written."""

import pytest
import torch

from lib_lora.errors import LoraError
from lib_lora.train.state import State, check_space, read_state, write_state


def test_the_newest_state_is_read_back_and_the_older_ones_are_gone(tmp_path):
    folder = tmp_path / "state"
    assert read_state(folder) is None
    for step in (5, 10):
        tensors = {"unet.values": torch.arange(4) / 3 + step}
        write_state(folder, State(step, tensors, {0: 0.1 + step, step: 1 / 3}))
    found = read_state(folder)
    assert found.step == 10
    assert torch.equal(found.tensors["unet.values"], torch.arange(4) / 3 + 10)
    assert found.validations == {0: 10.1, 10: 1 / 3}
    assert len(list(folder.iterdir())) == 1


def test_a_disk_that_is_too_full_is_told_with_both_numbers(tmp_path):
    check_space(tmp_path, 1)
    with pytest.raises(LoraError, match=r"MB free and \d+ MB are needed"):
        check_space(tmp_path, 1 << 60)
