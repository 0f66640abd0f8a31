"""States on disk: the newest is read, and older ones go."""

import torch

from lib_lora.train.state import State, kept_step, read_state, write_state


def test_the_newest_state_is_read_back_and_the_older_ones_are_gone(tmp_path):
    folder = tmp_path / "state"
    assert (read_state(folder), kept_step(folder)) == (None, 0)
    for step in (5, 10):
        tensors = {"unet.values": torch.arange(4) / 3 + step}
        write_state(folder, State(step, tensors, {0: 0.1 + step, step: 1 / 3}))
    found = read_state(folder)
    assert found.step == kept_step(folder) == 10
    assert torch.equal(found.tensors["unet.values"], torch.arange(4) / 3 + 10)
    assert found.validations == {0: 10.1, 10: 1 / 3}
    assert len(list(folder.iterdir())) == 1
