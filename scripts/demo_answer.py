"""Draw a picture, ask Transformers and the package about it, and say how far apart they are.

Usage: demo_answer.py CHECKPOINT PACKAGE PICTURE.png ["QUESTION"]

Both read the same pixels and tokens. Compared: the logits after the prompt, and the greedy answers token for token.
The last line of stdout is one JSON object. Exit code 1 when the answers differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from qwen_export import open_package
from qwen_export.runtime.engine import Engine
from qwen_export.runtime.generate import generate
from qwen_export.runtime.preprocess import ImagePreprocessor
from qwen_export.runtime.prompt import Prompt, PromptBuilder, user_message
from qwen_export.runtime.sampling import Sampler, Sampling, end_tokens

NEW_TOKENS = 24


def draw(file: Path) -> None:
    """A red circle left of a blue square, and a green roof above them."""
    image = Image.new("RGB", (320, 224), "white")
    pen = ImageDraw.Draw(image)
    pen.polygon([(160, 20), (40, 90), (280, 90)], fill="forestgreen")
    pen.ellipse([50, 110, 140, 200], fill="crimson")
    pen.rectangle([180, 110, 270, 200], fill="royalblue")
    image.save(file)


def ask_transformers(
    checkpoint: Path, prompt: Prompt, image_token: int, ends: list[int]
) -> tuple[list[int], np.ndarray]:
    """Greedy tokens and the logits [V] after the prompt, float32 and eager attention."""
    import torch
    from transformers import Qwen3_5ForConditionalGeneration, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = Qwen3_5ForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    ids = torch.from_numpy(prompt.input_ids)[None]
    (media,) = prompt.media
    inputs = {
        "input_ids": ids,
        "mm_token_type_ids": (ids == image_token).int(),
        "pixel_values": torch.from_numpy(media.pixel_values),
        "image_grid_thw": torch.tensor([media.grid]),
    }
    with torch.no_grad():
        out = model.generate(
            **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=ends, pad_token_id=ends[0],
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    return out.sequences[0, ids.shape[1] :].tolist(), out.logits[0][0].numpy()


def main() -> int:
    """Compare, print both answers, and return the exit code."""
    checkpoint, folder, picture = map(Path, sys.argv[1:4])
    question = sys.argv[4] if len(sys.argv) > 4 else "What is left of the square?"
    draw(picture)
    package = open_package(folder)
    builder = PromptBuilder(package.folder, package.config)
    media = ImagePreprocessor(package.folder).prepare(picture)
    prompt = builder.encode(builder.render([user_message(question, [media])]), [media])
    ends = end_tokens(package.folder, package.config)
    expected, truth = ask_transformers(checkpoint, prompt, package.config.image_token_id, sorted(ends))
    engine = Engine(package)
    logits = engine.prefill([prompt])[0][0]
    made = generate(engine, [prompt], max_new_tokens=NEW_TOKENS, end_tokens=ends, sampler=Sampler(Sampling()))
    tokens = list(made.tokens[0])
    difference = float(np.abs(logits - truth).max())
    print(f"question      {question}  ({len(prompt.input_ids)} tokens, {media.grid[1] * media.grid[2]} patches)")
    print(f"Transformers  {builder.decode(expected)!r}")
    print(f"package       {builder.decode(tokens)!r}")
    print(f"logits        largest difference {difference:.1e}, magnitude up to {np.abs(truth).max():.1f}")
    print(f"tokens        {'equal' if tokens == expected else 'DIFFERENT'} ({len(tokens)})")
    print(json.dumps({"logits_max_abs": difference, "tokens_equal": tokens == expected, "tokens": len(tokens)}))
    return 0 if tokens == expected else 1


if __name__ == "__main__":
    sys.exit(main())
