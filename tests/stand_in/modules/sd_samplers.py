"""Samplers by their names."""

from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler


def create_sampler(name, model):
    return (CompVisSampler if name == "DDIM" else KDiffusionSampler)(name)
