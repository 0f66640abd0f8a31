"""Embeddings that lie in network files: the WebUI's words for them are there while a picture's schedules are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules import sd_hijack, shared
from modules.textual_inversion import textual_inversion
from torch import Tensor

from lib_lora.formats.matching import EMBEDDING
from lib_lora.formats.stream import TensorReader

log = logging.getLogger(__name__)

_PARAMETERS = "string_to_param"


class Embeddings:
    """The embeddings of some network files in the WebUI's list of words, until `remove`."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._words: list[str] = []
        for name, file in files.items():
            for word, data in _bundled(file).items():
                self._add(word, data, name, file)

    def remove(self) -> None:
        """Take the words off the list; harmless when they are gone."""
        words = _known()
        for word in self._words:
            if word in words.word_embeddings and shared.sd_model is not None:
                words.register_embedding_by_name(None, shared.sd_model, word)
        self._words.clear()

    def _add(self, word: str, data: Mapping[str, Any], name: str, file: Path) -> None:
        """Add a word as the host's Lora extension does: never over one that is there, and only where its width is the model's."""
        import networks

        words = _known()
        if word in words.word_embeddings:
            log.warning("the embedding %r of %s is left out: there is one already", word, file.name)
            return
        try:
            embedding = textual_inversion.create_embedding_from_data(data, word, f"{file}/{word}")
        except Exception as error:  # of several kinds: the host asserts, and raises its own
            log.warning("the embedding %r of %s is left out: %s", word, file.name, error)
            return
        embedding.shorthash = networks.BundledTIHash(name)
        embedding.loaded = words.expected_shape in (-1, embedding.shape)
        if embedding.loaded:
            words.register_embedding(embedding, shared.sd_model)
            self._words.append(word)
        else:
            words.skipped_embeddings[word] = embedding


def _known() -> Any:
    return sd_hijack.model_hijack.embedding_db


def _bundled(file: Path) -> dict[str, dict[str, Any]]:
    """Return the tensors of every embedding in a file, by its word, as the host's own files hold them."""
    found: dict[str, dict[str, Any]] = {}
    if file.suffix != ".safetensors":
        return found
    with TensorReader(file) as reader:
        keys = [key for key in reader.header.tensors if key.startswith(EMBEDDING)]
        for key, tensor in reader.read_many(keys).items():
            word, _, part = key.removeprefix(EMBEDDING).partition(".")
            own: dict[str, Tensor | dict[str, Tensor]] = found.setdefault(word, {})
            outer, _, inner = part.partition(".")
            own[outer] = {inner: tensor} if outer == _PARAMETERS else tensor
    return found
