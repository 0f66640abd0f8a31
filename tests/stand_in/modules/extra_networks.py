"""Tags in prompts, and who acts on them."""

import re

extra_network_registry = {}
extra_network_aliases = {}
_TAG = re.compile(r"<(\w+):([^>]+)>")


class ExtraNetworkParams:
    def __init__(self, items=None):
        self.items = items or []
        self.positional, self.named = [], {}
        for item in self.items:
            name, equals, value = item.partition("=")
            if equals and "=" not in value:
                self.named[name] = value
            else:
                self.positional.append(item)

    def __eq__(self, other):
        return self.items == other.items


def parse_prompts(prompts):
    """Take the tags out of every prompt; what the first one asks for is returned."""
    data = None
    for prompt in prompts:
        found = {}
        for name, inside in _TAG.findall(prompt):
            found.setdefault(name, []).append(ExtraNetworkParams(inside.split(":")))
        data = found if data is None else data
    return [_TAG.sub("", prompt) for prompt in prompts], data


def activate(p, extra_network_data):
    """Every kind that is registered hears what is asked of it, with an empty list where nothing is."""
    asked = {network: [] for network in extra_network_registry.values()}
    for name, params in extra_network_data.items():
        network = extra_network_registry.get(name, extra_network_aliases.get(name))
        if network is not None:
            asked[network].extend(params)
    for network, params in asked.items():
        network.activate(p, params)
