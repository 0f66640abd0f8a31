"""What a denoiser is told of a caption: the outputs of a family's text encoders, put together as the family reads them.

A long caption is read in parts of 75 tokens, each between its own begin and end, and what is said of the parts is joined, as
AUTOMATIC1111 v1.10.1 does with long prompts (modules/sd_hijack_clip.py, modules/models/sd3/sd3_cond.py).
"""

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
WORDS = TOKENS - 2
REACH = 20
"""The WebUI's "Prompt word wrap length limit" as it comes."""
AT_ONCE = 16
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Encoded:
    """What one text encoder says: tokens (captions, tokens, width), and pooled (captions, width) where it is read."""

    tokens: Tensor
    pooled: Tensor | None = None

    def rows(self, rows: Tensor) -> Encoded:
        """Return the same of some captions or parts."""
        return Encoded(self.tokens[rows], None if self.pooled is None else self.pooled[rows])

    def joined(self, parts: int) -> Encoded:
        """Return what is said of captions from what is said of so many parts of each, one after the other; the first one's pooled."""
        pooled = None if self.pooled is None else self.pooled[::parts]
        return Encoded(self.tokens.unflatten(0, (-1, parts)).flatten(1, 2), pooled)

    def on(self, device: torch.device) -> Encoded:
        """Return the same on a device."""
        pooled = None if self.pooled is None else self.pooled.to(device)
        return Encoded(self.tokens.to(device), pooled)

    def zeroed(self, which: Tensor) -> Encoded:
        """Return the same with zeros for these captions; which: (captions,)."""
        pooled = None if self.pooled is None else self.pooled.masked_fill(which[:, None], 0)
        return Encoded(self.tokens.masked_fill(which[:, None, None], 0), pooled)


@dataclass(frozen=True, slots=True)
class Captions:
    """The different captions, the one that stands for a dropped caption first; all on the CPU.

    ids: token ids (parts, tokens) by text encoder; parts: (captions, most parts), those of each caption, filled up with part 0, which
    is the empty caption's only one; counts: (captions,) how many are its own; rows: (texts,), the caption of each text; cut: the texts
    that were too long.
    """

    ids: Mapping[str, Tensor]
    parts: Tensor
    counts: Tensor
    rows: Tensor
    cut: tuple[str, ...]

    def parts_of(self, captions: Tensor) -> Tensor:
        """Return the parts of some captions, as many for each as the longest has: (captions, parts)."""
        return self.parts[captions, : int(self.counts[captions].max())]


def tokenize(base: BaseModel, texts: Sequence[str], most: int = 1) -> Captions:
    """Tokenize texts, each different one once, for every text encoder that is there. most: the parts that a caption may have."""
    different = ("", *dict.fromkeys(texts))
    split = [_split(base.tokenizer, text) for text in different]
    kept = [parts[:most] for parts in split]
    counts = torch.tensor([len(parts) for parts in kept])
    cut = {text for text, parts in zip(different, split, strict=True) if len(parts) > most}
    ids = {}
    for encoder in base.checkpoint.family.text_encoders:
        if encoder.component not in base.text_encoders:
            continue
        if encoder.kind == "clip":
            begin, end = base.tokenizer("").input_ids
            rows = [[begin, *part, end] for parts in kept for part in parts]
            rows = [row + [encoder.padding] * (TOKENS - len(row)) for row in rows]
        else:
            assert base.t5_tokenizer is not None  # a T5 encoder is not loaded without one
            rows = []
            for text, parts in zip(different, kept, strict=True):
                whole, long = _t5_row(base.t5_tokenizer, text, len(parts), encoder.padding)
                rows += [whole[start : start + TOKENS] for start in range(0, len(whole), TOKENS)]
                cut |= {text} if long else set()
        ids[encoder.component] = torch.tensor(rows)
    places, starts = torch.arange(int(counts.max())), counts.cumsum(0) - counts
    table = torch.where(places < counts[:, None], starts[:, None] + places, 0)
    row = {text: number for number, text in enumerate(different[1:], 1)}
    rows_of_texts = torch.tensor([row[text] for text in texts], dtype=torch.long)
    return Captions(ids, table, counts, rows_of_texts, tuple(t for t in row if t in cut))


def _split(tokenizer: CLIPTokenizer, text: str) -> list[list[int]]:
    """Return the ids of a text in parts of at most 75 tokens.

    A part that is full ends after its last comma where one is among its last 20 tokens, and the next does not begin with one.
    """
    tokens, comma = tokenizer(text).input_ids[1:-1], tokenizer.convert_tokens_to_ids(",</w>")
    parts = []
    while len(tokens) > WORDS:
        end = WORDS
        if tokens[WORDS] != comma and comma in tokens[WORDS - REACH : WORDS]:
            end = WORDS - tokens[:WORDS][::-1].index(comma)
        parts.append(tokens[:end])
        tokens = tokens[end:]
    return [*parts, tokens]


def _t5_row(
    tokenizer: PreTrainedTokenizerFast, text: str, parts: int, padding: int
) -> tuple[list[int], bool]:
    """Return T5's ids of a text, which has the length of CLIP's parts and is not split, and whether it was too long for that.

    Its end token stays the last.
    """
    found, length = tokenizer(text).input_ids, TOKENS * parts
    kept = found if len(found) <= length else [*found[: length - 1], found[-1]]
    return kept + [padding] * (length - len(kept)), len(found) > length


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
def encode_all(module: Any, how: TextEncoder, captions: Captions, clip_skip: int = 1) -> Encoded:
    """Return what a text encoder says of all parts, a few at a time; T5 hears all parts of a caption at once.

    It is computed on the encoder's device and kept in ordinary memory: for thousands of captions it is larger than many a model.
    """
    ids = captions.ids[how.component].to(next(module.parameters()).device)
    if how.kind == "t5":
        tokens = [
            encode(module, how, ids[row[:count]].flatten()[None])
            .on(CPU)
            .tokens.unflatten(1, (count, -1))
            for row, count in zip(captions.parts, captions.counts.tolist(), strict=True)
        ]
        return Encoded(torch.cat(tokens, dim=1)[0])
    parts = [encode(module, how, part, clip_skip).on(CPU) for part in ids.split(AT_ONCE)]
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
