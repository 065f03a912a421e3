"""Feed ONNX Runtime GenAI exactly Transformers' tokens, pixels and grids.

GenAI's own processor rounds half away from zero where Transformers rounds half to even, does not turn photos upright,
drops transparency, tokenizes text that is not in Unicode's composed form differently, and ends the process on BMP, WebP
and GIF files. Two ways around that, both here:

 * `Feeder.named_tensors`: everything prepared by Transformers' own code, handed over as named tensors. Works for text,
   any number of pictures of any size, and videos, which GenAI itself cannot take.
 * `Feeder.image_png`: a picture as a PNG of the final size, for programs that keep GenAI's own processor; it then has
   nothing left to resize, turn or blend.

    feeder, model = Feeder("PACKAGE"), open_model("PACKAGE")
    prompt = feeder.prompt([{"role": "user", "content": [{"type": "image", "image": "scan.jpg"},
                                                         {"type": "text", "text": "What is the total?"}]}])
    for token in new_tokens(feeder.generator(model, prompt, max_new_tokens=64, do_sample=False)):
        ...

A Generator is made for one request and thrown away: GenAI cannot rewind a conversation that holds pictures.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from qwen_export.contract import TEXT
from qwen_export.errors import InputError, InternalError, PackageError, UsageError
from qwen_export.package import Package, open_package
from qwen_export.runtime.images import ImageSource, describe, open_image
from qwen_export.runtime.preprocess import IMAGE, VIDEO, ImagePreprocessor, Media, PixelLimits, read_json
from qwen_export.runtime.prompt import Message, Prompt, PromptBuilder
from qwen_export.runtime.session import Device, check_runnable, overwrite_each_other
from qwen_export.runtime.video import VideoSource, prepare_video, read_settings

CONFIG_FILE = "genai_config.json"
"""The file GenAI opens a package by."""
DISTRIBUTIONS = ("onnxruntime-genai", "onnxruntime-genai-cuda")


class Feeder:
    """Turns conversations into GenAI's inputs, with the files of one package."""

    def __init__(self, package: Package | str | Path, *, limits: PixelLimits | None = None) -> None:
        self.package = package if isinstance(package, Package) else open_package(package)
        self._model = read_genai_config(self.package)["model"]
        self._is_text = TEXT in self.package.components
        self._builder = PromptBuilder(self.package.folder, self.package.config)
        self._limits = limits
        self._images: ImagePreprocessor | None = None

    @property
    def has_vision(self) -> bool:
        """Whether the package takes pictures."""
        return not self._is_text

    @property
    def context_length(self) -> int:
        """Tokens of one request at most."""
        return int(self._model["context_length"])

    @property
    def tokenizer(self) -> Any:
        """Transformers' tokenizer of the package."""
        return self._builder.tokenizer

    def open_image(self, source: ImageSource) -> Media:
        """A picture as Transformers' patch rows and grid."""
        return self._preprocessor().prepare(source)

    def prompt(self, messages: Sequence[Message], *, thinking: bool = False) -> Prompt:
        """Render a conversation and prepare its media.

        Args:
            messages: as chat templates take them; a part `{"type": "image", "image": ...}` holds a path, bytes, a
                Pillow image or a `Media`, a part `{"type": "video", "video": ...}` a file, a folder or a `Media`.
        """
        media: list[Media] = []
        plain = [{**message, "content": self._open_parts(message.get("content"), media)} for message in messages]
        prompt = self._builder.encode(self._builder.render(plain, thinking=thinking), media)
        pad = self._model.get("pad_token_id")
        if pad is not None and (prompt.input_ids == pad).any():
            raise InputError(
                f"The prompt holds the padding token {self._builder.tokenizer.convert_ids_to_tokens(pad)}, which GenAI "
                "would hide from the model. Take it out of the text."
            )
        return prompt

    def next_turn(self, message: Message, *, thinking: bool = False) -> np.ndarray:
        """Tokens int32 [S] to append to a generator whose last answer ended by itself. Text only: GenAI takes pictures
        at the start of a generator alone.
        """
        media: list[Media] = []
        plain = {**message, "content": self._open_parts(message.get("content"), media)}
        if media:
            raise InputError(
                "GenAI takes no picture in a running generator. Start a new one with the whole conversation."
            )
        text = self._builder.render_next_turn(plain, thinking=thinking)
        return self._builder.encode(text).input_ids.astype(np.int32)

    def arrays(self, prompt: Prompt) -> dict[str, np.ndarray]:
        """The named tensors as arrays: `input_ids` int32 [1, S], and with media also `pixel_values` float32
        [R, patch width], `image_grid_thw` int64 [M, 3] and `num_image_tokens` int64 [1].

        A video goes in as one picture for each of its frame groups, which is how the model sees it.
        """
        # int64 ids are taken without complaint and read as twice as many int32 ones
        ids = prompt.input_ids.astype(np.int32)
        if not prompt.media:
            return {"input_ids": ids[None]}
        config, vision = self.package.config, self.package.config.vision
        assert vision is not None
        ids[ids == config.video_token_id] = config.image_token_id
        grids = [(1, h, w) for t, h, w in (item.grid for item in prompt.media) for _ in range(t)]
        count = sum(item.num_features(vision.merge_unit) for item in prompt.media)
        return {
            "input_ids": ids[None],
            "pixel_values": np.concatenate([item.pixel_values for item in prompt.media]),
            "image_grid_thw": np.array(grids, dtype=np.int64),
            "num_image_tokens": np.array([count], dtype=np.int64),
        }

    def named_tensors(self, prompt: Prompt) -> Any:
        """The `onnxruntime_genai.NamedTensors` for `Generator.set_inputs`."""
        genai = import_genai()
        tensors = genai.NamedTensors()
        for name, array in self.arrays(prompt).items():
            tensors[name] = genai.Tensor(np.ascontiguousarray(array))
        return tensors

    def generator(self, model: Any, prompt: Prompt, *, max_new_tokens: int, **search: Any) -> Any:
        """A fresh `Generator` that holds the prompt.

        Args:
            search: GenAI's search options, such as `do_sample=False`; the rest are those of genai_config.json.
        """
        genai = import_genai()
        length, limit = len(prompt.input_ids) + max_new_tokens, self.context_length
        if max_new_tokens < 1 or length > limit:
            raise UsageError(
                f"{len(prompt.input_ids)} prompt tokens and {max_new_tokens} new ones do not fit: a request has at "
                f"least one new token and at most {limit} tokens in all."
            )
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(**{**search, "max_length": length})
        generator = genai.Generator(model, parameters)
        if self._is_text:
            generator.append_tokens(prompt.input_ids.astype(np.int32))
        else:
            generator.set_inputs(self.named_tensors(prompt))
        return generator

    def image_png(self, source: ImageSource) -> bytes:
        """A picture as the PNG that GenAI's own processor cuts into Transformers' patches: `Images.open_bytes(png)`."""
        name = describe(source)
        image = open_image(source, name)
        images = self._preprocessor()
        height, width = _smart_resize(image.height, image.width, images.factor, images.size, name)
        written = images.upstream.size
        if (height, width) != _smart_resize(height, width, images.factor, written, name):
            raise UsageError(
                f"{name}: {width}x{height} pixels are outside the limits of the package's processor file "
                f"({written['shortest_edge']} to {written['longest_edge']}), so GenAI would resize it again. Feed "
                "named tensors, or keep to those limits."
            )
        out = io.BytesIO()
        image.resize((width, height), Image.Resampling.BICUBIC).save(out, "PNG", compress_level=1)
        return out.getvalue()

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special tokens."""
        return self._builder.decode(tokens)

    def _open_parts(self, content: Any, media: list[Media]) -> Any:
        """Message content with its pictures and videos taken out and prepared, in order."""
        if not isinstance(content, list):
            return content
        plain: list[Any] = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in (IMAGE, VIDEO):
                plain.append(part)
                continue
            if part.get(kind) is None:
                raise InputError(f"A part of the conversation is of type {kind!r} but holds no {kind!r}.")
            media.append(self._open(kind, part[kind]))
            plain.append({"type": kind})
        return plain

    def _open(self, kind: str, source: Any) -> Media:
        if isinstance(source, Media):
            return source
        if self._is_text:
            raise InputError(f"{self.package.folder} has no vision encoder: it takes text only.")
        if kind == VIDEO:
            video: VideoSource = source
            return prepare_video(video, read_settings(self.package.folder, self._limits))
        return self.open_image(source)

    def _preprocessor(self) -> ImagePreprocessor:
        self._images = self._images or ImagePreprocessor(self.package.folder, self._limits)
        return self._images


def _smart_resize(height: int, width: int, factor: int, size: Any, name: str) -> tuple[int, int]:
    """Transformers' target size of a picture."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    try:
        return smart_resize(height, width, factor, size["shortest_edge"], size["longest_edge"])
    except ValueError as error:
        raise InputError(f"{name}: the image processor refused the picture ({error}).") from None


def new_tokens(generator: Any) -> Iterator[int]:
    """Tokens of one request as they come; an end token is the last one, otherwise the limit ended it."""
    while not generator.is_done():
        generator.generate_next_token()
        yield int(generator.get_next_tokens()[0])


def open_model(package: Package | str | Path, *, provider: str | None = None, threads: int | None = None) -> Any:
    """Open a package in GenAI: an `onnxruntime_genai.Model`.

    Args:
        provider: `cpu` or `cuda` in place of the one that genai_config.json names.
        threads: CPU threads of each session.

    Raises:
        UsageError: GenAI is missing, or has not the provider.
        PackageError: GenAI refuses the package.
    """
    genai = import_genai()
    opened = package if isinstance(package, Package) else open_package(package)
    wanted = provider or named_provider(read_genai_config(opened))
    check_runnable(opened, Device(wanted))
    if wanted == "cuda" and not genai.is_cuda_available():
        raise UsageError(
            "The installed GenAI has no CUDA: pip uninstall onnxruntime-genai, then pip install "
            "'qwen-export[genai-cuda]'; or use --provider cpu (in Python: provider='cpu')."
        )
    try:
        config = genai.Config(str(opened.folder))
        if provider is not None:
            # the other sessions take over what the decoder has, so this moves all of them
            config.clear_providers()
            if provider == "cuda":
                config.append_provider("cuda")
                for key, value in cuda_options(opened).items():
                    config.set_provider_option("cuda", key, value)
        if threads:
            config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        return genai.Model(config)
    except RuntimeError as error:
        raise PackageError(f"GenAI cannot open {opened.folder}: {str(error).strip()}") from None


def cuda_options(package: Package) -> dict[str, str]:
    """Options of GenAI's CUDA provider: the recipe's, and graph capture off, which the states are not proven for."""
    return {"enable_cuda_graph": "0", **package.recipe.session.cuda}


def read_genai_config(package: Package) -> dict[str, Any]:
    """A package's genai_config.json."""
    path = package.folder / CONFIG_FILE
    if not path.is_file():
        raise PackageError(
            f"{package.folder} has no {CONFIG_FILE}. Add GenAI's files: `qwen-export genai {package.folder}`."
        )
    config = read_json(path)
    if not isinstance(config.get("model"), dict) or not isinstance(config["model"].get("decoder"), dict):
        raise PackageError(f"{path} describes no model. Write it anew: `qwen-export genai {package.folder}`.")
    return config


@cache
def import_genai() -> Any:
    """ONNX Runtime GenAI, or one sentence about what to install or remove."""
    if overwrite_each_other(*DISTRIBUTIONS):
        raise UsageError(
            f"Both {' and '.join(DISTRIBUTIONS)} are installed; they overwrite each other's files. Uninstall both, "
            "then install one: pip install 'qwen-export[genai]' or 'qwen-export[genai-cuda]'."
        )
    try:
        import onnxruntime_genai
    except (ImportError, OSError) as error:
        raise UsageError(
            f"This needs ONNX Runtime GenAI ({error}): pip install 'qwen-export[genai]', on NVIDIA machines "
            "'qwen-export[genai-cuda]'."
        ) from None
    if not hasattr(onnxruntime_genai, "Model"):
        raise InternalError("onnxruntime_genai was imported and has no Model")
    # The library can report usage to its maker; what runs here may be private.
    if hasattr(onnxruntime_genai, "disable_telemetry_events"):
        onnxruntime_genai.disable_telemetry_events()
    return onnxruntime_genai


def named_provider(config: dict[str, Any]) -> str:
    """`cuda` or `cpu`: where a genai_config.json has the package run."""
    options = config["model"]["decoder"].get("session_options", {}).get("provider_options", [])
    return "cuda" if any(name.lower() == "cuda" for entry in options for name in entry) else "cpu"


def genai_version() -> str:
    """Version of the installed GenAI."""
    return next(metadata.version(name) for name in DISTRIBUTIONS if _is_installed(name))


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
