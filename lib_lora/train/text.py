"""What a denoiser is told of a caption: the outputs of a family's text encoders, put together as the family reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPTokenizer, PreTrainedTokenizerFast

from lib_lora.families.table import Family, TextEncoder
from lib_lora.train.base_model import BaseModel

TOKENS = 77
CAPTIONS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Encoded:
    """What one text encoder says: tokens (captions, tokens, width), and pooled (captions, width) where it is read."""

    tokens: Tensor
    pooled: Tensor | None = None

    def rows(self, rows: Tensor) -> Encoded:
        """Return the same of some captions."""
        return Encoded(self.tokens[rows], None if self.pooled is None else self.pooled[rows])

    def zeroed(self, which: Tensor) -> Encoded:
        """Return the same with zeros for these captions; which: (captions,)."""
        pooled = None if self.pooled is None else self.pooled.masked_fill(which[:, None], 0)
        return Encoded(self.tokens.masked_fill(which[:, None, None], 0), pooled)


@dataclass(frozen=True, slots=True)
class Captions:
    """The different captions, the one that stands for a dropped caption first.

    ids: token ids (captions, tokens) by text encoder; row_of: (pictures,), the caption of each picture; cut: the texts that were too
    long.
    """

    ids: Mapping[str, Tensor]
    row_of: Tensor
    cut: tuple[str, ...]


def tokenize(base: BaseModel, texts: Sequence[str]) -> Captions:
    """Tokenize one caption per picture, each different text once, for every text encoder that is there."""
    different = dict.fromkeys(texts)
    row = {text: number for number, text in enumerate(different, 1)}
    ids, cut = {}, set()
    for encoder in base.checkpoint.family.text_encoders:
        if encoder.component in base.text_encoders:
            tokenizer = base.tokenizer if encoder.kind == "clip" else base.t5_tokenizer
            assert tokenizer is not None  # a T5 encoder is not loaded without one
            rows = [_tokens(tokenizer, text, encoder.padding) for text in ("", *different)]
            ids[encoder.component] = torch.tensor([found for found, _ in rows])
            cut |= {text for text, (_, long) in zip(different, rows[1:], strict=True) if long}
    cut_texts = tuple(text for text in different if text in cut)
    return Captions(ids, torch.tensor([row[text] for text in texts]), cut_texts)


def _tokens(
    tokenizer: CLIPTokenizer | PreTrainedTokenizerFast, text: str, padding: int
) -> tuple[list[int], bool]:
    """Return a text's token ids, filled up, and whether the text was too long for them; its end token stays the last."""
    found = tokenizer(text).input_ids
    kept = found if len(found) <= TOKENS else [*found[: TOKENS - 1], found[-1]]
    return kept + [padding] * (TOKENS - len(kept)), len(found) > TOKENS


def encode(module: Any, how: TextEncoder, ids: Tensor, clip_skip: int = 1) -> Encoded:
    """Return what a text encoder says of token ids (captions, tokens).

    clip_skip: the WebUI's setting, of the encoders that it moves.
    """
    layer = max(how.layer, clip_skip if how.skips else 1)
    output = module(ids, output_hidden_states=True)
    tokens = output.last_hidden_state
    if layer > 1:
        tokens = output.hidden_states[-layer]
        if how.normalized:
            tokens = getattr(module, "text_model", module).final_layer_norm(tokens)
    pooled = {"no": lambda: None, "plain": lambda: output.pooler_output}.get(
        how.pooled, lambda: output.text_embeds
    )
    return Encoded(tokens, pooled())


@torch.no_grad()
def encode_all(module: Any, how: TextEncoder, ids: Tensor, clip_skip: int = 1) -> Encoded:
    """Return what a text encoder says of all captions, a few at a time, on its own device."""
    parts = [encode(module, how, part, clip_skip) for part in ids.split(CAPTIONS_AT_ONCE)]
    pooled = [part.pooled for part in parts if part.pooled is not None]
    return Encoded(
        torch.cat([part.tokens for part in parts]), torch.cat(pooled) if pooled else None
    )


def put_together(family: Family, said: Mapping[str, Encoded], width: int) -> Encoded:
    """Return what the denoiser is told: CLIP's tokens side by side, T5's after them; what is not there is zeros.

    width: of the text that the denoiser reads.
    """
    clips = [said[each.component] for each in family.text_encoders if each.kind == "clip"]
    tokens = torch.cat([each.tokens for each in clips], dim=-1)
    pooled = [each.pooled for each in clips if each.pooled is not None]
    for encoder in family.text_encoders:
        if encoder.kind == "t5":
            tokens = functional.pad(tokens, (0, width - tokens.shape[-1]))
            t5 = said.get(encoder.component)
            more = torch.zeros_like(tokens) if t5 is None else t5.tokens.to(tokens)
            tokens = torch.cat([tokens, more], dim=1)
    return Encoded(tokens, torch.cat(pooled, dim=-1) if pooled else None)
