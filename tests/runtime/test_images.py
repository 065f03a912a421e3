"""One place opens pictures; whatever the file holds, upright RGB comes out or a sentence says why not."""

from __future__ import annotations

import base64
import warnings

import numpy as np
import pytest
from PIL import Image

from qwen_export.errors import InputError
from qwen_export.runtime.images import InputWarning, open_image
from tests.runtime.odd_pictures import marker

REASONS = {
    "truncated.jpg": "damaged",
    "truncated.png": "damaged",
    "empty.png": "empty (0 bytes)",
    "html_named.png": "web page (HTML)",
    "text.png": "not a picture",
    "thin.png": "ratio of 200",
    "flat.png": "ratio of 200",
    "bomb.png": "too large",
    "folder.png": "folder",
    "missing.png": "no such file",
}


@pytest.mark.parametrize("name", REASONS)
def test_refuses_with_the_file_and_the_reason(broken_pictures, name):
    path = broken_pictures[name]
    with pytest.raises(InputError) as caught:
        open_image(path)
    assert str(path) in str(caught.value)
    assert REASONS[name] in str(caught.value)


def test_every_orientation_comes_out_upright(odd_pictures):
    by_name = {path.name: path for path in odd_pictures}
    stored = Image.open(by_name["exif_1.jpg"]).convert("RGB")
    turned = {6: Image.Transpose.ROTATE_270, 3: Image.Transpose.ROTATE_180, 8: Image.Transpose.ROTATE_90}
    for orientation, method in turned.items():
        upright = open_image(by_name[f"exif_{orientation}.jpg"])
        assert np.array_equal(np.asarray(upright), np.asarray(stored.transpose(method)))
    assert open_image(by_name["exif_5.jpg"]).size == (256, 320)
    assert open_image(by_name["exif_2.jpg"]).size == (320, 256)


def test_a_pillow_image_is_turned_like_its_file(odd_pictures):
    path = next(path for path in odd_pictures if path.name == "exif_6.jpg")
    with Image.open(path) as opened:
        assert np.array_equal(np.asarray(open_image(opened)), np.asarray(open_image(path)))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_becomes_white(mode, tmp_path):
    image = marker(64, 32).convert("RGBA")
    image.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 64).astype(np.uint8), (32, 1))))
    if mode == "PA":
        image = image.quantize(8).convert("PA")
        image.putalpha(0)
    else:
        image = image.convert(mode)
    out = np.asarray(open_image(image))
    assert (out[:, 0] == 255).all()
    if mode == "RGBA":
        assert not (out[:, 40] == 255).all()


def test_transparent_palette_entry_becomes_white(odd_pictures):
    path = next(path for path in odd_pictures if path.name == "palette_trns_index.png")
    assert np.asarray(open_image(path))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(suffix, tmp_path):
    values = np.linspace(0, 65535, 256 * 32).astype(np.uint16).reshape(32, 256)
    path = tmp_path / f"grey16{suffix}"
    Image.fromarray(values).save(path)
    out = np.asarray(open_image(path))
    assert np.array_equal(out[..., 0], np.rint(values / 257.0).astype(np.uint8))
    assert np.array_equal(out[..., 0], out[..., 2])


def test_float_and_integer_greys(tmp_path):
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    Image.fromarray(ramp).save(tmp_path / "unit.tif")
    assert np.asarray(open_image(tmp_path / "unit.tif"))[..., 1].max() == 255
    Image.fromarray(np.full((8, 8), 200, np.int32)).save(tmp_path / "int.tif")
    assert (np.asarray(open_image(tmp_path / "int.tif")) == 200).all()
    Image.fromarray(np.full((8, 8), 1e6, np.float32)).save(tmp_path / "wild.tif")
    with pytest.raises(InputError, match="0 to 65535"):
        open_image(tmp_path / "wild.tif")


@pytest.mark.parametrize("name", ["anim.gif", "anim.webp", "anim_apng.png", "multipage.tif"])
def test_animation_gives_its_first_frame_and_says_so(odd_pictures, name):
    path = next(path for path in odd_pictures if path.name == name)
    with pytest.warns(InputWarning, match=f"{name}: 3 frames"):
        image = open_image(path)
    assert np.asarray(image)[5, 5].tolist() == [255, 0, 0]


def test_ordinary_pictures_open_silently(odd_pictures):
    quiet = [path for path in odd_pictures if "anim" not in path.name and path.name != "multipage.tif"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {open_image(path).mode for path in quiet} == {"RGB"}


def test_bytes_and_data_url_equal_the_file(odd_pictures):
    path = next(path for path in odd_pictures if path.name == "base.png")
    expected = np.asarray(open_image(path))
    data = path.read_bytes()
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    assert np.array_equal(np.asarray(open_image(data)), expected)
    assert np.array_equal(np.asarray(open_image(url)), expected)
    with pytest.raises(InputError, match="not valid base64"):
        open_image("data:image/png;base64,!!!")
    with pytest.raises(InputError, match="Download the picture first"):
        open_image("https://example.com/a.png")
