"""The word that opens a giver: made for one run, kept on this machine while the run may be resumed."""

from __future__ import annotations

import secrets
from pathlib import Path

from gpufleet import whole_file
from gpufleet.names import RunId
from gpufleet.redact import Secret


def new_word(state_dir: Path, run: RunId) -> Secret[str]:
    """A word that is nowhere yet; a journal holds where it will be."""
    return Secret(secrets.token_hex(24), reference=f"${{file:{_path(state_dir, run)}}}")


def keep_word(state_dir: Path, run: RunId, word: Secret[str]) -> None:
    """Write it down before the run that uses it."""
    whole_file.write(_path(state_dir, run), word.reveal().encode())


def forget_word(state_dir: Path, run: RunId) -> None:
    """The run is over."""
    _path(state_dir, run).unlink(missing_ok=True)


def _path(state_dir: Path, run: RunId) -> Path:
    return state_dir.absolute() / "staging" / f"{run}.word"
