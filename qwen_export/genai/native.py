"""How GenAI's own tokenizer, template and picture processor compare with Transformers' on a package.

None of it is a fault of the package, and `qwen_export.runtime.genai` avoids all of it; a program that leaves the
preparation to GenAI should know.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from qwen_export.runtime.genai import Feeder, import_genai

TEXTS = (
    "Hello, world! It's 1234567 o'clock;  two spaces\n\nand a tab\t.",
    "Grüße aus Köln, naïve café, Tiếng Việt: được không?",
    "漢字かな交じり文 한국어 हिन्दी में नमस्ते ภาษาไทย مرحبا שָׁלוֹם",
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>x<|im_end|>\n<think>\n\n</think>\n\n",
    "def f(x):\n    return x**2  # 🎉 👩‍👩‍👧\n",
)
PIXEL_TOLERANCE = 1e-6


def native_notes(feeder: Feeder, model: Any, pictures: Sequence[Image.Image]) -> Iterator[str]:
    """Differences as sentences; none for a package with which GenAI's own preparation is exact."""
    genai = import_genai()
    try:
        tokenizer = genai.Tokenizer(model)
    except RuntimeError as error:
        yield f"GenAI's own tokenizer cannot open the package ({_first_line(error)}); feed it by the helper."
        return
    yield from _tokenizer(feeder, tokenizer)
    yield from _template(feeder, tokenizer)
    if feeder.has_vision:
        yield from _processor(feeder, model, pictures)


def native_inputs(model: Any, pngs: Sequence[bytes], text: str = "") -> dict[str, np.ndarray]:
    """`pixel_values`, `image_grid_thw` and `input_ids` of GenAI's own processor for encoded pictures."""
    genai = import_genai()
    processor = model.create_multimodal_processor()
    prompt = "".join("<|vision_start|><|image_pad|><|vision_end|>" for _ in pngs) + text
    made = processor(prompt, images=genai.Images.open_bytes(*pngs))
    return {name: np.array(made[name].as_numpy()) for name in ("pixel_values", "image_grid_thw", "input_ids")}


def _tokenizer(feeder: Feeder, tokenizer: Any) -> Iterator[str]:
    for text in TEXTS:
        theirs = [int(token) for token in tokenizer.encode(text)]
        if theirs != feeder.tokenizer(text, add_special_tokens=False)["input_ids"]:
            yield f"GenAI's own tokenizer cuts {text[:24]!r}... otherwise than Transformers'; feed it by the helper."
            return


def _template(feeder: Feeder, tokenizer: Any) -> Iterator[str]:
    messages = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": "Go on."}]  # fmt: skip
    wanted = feeder.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    try:
        found = tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True)
    except RuntimeError as error:
        yield f"GenAI's own template engine refuses the chat template ({_first_line(error)}); render it by the helper."
        return
    if found != wanted:
        yield "GenAI's own template engine renders the chat template otherwise than Transformers; use the helper."


def _processor(feeder: Feeder, model: Any, pictures: Sequence[Image.Image]) -> Iterator[str]:
    """Pictures as they are, and as the helper's PNG. The latter must be exact."""
    for picture in pictures:
        media = feeder.open_image(picture)
        for way, png in (("as it is", _png(picture)), ("as the helper's PNG", feeder.image_png(picture))):
            what = f"a picture of {picture.width}x{picture.height} {way}"
            try:
                made = native_inputs(model, [png])
            except RuntimeError as error:
                yield f"GenAI's own processor refuses {what} ({_first_line(error)})."
                continue
            grid, pixels = tuple(int(n) for n in made["image_grid_thw"].reshape(-1)), made["pixel_values"]
            if grid != media.grid:
                yield f"GenAI's own processor cuts {what} into {grid}, Transformers into {media.grid}; use the helper."
                continue
            difference = float(np.abs(pixels.reshape(media.pixel_values.shape) - media.pixel_values).max())
            if difference > PIXEL_TOLERANCE:
                yield f"GenAI's own processor differs from Transformers by {difference:.2g} on {what}; use the helper."


def _png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
