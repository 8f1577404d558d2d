"""The frame against the real shells of this machine, and its reading back from streams cut anywhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.framing import EXEC_REQUEST, finished, frame, unframe

MARKER = "gpufleet-0123456789abcdef"

SHELLS: dict[str, list[str]] = {
    name: argv
    for name, argv in {
        "sh": ["/bin/sh", "-s"],
        "dash": ["dash", "-s"],
        "bash": ["bash", "-s"],
        "bash-posix": ["bash", "--posix", "-s"],
        "busybox": ["busybox", "sh", "-s"],
    }.items()
    if shutil.which(argv[0])
}
LOGIN_SHELLS = [name for name in ("sh", "bash", "fish", "tcsh", "zsh") if shutil.which(name)]

HOSTILE = [
    "", " ", "a b", "'", '"', "''", "'\"'\"'", "\\", "\\\\", "\\'", "$(touch x)", "`touch x`", "$HOME", "${x}",
    "!", "!!", "a!b", "#", "~", "*", "?", "[a]", "{a,b}", ";", "&", "|", "<", ">", "\n", "a\nb", "\r\n", "\t",
    "-n", "--", "-e", "%s", "%d%n", "\\n", "\\0", "\x01\x02\x7f\x81", "\x1b[31m", "ü", "日本語", "🙂", "\u2028",
    "if", "A=b", "EOF", f"{MARKER}-end 0", f"\n{MARKER}-end 0\n", "a" * 5000, "\udcff\udc80",
]  # fmt: skip
arguments = st.lists(
    st.one_of(
        st.sampled_from(HOSTILE),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        st.text(st.sampled_from("'\"\\$`!\n\r\t #~*?(){}[]<>|&;=%-aé🙂\x01")),
    ),
    min_size=1,
    max_size=6,
)


def run(shell: list[str], command: Command, **kwargs: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(shell, input=frame(command, MARKER), capture_output=True, timeout=60, check=False)


def received(args: list[str]) -> bytes:
    return b"".join(arg.encode("utf-8", "surrogateescape") + b"\0" for arg in args)


def between(raw: bytes) -> bytes:
    """The answer's own bytes, undecoded."""
    head = raw.index(b"\n") + 1
    return raw[head : raw.rindex(f"{MARKER}-end ".encode())]


@pytest.mark.parametrize("shell", SHELLS)
@given(args=arguments)
def test_a_program_receives_exactly_its_arguments(shell: str, args: list[str]):
    result = run(SHELLS[shell], Command(argv=("/usr/bin/printf", "%s\\0", *args), mutates=False))
    assert between(result.stdout) == received(args)
    assert result.returncode == 0


@pytest.mark.parametrize("shell", SHELLS)
@given(args=arguments)
def test_a_script_receives_exactly_its_parameters(shell: str, args: list[str]):
    script = 'for word in "$@"; do printf "%s\\0" "$word"; done'
    result = run(SHELLS[shell], Command(argv=tuple(args), script=script, mutates=False))
    assert between(result.stdout) == received(args)


@pytest.mark.parametrize("login_shell", LOGIN_SHELLS)
@settings(max_examples=15, deadline=None)
@given(args=arguments)
def test_the_login_shell_never_sees_an_argument(login_shell: str, args: list[str]):
    result = run(
        [login_shell, "-c", EXEC_REQUEST], Command(argv=("/usr/bin/printf", "%s\\0", *args), mutates=False)
    )
    assert between(result.stdout) == received(args)


@pytest.mark.parametrize("shell", SHELLS)
@given(content=st.binary(max_size=3000))
def test_binary_standard_input_arrives(shell: str, content: bytes):
    result = run(SHELLS[shell], Command(argv=("cat",), stdin=content, mutates=False))
    assert between(result.stdout) == content


@pytest.mark.parametrize("shell", SHELLS)
def test_two_megabytes_of_standard_input_arrive(shell: str):
    content = bytes(range(256)) * 8192
    result = run(SHELLS[shell], Command(script='wc -c | tr -d " "', stdin=content, mutates=False))
    assert between(result.stdout) == b"2097152\n"


@pytest.mark.parametrize("word", ["if", "A=b", "/no/such/A=b", "{", "!", "for"])
def test_the_first_word_is_a_program_name_and_never_syntax(word: str):
    result = run(["/bin/sh", "-s"], Command(argv=(word, "x"), mutates=False))
    answer = unframe(result.stdout, result.stderr, MARKER).exit
    assert answer is not None
    assert answer.code == 127


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 7", 7),
        ("false", 1),
        ("kill -9 $$", None),
        ("(kill -TERM $(sh -c 'echo $PPID'))", 143),
        ("nosuchprogram", 127),
    ],
)
def test_exit_status(shell: str, script: str, code: int | None):
    result = run(SHELLS[shell], Command(script=script, mutates=False))
    answer = unframe(result.stdout, result.stderr, MARKER).exit
    if code is None:
        # The frame's own shell was killed: nobody is left to say how it ended.
        assert answer is None
    else:
        assert answer is not None
        assert answer.code == code


@pytest.mark.parametrize("shell", SHELLS)
def test_output_without_a_last_newline_and_both_streams(shell: str):
    result = run(SHELLS[shell], Command(script="printf out; printf err >&2", mutates=False))
    answer = unframe(result.stdout, result.stderr, MARKER).exit
    assert answer is not None
    assert (answer.stdout, answer.stderr) == ("out", "err")


def test_a_missing_base64_is_no_empty_input(tmp_path: Path):
    (tmp_path / "cat").symlink_to("/bin/cat")
    result = subprocess.run(
        ["/bin/sh", "-s"],
        input=frame(Command(argv=("cat",), stdin=b"x", mutates=False), MARKER),
        env={"PATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    answer = unframe(result.stdout, result.stderr, MARKER).exit
    assert answer is not None
    assert answer.code == 127
    assert "base64" in answer.stderr


def test_noise_is_told_apart_and_removed():
    stdout = f"### welcome ###\n{MARKER}-begin 42\n{{}}\n{MARKER}-end 0\nbye\n".encode()
    stderr = f"quota: 93% used\n{MARKER}-begin 42\nwarning\n{MARKER}-end 0\n".encode()
    seen = unframe(stdout, stderr, MARKER)
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.stdout, seen.exit.stderr) == (0, "{}\n", "warning\n")
    assert seen.noise
    assert seen.pid == 42
    assert seen.preamble == "### welcome ### quota: 93% used"


@given(cut=st.integers(min_value=0, max_value=200), cut_error=st.integers(min_value=0, max_value=200))
def test_a_cut_stream_never_gives_an_answer_that_was_not_whole(cut: int, cut_error: int):
    stdout = f"hello\n{MARKER}-begin 42\n12345\n{MARKER}-end 17\n".encode()
    stderr = f"{MARKER}-begin 42\n{MARKER}-end 17\n".encode()
    seen = unframe(stdout[:cut], stderr[:cut_error], MARKER)
    whole = finished(stdout[:cut], MARKER) or finished(stderr[:cut_error], MARKER)
    assert (seen.exit is not None) == whole
    if seen.exit is not None:
        assert seen.exit.code == 17
    assert seen.pid in (None, 42)


def test_secrets_stand_in_the_frame_and_nowhere_else():
    command = Command(argv=("x", Secret("hunter2secret")), stdin=Secret(b"hunter2secret"), mutates=False)
    assert b"hunter2secret" in frame(command, MARKER)
    assert "hunter2secret" not in command.shown() + repr(command)


@pytest.mark.parametrize("argument", ["a\0b", "\ud800"])
def test_what_no_process_can_receive_is_refused(argument: str):
    with pytest.raises(ValueError, match="argument contains"):
        Command(argv=("x", argument), mutates=False)
