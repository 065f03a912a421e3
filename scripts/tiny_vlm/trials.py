"""Held-out questions: layouts, pairs of words and orders of options that training never saw. Needs no torch."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

from PIL import Image

from tiny_vlm.questions import Question, ask
from tiny_vlm.scenes import draw_scene
from tiny_vlm.sizes import CELL, GRIDS, choose_size


@dataclass(frozen=True)
class Trial:
    """One held-out question and its picture in its original size."""

    picture: Image.Image
    question: Question

    def png(self) -> bytes:
        """The picture as a file."""
        file = io.BytesIO()
        self.picture.save(file, "PNG")
        return file.getvalue()

    @property
    def on_grid(self) -> bool:
        """Whether the image processor leaves the size alone."""
        return all(side % CELL == 0 and side <= 8 * CELL for side in self.picture.size)


def held_out_trials(count: int, seed: int, *, plain_order: bool = False) -> list[Trial]:
    """Half free and half letters; set of places, pair of words and order of options never seen in training.

    Args:
        plain_order: options in orders as the training of the committed checkpoint had them.
    """
    trials = []
    for index in range(count):
        rng = Random(f"held out/{seed}/{index}")
        scene = draw_scene(rng, choose_size(rng, rng.choice(GRIDS)), rng.randint(3, 5), held_out=True)
        trials.append(
            Trial(scene.picture, ask(rng, scene.parts, letters=index % 2 == 1, held_out=True, plain_order=plain_order))
        )
    return trials


def write_ai2d(folder: Path, trials: list[Trial], rows_per_group: int = 100) -> Path:
    """The multiple-choice trials as a data set in the layout of `lmms-lab-encoder/ai2d`; the parquet file's path."""
    import pyarrow
    import pyarrow.parquet

    chosen = [trial for trial in trials if trial.question.options]
    table = pyarrow.table(
        {
            "question": [trial.question.text for trial in chosen],
            "options": [list(trial.question.options) for trial in chosen],
            "answer": [str(trial.question.target) for trial in chosen],
            "image": [{"bytes": trial.png(), "path": f"{row}.png"} for row, trial in enumerate(chosen)],
        }
    )
    # What the `datasets` library needs to open the struct as a picture.
    text = {"dtype": "string", "_type": "Value"}
    features = {
        "question": text,
        "options": {"feature": text, "_type": "List"},
        "answer": text,
        "image": {"_type": "Image"},
    }
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path = folder / "data" / "test-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, row_group_size=rows_per_group)
    return path
