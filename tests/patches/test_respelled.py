"""The guard against changed upstream code."""

from __future__ import annotations

import pytest
from qwen_export.patches import RESPELLED, check_upstream, fingerprint, respelled

from qwen_export.errors import UpstreamChanged


def test_installed_version_is_the_code_we_read():
    check_upstream()


def test_every_entry_names_an_existing_function_once():
    names = [(entry.module, entry.function) for entry in RESPELLED]
    assert len(set(names)) == len(names)
    assert all(fingerprint(*name) for name in names)


@pytest.fixture
def changed_source(monkeypatch):
    """Upstream's modelling file with one edit."""
    original = respelled._source(respelled.MODELING)

    def apply(before: str, after: str) -> None:
        assert before in original
        edited = original.replace(before, after, 1)
        monkeypatch.setattr(respelled, "_source", lambda module: edited if module == respelled.MODELING else original)

    return apply


def test_changed_arithmetic_stops_the_export(changed_source, monkeypatch):
    only = tuple(entry for entry in RESPELLED if entry.function == "l2norm")
    monkeypatch.setattr(respelled, "RESPELLED", only)
    changed_source("inv_norm = torch.rsqrt((x * x).sum(dim=dim, keepdim=True) + eps)", "inv_norm = torch.rsqrt(eps)")
    with pytest.raises(UpstreamChanged, match=r"l2norm .* wrappers/decoder_operators.py .* fingerprint"):
        check_upstream()


def test_vanished_function_stops_the_export(changed_source, monkeypatch):
    monkeypatch.setattr(respelled, "RESPELLED", tuple(e for e in RESPELLED if e.function == "l2norm"))
    changed_source("def l2norm(", "def l2_norm(")
    with pytest.raises(UpstreamChanged, match="fingerprint missing"):
        check_upstream()


def test_comments_and_docstrings_do_not_matter(changed_source):
    before = fingerprint(respelled.MODELING, "l2norm")
    changed_source(
        '"""This function is intended to align with the l2norm implementation in the FLA library."""', "# nothing"
    )
    assert fingerprint(respelled.MODELING, "l2norm") == before
