"""The re-created corruptions: limits in which nothing is corrupted, closed forms, severities, shapes and repeats."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from experiments.compare import cifar10_c as rules
from experiments.compare.cifar10_c import RECREATED, corrupt
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_tasks import datasets

#: Parameters with which a corruption leaves the images alone.
NEUTRAL = {
    "gaussian_noise": (0,),
    "shot_noise": (1e12,),
    "impulse_noise": (0,),
    "defocus_blur": (0, 1e-3),
    "glass_blur": (1e-3, 1, 0),
    "motion_blur": (6, 1e-3),
    "zoom_blur": (1.005,),
    "snow": (0, 0, 1, 0.5, 3, 1e-3, 1),
    "frost": (1, 0),
    "fog": (0, 3),
    "brightness": (0,),
    "contrast": (1,),
    "elastic_transform": (0, 0, 0),
    "pixelate": (1,),
    "jpeg_compression": (100,),
}
#: Where the published values make one severity as far from the original as the one before, or nearer: stronger local
#: corruption with less blur, or less of the image with more of the frost.
WEAKER = {"glass_blur", "frost", "elastic_transform"}


@pytest.fixture(scope="module")
def photos():
    return datasets.load("photos", size=32).test_x[:40]


def stream():
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", RECREATED)
def test_neutral_parameters_leave_the_images_alone(name, photos):
    for images in (photos[:5], photos[:5, :1]):
        x = images.double().numpy()
        corrupted = RECREATED[name].rule(x.copy(), stream(), *NEUTRAL[name])
        if name == "jpeg_compression":  # which always rounds, and halves the resolution of colour
            assert np.abs(corrupted - x).mean() < 0.02
        else:
            np.testing.assert_allclose(corrupted, x, atol=1e-5)


@pytest.mark.parametrize("name", RECREATED)
def test_severities_go_away_from_the_original(name, photos):
    distances = [float((corrupt(photos, name, severity) - photos).square().mean().sqrt()) for severity in range(1, 6)]
    assert min(distances) > 0.004, "it does something"
    if name not in WEAKER:
        # Motion blur differs between 3 and 4 by the length of its kernel alone, where that has no weight.
        assert all(later > earlier - 1e-6 for earlier, later in pairwise(distances))
        assert distances[4] > 1.2 * distances[0]


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(sorted(RECREATED)),
    severity=st.integers(1, 5),
    shape=st.tuples(st.integers(0, 3), st.sampled_from([1, 3]), st.integers(4, 19), st.integers(4, 19)),
    fill=st.sampled_from(["random", "black", "white"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_any_images_keep_shape_dtype_and_range_and_a_seed_repeats(name, severity, shape, fill, dtype, seed):
    stream = torch.Generator().manual_seed(1)
    images = {
        "random": torch.rand(shape, generator=stream, dtype=dtype),
        "black": torch.zeros(shape, dtype=dtype),
        "white": torch.ones(shape, dtype=dtype),
    }[fill]
    before = images.clone()
    corrupted = corrupt(images, name, severity, seed=seed)
    assert torch.equal(images, before), "the original is not written to"
    assert (corrupted.shape, corrupted.dtype) == (images.shape, dtype)
    assert bool(corrupted.isfinite().all())
    assert not len(corrupted) or 0 <= corrupted.min() <= corrupted.max() <= 1
    assert torch.equal(corrupt(images, name, severity, seed=seed), corrupted)


RANDOM = [
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform"),
]


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_and_another_image_get_other_random_numbers(name, photos, monkeypatch):
    same = photos[:1].expand(3, -1, -1, -1)
    corrupted = corrupt(same, name, 3)
    assert not torch.equal(corrupted[0], corrupted[1])
    monkeypatch.setattr(rules, "CHUNK", 1)  # chunks have streams of their own
    apart = corrupt(same, name, 3)
    monkeypatch.undo()
    assert torch.equal(apart[:1], corrupt(same[:1], name, 3))
    assert not torch.equal(apart[0], apart[1])
    assert not torch.equal(corrupted, corrupt(same, name, 3, seed=1))
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002 -- no global stream is listened to
    assert torch.equal(corrupt(same, name, 3), corrupted)


IMAGE = torch.rand(1, 3, 8, 8)


@pytest.mark.parametrize(
    ("error", "argument", "images", "name", "severity"),
    [
        (ValueError, "corruption", IMAGE, "rain", 1),
        (ValueError, "severity", IMAGE, "fog", 0),
        (ValueError, "severity", IMAGE, "fog", 6),
        (TypeError, "images", IMAGE.byte(), "fog", 1),
        (ValueError, "images", IMAGE[:, :2], "fog", 1),
        (ValueError, "images", IMAGE[0], "fog", 1),
        (ValueError, "images", IMAGE[..., :3], "fog", 1),
        (ValueError, "images", IMAGE + 1, "fog", 1),
    ],
)
def test_wrong_arguments_are_named(error, argument, images, name, severity):
    with pytest.raises(error, match=argument):
        corrupt(images, name, severity)


# --- closed forms -------------------------------------------------------------------------------------------------


def test_noise_has_the_published_moments():
    grey = torch.full((50, 3, 32, 32), 0.5)
    assert float(corrupt(grey, "gaussian_noise", 2).std()) == pytest.approx(0.06, rel=0.02)
    shot = corrupt(grey, "shot_noise", 4)
    assert float(shot.mean()) == pytest.approx(0.5, abs=0.002)
    assert float(shot.std()) == pytest.approx((0.5 / 75) ** 0.5, rel=0.02), "a Poisson count of 37.5 photons, over 75"
    impulses = corrupt(grey, "impulse_noise", 5)
    assert float((impulses != 0.5).float().mean()) == pytest.approx(0.07, rel=0.03)
    assert float((impulses == 1).float().mean()) == pytest.approx(0.035, rel=0.05)


def test_contrast_and_brightness_are_their_formulas():
    x = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 0.6
    mean = x.mean((2, 3), keepdim=True)
    assert torch.allclose(corrupt(x, "contrast", 4), mean + 0.3 * (x - mean), atol=1e-6)
    bright = corrupt(x, "brightness", 5)
    assert torch.allclose(bright.amax(1), x.amax(1) + 0.3, atol=1e-6), "the value of HSV"
    saturation = [1 - image.amin(1) / image.amax(1) for image in (x, bright)]
    assert torch.allclose(*saturation, atol=1e-5)
    assert torch.allclose(corrupt(x[:, :1], "brightness", 5), x[:, :1] + 0.3, atol=1e-6), "grey is its own value"


def point(side=15):
    x = np.zeros((1, 1, side, side))
    x[0, 0, side // 2, side // 2] = 1
    return x


def test_blurs_spread_a_point_and_keep_its_sum():
    for name in ("defocus_blur", "motion_blur"):
        blurred = RECREATED[name].rule(point(41), stream(), *RECREATED[name].levels[4])
        assert blurred.sum() == pytest.approx(1, abs=1e-4)
        assert 0 < blurred.max() < 0.5
    disk = rules.defocus_blur(point(), stream(), 1.5, 1e-3)[0, 0]
    assert (disk > 0.1).sum() == 9, "the pixels within 1.5 of the centre"
    assert disk.max() == pytest.approx(1 / 9)


def test_a_smear_goes_one_way_along_its_angle():
    smear = rules.smeared(point(), 4, 2.0, np.array([0.0]))[0, 0]
    weights = np.exp(-0.5 * (np.arange(8) / 2) ** 2)
    weights /= np.exp(-0.5 * (np.arange(9) / 2) ** 2).sum()
    np.testing.assert_allclose(smear[7, 7::-1], weights, rtol=1e-6)
    assert smear[7, 8:].sum() == 0
    assert np.delete(smear, 7, axis=0).sum() == 0
    turned = rules.smeared(point(), 4, 2.0, np.array([np.pi / 2]))[0, 0]
    np.testing.assert_allclose(turned, smear.T)


def test_an_enlargement_keeps_the_centre_and_stretches_a_slope():
    slope = np.broadcast_to(np.arange(9.0), (1, 1, 9, 9)) / 8
    np.testing.assert_allclose(rules.zoomed(slope, 2.0)[0, 0], np.broadcast_to(0.25 + np.arange(9) / 16, (9, 9)))


def test_glass_moves_pixels_and_makes_none():
    x = np.arange(100.0).reshape(1, 1, 10, 10) / 100
    blurred = rules.glass_blur(x, stream(), 1e-6, 1, 2)
    np.testing.assert_allclose(np.sort(blurred.ravel()), np.sort(x.ravel()))
    assert (blurred != x).mean() > 0.5


def test_an_affine_map_moves_the_points_of_a_slope(photos):
    """An image that is its own coordinate becomes affine in the coordinates, away from mirrored borders."""
    slope = np.broadcast_to(np.arange(32.0), (2, 1, 32, 32)) / 31
    mapped = rules.elastic_transform(slope, stream(), 0, 0, 0.05)[:, 0, 10:22, 10:22]
    np.testing.assert_allclose(np.diff(mapped, 2, axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(np.diff(mapped, 2, axis=2), 0, atol=1e-9)
    assert not np.allclose(mapped[0], mapped[1])


def test_a_fractal_is_rougher_where_its_displacements_decay_less():
    maps = [rules.fractal(stream(), 20, 32, decay) for decay in (3.0, 1.5)]
    for land in maps:
        np.testing.assert_allclose(land.min((1, 2)), 0)
        np.testing.assert_allclose(land.max((1, 2)), 1)
    roughness = [np.abs(np.diff(land, axis=1)).mean() for land in maps]
    assert roughness[1] > 1.5 * roughness[0]
