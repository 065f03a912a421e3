"""Answer a question about a picture with the three graphs of a package: numpy, onnxruntime, Pillow, tokenizers.

    python examples/minimal_loop.py PACKAGE picture.png "What is left of the red part?"

The whole interface in one loop: vision_encoder -> embedding -> decoder, states handed from call to call by name. For
slices, batches, videos, sampling and devices see qwen_export/runtime; for the names see docs/interface.md.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps
from tokenizers import Tokenizer


def patch_rows(picture: Path, settings: dict) -> tuple[np.ndarray, np.ndarray]:
    """A picture as pixel_values [R, 1536] and image_grid_thw [1, 3]."""
    patch, merge, temporal = (settings[key] for key in ("patch_size", "merge_size", "temporal_patch_size"))
    low, high, factor = settings["size"]["shortest_edge"], settings["size"]["longest_edge"], patch * merge
    image = ImageOps.exif_transpose(Image.open(picture)).convert("RGB")
    width, height = (round(side / factor) * factor for side in image.size)
    if width * height > high:
        shrink = math.sqrt(image.width * image.height / high)
        width, height = (max(factor, math.floor(side / shrink / factor) * factor) for side in image.size)
    elif width * height < low:
        grow = math.sqrt(low / (image.width * image.height))
        width, height = (math.ceil(side * grow / factor) * factor for side in image.size)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), np.float32) / 255
    pixels = (pixels - np.array(settings["image_mean"], np.float32)) / np.array(settings["image_std"], np.float32)
    h, w = height // patch, width // patch
    blocks = pixels.reshape(h // merge, merge, patch, w // merge, merge, patch, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    rows = np.repeat(blocks[:, :, :, :, :, None], temporal, axis=5).reshape(h * w, -1)
    return np.ascontiguousarray(rows), np.array([[1, h, w]], np.int64)


def rope_positions(ids: np.ndarray, image_token: int, rows: int, columns: int) -> np.ndarray:
    """Positions [3, 1, S]: the picture's tokens share a time and count rows and columns; text counts on after them."""
    first, count = int(np.argmax(ids == image_token)), rows * columns
    after = first + max(rows, columns) + np.arange(len(ids) - first - count)
    picture = np.stack([np.zeros(count, int), np.repeat(np.arange(rows), columns), np.tile(np.arange(columns), rows)])
    before, after = np.tile(np.arange(first), (3, 1)), np.tile(after, (3, 1))
    return np.concatenate([before, first + picture, after], axis=1)[:, None].astype(np.int64)


def empty_states(decoder: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    """Every state of one new row, by input name: zeros, and no past at all for the growing KV cache."""
    numpy_type = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    fixed = {"batch": 1, "past_sequence_length": 0}
    states = [node for node in decoder.get_inputs() if node.name.startswith("past_key_values.")]
    return {s.name: np.zeros([fixed.get(axis, axis) for axis in s.shape], numpy_type[s.type]) for s in states}


def answer(package: Path, picture: Path, question: str, max_new_tokens: int = 64) -> tuple[str, list[int]]:
    """The model's answer as text and as tokens."""
    config = json.loads((package / "config.json").read_text(encoding="utf-8"))
    settings = json.loads((package / "preprocessor_config.json").read_text(encoding="utf-8"))
    ends = json.loads((package / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    tokenizer = Tokenizer.from_file(str(package / "tokenizer.json"))
    vision, embedding, decoder = (
        onnxruntime.InferenceSession(str(package / name / "model.onnx"), providers=["CPUExecutionProvider"])
        for name in ("vision_encoder", "embedding", "decoder")
    )

    pixel_values, grid = patch_rows(picture, settings)
    (features,) = vision.run(None, {"pixel_values": pixel_values, "image_grid_thw": grid})
    placeholders = "<|image_pad|>" * len(features)
    turn = f"<|im_start|>user\n<|vision_start|>{placeholders}<|vision_end|>{question}<|im_end|>\n"
    text = turn + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ids = np.array([tokenizer.encode(text, add_special_tokens=False).ids], np.int64)

    merge = settings["merge_size"]
    positions = rope_positions(ids[0], config["image_token_id"], int(grid[0, 1]) // merge, int(grid[0, 2]) // merge)
    states, mask, tokens = empty_states(decoder), np.ones_like(ids), []
    while len(tokens) < max_new_tokens and not (tokens and tokens[-1] in ends):
        (embeds,) = embedding.run(None, {"input_ids": ids, "image_features": features})
        inputs = {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": positions, **states}
        logits, *present = decoder.run(None, inputs)
        tokens.append(int(logits[0, -1].argmax()))
        states = dict(zip(states, present, strict=True))  # present.N.kind follows past_key_values.N.kind, in order
        ids, features = np.array([[tokens[-1]]], np.int64), features[:0]  # no picture any more: no features
        mask = np.concatenate([mask, np.ones((1, 1), np.int64)], axis=1)
        positions = positions.max() + np.ones((3, 1, 1), np.int64)
    return tokenizer.decode([token for token in tokens if token not in ends]), tokens


if __name__ == "__main__":
    print(answer(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])[0])
