"""What a filled form asks for: its fields, and what the page itself knows of base models, folders and names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from lib_lora.errors import ConfigError
from lib_lora.formats.file_name import fits_every_system
from lib_lora.host import Host
from lib_lora.train.config import TrainConfig
from lib_lora.ui.form import BASE, FOLDER, OUT, known_names, path_names, read_form

SUFFIX = ".safetensors"
VAE = "model.vae"
Settings = Mapping[str, str]
Problems = list[tuple[str, str]]


class Requests:
    """Reads forms. pictures: where folders may be chosen when the host is restricted."""

    def __init__(self, host: Host, pictures: Path) -> None:
        self._host, self._pictures = host, pictures
        self._restricted = host.info().restricted

    @property
    def names_files(self) -> bool:
        """Tell whether visitors may name any file of this machine."""
        return not self._restricted

    def read(self, settings: Settings, taken: Collection[Path] = ()) -> TrainConfig:
        """Return the configuration; raises ConfigError with every problem there is.

        taken: files that runs which are not over will write.
        """
        problems: Problems = []
        texts = dict(settings)
        texts[OUT] = self._out(texts.get(OUT, ""), taken, problems)
        texts[FOLDER] = self._folder_text(texts.get(FOLDER, ""), problems)
        texts[BASE] = self._base(texts.get(BASE, ""), problems)
        self._add_vae(texts)
        self._check_paths(texts, problems)
        told = {name for name, _ in problems}
        try:
            config = read_form(texts)
        except ConfigError as error:
            problems += [pair for pair in error.problems if pair[0] not in told]
        if problems:
            raise ConfigError(problems)
        self._check_loaded(config)
        return config

    def sketch(self, settings: Settings) -> TrainConfig:
        """Return the configuration of a form in which it is not said yet what to learn from and how to call it."""
        texts = dict(settings)
        problems: Problems = []
        texts[OUT] = self._out("sketch", (), [])
        texts[FOLDER] = str(self._pictures)
        texts[BASE] = self._base(texts.get(BASE, ""), problems)
        if problems:
            raise ConfigError(problems)
        self._add_vae(texts)
        return read_form(texts)

    def folder(self, text: str) -> Path:
        """Return the folder of pictures that a text names; raises ConfigError."""
        problems: Problems = []
        folder = Path(self._folder_text(text, problems))
        if problems:
            raise ConfigError(problems)
        return folder

    def _out(self, name: str, taken: Collection[Path], problems: Problems) -> str:
        name = name.strip().removesuffix(SUFFIX)
        file = self._host.network_folder().absolute() / f"{name or 'unnamed'}{SUFFIX}"
        if not name:
            problems.append((OUT, "Give it a name."))
        elif {"/", "\\", ":"} & set(name) or not fits_every_system(file.name):
            problems.append((OUT, f"{name!r} is no name that every system can hold."))
            return str(file.with_name(f"unnamed{SUFFIX}"))
        elif file.exists():
            problems.append((OUT, f"There is a LoRA of this name in {file.parent}."))
        elif file in taken:
            problems.append((OUT, "A run in the queue will write this name."))
        return str(file)

    def _folder_text(self, text: str, problems: Problems) -> str:
        text = text.strip().strip('"')
        try:
            folder = Path(self._pictures, text) if self._restricted else typed_path(text)
            inside = folder.resolve().is_relative_to(self._pictures.resolve())
            is_there = folder.is_dir()
        except (RuntimeError, ValueError, OSError):
            problems.append((FOLDER, f"{text[:80]!r} cannot be read as a path."))
            return str(self._pictures)
        if not text:
            problems.append((FOLDER, "Name the folder of pictures to learn from."))
        elif self._restricted and not inside:
            sentence = f"Over the network only folders in {self._pictures} can be chosen."
            problems.append((FOLDER, sentence))
        elif not is_there:
            problems.append((FOLDER, f"There is no folder {str(folder.absolute())!r}."))
        return str(folder.absolute())

    def _base(self, text: str, problems: Problems) -> str:
        known = [str(base.file) for base in self._host.checkpoints()]
        text = text.strip().strip('"') or next(iter(known), "")
        file = existing_file(text)
        if not text:
            problems.append((BASE, "The host has no checkpoint; name a file."))
        elif self._restricted and text not in known:
            problems.append(
                (BASE, "Over the network only the host's own checkpoints can be chosen.")
            )
        elif file is None:
            problems.append((BASE, f"There is no file {text[:200]!r}."))
        return str(file or text)

    def _add_vae(self, texts: dict[str, str]) -> None:
        """Take the VAE that the host uses with a checkpoint, unless the form names one."""
        for base in self._host.checkpoints():
            if VAE in known_names() and str(base.file) == texts[BASE] and base.vae:
                texts[VAE] = texts.get(VAE) or str(base.vae)

    def _check_paths(self, texts: Settings, problems: Problems) -> None:
        if self._restricted:
            named = (name for name in path_names() if name not in (BASE, FOLDER, OUT, VAE))
            sentence = "Over the network no files can be named."
            problems += [(name, sentence) for name in named if texts.get(name)]

    def _check_loaded(self, config: TrainConfig) -> None:
        """Compare the loaded model with its file, when that is what will be trained on."""
        loaded = next(iter(self._host.checkpoints()), None)
        if loaded is None or loaded.file != config.model.base:
            return
        differing = self._host.differing_layers()
        if differing:
            sentence = (
                f"The loaded model is not what its file holds ({', '.join(differing)} differ), as after a merge: save the merge as a"
                " checkpoint and choose that, or load the checkpoint again."
            )
            raise ConfigError([(BASE, sentence)])


def typed_path(text: str) -> Path:
    """Return the path that a person typed or pasted: quotes around it are dropped, `~` is the home folder.

    Raises RuntimeError where there is no such home folder.
    """
    return Path(text.strip().strip('"')).expanduser()


def existing_file(text: str) -> Path | None:
    """Return the file that a person typed or pasted, `None` where there is none."""
    try:
        file = typed_path(text)
        return file if file.is_file() else None
    except (RuntimeError, ValueError, OSError):
        return None
