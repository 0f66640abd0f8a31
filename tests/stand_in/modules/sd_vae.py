"""The autoencoder in place of the checkpoint's own."""

from types import SimpleNamespace

base_vae, loaded_vae_file = None, None
resolved = None


def resolve_vae(checkpoint_file):
    return SimpleNamespace(vae=resolved)


def delete_base_vae():
    global base_vae
    base_vae = None


def clear_loaded_vae():
    global loaded_vae_file
    loaded_vae_file = None


def reload_vae_weights(sd_model=None, vae_file=None):
    global loaded_vae_file
    loaded_vae_file = vae_file
