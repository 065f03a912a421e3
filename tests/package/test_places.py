"""Where a package may be written, and what --overwrite never touches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen_export.errors import UsageError
from qwen_export.package.places import check_output
from qwen_export.package.stage import absolute


def refused(output: Path, reason: str, **options: object) -> None:
    options = {"overwrite": True, **options}
    with pytest.raises(UsageError, match=reason) as caught:
        check_output(absolute(output), **options)
    assert str(output.name) in str(caught.value)


def test_a_new_place_is_fine(tmp_path: Path) -> None:
    check_output(absolute(tmp_path / "a" / "b" / "pkg"), overwrite=False)


def test_the_checkpoint_and_its_surroundings(tmp_path: Path) -> None:
    checkpoint = tmp_path / "models" / "checkpoint"
    checkpoint.mkdir(parents=True)
    refused(checkpoint, "is the checkpoint itself", checkpoint=checkpoint)
    refused(tmp_path / "models", "is a folder above the checkpoint", checkpoint=checkpoint)
    refused(checkpoint / "onnx", "lies inside the checkpoint", checkpoint=checkpoint)
    link = tmp_path / "link"
    link.symlink_to(checkpoint, target_is_directory=True)
    refused(link / "onnx", "lies inside the checkpoint", checkpoint=checkpoint)
    refused(tmp_path / "models", "above the checkpoint", checkpoint=link)
    check_output(absolute(tmp_path / "models" / "pkg"), overwrite=True, checkpoint=checkpoint)


def test_home_and_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, work = tmp_path / "people" / "me", tmp_path / "projects" / "one"
    for folder in (home, work):
        folder.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.chdir(work)
    refused(home, "is your home folder")
    refused(tmp_path / "people", "is a folder above your home folder")
    refused(work, "is the current folder")
    refused(tmp_path / "projects", "is a folder above the current folder")
    check_output(absolute(Path("pkg")), overwrite=False)


def test_roots_and_mount_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="root of a file system"):
        check_output(absolute(Path(tmp_path.anchor)), overwrite=True)
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "disk")
    refused(tmp_path / "disk", "is a mount point")
    check_output(absolute(tmp_path / "disk" / "pkg"), overwrite=True)


@pytest.mark.parametrize("target", ["nothing", "folder"])
def test_links_are_not_followed(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / target, target_is_directory=True)
    refused(tmp_path / "link", "is a symbolic link")


def test_files_and_foreign_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    refused(tmp_path / "file", "is a file")
    refused(tmp_path / "file" / "pkg", "is not a folder")
    for name, content in (("empty", None), ("other", "{}"), ("broken", "{")):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "manifest.json").write_text(content, encoding="utf-8")
        refused(tmp_path / name, "is not a package of qwen-export")


def test_a_package_needs_overwrite_and_holds_nothing_of_the_user(copy_of: Callable[[str], Path]) -> None:
    package = copy_of("graphs")
    refused(package, "Add --overwrite", overwrite=False)
    check_output(package, overwrite=True)
    (package / "notes").mkdir()
    (package / "notes" / "mine.txt").write_text("keep me", encoding="utf-8")
    refused(package, r"holds notes/mine\.txt, which no export wrote")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    refused(tmp_path / "pkg", "no permission to write")
    tmp_path.chmod(0o700)
