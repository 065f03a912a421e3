"""Small data sets in the layout of `lmms-lab-encoder/ai2d`, drawn by the training script's own code."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def write_dataset(folder: Path, count: int, *, rows_per_group: int = 3) -> Path:
    """`count` multiple-choice rows in `folder/data`; the folder."""
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    from tiny_vlm.trials import held_out_trials, write_ai2d

    write_ai2d(folder, held_out_trials(2 * count, seed=0), rows_per_group)
    return folder
