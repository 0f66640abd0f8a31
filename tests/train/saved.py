"""An independent count of what autograd keeps: the bytes of each storage that some operation saves, by the module that ran it."""

from collections import Counter

import torch


def count_saved(module, tensors, run):
    """Return {path of a module: bytes}; `run()` returns a scalar. The module's parameters and `tensors` do not count.

    Each storage counts once, for the module whose operation saved it first, and is held so that its address is not used again.
    """
    own = {each.untyped_storage().data_ptr() for each in (*module.parameters(), *tensors)}
    running, held, saved = [""], {}, Counter()

    def pack(tensor):
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place not in own and place not in held:
            held[place] = storage
            saved[running[-1]] += storage.nbytes()
        return tensor

    handles = []
    for path, inner in module.named_modules():
        if inner is not module:
            handles.append(
                inner.register_forward_pre_hook(lambda *_, path=path: running.append(path))
            )
            handles.append(inner.register_forward_hook(lambda *_: (running.pop(), None)[1]))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
    for handle in handles:
        handle.remove()
    loss.backward()
    return saved
