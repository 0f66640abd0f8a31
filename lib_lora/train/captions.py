"""The caption of a picture: the text file beside it, or what stands in for one; and its parts."""

from __future__ import annotations

from pathlib import Path

from lib_lora.errors import FileFormatError


def read_caption(picture: Path, default: str) -> str:
    """Return the text beside a picture in one line, `default` when there is none; raises FileFormatError when it cannot be read as UTF-8."""
    beside = (picture.with_suffix(suffix) for suffix in (".txt", ".TXT"))
    file = next((file for file in beside if file.is_file()), None)
    if file is None:
        return default
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"has a caption that is not UTF-8 text (byte {error.start} of {file.name})"
        ) from None
    except OSError as error:
        raise FileFormatError(f"has a caption that the system refuses: {error.strerror}") from None
    return " ".join(text.split())


def caption_tags(caption: str) -> frozenset[str]:
    """Return the parts of a caption between commas."""
    return frozenset(tag for part in caption.split(",") if (tag := part.strip()))
