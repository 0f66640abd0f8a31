"""Make the embedded base model from nothing: autoencoder, text encoder, UNet, then one file in the original SD1 layout.

    python -m lib_lora.demo.train_base --work DIR --out lib_lora/demo/base.safetensors

About three hours on two CPU cores. Every stage keeps its result in the work folder, so an interrupted run continues where it
was; the UNet stage saves its state every few minutes.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from torch import nn

from lib_lora.demo import train_denoiser, train_vae
from lib_lora.formats.original import to_original
from lib_lora.formats.stream import write_tensors


def make_base(work: Path, out: Path) -> None:
    """Train whatever is not finished in `work` and write the base model, fp16, to `out`."""
    work.mkdir(parents=True, exist_ok=True)
    encoder = train_denoiser.pretrain_text_encoder(work)
    vae = train_vae.train(work)
    pool = train_denoiser.make_pool(vae, work)
    training = train_denoiser.Training(pool, encoder)
    training.run(work / "state.pt")
    unet, averaged_encoder = training.averaged()
    write_base(out, unet, averaged_encoder, train_vae.widen_second_level(vae))


def write_base(out: Path, unet: nn.Module, encoder: nn.Module, vae: nn.Module) -> None:
    """Write a base model, weights in fp16; the buffers of the noise schedule stay fp32, as rounding them would move the noise."""
    models = {"unet": unet, "te1": encoder, "vae": vae}
    states = {
        name: {key: tensor.half() for key, tensor in model.state_dict().items()}
        for name, model in models.items()
    }
    write_tensors(out, to_original(states), {"modelspec.architecture": "stable-diffusion-v1"})


def main() -> None:
    """Read the command line and make the base model."""
    parser = argparse.ArgumentParser(description="Train the embedded base model from nothing.")
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate results")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make_base(args.work, args.out)


if __name__ == "__main__":
    main()
