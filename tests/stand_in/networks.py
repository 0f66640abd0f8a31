"""The Lora extension: which files there are, which are loaded, and writing them into weights before a forward."""

from pathlib import Path
from types import SimpleNamespace

from modules import extra_networks, shared

from lib_lora.networks.contract import apply_weight

available_networks = {}
available_network_aliases = {}
forbidden_network_aliases = {"none": 1}
loaded_networks = []
on_disk = {}
deltas = {}
"""What each network adds to the weight of a module at strength 1: {network: {name of the module: tensor}}."""


def list_available_networks():
    available_networks.clear()
    available_network_aliases.clear()
    for name, file in on_disk.items():
        disk = SimpleNamespace(
            name=name, filename=str(file), shorthash=f"hash-{name}", read_hash=lambda: None
        )
        available_networks[name] = available_network_aliases[name] = disk


def update_available_networks_by_names(names):
    for file in Path(shared.cmd_opts.lora_dir).rglob("*.safetensors"):
        if file.stem in names:
            disk = SimpleNamespace(
                name=file.stem, filename=str(file), shorthash=f"hash-{file.stem}"
            )
            available_networks[file.stem] = available_network_aliases[file.stem] = disk


def assign_network_names_to_compvis_modules(sd_model):
    for name, module in sd_model.named_modules():
        module.network_layer_name = name


def network_apply_weights(module):
    """Write the loaded networks into a weight, unless they are in it already."""
    name = getattr(module, "network_layer_name", None)
    wanted = tuple(loaded_networks)
    if name is None or getattr(module, "network_current_names", ()) == wanted:
        return
    _restore(module)
    weight = _weight(module)
    module.network_weights_backup = weight.clone()
    for delta, strength in _changes(name):
        weight += strength * delta
    module.network_current_names = wanted


def layer_forward(module, x, original):
    """Run a layer with what is written into its weight, or with what functional networks add to its output."""
    if not shared.opts.lora_functional:
        network_apply_weights(module)
        return original(module, x)
    y = original(module, x)
    if loaded_networks:
        _restore(module)
        y = original(module, x)
    for delta, strength in _changes(getattr(module, "network_layer_name", None)):
        y = y + strength * apply_weight(module, x, delta)
    return y


def _restore(module):
    backup = getattr(module, "network_weights_backup", None)
    if backup is not None:
        _weight(module).copy_(backup)
    module.network_current_names, module.network_weights_backup = (), None


def _weight(module):
    return module.in_proj_weight if hasattr(module, "in_proj_weight") else module.weight


def _changes(layer):
    """Return what the loaded networks add to the weight of a layer, and how strongly."""
    for name, *strengths in loaded_networks:
        if layer in deltas.get(name, {}):
            te, unet = strengths[0], strengths[-1]
            yield deltas[name][layer], te if layer.startswith("cond_stage_model") else unet


class BundledTIHash(str):
    """The hash of a word that lies in a network file: the file's name."""


class _Lora:
    def activate(self, p, params_list):
        """Raises ValueError for a strength that is no number, and leaves what was loaded before."""
        added = shared.opts.data["sd_lora"]
        named = {params.items[0] for params in params_list}
        if added != "None" and added in available_networks and added not in named:
            strength = shared.opts.extra_networks_default_multiplier
            p.all_prompts = [f"{prompt}<lora:{added}:{strength}>" for prompt in p.all_prompts]
            params_list.append(extra_networks.ExtraNetworkParams([added, str(strength)]))
        asked = [
            (params.positional[0], *map(float, params.positional[1:] or [1]))
            for params in params_list
        ]
        loaded_networks[:] = asked
        if not getattr(p, "is_hr_pass", False):
            p.lora_hashes = {}
        for name, *_ in asked:
            p.lora_hashes[name] = f"hash-{name}"


extra_networks.extra_network_registry["lora"] = _Lora()
extra_networks.extra_network_aliases["lyco"] = extra_networks.extra_network_registry["lora"]
