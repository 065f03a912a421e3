"""Staging: whole or not at all, one at a time, and clean after a kill."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen_export.errors import PackageError, UsageError
from qwen_export.package import audit, open_package, stage
from qwen_export.package.lock import OutputLock, lock_file
from qwen_export.package.stage import MARKER, old_folder, staged


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fill(folder: Path, package: Path) -> None:
    """Put a finished package into a staging folder."""
    shutil.copytree(package, folder, dirs_exist_ok=True)


def test_the_swap_puts_everything_in_place(finished: dict[str, Path], tmp_path: Path) -> None:
    with staged(tmp_path / "pkg", overwrite=False) as staging:
        assert staging.folder.parent == tmp_path
        assert staging.folder.name.startswith(".pkg.new-")
        fill(staging.folder, finished["graphs"])
        staging.swap()
    assert names(tmp_path) == ["pkg"]
    assert audit(tmp_path / "pkg", graph_only=True).ok


def test_without_a_swap_nothing_stays(tmp_path: Path) -> None:
    with staged(tmp_path / "new" / "pkg", overwrite=False) as staging:
        (staging.folder / "half").mkdir()
        (staging.folder / "half" / "file").write_bytes(b"x")
    assert names(tmp_path) == []


def test_two_at_once_are_kept_apart(tmp_path: Path) -> None:
    with (
        staged(tmp_path / "pkg", overwrite=False),
        pytest.raises(UsageError, match="Another qwen-export is writing"),
        staged(tmp_path / "pkg", overwrite=False),
    ):
        pytest.fail("both went on")
    with staged(tmp_path / "pkg", overwrite=False), staged(tmp_path / "other", overwrite=False):
        pass


HOLD = """
import sys, time
from pathlib import Path
from qwen_export.package.stage import staged
with staged(Path(sys.argv[1]), overwrite=True) as staging:
    (staging.folder / "half").write_bytes(b"x")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_command_left_is_removed_with_a_notice(
    finished: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = tmp_path / "pkg"
    shutil.copytree(finished["graphs"], package)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(package)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    with pytest.raises(UsageError, match="Another qwen-export"), staged(package, overwrite=True):
        pytest.fail("the lock was not respected")
    assert audit(package, graph_only=True).ok
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert [name for name in names(tmp_path) if name.startswith(".pkg.new-")]
    with caplog.at_level(logging.WARNING, "qwen_export"), staged(package, overwrite=True):
        pass
    assert "left behind by an interrupted command" in caplog.text
    assert names(tmp_path) == ["pkg"]


@pytest.mark.parametrize("reader", [open_package, lambda path: audit(path, graph_only=True)])
def test_a_reader_puts_a_half_swapped_package_back(copy_of: Callable[[str], Path], reader: Callable) -> None:
    package = copy_of("graphs")
    package.rename(old_folder(package))
    reader(package)
    assert names(package.parent) == [package.name]


def test_a_reader_leaves_a_running_swap_alone(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("graphs")
    package.rename(old_folder(package))
    with OutputLock(package):
        with pytest.raises(UsageError, match="Another qwen-export"):
            open_package(package)
        assert old_folder(package).exists()


def test_the_rest_of_a_finished_swap_is_removed(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("graphs")
    shutil.copytree(package, old_folder(package))
    (old_folder(package) / "manifest.json").unlink()
    (old_folder(package) / MARKER).touch()
    open_package(package)
    assert names(package.parent) == [package.name]


def test_folders_of_the_user_with_such_names_are_left_alone(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("graphs")
    mine = package.with_name(f".{package.name}.new-diary")
    mine.mkdir()
    (mine / "diary.txt").write_text("dear", encoding="utf-8")
    with staged(package, overwrite=True):
        pass
    assert (mine / "diary.txt").exists()
    mine.rename(old_folder(package))
    with pytest.raises(UsageError, match="is in the way"), staged(package, overwrite=True):
        pytest.fail("went on")
    assert (old_folder(package) / "diary.txt").exists()


def test_a_second_rename_that_fails_puts_the_first_back(
    finished: dict[str, Path], copy_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = copy_of("vlm")
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target) == package and ".new-" in str(source):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(UsageError, match="Input/output error"), staged(package, overwrite=True) as staging:
        fill(staging.folder, finished["graphs"])
        staging.swap()
    assert names(package.parent) == [package.name]
    assert audit(package, deep=True).ok


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, r"it needs 1,234,567 bytes and [\d,]+ are free"),
        (errno.EFBIG, r"limit on file sizes .*needs 1,234,567 bytes"),
        (errno.EROFS, "Read-only file system"),
    ],
)
def test_writing_errors_become_one_sentence(tmp_path: Path, code: int, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught, staged(tmp_path / "pkg", overwrite=False) as staging:
        staging.need(1_234_567)
        raise OSError(code, os.strerror(code))
    assert str(tmp_path / "pkg") in str(caught.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("output", "sentence"), [("x" * 300, "File name too long"), ("nul\0byte", "is no path")])
def test_impossible_places_are_one_sentence(tmp_path: Path, output: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence), staged(tmp_path / output, overwrite=False):
        pytest.fail("went on")
    assert names(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("output", ["/proc/pkg", "/proc/new/pkg", "/dev/null/pkg"])
def test_places_that_take_no_folder_are_one_sentence(output: str) -> None:
    with pytest.raises(UsageError, match=f"^{output} cannot be written"), staged(Path(output), overwrite=False):
        pytest.fail("went on")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.path.insert(0, sys.argv[1])
import hand_made
import qwen_export.export as story
from qwen_export.errors import UsageError
story.build_graph = hand_made.build_graph
try:
    story.export_vlm(sys.argv[2], sys.argv[3])
except UsageError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on file sizes")
def test_a_limit_on_file_sizes_is_met_cleanly(tiny_checkpoint: Path, tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", LIMITED, here, str(tiny_checkpoint), str(tmp_path / "pkg")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "limit on file sizes" in run.stdout, run.stderr
    assert str(tmp_path / "pkg") in run.stdout
    assert names(tmp_path) == []


def test_kept_files_are_hard_links_or_copies(
    copy_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = copy_of("vlm")
    with staged(tmp_path / "pkg", overwrite=False) as staging:
        staging.keep(package / "decoder" / "model.onnx", "decoder/model.onnx")
        assert (staging.folder / "decoder" / "model.onnx").samefile(package / "decoder" / "model.onnx")

        def no_links(*_args: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_links)
        staging.keep(package / "config.json", "config.json")
        assert (staging.folder / "config.json").read_bytes() == (package / "config.json").read_bytes()
        assert not (staging.folder / "config.json").samefile(package / "config.json")


def test_the_lock_goes_with_its_file(tmp_path: Path) -> None:
    with OutputLock(tmp_path / "pkg"):
        assert lock_file(tmp_path / "pkg").exists()
    assert names(tmp_path) == []
    lock_file(tmp_path / "pkg").write_text("", encoding="utf-8")  # left by a killed holder
    with OutputLock(tmp_path / "pkg"):
        pass
    assert names(tmp_path) == []


def test_opening_nothing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="There is no package"):
        open_package(tmp_path / "nothing")
    assert stage.absolute(Path("~") / "x").is_absolute()
