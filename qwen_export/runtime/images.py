"""Open images: the only place of the project where a picture is read.

Whatever the file holds, an upright 8-bit RGB picture comes out: EXIF orientation applied, transparency composited on
white, 16-bit greys scaled to 8 bits, CMYK, LAB and palettes converted, and of an animation the first frame, with a
warning.
"""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from qwen_export.errors import InputError

MAX_ASPECT_RATIO = 200
"""The image processor refuses anything longer and thinner."""

ImageSource = str | Path | bytes | Image.Image


class InputWarning(UserWarning):
    """Something about an image or video that the user should know, though it can be used."""


def open_image(source: ImageSource, name: str | None = None) -> Image.Image:
    """Read a picture as upright RGB.

    Args:
        source: a path, the bytes of a file, a `data:image/...;base64,` URL, or a Pillow image.
        name: what errors call the picture; by default its path.

    Raises:
        InputError: the picture is missing, damaged, too large or too thin; the message names it and the reason.
    """
    name = name or describe(source)
    try:
        with warnings.catch_warnings():
            # Pillow's own remarks (a large picture, an odd palette) would only repeat what is checked here.
            warnings.simplefilter("ignore")
            opened = source if isinstance(source, Image.Image) else Image.open(_stream(source, name))
            frames = getattr(opened, "n_frames", 1)
            upright = ImageOps.exif_transpose(opened)
            rgb = _to_rgb(upright, name)
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{name}: the picture is too large to open safely ({error}). Scale it down first.") from None
    except UnidentifiedImageError:
        raise InputError(f"{name}: not a picture in a format that Pillow reads. Save it as PNG or JPEG.") from None
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error and more on damaged files.
        raise InputError(f"{name}: the picture is damaged and cannot be decoded ({error}).") from None
    if frames > 1:
        warnings.warn(
            f"{name}: {frames} frames or pages; only the first is used. Give a folder of frames as a video instead.",
            InputWarning,
            stacklevel=2,
        )
    check_aspect(rgb.width, rgb.height, name)
    return rgb


def describe(source: object) -> str:
    """What to call a picture in a message."""
    if isinstance(source, Image.Image):
        return getattr(source, "filename", "") or f"picture ({source.width}x{source.height}, in memory)"
    if isinstance(source, bytes):
        return f"picture ({len(source)} bytes, in memory)"
    text = str(source)
    return "picture (data URL)" if text.startswith("data:") else text


def check_aspect(width: int, height: int, name: str) -> None:
    """Refuse a picture that is more than 200 times as long as it is wide."""
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise InputError(
            f"{name}: {width}x{height} pixels is more than {MAX_ASPECT_RATIO} times as long as it is wide; "
            f"the limit of the image processor is a ratio of {MAX_ASPECT_RATIO}. Crop it or cut it into parts."
        )


def _stream(source: str | Path | bytes, name: str) -> io.BytesIO:
    """The whole file in memory, so that no handle stays open and a symlink or odd name does not matter."""
    if isinstance(source, bytes):
        data = source
    elif isinstance(source, str) and source.startswith("data:"):
        try:
            data = base64.b64decode(source.partition(",")[2], validate=True)
        except ValueError:
            raise InputError(f"{name}: the data URL is not valid base64.") from None
    elif isinstance(source, str) and source.startswith(("http://", "https://")):
        raise InputError(f"{name}: this is an address, not a file. Download the picture first.")
    else:
        data = _read(Path(source), name)
    if not data:
        raise InputError(f"{name}: the file is empty (0 bytes). Download or copy it again.")
    if data[:512].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise InputError(f"{name}: this is a web page (HTML), not a picture. The download probably failed.")
    return io.BytesIO(data)


def _read(path: Path, name: str) -> bytes:
    if path.is_dir():
        raise InputError(f"{name}: this is a folder, not a picture. Give a file, or use --video for a frames folder.")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: the file cannot be read ({error}).") from None


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _scaled_grey(image, name).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _scaled_grey(image: Image.Image, name: str) -> Image.Image:
    """A grey picture of more than 8 bits as 8 bits; Pillow's own conversion would clip everything above 255."""
    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 65535:
        raise InputError(f"{name}: grey values outside 0 to 65535 have no agreed brightness. Save it as 8 or 16 bits.")
    if image.mode.startswith("I;16") or values.max() > 255:
        values = values / 257.0
    elif image.mode == "F" and values.max() <= 1.0:
        values = values * 255.0
    return Image.fromarray(np.rint(values).astype(np.uint8))
