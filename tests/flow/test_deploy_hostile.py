"""Whatever stands in a definition reaches the runtime as exactly that word, through real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpufleet.deploy import commands
from gpufleet.deploy.commands import Dialect
from gpufleet.names import RunId, StepId
from gpufleet.redact import Secret
from gpufleet.remote.framing import frame, unframe

RUNTIME = """\
#!/bin/sh
[ "$1" = run ] || exit 0
for word in "$@"; do printf '%s\\0' "$word"; done > "$RECORD/words"
cat "$4" > "$RECORD/environment"
ls -l "$4" | cut -c 1-10 > "$RECORD/mode"
"""
SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
hostile = st.sampled_from(
    [
        "$(touch pwned)",
        "`id`",
        "'",
        '"',
        "\\",
        "a\nb",
        "; rm -rf /",
        "--privileged",
        "-",
        "",
        "~",
        "*",
        "!x",
        "%s",
        "é\U0001f600",
    ]
)
values = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=30)


def send(shell, command, home):
    """The framed command into a real shell, as sshd would start it."""
    runtime = home / "runtime"
    if not runtime.exists():
        runtime.write_text(RUNTIME)
        runtime.chmod(0o755)
    argv = ["busybox", "sh", "-s"] if shell == "busybox" else [shell, "-s"]
    ended = subprocess.run(
        argv,
        input=frame(command, "marker-0123456789"),
        capture_output=True,
        timeout=60,
        check=False,
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "RECORD": str(home)},
    )
    answer = unframe(ended.stdout, ended.stderr, "marker-0123456789", become=False).exit
    assert answer is not None
    return answer


@pytest.mark.parametrize("shell", SHELLS)
@given(
    arguments=st.lists(st.one_of(words, hostile), max_size=5),
    environment=st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,9}", fullmatch=True), values, max_size=4),
)
def test_words_and_variables_arrive_whole(shell, arguments, environment):
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        dialect = Dialect(path=str(home / "runtime"), kind="docker", root=False, updates=True, rootless=False)
        secret = {key: Secret(value, reference="${env:X}") for key, value in environment.items()}
        command = commands.start(dialect, RunId("r"), StepId("start-a-0"), secret, tuple(arguments))
        answer = send(shell, command, home)
        assert answer.ok, answer
        received = (home / "words").read_bytes().decode().split("\0")[:-1]
        assert received[4:] == arguments
        lines = [f"{key}={value}\n" for key, value in environment.items()]
        assert (home / "environment").read_bytes().decode() == "".join(lines)
        assert (home / "mode").read_text().strip() == "-rw-------"
        assert not list((home / ".gpufleet" / "env").iterdir())
        assert not (home / "pwned").exists()
