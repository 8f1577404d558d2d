"""The door: exit codes, JSON on failure, no traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet import __version__
from gpufleet.cli import console, settings
from gpufleet.cli.app import _crash, main
from gpufleet.errors import ErrorRow, ExitCode, Refused, UsageError


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpufleet", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
    )


def test_version_is_one_line() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"gpufleet {__version__}\n")


def test_help_lists_every_group() -> None:
    done = run("--help", NO_COLOR="1")
    assert done.returncode == 0
    for group in ("inventory", "hosts", "pool", "change", "proxy", "token", "lab"):
        assert group in done.stdout


@pytest.mark.parametrize("words", [(), ("nonsense",), ("hosts", "nonsense"), ("--forks", "x")])
def test_usage_errors_exit_2_without_traceback(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
    assert "error:" in done.stderr


def test_usage_errors_are_one_json_object() -> None:
    done = run("hosts", "nonsense", "--output", "json")
    answer = json.loads(done.stdout)
    assert done.returncode == 2
    assert answer["schema"] == 1
    assert answer["outcome"] == "failed"
    assert answer["exit"] == 2
    assert answer["error"]["code"] == "usage"
    assert answer["error"]["hints"]


def test_a_missing_inventory_is_named(tmp_path: Path) -> None:
    done = run("inventory", "validate", "-i", str(tmp_path / "no.yaml"), "-o", "json")
    assert done.returncode == 2
    assert "no.yaml" in done.stdout


def test_error_rows_and_hints_have_the_same_fields_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = Refused(
        "nothing fits",
        where="gpu-01",
        hints=("use fewer replicas",),
        rows=(ErrorRow("gpu-01", "GPU 0 is taken", "stop it", "gpu-in-use"),),
    )
    settings.install(settings.Settings(output="json"))
    assert console.fail(error, "pool deploy") == ExitCode.REFUSED
    answer = json.loads(capsys.readouterr().out)
    assert answer["outcome"] == "refused"
    assert answer["error"]["rows"] == [
        {"where": "gpu-01", "message": "GPU 0 is taken", "hint": "stop it", "code": "gpu-in-use"}
    ]


def test_secrets_are_masked_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    console.fail(UsageError("token hf_abcdefghijklmnopqrstuvwxyz was refused"), "x")
    assert "hf_abc" not in capsys.readouterr().err


def test_questions_without_a_terminal_name_the_option() -> None:
    with pytest.raises(UsageError) as caught:
        console.confirm("Deploy?")
    assert "--yes" in caught.value.hints[0]


def test_our_own_fault_saves_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = settings.Settings(state_dir=tmp_path)
    try:
        raise RuntimeError("Bearer abcdefghijklmnop broke")  # a planted secret
    except RuntimeError as error:
        assert _crash(error, chosen, "hosts facts") == 1
    saved = list((tmp_path / "crashes").iterdir())
    assert len(saved) == 1
    assert "abcdefghijklmnop" not in saved[0].read_text() + capsys.readouterr().err


def test_a_hint_for_all_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (ErrorRow("gpu-01", "full", "make room"), ErrorRow("gpu-02", "odd", "look at it"))
    console.fail(Refused("no", hints=("make room",), rows=rows), "pool deploy")
    said = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in said if "hint:" in line] == ["hint: look at it", "hint: make room"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_streams_are_no_fault_of_ours(tmp_path: Path, closed: str) -> None:
    words = f'"$1" -m gpufleet token revoke ann --state-dir "$2" {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", words, "sh", sys.executable, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert not (tmp_path / "crashes").exists()


@pytest.mark.parametrize(("words", "code"), [(("change", "list"), 0), (("hosts", "list", "-i", "no"), 2)])
def test_a_reader_that_left_does_not_change_the_exit_code(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpufleet", *words, "-o", "json", "--state-dir", str(tmp_path)],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (code, b"")


def test_ctrl_c_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_answer: console.Answer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpufleet.cli.token.finish", interrupted)
    monkeypatch.setenv("GPUFLEET_STATE", "/nonexistent")
    assert main(["token", "list", "-o", "json"]) == ExitCode.INTERRUPTED
    answer = json.loads(capsys.readouterr().out)
    assert (answer["error"]["code"], answer["exit"]) == ("interrupted", 130)


def test_main_returns_a_code_instead_of_exiting() -> None:
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    "words", [["hosts", "list", "a"], ["inventory", "validate"], ["pool", "list"]], ids=" ".join
)
def test_words_that_stay_words_cost_no_converter(tmp_path, words):
    (tmp_path / "inventory.yaml").write_text("version: 1\nhosts:\n  a: {address: 127.0.0.1}\n")
    code = (
        "import sys\nfrom gpufleet.cli.app import main\n"
        f"ended = main({[*words, '--state-dir', str(tmp_path)]!r})\n"
        "print(ended, 'pydantic' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    assert ended.stdout.splitlines()[-1] == "0 False", ended.stderr
