"""Registers LoRA Loom with the WebUI: every callback is one call."""

from modules import script_callbacks

from lib_lora.hosts.a1111 import CutIn

cut_in = CutIn()
cut_in.install()
script_callbacks.on_cfg_denoiser(cut_in.arm)
script_callbacks.on_cfg_after_cfg(cut_in.disarm)
script_callbacks.on_script_unloaded(cut_in.uninstall)
