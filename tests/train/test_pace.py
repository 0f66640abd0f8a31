"""What is said of a slow training."""

import pytest

from lib_lora.train.pace import slow_because
from tests.train.asked import asked_config


def config_of(**sections):
    return asked_config("base", "pictures", "out.safetensors", **sections)


@pytest.mark.parametrize(
    ("sections", "on_cpu", "drawing", "said"),
    [
        ({}, False, 0.0, ""),
        ({}, True, 0.0, "Slow because: it is computed on a CPU."),
        (
            {"run": {"checkpointing": True, "storage": "fp8"}, "schedule": {"accumulate": 3}},
            False,
            0.4,
            "Slow because: each step has 3 forward passes; gradient checkpointing computes each block twice;"
            " weights of 8 bits are brought back layer by layer; 40% of the time goes into drawing the noise.",
        ),
    ],
)
def test_reasons(sections, on_cpu, drawing, said):
    assert slow_because(config_of(**sections), on_cpu, drawing) == said
