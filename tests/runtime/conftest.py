from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.odd_pictures import make_broken_pictures, make_odd_pictures


@pytest.fixture(scope="session")
def odd_pictures(tmp_path_factory) -> list[Path]:
    return make_odd_pictures(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="session")
def broken_pictures(tmp_path_factory) -> dict[str, Path]:
    return make_broken_pictures(tmp_path_factory.mktemp("broken"))
