"""What of a network acts, as a tag says."""

import torch

from lib_lora.demo.webui import MODEL_DIR
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.hosts.reading import read_uses
from lib_lora.networks.contract import CreateOptions, LayerShape
from lib_lora.networks.lora import LORA
from lib_lora.schedule.grammar import parse_prompt

RESNET, ATTENTION = "unet.mid_block.resnets.0", "unet.mid_block.attentions.0"


def test_elements_are_found_by_the_keys_of_the_original_checkpoint(tmp_path):
    """sd-webui-lora-block-weight sees those names: there the embedding of the time in a resnet is no "proj"."""
    base = open_checkpoint(MODEL_DIR.with_name("base.safetensors"))
    names = (f"{RESNET}.time_emb_proj", f"{RESNET}.conv1", f"{ATTENTION}.proj_in")
    draw = torch.Generator()
    tensors = {
        name: LORA.create(LayerShape(base.layers[name].shape), CreateOptions(2, 2.0), draw)
        for name in names
    }
    file = tmp_path / "x.safetensors"
    write_network(file, tensors, base.layers, base.family.components)
    uses = parse_prompt("<lora:x:1:lbw=ALL:lbwe=PROJDEEPOFF>").uses
    ((_, loaded),), notes = read_uses(uses, {"x": file}, base)
    assert notes == []
    assert set(loaded.layers) == set(names[:2])
