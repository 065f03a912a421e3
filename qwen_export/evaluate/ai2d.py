"""Read AI2D in the layout of `lmms-lab-encoder/ai2d`: parquet files with question, options, answer and image."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_export.errors import InputError, UsageError
from qwen_export.evaluate.scoring import letters, make_prompt

COLUMNS = ("question", "options", "answer", "image")
DATASET = "lmms-lab-encoder/ai2d"


@dataclass(frozen=True)
class Question:
    """One row without its picture."""

    index: int
    text: str
    options: tuple[str, ...]
    answer: int
    """Index of the right option."""

    @property
    def prompt(self) -> str:
        """The user's words."""
        return make_prompt(self.text, self.options)

    @property
    def target(self) -> str:
        """The letter of the right option."""
        return letters(len(self.options))[self.answer]


class Ai2d:
    """The test split of a folder; pictures are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Find the files and read every row but the pictures.

        Raises:
            UsageError: there are no parquet files, or they have another layout.
            InputError: a file or row is damaged.
        """
        self.folder, self.files = _find(folder)
        self.revision = _revision(self.folder, self.files)
        self.questions: list[Question] = []
        self._places: list[tuple[Path, int, int]] = []
        self._group: tuple[tuple[Path, int], list[Any]] | None = None
        for file in self.files:
            self._read(file)

    def __len__(self) -> int:
        return len(self.questions)

    def identity(self) -> dict[str, str]:
        """File name -> SHA-256."""
        found = {}
        for file in self.files:
            with file.open("rb") as stream:
                found[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
        return found

    def picture(self, index: int) -> bytes:
        """The file of a row's picture, as it is stored.

        Raises:
            InputError: the row has no picture, or names a file that is missing.
        """
        file, group, row = self._places[index]
        if self._group is None or self._group[0] != (file, group):
            self._group = (file, group), _open(file).read_row_group(group, columns=["image"])["image"].to_pylist()
        image = self._group[1][row]
        if isinstance(image, bytes):
            return image
        if isinstance(image, dict) and image.get("bytes"):
            return bytes(image["bytes"])
        if isinstance(image, dict) and image.get("path"):
            path = self.folder / str(image["path"])
            try:
                return path.read_bytes()
            except OSError as error:
                raise InputError(f"row {index}: the picture file {path} cannot be read ({error}).") from None
        raise InputError(f"row {index}: there is no picture.")

    def _read(self, file: Path) -> None:
        parquet = _open(file)
        missing = [name for name in COLUMNS if name not in parquet.schema_arrow.names]
        if missing:
            raise UsageError(
                f"{file} has no column {', '.join(missing)} (it has {', '.join(parquet.schema_arrow.names)}). "
                f"Expected the layout of {DATASET}: {', '.join(COLUMNS)}."
            )
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, columns=list(COLUMNS[:3])).to_pylist()
            for row, content in enumerate(rows):
                self.questions.append(_question(len(self.questions), content, file))
                self._places.append((file, group, row))


def _question(index: int, row: dict[str, Any], file: Path) -> Question:
    where = f"{file}: row {index}"
    options = row["options"]
    if not isinstance(row["question"], str) or not isinstance(options, list) or not 2 <= len(options) <= 26:
        raise InputError(f"{where} has no question, or not 2 to 26 options. Download the data set again.")
    try:
        answer = int(row["answer"])
    except (TypeError, ValueError):
        raise InputError(f"{where}: the answer {row['answer']!r} is not the number of an option.") from None
    if not 0 <= answer < len(options):
        raise InputError(f"{where}: the answer {answer} is not one of its {len(options)} options (counted from 0).")
    return Question(index, row["question"], tuple(str(option) for option in options), answer)


def _find(folder: Path) -> tuple[Path, list[Path]]:
    """The folder that is meant (inside a hub cache: its snapshot) and the files of the test split, in order."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Give the folder of {DATASET} (its README and data/) as --data.")
    snapshots = folder / "snapshots"
    if snapshots.is_dir():
        folder = _snapshot(snapshots, folder / "refs" / "main")
    for place in (folder / "data", folder):
        files = sorted(place.glob("test-*.parquet")) or sorted(place.glob("*.parquet"))
        if files:
            return folder, files
    raise UsageError(f"There are no parquet files in {folder} or {folder / 'data'}. Download {DATASET} there.")


def _snapshot(snapshots: Path, main: Path) -> Path:
    found = sorted(entry for entry in snapshots.iterdir() if entry.is_dir())
    if main.is_file() and (snapshots / main.read_text(encoding="utf-8").strip()).is_dir():
        return snapshots / main.read_text(encoding="utf-8").strip()
    if len(found) != 1:
        raise UsageError(f"{snapshots} holds {len(found)} snapshots. Give one of them as --data.")
    return found[0]


def _revision(folder: Path, files: Sequence[Path]) -> str | None:
    """The commit of the data set, where the hub's own cache or download folder names it."""
    if folder.parent.name == "snapshots":
        return folder.name
    note = folder / ".cache" / "huggingface" / "download" / f"{files[0].relative_to(folder).as_posix()}.metadata"
    if note.is_file():
        lines = note.read_text(encoding="utf-8").splitlines()
        return lines[0].strip() if lines else None
    return None


def _open(file: Path) -> Any:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.lib.ArrowInvalid, OSError) as error:
        raise InputError(f"{file} cannot be read as parquet ({error}). Download it again.") from None
