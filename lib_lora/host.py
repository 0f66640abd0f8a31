"""The Host protocol: what this library asks of the program it lives in. Types only; adapters are in `hosts/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL.Image import Image
from torch import nn


@dataclass(frozen=True, slots=True)
class HostInfo:
    """Who the host is and where its files are.

    restricted: people elsewhere reach it, and its owner has not let them install anything or name files.
    """

    name: str
    version: str
    root: Path
    restricted: bool = False


@dataclass(frozen=True, slots=True)
class HostFlags:
    """The host's memory and precision switches, in the words of its command line.

    half: none of `--no-half`, `--precision full` and `--upcast-sampling`; half_vae: no `--no-half-vae`.
    """

    memory: str = "normal"
    half: bool = True
    half_vae: bool = True
    attention: str = "sdp"
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A base model file, with the VAE override and the sidecar configuration that the host uses for it."""

    name: str
    file: Path
    vae: Path | None = None
    config: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One picture to draw. `prompt` may hold schedule tags; sizes are in pixels."""

    prompt: str
    negative: str = ""
    steps: int = 20
    sampler: str = "euler"
    guidance: float = 7.0
    width: int = 512
    height: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the UNet: noise level, step, and the strength of each network by name."""

    sigma: float
    step: float
    strengths: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished picture, the evaluations that made it, and sentences about what was left out."""

    image: Image
    trace: Sequence[Evaluation]
    notes: Sequence[str] = ()


class Host(Protocol):
    """The program that owns the loaded model: the WebUI, or the standalone diffusers host."""

    def info(self) -> HostInfo:
        """Tell who the host is."""
        ...

    def flags(self) -> HostFlags:
        """Tell the switches the host was started with."""
        ...

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the live modules of the loaded model by layer id."""
        ...

    def networks(self) -> Sequence[Path]:
        """List the network files that prompts can name."""
        ...

    def network_folder(self) -> Path:
        """Tell where a new network file goes so that prompts can name it."""
        ...

    def checkpoints(self) -> Sequence[CheckpointInfo]:
        """List the base models, the loaded one first."""
        ...

    def differing_layers(self) -> Sequence[str]:
        """Name layers of the loaded model that were found to differ from its file, of a few that are compared."""
        ...

    def busy(self) -> bool:
        """Tell whether a picture is being made."""
        ...

    def generate(self, request: GenerateRequest) -> Generated:
        """Draw one picture."""
        ...

    def release_gpu(self) -> None:
        """Take the loaded model off the device and keep it off until `restore_gpu`."""
        ...

    def restore_gpu(self) -> None:
        """Give the device back; harmless when nothing was released."""
        ...

    def add_network(self, file: Path) -> None:
        """Make a new network file known to prompts."""
        ...

    def add_checkpoint(self, file: Path) -> None:
        """Make a new base model known."""
        ...

    def tell(self, sentence: str) -> None:
        """Show a sentence to the person."""
        ...
