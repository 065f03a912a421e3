"""Transformers as the judge of prompts and answers, on objects that need no torchvision."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.processing_utils import ProcessorMixin
from transformers.video_utils import VideoMetadata

from qwen_export.runtime.preprocess import Media


class Processor:
    """`Qwen3VLProcessor` without its video half: that one's pixels come from our reader, everything else is upstream.

    (tests/runtime/test_video.py compares the video pixels with torchvision's arithmetic.)
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        self.image_processor = Qwen2VLImageProcessorPil.from_pretrained(str(folder), local_files_only=True)
        self.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
        self.image_token, self.video_token, self.audio_token = "<|image_pad|>", "<|video_pad|>", None
        self.vision_start_token, self.vision_end_token = "<|vision_start|>", "<|vision_end|>"
        self.all_special_multimodal_tokens = [self.image_token, self.video_token]
        ids = self.tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        self.image_token_ids, self.video_token_ids, self.audio_token_ids = ids[:1], ids[1:], []
        self._calculate_timestamps = lambda *args: Qwen3VLProcessor._calculate_timestamps(self, *args)

    def inputs(
        self, text: str, images: list[Image.Image], video: Media | None = None, fps: float = 2.0, frames: int = 0
    ) -> dict[str, Any]:
        """What the model takes, for a text with unexpanded placeholders."""
        out: dict[str, Any] = {}
        replacements: tuple[list[str], list[str]] = ([], [])
        if images:
            out |= dict(self.image_processor(images, return_tensors="np"))
            replacements[0].extend(Qwen3VLProcessor.replace_image_token(self, out, i) for i in range(len(images)))
        if video is not None:
            metadata = VideoMetadata(total_num_frames=frames, fps=fps, frames_indices=list(range(frames)))
            grids = {"video_grid_thw": np.array([video.grid]), "video_metadata": [metadata]}
            replacements[1].append(Qwen3VLProcessor.replace_video_token(self, grids, 0))
            out |= {"pixel_values_videos": video.pixel_values, "video_grid_thw": grids["video_grid_thw"]}
        expanded = ProcessorMixin.get_text_with_replacements(self, [text], *replacements)[0][0]
        ids = self.tokenizer(expanded)["input_ids"]
        types = ProcessorMixin.create_mm_token_type_ids(self, [ids])
        out |= {"input_ids": np.array([ids]), "mm_token_type_ids": np.array(types)}
        return {key: torch.from_numpy(np.asarray(value)) for key, value in out.items()}


def greedy(model: Any, inputs: dict[str, Any], max_new_tokens: int, ends: list[int]) -> list[int]:
    """New tokens of Transformers' greedy generation, the end token included."""
    with torch.no_grad():
        out = model.generate(
            **inputs, max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
        )
    return out[0, inputs["input_ids"].shape[1] :].tolist()
