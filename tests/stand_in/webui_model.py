"""Tiny models in the original layout, with text that their encoder turns into numbers; and their checkpoints.

Their layers are what the Lora extension makes of torch's classes.
"""

import zlib
from types import SimpleNamespace

import networks
import torch
from modules.sd_hijack import model_hijack
from torch import nn

WIDTH = 8
LATENT_CHANNELS, INPAINTING_CHANNELS = 4, 9


class Linear(nn.Linear):
    def forward(self, x):
        return networks.layer_forward(self, x, nn.Linear.forward)


class Conv2d(nn.Conv2d):
    def forward(self, x):
        return networks.layer_forward(self, x, nn.Conv2d.forward)


class MultiheadAttention(nn.MultiheadAttention):
    def forward(self, *arguments, **options):
        networks.network_apply_weights(self)
        return super().forward(*arguments, **options)


class Attention(nn.Module):
    """linear: as in SD2, where the layers around an attention are linear."""

    def __init__(self, linear):
        super().__init__()
        self.proj_in = Linear(WIDTH, WIDTH) if linear else Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x):
        if isinstance(self.proj_in, nn.Linear):
            return torch.tanh(self.proj_in(x.movedim(1, -1))).movedim(-1, 1)
        return torch.tanh(self.proj_in(x))


class UNet(nn.Module):
    """`broken` makes it raise between its layers; `seen` holds the output of every call."""

    def __init__(self, channels, linear):
        super().__init__()
        first = nn.ModuleList([Conv2d(channels, WIDTH, 3, padding=1)])
        self.input_blocks = nn.ModuleList(
            [first, nn.ModuleList([nn.Identity(), Attention(linear)])]
        )
        self.out = nn.ModuleList([nn.Identity(), nn.Identity(), Conv2d(WIDTH, 4, 3, padding=1)])
        self.broken, self.seen = False, []

    def forward(self, x, timesteps, context):
        hidden = self.input_blocks[0][0](x) + context[:, :, None, None]
        if self.broken:
            raise ValueError("out of memory")
        hidden = self.input_blocks[1][1](hidden + 0.01 * timesteps[:, None, None, None])
        out = self.out[2](hidden)
        self.seen.append((x, timesteps, context, out))
        return out


class Mlp(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.add_module(name, Linear(WIDTH, WIDTH))


def chain(*names, end):
    """Return a module that holds `end` behind these names, one inside the other."""
    for name in reversed(names):
        outer = nn.Module()
        outer.add_module(name, end)
        end = outer
    return end


class TextEncoder(nn.Module):
    """SD1's: one linear layer, so that a mixture of two contexts is exact."""

    def __init__(self):
        super().__init__()
        layers = nn.ModuleList([chain("mlp", end=Mlp("fc1"))])
        self.transformer = chain("text_model", "encoder", "layers", end=layers)
        tokens = nn.Embedding(4, WIDTH)
        self.transformer.text_model.embeddings = chain("token_embedding", end=tokens)

    def forward(self, words):
        return self.transformer.text_model.encoder.layers[0].mlp.fc1(words[0])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = MultiheadAttention(WIDTH, 2), Mlp("c_fc")

    def forward(self, x):
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return self.mlp.c_fc(x)


class OpenClip(nn.Module):
    """SD2's: one block with a fused attention, after which words are summed."""

    def __init__(self):
        super().__init__()
        self.model = chain("transformer", "resblocks", end=nn.ModuleList([Block()]))
        self.model.token_embedding = nn.Embedding(4, WIDTH)

    def forward(self, words):
        return self.model.transformer.resblocks[0](words).sum(0)


class WrappedEncoder(nn.Module):
    """`gone` makes it raise: the host has moved it away."""

    def __init__(self, wrapped):
        super().__init__()
        self.wrapped, self.gone = wrapped, False

    def forward(self, prompts):
        if self.gone:
            raise RuntimeError("the text encoder is on another device")
        draws = (torch.Generator().manual_seed(zlib.crc32(text.encode())) for text in prompts)
        words = [torch.randn(3, WIDTH, generator=draw).double() for draw in draws]
        for text, vectors in zip(prompts, words, strict=True):
            for name, embedding in model_hijack.embedding_db.word_embeddings.items():
                vectors += embedding.vec * (name in text)
        return self.wrapped(torch.stack(words, 1))  # (words, prompts, width)


class Model(nn.Module):
    """file: where its checkpoint is written; kind: "sd1", "inpainting" or "sd2"."""

    def __init__(self, file, seed=0, kind="sd1"):
        super().__init__()
        torch.manual_seed(seed)
        channels = INPAINTING_CHANNELS if kind == "inpainting" else LATENT_CHANNELS
        self.model = chain("diffusion_model", end=UNet(channels, linear=kind == "sd2"))
        self.cond_stage_model = WrappedEncoder(OpenClip() if kind == "sd2" else TextEncoder())
        mask = torch.Generator().manual_seed(9)
        self.masked = torch.randn(1, channels - LATENT_CHANNELS, 6, 6, generator=mask)
        self.double().requires_grad_(False)
        self.alphas_cumprod = torch.linspace(0.999, 0.01, 1000)
        self.sd_checkpoint_info = SimpleNamespace(filename=str(file))

    def apply_model(self, x, timesteps, context):
        """An inpainting model sees a mask and the masked picture beside the latent."""
        missing = self.model.diffusion_model.input_blocks[0][0].in_channels - x.shape[1]
        if missing:
            x = torch.cat([x, self.masked.to(x).expand(len(x), -1, -1, -1)], 1)
        return self.model.diffusion_model(x, timesteps, context)

    def checkpoint(self):
        """Return the tensors of its file."""
        return {
            name.replace(".wrapped.", "."): tensor for name, tensor in self.state_dict().items()
        }

    def hooks(self):
        """Count whatever hangs on any of its modules."""
        return sum(
            len(module._forward_hooks)
            + len(module._forward_pre_hooks)
            + ("forward" in module.__dict__)
            for module in self.modules()
        )
