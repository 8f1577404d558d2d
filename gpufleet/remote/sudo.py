"""Why sudo refused, and what the operator can do about it.

That it refused is known from the frame's own marker; sudo's text only tells which of its reasons it was. sudo
without a password says "a password is required" both to those who need one and to those who may not use it at
all, so the hint for that reason names both.
"""

from __future__ import annotations

from enum import Enum

from gpufleet.errors import SudoRefused
from gpufleet.remote.result import Exit


class SudoFailure(Enum):
    """The reasons, as stable slugs."""

    PASSWORD_NEEDED = "password-needed"  # noqa: S105 a slug, not a password
    WRONG_PASSWORD = "wrong-password"  # noqa: S105 likewise
    NOT_IN_SUDOERS = "not-in-sudoers"
    TTY_REQUIRED = "tty-required"
    NOT_INSTALLED = "not-installed"
    OTHER = "other"


_SIGNS: tuple[tuple[str, SudoFailure], ...] = (
    # The order counts: a wrong password ends in the text of a missing one.
    ("must have a tty", SudoFailure.TTY_REQUIRED),
    ("not in the sudoers file", SudoFailure.NOT_IN_SUDOERS),
    ("is not allowed to execute", SudoFailure.NOT_IN_SUDOERS),
    ("is not allowed to run sudo", SudoFailure.NOT_IN_SUDOERS),
    ("may not run sudo", SudoFailure.NOT_IN_SUDOERS),
    ("incorrect password attempt", SudoFailure.WRONG_PASSWORD),
    ("Sorry, try again", SudoFailure.WRONG_PASSWORD),
    ("a password is required", SudoFailure.PASSWORD_NEEDED),
    ("a terminal is required", SudoFailure.PASSWORD_NEEDED),
    ("no tty present", SudoFailure.PASSWORD_NEEDED),
    ("sudo: not found", SudoFailure.NOT_INSTALLED),
    ("sudo: command not found", SudoFailure.NOT_INSTALLED),
)

_MEANING: dict[SudoFailure, tuple[str, tuple[str, ...]]] = {
    SudoFailure.PASSWORD_NEEDED: (
        "sudo needs a password, or does not know this user",
        (
            "give `sudo_password` for the host as a reference, such as ${env:SUDO_PASSWORD}",
            "or allow the user to use sudo without one (NOPASSWD); `sudo -l` on the host tells what it may do",
        ),
    ),
    SudoFailure.WRONG_PASSWORD: (
        "sudo does not accept the password",
        ("check the value behind `sudo_password`; one attempt was made, repeated ones may lock the account",),
    ),
    SudoFailure.NOT_IN_SUDOERS: (
        "this user may not use sudo for a root shell",
        ("add the user to the sudoers of the host, or connect as another `user`",),
    ),
    SudoFailure.TTY_REQUIRED: (
        "sudo wants a terminal (`Defaults requiretty`)",
        ("exempt the user on the host: `Defaults:USER !requiretty`",),
    ),
    SudoFailure.NOT_INSTALLED: (
        "sudo is not installed on the host",
        ("install sudo, or connect as root, or set `become: never`",),
    ),
    SudoFailure.OTHER: (
        "sudo refused",
        ("run `sudo -n /bin/sh -c true` on the host as this user and read what it says",),
    ),
}


def classify(stderr: str) -> SudoFailure:
    """Which reason sudo's text, in the C locale, stands for."""
    for sign, failure in _SIGNS:
        if sign in stderr:
            return failure
    return SudoFailure.OTHER


def meaning(failure: SudoFailure) -> str:
    """The reason in words, one line."""
    return _MEANING[failure][0]


def refusal(answer: Exit, host: str) -> SudoRefused | None:
    """The error to raise when sudo, and not the command, gave this answer; None otherwise."""
    if not answer.sudo_refused:
        return None
    failure = SudoFailure(answer.sudo_refused)
    summary, hints = _MEANING[failure]
    if failure is SudoFailure.OTHER and answer.stderr.strip():
        summary = f"sudo refused: {answer.stderr.strip().splitlines()[-1]}"
    return SudoRefused(summary, where=host, hints=hints)
