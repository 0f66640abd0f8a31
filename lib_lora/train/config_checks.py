"""What can be wrong between the fields of a configuration, each of which is right by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lib_lora.formats.file_name import fits_every_system
from lib_lora.train.config_learning import DORA_BASES

LEAST_SHARE = 0.1

Sections = Mapping[str, Mapping[str, Any]]
"""Section name -> field name -> value, where `None` stands for one that is wrong by itself and says so already."""


def cross_problems(sections: Sections) -> list[tuple[str, str]]:
    """Return the name of a field and a sentence for everything that is wrong between fields."""
    return [
        *_wrong_sizes(sections),
        *_wrong_tags(sections["data"]),
        *_wrong_network(sections["network"]),
        *_wrong_dialect(sections["saving"]["dialect"], sections["network"]),
        *_wrong_rates(sections["optimizer"], sections["network"]),
        *_wrong_warmup(sections["schedule"]),
        *_wrong_output(sections["saving"]["out"], sections["model"]["base"]),
    ]


def _wrong_sizes(sections: Sections) -> Iterator[tuple[str, str]]:
    for section, name in (("data", "size"), ("data", "bucket_step"), ("samples", "size")):
        pixels = sections[section][name]
        if pixels is not None and pixels % 8 != 0:
            yield f"{section}.{name}", f"Must be divisible by 8; found {pixels}."


def _wrong_tags(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if data["keep_tags"] and data["caption_orders"] == 0:
        yield "data.keep_tags", "Goes with caption_orders of 1 or more; tags stay in order without."


def _wrong_network(network: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if network["unet"] is False and network["text_encoder"] is False:
        yield "network", "Nothing would be trained: set unet or text_encoder to true."
    if network["dora"] is True and network["type"] not in (*DORA_BASES, None):
        yield "network.dora", f"Goes with {', '.join(DORA_BASES)}; the type is {network['type']}."
    if network["factor"] == 0:
        yield "network.factor", "Must be -1, or 1 and more; found 0."


def _wrong_dialect(dialect: str | None, network: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    plain = network["type"] in ("lora", None) and network["tucker"] is not True
    if dialect == "diffusers" and not plain:
        yield (
            "saving.dialect",
            "The diffusers names hold plain LoRA and its DoRA alone; choose kohya.",
        )


def _wrong_rates(
    optimizer: Mapping[str, Any], network: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Prodigy multiplies the rate that it finds by one that all it trains share."""
    if optimizer["type"] != "prodigy":
        return
    parts = {"unet": "unet_rate", "text_encoder": "text_encoder_rate"}
    rates = {key: optimizer[key] for part, key in parts.items() if network[part]}
    if None in rates.values():
        return
    for key, rate in rates.items():
        if rate < LEAST_SHARE:
            sentence = f"Prodigy finds the rate and multiplies it by this: set 1; found {rate:g}."
            yield f"optimizer.{key}", sentence
    if len(set(rates.values())) > 1:
        yield "optimizer.text_encoder_rate", "Prodigy has one rate for all: set that of the UNet."


def _wrong_warmup(schedule: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    steps, warmup = schedule["steps"], schedule["warmup"]
    if None not in (steps, warmup) and warmup >= steps:
        yield "schedule.warmup", f"Must be less than the {steps} steps; found {warmup}."


def _wrong_output(out: Path | None, base: Path | None) -> Iterator[tuple[str, str]]:
    """Say what would only come up when the training is over."""
    if out is None:
        return
    if out.suffix != ".safetensors":
        yield "saving.out", f"Must end in .safetensors; found {out.name!r}."
    if not fits_every_system(out.name):
        yield "saving.out", f"{out.name!r} is a name that some system cannot hold; choose another."
    elif out.is_dir():
        yield "saving.out", f"{str(out)!r} is a folder; name a file."
    elif base is not None and out.exists() and base.exists() and out.samefile(base):
        yield "saving.out", "Is the base model, which is not overwritten."
