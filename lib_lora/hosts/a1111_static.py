"""Tags without a schedule, and the network that an option adds to every prompt: the host's own, unless they are to act beside the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from modules import shared

from lib_lora.hosts.a1111_tags import static_use
from lib_lora.schedule.curve import NetworkUse

_KINDS = ("lora", "lyco")
_OPTION, _NONE = "sd_lora", "None"


def take_static(p: Any, data: dict[str, list[Any]], named: Collection[str]) -> list[NetworkUse]:
    """Take the host's tags out of what is asked of its extensions, and add its option's network as the host would.

    data: the tags by their kind, as the host parses them; tags that we do not understand stay in it. named: what schedules name.
    """
    taken: list[NetworkUse] = []
    for kind in _KINDS:
        if kind in data:
            found = [(params, static_use(params.items)) for params in data[kind]]
            data[kind] = [params for params, use in found if use is None]
            taken += [use for _, use in found if use is not None]
    left = {params.items[0] for kind in _KINDS for params in data.get(kind, ())}
    return taken + _added(p, {*named, *left, *(use.name for use in taken)})


@contextmanager
def not_added(names: Collection[str]) -> Iterator[None]:
    """Keep the host's option from adding one of these networks once more."""
    chosen = shared.opts.data.get(_OPTION, _NONE)
    if chosen not in names:
        yield
        return
    shared.opts.data[_OPTION] = _NONE
    try:
        yield
    finally:
        shared.opts.data[_OPTION] = chosen


def _added(p: Any, named: Collection[str]) -> list[NetworkUse]:
    """Return what the option adds to a prompt that names these networks; the prompts tell it, as the host has them do."""
    import networks

    chosen = shared.opts.data.get(_OPTION, _NONE)
    if chosen == _NONE or chosen in named or chosen not in networks.available_networks:
        return []
    items = [chosen, str(shared.opts.extra_networks_default_multiplier)]
    p.all_prompts = [f"{prompt}<lora:{':'.join(items)}>" for prompt in p.all_prompts]
    use = static_use(items)
    return [] if use is None else [use]
