"""What there is to know of a folder of pictures before a training: counts, sizes, what cannot be read, and advice.

Every picture is decoded, so that a damaged one is named here and not in the middle of a run.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib_lora.errors import FileFormatError
from lib_lora.train.buckets import Buckets, Size
from lib_lora.train.captions import caption_tags
from lib_lora.train.dataset import Picture, Problem, find_pictures
from lib_lora.train.pixels import picture_size

FEW, MANY = 10, 200
SHOWN_TAGS, NAMED = 20, 5


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that will not be trained on, by its path inside the folder, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class SizeCount:
    """How many pictures are cut to a size, and how many samples of an epoch that makes with their repeats."""

    width: int
    height: int
    pictures: int
    samples: int


@dataclass(frozen=True, slots=True)
class FolderCount:
    """A folder whose pictures are trained `repeats` times in an epoch; the name of the folder itself is "."."""

    name: str
    repeats: int
    pictures: int


@dataclass(frozen=True, slots=True)
class TagCount:
    """In how many captions a part between commas stands."""

    tag: str
    pictures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """A folder of pictures as a training would take it; files are named by their path inside the folder.

    pictures: how many can be read; samples: those of one epoch; captioned: how many have a text beside them or their folder's name;
    smallest, largest: upright (width, height) by area; buckets: the sizes they are cut to; enlarged: pictures with fewer pixels than
    the training size; duplicates: groups of files with the same bytes; tags: the most frequent ones; advice: sentences.
    """

    folder: str
    pictures: int
    samples: int
    captioned: int
    smallest: tuple[int, int] | None
    largest: tuple[int, int] | None
    folders: tuple[FolderCount, ...]
    buckets: tuple[SizeCount, ...]
    enlarged: tuple[str, ...]
    without_caption: tuple[str, ...]
    left_out: tuple[FileProblem, ...]
    duplicates: tuple[tuple[str, ...], ...]
    tags: tuple[TagCount, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values by the names of the fields."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A picture that can be read, its name inside the folder and its upright size."""

    picture: Picture
    name: str
    size: Size


def report(
    folder: Path,
    size: int = 512,
    bucket_step: int = 64,
    upscale: bool = True,
    caption: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> DatasetReport:
    """Look through a folder of pictures; raises LoraError when there is none.

    size, bucket_step, upscale, caption: as a training is configured; progress: called with the pictures seen and their number.
    """
    seen, problems = _look_through(folder, caption, progress)
    buckets = Buckets(size, bucket_step, upscale)
    sizes = sorted((each.size for each in seen), key=lambda s: (s.width * s.height, s))
    found = DatasetReport(
        folder=str(folder),
        pictures=len(seen),
        samples=sum(each.picture.repeats for each in seen),
        captioned=sum(bool(each.picture.caption) for each in seen),
        smallest=sizes[0] if sizes else None,
        largest=sizes[-1] if sizes else None,
        folders=_folders(folder, seen),
        buckets=_buckets(seen, buckets),
        enlarged=tuple(e.name for e in seen if e.size.width * e.size.height < size**2),
        without_caption=tuple(each.name for each in seen if not each.picture.caption),
        left_out=tuple(
            FileProblem(problem.file.relative_to(folder).as_posix(), problem.reason)
            for problem in problems
        ),
        duplicates=_duplicates(seen),
        tags=_tags(seen),
        advice=(),
    )
    return dataclasses.replace(found, advice=tuple(_advice(found, buckets, seen)))


def _look_through(
    folder: Path, caption: str, progress: Callable[[int, int], None] | None
) -> tuple[list[_Seen], list[Problem]]:
    """Return the pictures that can be read, and what is left out."""
    dataset = find_pictures(folder, caption)
    seen, problems = [], list(dataset.problems)
    for number, picture in enumerate(dataset.pictures, 1):
        name = picture.file.relative_to(folder).as_posix()
        try:
            seen.append(_Seen(picture, name, picture_size(picture.file)))
        except FileFormatError as error:
            problems.append(Problem(picture.file, str(error)))
        if progress is not None:
            progress(number, len(dataset.pictures))
    return seen, problems


def _folders(folder: Path, seen: Sequence[_Seen]) -> tuple[FolderCount, ...]:
    counts = Counter((each.picture.file.parent, each.picture.repeats) for each in seen)
    return tuple(
        FolderCount(place.relative_to(folder).as_posix(), repeats, count)
        for (place, repeats), count in counts.items()
    )


def _buckets(seen: Sequence[_Seen], buckets: Buckets) -> tuple[SizeCount, ...]:
    pictures: Counter[Size] = Counter()
    samples: Counter[Size] = Counter()
    for each in seen:
        bucket = buckets.fit(*each.size).bucket
        pictures[bucket] += 1
        samples[bucket] += each.picture.repeats
    return tuple(SizeCount(*size, pictures[size], samples[size]) for size in sorted(pictures))


def _duplicates(seen: Sequence[_Seen]) -> tuple[tuple[str, ...], ...]:
    """Group files with the same bytes; only those of one length are read."""
    lengths: defaultdict[int, list[_Seen]] = defaultdict(list)
    for each in seen:
        lengths[each.picture.file.stat().st_size].append(each)
    same: defaultdict[bytes, list[str]] = defaultdict(list)
    for group in lengths.values():
        for each in group if len(group) > 1 else ():
            same[hashlib.sha256(each.picture.file.read_bytes()).digest()].append(each.name)
    return tuple(tuple(names) for names in same.values() if len(names) > 1)


def _tags(seen: Sequence[_Seen]) -> tuple[TagCount, ...]:
    counts = Counter(tag for each in seen for tag in caption_tags(each.picture.caption))
    ordered = sorted(counts.items(), key=lambda found: (-found[1], found[0]))
    return tuple(TagCount(*found) for found in ordered[:SHOWN_TAGS])


def _advice(found: DatasetReport, buckets: Buckets, seen: Sequence[_Seen]) -> Iterator[str]:
    if found.pictures < FEW:
        yield (
            f"{found.pictures} pictures are few: 15 to 50 that differ in view, light and background learn a subject best."
        )
    elif found.pictures > MANY:
        yield f"{found.pictures} pictures are many: a style can use them, a single subject needs 15 to 50 good ones."
    if found.left_out:
        yield f"{len(found.left_out)} files are left out: see the reasons."
    yield from _advice_on_captions(found, seen)
    if found.enlarged and buckets.upscale:
        yield (
            f"{_named(found.enlarged)} smaller than {buckets.size}x{buckets.size} and will be enlarged, which blurs them:"
            " train at a smaller size, or replace them."
        )
    for names in found.duplicates:
        yield f"The same file: {', '.join(names)}. Keep one, and repeat it by its folder's name if you want to."


def _advice_on_captions(found: DatasetReport, seen: Sequence[_Seen]) -> Iterator[str]:
    if not found.pictures:
        return
    if not found.captioned:
        yield (
            "No picture has a caption: give one for all, so that a word calls what is learned, or put a .txt beside each picture."
        )
        return
    if found.without_caption:
        yield f"{_named(found.without_caption)} without a caption."
    captions = {tuple(sorted(caption_tags(each.picture.caption))) for each in seen}
    common = [each.tag for each in found.tags if each.pictures == found.pictures > 1]
    if len(captions) == 1 and found.pictures > 1:
        yield (
            "All captions are the same: what the pictures share and what differs among them will both be learned under those words."
        )
    elif len(common) > 1:
        yield (
            f"In every caption: {', '.join(common)}. One word that calls what is learned is enough; the others will be learned"
            " with it and can be left out."
        )


def _named(files: Sequence[str]) -> str:
    """Say how many files there are and name the first of them, up to where "smaller" or "without" follows."""
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    verb = "is" if len(files) == 1 else "are"
    return f"{', '.join(files[:NAMED])}{more} {verb}"
