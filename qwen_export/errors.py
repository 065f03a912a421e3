"""Errors a user can meet. Each message says what happened, where, and what to do.

The command line prints the message alone and leaves with `exit_code`; anything that is not a `QwenExportError` is a
fault of ours and ends with exit code 3 and a saved report.
"""

from __future__ import annotations


class QwenExportError(Exception):
    """Base of every error that is addressed to the user."""

    exit_code = 2


class UsageError(QwenExportError):
    """The request cannot be carried out: wrong option, wrong place, missing library, not enough space."""


class CheckpointError(QwenExportError):
    """The checkpoint is not what the export needs. Names the tensor or file at fault."""


class PackageError(QwenExportError):
    """A package is missing, damaged, or not ours."""


class InputError(QwenExportError):
    """An image, video or prompt cannot be used."""


class UpstreamChanged(QwenExportError):
    """A function of Transformers or torch that we re-spell is no longer the code we read."""


class VerdictFailed(QwenExportError):
    """A check was carried out and said no (audit, verify, diff, genai-check)."""

    exit_code = 1


class InternalError(QwenExportError):
    """An invariant of ours does not hold. Never the user's fault."""

    exit_code = 3
