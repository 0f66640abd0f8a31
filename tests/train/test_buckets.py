"""Buckets have kohya's sizes; pictures go to the nearest one and are cut as SDXL is told."""

import math

import pytest

from lib_lora.train.buckets import Buckets, Size, bucket_sizes


def test_sizes_are_kohyas():
    sizes = bucket_sizes(512, 64)
    assert all(width % 64 == height % 64 == 0 for width, height in sizes)
    assert all(width * height <= 512**2 for width, height in sizes)
    assert {Size(256, 1024), Size(512, 512), Size(1024, 256), Size(640, 384)} <= set(sizes)
    assert {Size(h, w) for w, h in sizes} == set(sizes)
    assert list(sizes) == sorted(sizes)
    assert set(sizes) == kohya(512, 256, 1024, 64)


def kohya(side, least, most, step):
    """kohya's loop in its own words, as its formula is told: width upwards, height the largest multiple below area / width."""
    found = {(side // step * step,) * 2}
    for width in range(least, most + 1, step):
        height = min(most, math.floor(side * side / width / step) * step)
        if height >= least:
            found |= {(width, height), (height, width)}
    return {Size(*size) for size in found}


@pytest.mark.parametrize(("size", "step"), [(64, 64), (64, 128), (520, 0)])
def test_only_the_square_is_left_where_no_other_size_has_room(size, step):
    assert bucket_sizes(size, step) == (Size(size, size),)


@pytest.mark.parametrize(
    ("picture", "bucket", "corner"),
    [
        ((512, 512), (512, 512), (0, 0)),
        ((2000, 2000), (512, 512), (0, 0)),
        # 1.5 lies between 1.286 and 1.667, nearer to the latter; scaled to 640 x 426.7, 42.7 rows are cut.
        ((1200, 800), (640, 384), (0, 21)),
        ((800, 1200), (384, 640), (21, 0)),
        # 1.6 : 1 goes to 640 x 384 (1.667): scaled by 0.64 to 640 x 400, 16 rows of which are cut, 8 above.
        ((1000, 625), (640, 384), (0, 8)),
        # Wider than any bucket: scaled by 2.56 to 2560 x 256.
        ((1000, 100), (1024, 256), (768, 0)),
        ((100, 100), (512, 512), (0, 0)),
    ],
)
def test_pictures_go_to_the_nearest_ratio(picture, bucket, corner):
    fit = Buckets(512, 64).fit(*picture)
    assert fit.bucket == bucket
    assert (fit.left, fit.top) == corner
    assert fit.original == picture


def test_wide_and_tall_are_treated_alike():
    buckets = Buckets(512, 64)
    for width in range(200, 2000, 37):
        wide, tall = buckets.fit(width, 700), buckets.fit(700, width)
        assert wide.bucket == tall.bucket[::-1]
        assert wide.scale == tall.scale


@pytest.mark.parametrize(
    ("picture", "bucket", "scale"),
    [
        ((300, 200), (256, 192), 0.96),
        # A side below the step cannot be a bucket's; it is the one case that is enlarged.
        ((300, 20), (256, 64), 3.2),
        ((1200, 800), (640, 384), 640 / 1200),
    ],
)
def test_small_pictures_keep_their_size_where_they_are_not_to_be_enlarged(picture, bucket, scale):
    fit = Buckets(512, 64, upscale=False).fit(*picture)
    assert fit.bucket == bucket
    assert fit.scale == pytest.approx(scale)
