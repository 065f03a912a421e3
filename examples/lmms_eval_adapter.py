"""Let lmms-eval ask a package, on raw ONNX Runtime.

    python examples/lmms_eval_adapter.py --model qwen_export --model_args package=PKG,provider=cuda --tasks ai2d

Everything after the file name goes to lmms-eval's own command line, which does the prompts, filters and scores.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from lmms_eval.api.model import lmms
from PIL import Image

from qwen_export.evaluate.answers import PackageAnswerer
from qwen_export.package import open_package
from qwen_export.runtime.session import Device

MODEL = "qwen_export"


class QwenExportPackage(lmms):
    """One picture and one prompt at a time, greedy, thinking off."""

    is_simple = True

    def __init__(self, package: str, provider: str = "cpu", device_index: int = 0, **_: Any) -> None:
        """`**_` takes what lmms-eval always passes: batch size and device."""
        super().__init__()
        self._answerer = PackageAnswerer(open_package(Path(package)), Device(provider, int(device_index)))

    def generate_until(self, requests: list[Any]) -> list[str]:
        """The text of each answer."""
        return [self._answer(*request.args) for request in requests]

    def _answer(self, prompt: str, settings: dict[str, Any], pictures: Any, row: int, task: str, split: str) -> str:
        if settings.get("do_sample") or settings.get("temperature"):
            raise ValueError("This adapter answers greedily: leave do_sample and temperature out.")
        shown: list[Image.Image] = pictures(self.task_dict[task][split][row])
        if len(shown) != 1:
            raise ValueError(f"This adapter takes one picture a question; {task} row {row} has {len(shown)}.")
        file = io.BytesIO()
        shown[0].save(file, "PNG")
        return self._answerer.answer(file.getvalue(), f"{task} row {row}", prompt, settings["max_new_tokens"]).text

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Not what the protocol of AI2D asks for."""
        raise NotImplementedError("This adapter generates answers; choose a task of the type generate_until.")

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        """Not what the protocol of AI2D asks for."""
        raise NotImplementedError("This adapter takes one round a question.")


def main() -> None:
    """Register the model and hand over to lmms-eval."""
    from lmms_eval.__main__ import cli_evaluate
    from lmms_eval.models import MODEL_REGISTRY_V2, ModelManifest

    place = f"{Path(__file__).stem}.{QwenExportPackage.__name__}"
    MODEL_REGISTRY_V2.register_manifest(ModelManifest(MODEL, simple_class_path=place))
    cli_evaluate()


if __name__ == "__main__":
    main()
