"""Headers of the greatest length that claim what no safetensors file holds, by name; each is made when it is asked for."""

from lib_lora.formats.header import MAX_HEADER_BYTES, MAX_TENSORS

ENTRY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def filled(start, piece, end=b""):
    """Return a header of the greatest length: a start, a piece again and again, an end."""
    times = (MAX_HEADER_BYTES - len(start) - len(end)) // len(piece)
    return start + piece * times + end


def named(value):
    """Return members with more names than a file may have."""
    return b"".join(b'"%08x":%s,' % (number, value) for number in range(MAX_TENSORS + 9))


LARGE = {
    "arrays in arrays": lambda: filled(b'{"w":', b"["),
    "objects in objects": lambda: filled(b"", b'{"w":'),
    "arrays beside arrays": lambda: filled(b'{"w":[', b"[],", b"[]]}"),
    "a number without end": lambda: filled(b'{"w":', b"9"),
    "a shape without end": lambda: filled(b'{"w":{"dtype":"U8","shape":[', b"1,"),
    "a name without end": lambda: filled(b'{"', b"w"),
    "a name of escapes": lambda: filled(b'{"', b"\\u0077"),
    "a dtype without end": lambda: filled(b'{"w":{"dtype":"', b"F"),
    "spaces without end": lambda: filled(b"{", b" "),
    "one name again and again": lambda: filled(b"{", b'"w":' + ENTRY + b",", b'"v":0}'),
    "a hundred thousands of tensors": lambda: filled(b"{" + named(ENTRY), b'"w":' + ENTRY + b","),
    "a million names of nothing": lambda: filled(b"{" + named(b"[]"), b'"w":[],'),
    "a million of metadata": lambda: filled(b'{"__metadata__":{' + named(b'""'), b'"w":"",'),
    "spaces in the middle": lambda: filled(b'{"__metadata__":{', b" ", b"}}"),
    "metadata without end": lambda: filled(b'{"__metadata__":{"a":"', b"x"),
    "metadata of escapes without end": lambda: filled(b'{"__metadata__":{"a":"', b'\\"'),
    "long metadata before a fault": lambda: filled(b'{"__metadata__":{"a":"', b"x", b'"},"w":0}'),
    "not UTF-8 at the end": lambda: filled(b'{"__metadata__":{"a":"', b"x", b"\xff"),
}
