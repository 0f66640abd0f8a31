"""The Lora extension: which files there are, which are loaded, and writing them into weights before a forward."""

from pathlib import Path
from types import SimpleNamespace

from modules import extra_networks, shared

available_networks = {}
available_network_aliases = {}
forbidden_network_aliases = {"none": 1}
loaded_networks = []
on_disk = {}
brought_up_to_date = []


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


def network_apply_weights(module):
    brought_up_to_date.append(module)


class _Lora:
    def activate(self, p, params_list):
        """Raises ValueError for a strength that is no number, and leaves what was loaded before."""
        asked = [
            (params.positional[0], *map(float, params.positional[1:])) for params in params_list
        ]
        loaded_networks[:] = asked
        if not getattr(p, "is_hr_pass", False):
            p.lora_hashes = {}
        for name, *_ in asked:
            p.lora_hashes[name] = f"hash-{name}"


extra_networks.extra_network_registry["lora"] = _Lora()
