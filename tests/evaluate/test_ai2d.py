"""Reading the data set: layout, pictures, revision, and what is wrong with a damaged one."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from qwen_export.errors import InputError, UsageError
from qwen_export.evaluate import Ai2d, select


def write_rows(folder: Path, **columns: list[Any]) -> Path:
    rows: dict[str, list[Any]] = {
        "question": ["What?"],
        "options": [["x", "y"]],
        "answer": ["1"],
        "image": [{"bytes": b"", "path": None}],
        **columns,
    }
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), folder / "test-00000-of-00001.parquet")
    return folder


def test_rows_have_question_options_answer_and_picture(dataset: Path) -> None:
    data = Ai2d(dataset)
    assert len(data) == 12 and [q.index for q in data.questions] == list(range(12))
    for question in (data.questions[0], data.questions[11], data.questions[5]):
        assert len(question.options) == 4 and question.target in "ABCD"
        assert question.prompt.startswith(f"{question.text}\nA. {question.options[0]}\nB. ")
        assert question.prompt.endswith("\nAnswer with the option's letter from the given choices directly.")
        picture = Image.open(io.BytesIO(data.picture(question.index)))
        assert min(picture.size) >= 80


def test_files_are_named_by_hash_and_read_in_order(dataset: Path, tmp_path: Path) -> None:
    whole = pyarrow.parquet.read_table(next((dataset / "data").glob("*.parquet")))
    (tmp_path / "data").mkdir()
    for part, rows in enumerate((whole.slice(0, 5), whole.slice(5))):
        pyarrow.parquet.write_table(rows, tmp_path / "data" / f"test-0000{part}-of-00002.parquet")
    split, original = Ai2d(tmp_path), Ai2d(dataset)
    assert [q.text for q in split.questions] == [q.text for q in original.questions]
    assert [split.picture(i) for i in (7, 2, 8)] == [original.picture(i) for i in (7, 2, 8)]
    assert list(split.identity()) == ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"]
    assert all(len(digest) == 64 for digest in split.identity().values())


def test_the_revision_comes_from_the_hub_cache_or_a_download_folder(dataset: Path, tmp_path: Path) -> None:
    assert Ai2d(dataset).revision is None
    cache = tmp_path / "datasets--lmms-lab-encoder--ai2d"
    shutil.copytree(dataset, cache / "snapshots" / "c83a9b96")
    assert Ai2d(cache).revision == "c83a9b96"
    assert Ai2d(cache / "snapshots" / "c83a9b96").revision == "c83a9b96"
    shutil.copytree(dataset, cache / "snapshots" / "0ther")
    with pytest.raises(UsageError, match="2 snapshots"):
        Ai2d(cache)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0ther")
    assert Ai2d(cache).revision == "0ther"
    local = tmp_path / "local"
    shutil.copytree(dataset, local)
    note = local / ".cache" / "huggingface" / "download" / "data" / "test-00000-of-00001.parquet.metadata"
    note.parent.mkdir(parents=True)
    note.write_text("abc123\netag\n1.0\n")
    assert Ai2d(local).revision == "abc123"


def test_a_picture_may_lie_beside_the_files_and_a_missing_one_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path, image=[{"bytes": None, "path": "pictures/one.png"}])
    with pytest.raises(InputError, match=r"row 0: the picture file .*one\.png cannot be read"):
        Ai2d(tmp_path).picture(0)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "one.png").write_bytes(b"data")
    assert Ai2d(tmp_path).picture(0) == b"data"
    write_rows(tmp_path / "none")
    with pytest.raises(InputError, match="row 0: there is no picture"):
        Ai2d(tmp_path / "none").picture(0)


def test_other_layouts_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no parquet files"):
        Ai2d(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        Ai2d(tmp_path / "absent")
    (tmp_path / "a").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"question": ["x"]}), tmp_path / "a" / "test-0.parquet")
    with pytest.raises(UsageError, match="no column options, answer, image"):
        Ai2d(tmp_path / "a")
    for name, answer, complaint in (("b", "2", "not one of its 2 options"), ("c", "A", "not the number of an option")):
        write_rows(tmp_path / name, answer=[answer])
        with pytest.raises(InputError, match=complaint):
            Ai2d(tmp_path / name)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "test-0.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        Ai2d(tmp_path / "d")


def test_selection_by_indices_limit_and_shard() -> None:
    assert select(5) == [0, 1, 2, 3, 4]
    assert select(300, indices="0-3,124, 7", limit=5) == [0, 1, 2, 3, 7]
    parts = [select(11, shard=f"{i}/3") for i in (1, 2, 3)]
    assert (
        sorted(row for part in parts for row in part) == list(range(11))
        and max(map(len, parts)) - min(map(len, parts)) <= 1
    )
    for wrong in ({"indices": "3-"}, {"indices": "9-2"}, {"indices": "0-11"}, {"indices": ""}, {"limit": 0},
                  {"shard": "0/2"}, {"shard": "3/2"}, {"shard": "half"}, {"indices": "0", "shard": "2/2"}):  # fmt: skip
        with pytest.raises(UsageError):
            select(11, **wrong)  # type: ignore[arg-type]
