"""Odd picture files as people have them: phone photos, scans, stickers, trackers, half-downloaded files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, PngImagePlugin

SIZES = [
    (1, 1), (2, 2), (3, 3), (1, 200), (200, 1), (3, 500), (500, 3), (31, 639), (400, 336), (48, 48), (16, 16),
    (33, 33), (8000, 41), (1360, 240), (640, 480),
]  # fmt: skip
LARGE_SIZES = [(4096, 4096), (6000, 4000)]


def marker(width: int, height: int) -> Image.Image:
    """An asymmetric picture: red left edge, green bottom, blue corner top right."""
    image = Image.new("RGB", (width, height), (160, 160, 160))
    draw = ImageDraw.Draw(image)
    draw.rectangle([0, 0, width // 8, height - 1], fill=(255, 0, 0))
    draw.rectangle([0, height - 1 - height // 8, width - 1, height - 1], fill=(0, 255, 0))
    draw.rectangle([width - 1 - width // 4, 0, width - 1, height // 4], fill=(0, 0, 255))
    return image


def make_odd_pictures(out: Path) -> list[Path]:
    """Write the pictures that can be read; returns their paths."""
    base = marker(320, 256)
    base.save(out / "base.png")
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        base.save(out / f"exif_{orientation}.jpg", quality=95, subsampling=0, exif=exif.tobytes())
    base.convert("CMYK").save(out / "cmyk.jpg", quality=95)
    base.convert("L").save(out / "grey.png")
    base.convert("1").save(out / "bilevel.png")
    base.convert("LAB").save(out / "lab.tif")
    palette = base.quantize(16)
    palette.save(out / "palette.png")
    palette.save(out / "palette_trns_index.png", transparency=int(np.array(palette)[0, 0]))
    frames = [Image.new("RGB", (256, 256), colour) for colour in ("red", "green", "blue")]
    rest = {"save_all": True, "append_images": frames[1:]}
    frames[0].save(out / "anim.gif", duration=200, loop=0, **rest)
    frames[0].save(out / "anim.webp", duration=200, loop=0, lossless=True, **rest)
    frames[0].save(out / "anim_apng.png", duration=200, loop=0, **rest)
    frames[0].save(out / "multipage.tif", **rest)
    for width, height in SIZES:
        marker(width, height).save(out / f"size_{width}x{height}.png")
    raw = (out / "exif_1.jpg").read_bytes()
    (out / "jpeg_named.png").write_bytes(raw)
    (out / "upper.JPG").write_bytes(raw)
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "x" * 200_000)
    base.save(out / "big_text.png", pnginfo=text)
    base.save(out / "progressive.jpg", progressive=True, quality=90)
    (out / "name with spaces ä 図.png").write_bytes((out / "base.png").read_bytes())
    return sorted(out.iterdir())


def make_broken_pictures(out: Path) -> dict[str, Path]:
    """Write the pictures that must be refused; returns name -> path."""
    marker(320, 256).save(out / "whole.jpg", quality=95)
    marker(320, 256).save(out / "whole.png")
    (out / "truncated.jpg").write_bytes((out / "whole.jpg").read_bytes()[:3000])
    (out / "truncated.png").write_bytes((out / "whole.png").read_bytes()[:200])
    (out / "empty.png").write_bytes(b"")
    (out / "html_named.png").write_bytes(b"<!doctype html><title>404</title>")
    (out / "text.png").write_text("not a picture", encoding="utf-8")
    marker(1, 201).save(out / "thin.png")
    marker(201, 1).save(out / "flat.png")
    Image.new("1", (20000, 20000)).save(out / "bomb.png")
    (out / "folder.png").mkdir()
    names = ("truncated.jpg", "truncated.png", "empty.png", "html_named.png", "text.png", "thin.png", "flat.png")
    return {name: out / name for name in (*names, "bomb.png", "folder.png", "missing.png")}
