"""What is wrong between fields is told before anything is loaded."""

import pytest

from lib_lora.train.config import TrainConfig
from tests.train.asked import MINIMAL, problems_of


@pytest.mark.parametrize(
    ("network", "saving", "expected"),
    [
        (
            {"type": "ia3", "dora": True},
            {},
            {"network.dora": "Goes with lora, loha, lokr; the type is ia3."},
        ),
        ({"factor": 0}, {}, {"network.factor": "Must be -1, or 1 and more; found 0."}),
        *(
            (
                network,
                {"dialect": "diffusers"},
                {
                    "saving.dialect": "The diffusers names hold plain LoRA and its DoRA alone; choose kohya."
                },
            )
            for network in ({"type": "loha"}, {"tucker": True, "conv_rank": 4})
        ),
    ],
)
def test_what_a_network_type_cannot_is_refused(network, saving, expected):
    raw = {**MINIMAL, "network": network, "saving": {**MINIMAL["saving"], **saving}}
    assert problems_of(raw) == expected
    TrainConfig.from_dict({**raw, "network": {"type": "lora", "dora": True}})


def test_an_output_that_could_not_be_written_is_refused_before_the_training(tmp_path):
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "base.safetensors").touch()
    (tmp_path / "link.safetensors").symlink_to("base.safetensors")
    refused = {
        "folder.safetensors": "is a folder; name a file.",
        "base.safetensors": "Is the base model, which is not overwritten.",
        "link.safetensors": "Is the base model, which is not overwritten.",
        f"{'n' * 240}.safetensors": "some system cannot hold; choose another.",
    }
    for name, sentence in refused.items():
        raw = {
            **MINIMAL,
            "model": {"base": str(tmp_path / "base.safetensors")},
            "saving": {"out": str(tmp_path / name)},
        }
        ((field, said),) = problems_of(raw).items()
        assert field == "saving.out"
        assert said.endswith(sentence)
