"""What networks take in the real WebUI's memory: told below the picture where they are no LoRA, and so it is."""

import re

import pytest

# Of these types a network takes as much that what else a picture holds does not count.
TYPES = ("loha", "lokr", "full", "boft")


@pytest.mark.parametrize("name", TYPES)
def test_the_memory_that_is_told_is_taken(host, name, figures):
    answer = host.ask("memory", tags=f"<lora:{name}:0@0,1@1>")
    (told,) = [
        float(found[1]) for c in answer["comments"] if (found := re.search("takes (.*) MB", c))
    ]
    figures("MB told", told)
    assert figures("taken to told", answer["bytes"] / told / 1e6) == pytest.approx(1, abs=0.1)


def test_of_a_lora_nothing_is_told(host):
    assert host.ask("memory", tags="<lora:one:0@0,1@1>")["comments"] == []
