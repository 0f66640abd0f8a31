from pathlib import Path

import pytest

from lib_lora.demo.lessons import OWN, plan_lessons, train_config
from lib_lora.errors import ConfigError
from lib_lora.train.config import TrainConfig


def test_the_bundled_lessons_are_a_long_and_a_short_one():
    first, second = plan_lessons(None)
    assert (first.name, second.name) == ("donut", "striped")
    assert first.steps >= 2 * second.steps


def test_own_pictures_take_the_place_of_the_first_lesson(tmp_path):
    folder = tmp_path / "my cats"
    own, second = plan_lessons(folder)
    assert (own.name, own.folder, own.caption) == (OWN, folder, "a picture of my cats")
    assert second == plan_lessons(None)[1]


def test_the_configuration_is_accepted_and_trains_the_unet_alone():
    for lesson in plan_lessons(None, (1, 1)):
        raw = train_config(lesson, Path("/base.safetensors"), Path("/out.safetensors"), 5)
        config = TrainConfig.from_dict(raw)
        assert (config.network.unet, config.network.text_encoder) == (True, False)
        assert (config.saving.dialect, config.run.seed, config.data.size) == ("kohya", 5, 64)
        assert config.loss.validation_draws > 0


def test_a_seed_that_is_not_accepted_is_named():
    with pytest.raises(ConfigError, match=r"run\.seed"):
        train_config(plan_lessons(None)[0], Path("/base"), Path("/out.safetensors"), -1)
