"""Replacing functions, with one owner per replacement."""

_replaced = {}


def patch(key, obj, field, replacement):
    if (key, obj, field) in _replaced:
        raise RuntimeError(f"{field} is replaced already")
    _replaced[key, obj, field] = getattr(obj, field)
    setattr(obj, field, replacement)
    return _replaced[key, obj, field]


def undo(key, obj, field):
    if (key, obj, field) not in _replaced:
        raise RuntimeError(f"{field} is not replaced")
    setattr(obj, field, _replaced.pop((key, obj, field)))
