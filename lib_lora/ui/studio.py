"""What stands behind the pages: one model in memory, opened when it is first needed and kept until another is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib_lora.errors import UsageError
from lib_lora.host import Generated, GenerateRequest, Host

OpenHost = Callable[[Path, Sequence[Path]], Host]
"""Loads a checkpoint with the folders of networks that prompts can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the page begins with. fixed_files: the visitor may not name other files than these."""

    base: Path
    lora_dir: Path
    size: int
    samplers: Sequence[str]
    fixed_files: bool = False


class Studio:
    """The model of one server. Not for several threads at once; the page's queue lets one picture through at a time."""

    def __init__(self, open_host: OpenHost, defaults: Defaults) -> None:
        self.defaults = defaults
        self._open_host = open_host
        self._opened: tuple[Path, Path] | None = None
        self._host: Host | None = None

    def draw(self, base: str, lora_dir: str, request: GenerateRequest) -> Generated:
        """Draw a picture, with another model first where another is asked for; raises LoraError."""
        wanted = self._files(base, lora_dir)
        if self._host is None or self._opened != wanted:
            self._host = None  # two models may not fit in memory
            self._host = self._open_host(wanted[0], (wanted[1],))
            self._opened = wanted
        return self._host.generate(request)

    def network_names(self, lora_dir: str) -> list[str]:
        """Return the names that prompts can use, sorted; none for a folder that is not there."""
        _, folder = self._files("", lora_dir)
        return sorted(file.stem for file in folder.rglob("*.safetensors"))

    def _files(self, base: str, lora_dir: str) -> tuple[Path, Path]:
        if self.defaults.fixed_files:
            return self.defaults.base, self.defaults.lora_dir
        asked = base.strip()
        if asked and not Path(asked).is_file():
            raise UsageError(f"There is no checkpoint {asked!r}.")
        return Path(asked or self.defaults.base), Path(lora_dir.strip() or self.defaults.lora_dir)
