"""Ask held-out questions: through Transformers' processor and `generate`, one at a time, as a user would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from tiny_vlm.trials import Trial

NEW_TOKENS = 16


class Answerer:
    """A checkpoint folder loaded by Transformers, in float32."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoTokenizer, Qwen3_5ForConditionalGeneration
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.device = device

    @torch.no_grad()
    def __call__(self, prompt: str, picture: Image.Image | None) -> tuple[str, list[int]]:
        """The answer's text and token ids, greedy."""
        content = [{"type": "text", "text": prompt}]
        inputs = {}
        if picture is not None:
            content.insert(0, {"type": "image"})
            inputs = dict(self.processor([picture], return_tensors="pt"))
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        if picture is not None:
            tokens = int(inputs["image_grid_thw"].prod()) // 4
            text = text.replace("<|image_pad|>", "<|image_pad|>" * tokens)
        ids = torch.tensor([self.tokenizer.encode(text, add_special_tokens=False)])
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        inputs["mm_token_type_ids"] = (ids == self.model.config.image_token_id).int()
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        out = self.model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)[0, ids.shape[1] :].tolist()
        return self.tokenizer.decode(out, skip_special_tokens=True).strip(), out


def judge(
    answerer: Answerer, trials: list[Trial], *, blind: bool = False, more: Callable[[], bool] = lambda: True
) -> dict[str, tuple[int, int]]:
    """(right, asked) by form, by kind and form, and for pictures off the grid.

    Args:
        blind: leave the picture out.
        more: asked before every question; a run with little time left stops here.
    """
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for trial in trials:
        if not more():
            break
        answer, _ = answerer(trial.question.prompt, None if blind else trial.picture)
        form = "letters" if trial.question.options else "free"
        names = [form, f"{form} {trial.question.kind}", f"{form} {'on' if trial.on_grid else 'off'} grid"]
        asked.update(names)
        if answer == trial.question.reply:
            right.update(names)
    return {name: (right[name], asked[name]) for name in sorted(asked)}


def report(title: str, counts: dict[str, tuple[int, int]]) -> str:
    """The counts as lines of text."""
    lines = [f"{title}"]
    lines += [
        f"  {name:22s} {right:4d} / {asked:4d}  {100 * right / asked:5.1f} %" for name, (right, asked) in counts.items()
    ]
    return "\n".join(lines)
