"""The checkpoint in Transformers, answering on its own: its processor, its `generate`, nothing of the package."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from qwen_export.checkpoint import Snapshot, open_snapshot
from qwen_export.errors import InputError, UsageError
from qwen_export.evaluate.answers import STAGES, Reply, System, margin_of
from qwen_export.runtime.images import open_image

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class ReferenceAnswerer:
    """A checkpoint loaded by Transformers."""

    def __init__(self, folder: Path, dtype: str, device: str) -> None:
        import torch
        from transformers import AutoTokenizer, Qwen3_5ForConditionalGeneration
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        model: Any = Qwen3_5ForConditionalGeneration.from_pretrained(
            folder, dtype=getattr(torch, DTYPES[dtype]), **options
        )
        self._torch, self._device = torch, torch.device(device)
        self._model = model.to(self._device).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
        self._images = Qwen2VLImageProcessorPil.from_pretrained(folder, **options)
        self._merge = self._images.merge_size**2
        self._clock = _StageClock(self._model, self._wait)
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])

    def answer(self, picture: bytes, name: str, prompt: str, max_new_tokens: int) -> Reply:
        """Answer about one picture file."""
        begun = time.perf_counter()
        inputs = self._inputs(picture, name, prompt)
        prepared = time.perf_counter() - begun
        self._clock.clear()
        length = inputs["input_ids"].shape[1]
        with self._torch.inference_mode():
            made = self._model.generate(
                **inputs,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                return_dict_in_generate=True,
                output_logits=True,
            )
        tokens = tuple(made.sequences[0, length:].tolist())
        steps = [margin_of(logits[0].float().cpu().numpy()) for logits in made.logits]
        vision, forwards = self._clock.vision, self._clock.forwards
        seconds = (prepared, vision, forwards[0] - vision, sum(forwards[1:]))
        return Reply(
            text=self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            tokens=tokens,
            ended=bool(tokens) and tokens[-1] in self._ends,
            prompt_tokens=length,
            seconds=dict(zip(STAGES, seconds, strict=True)),
            margins=tuple(margin for margin, _ in steps),
            runners_up=tuple(token for _, token in steps),
        )

    def close(self) -> None:
        """Free the model."""
        del self._model, self._clock
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def _inputs(self, picture: bytes, name: str, prompt: str) -> dict[str, Any]:
        image = open_image(picture, name)
        try:
            made = dict(self._images([image], return_tensors="pt"))
        except ValueError as error:
            raise InputError(f"{name}: the image processor refused the picture ({error}).") from None
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        pad = self._tokenizer.convert_ids_to_tokens(self._model.config.image_token_id)
        text = text.replace(pad, pad * (int(made["image_grid_thw"].prod()) // self._merge), 1)
        ids = self._torch.tensor([self._tokenizer(text, add_special_tokens=False)["input_ids"]])
        made |= {"input_ids": ids, "attention_mask": self._torch.ones_like(ids)}
        made["mm_token_type_ids"] = (ids == self._model.config.image_token_id).int()
        return {key: value.to(self._device) for key, value in made.items()}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


class _StageClock:
    """Seconds of the vision tower and of each whole forward pass, by hooks."""

    def __init__(self, model: Any, wait: Any) -> None:
        self._wait, self._begun = wait, {"vision": 0.0, "whole": 0.0}
        self.clear()
        for name, module in (("vision", model.model.visual), ("whole", model)):
            module.register_forward_pre_hook(self._starter(name))
            module.register_forward_hook(self._stopper(name))

    def clear(self) -> None:
        """Begin a new answer."""
        self.vision = 0.0
        self.forwards: list[float] = []

    def _starter(self, name: str) -> Any:
        def start(*_: Any) -> None:
            self._wait()
            self._begun[name] = time.perf_counter()

        return start

    def _stopper(self, name: str) -> Any:
        def stop(*_: Any) -> None:
            self._wait()
            spent = time.perf_counter() - self._begun[name]
            if name == "vision":
                self.vision += spent
            else:
                self.forwards.append(spent)

        return stop


def reference_system(checkpoint: str | Path, *, dtype: str, device: str = "cpu", revision: str | None = None) -> System:
    """Transformers with this checkpoint.

    Args:
        dtype: `fp32`, `fp16` or `bf16`.
        device: as torch names it, such as `cuda:1`.
    """
    if dtype not in DTYPES:
        raise UsageError(f"Unknown dtype {dtype!r}. Known: {', '.join(DTYPES)}.")
    snapshot: Snapshot = open_snapshot(checkpoint, revision=revision)
    if snapshot.config.vision is None:
        raise UsageError(f"{snapshot.folder} is a text-only checkpoint; AI2D asks about pictures.")
    import torch
    import transformers

    facts = {
        "checkpoint_config": snapshot.config_sha256,
        "revision": snapshot.revision,
        "dtype": dtype,
        "device": device.split(":")[0],
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    return System(f"transformers-{dtype}", facts, lambda: ReferenceAnswerer(snapshot.folder, dtype, device))
