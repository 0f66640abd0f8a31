"""What the model is asked at every evaluation, and what it would answer with networks in its weights, given the same input."""

from functools import partial

import torch
from ldm.models.diffusion.ddpm import LatentDiffusion
from merged import with_merged, without_hooks
from modules import prompt_parser, script_callbacks, shared
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler
from sgm.models.diffusion import DiffusionEngine

OFF = 0.95
SIZE = (64, 64)  # of the pictures: XL's conditionings tell it
CONTROLS = 4  # of so many calls one has its controls computed, and the first two


class Watch:
    """Sees every call of `apply_model` and every list of noise levels that a sampler builds, between `begin` and `end`.

    plan: what the calls are compared with, `None` for nothing. Its `strengths` are those of each network by name, for all evaluations
    or a list for each of them; `negative` those of the rows of the negative prompt where they are others; `words` and `texts` the
    strengths in the text encoder and the two prompts, whose conditionings are compared then; `factors` see `with_merged`. at: what to do as an evaluation
    begins, by its index.
    """

    def __init__(self):
        for model in (LatentDiffusion, DiffusionEngine):
            model.apply_model = self._around(model.apply_model)
        for sampler, name in ((KDiffusionSampler, "get_sigmas"), (CompVisSampler, "get_timesteps")):
            setattr(sampler, name, self._noting(getattr(sampler, name)))
        self.attend()
        self._calls = None
        self.begin(None, {})
        self.end()

    def attend(self):
        script_callbacks.on_cfg_denoiser(self._evaluate)

    def begin(self, plan, at):
        self._calls, self._built, self._level, self._evaluation = [], [], None, -1
        self._plan, self._at = plan, at

    def end(self):
        calls, self._calls, self._at = self._calls, None, {}
        return {"calls": calls, "built": self._built}

    def _evaluate(self, params):
        self._evaluation += 1
        self._level = float(params.sigma.max())
        self._at.get(self._evaluation, lambda: None)()

    def _noting(self, build):
        def noting(sampler, p, steps):
            levels = build(sampler, p, steps)
            self._built.append(levels.tolist())
            return levels

        return noting

    def _around(self, apply_model):
        def watched(model, *arguments, **named):
            answer = apply_model(model, *arguments, **named)
            if self._calls is not None:
                ask = partial(apply_model, model, *arguments, **named)
                given = named.get("cond") or arguments[2]
                self._calls.append(self._told(model, ask, given, answer))
            return answer

        return watched

    def _told(self, model, ask, given, answer):
        told = {
            "evaluation": self._evaluation,
            "level": self._level,
            "rows": len(answer),
            "checkpoint": shared.sd_model.sd_checkpoint_info.model_name,
        }
        if self._plan is None:
            return told
        with torch.no_grad(), without_hooks(model):
            if "words" in self._plan:
                words = in_one(given)
                return told | self._compared(words, lambda factor: self._encoded(model, factor))
            return told | self._compared(answer, lambda factor: self._answer(model, ask, factor))

    def _compared(self, given, with_factor):
        """Return differences of the reference's range: of what was given, and for some calls of 5 % less strength and of none."""
        right = with_factor(1)
        others = {"difference": given}
        if len(self._calls) < 2 or len(self._calls) % CONTROLS == 0:
            others |= {"off": with_factor(OFF), "none": with_factor(0)}
        spread = float(right.max() - right.min())
        return {name: float((one - right).abs().max()) / spread for name, one in others.items()}

    def _answer(self, model, ask, factor):
        answer = self._with(model, "strengths", factor, ask)
        if "negative" in self._plan:
            half = len(answer) // 2
            answer[half:] = self._with(model, "negative", factor, ask)[half:]
        return answer

    def _with(self, model, name, factor, ask):
        with self._merged(model, name, factor):
            return ask()

    def _encoded(self, model, factor):
        with self._merged(model, "words", factor):
            encoded = [model.get_learned_conditioning(self._text(text)) for text in range(2)]
            return torch.cat([in_one(one) for one in encoded])

    def _text(self, index):
        """Return the prompt, or the negative one, as the WebUI asks for it."""
        return prompt_parser.SdConditioning([self._plan["texts"][index]], index == 1, *SIZE)

    def _merged(self, model, name, factor):
        return with_merged(model, self._strengths(name, factor), self._plan.get("factors", {}))

    def _strengths(self, name, factor):
        planned = self._plan[name]
        if self._evaluation < 0:  # a call by itself, outside of sampling
            return {}
        strengths = planned[self._evaluation] if isinstance(planned, list) else planned
        return {network: factor * strength for network, strength in strengths.items()}


def in_one(cond):
    """Return a conditioning as one tensor (rows, ...): XL has vectors beside its words."""
    if not isinstance(cond, dict):
        return cond
    if "vector" in cond:
        return torch.cat([cond["crossattn"].flatten(1), cond["vector"]], 1)
    return cond["c_crossattn"][0]
