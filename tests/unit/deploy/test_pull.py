"""The script that pulls, in real shells; the runtime is a stand-in that writes to a disk of its own."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.pull import pull
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit

SHELLS = {"dash": ("dash",), "bash": ("bash",), "busybox": ("busybox", "sh")}
RUNTIME = """#!/bin/sh
here=$(dirname "$0")
case "$1 $2" in
"image inspect") [ -f "$here/present" ] ;;
"pull -q")
  case $(cat "$here/mode") in
  good) : >"$here/present"; echo "$3" ;;
  absent) echo "Error response from daemon: manifest unknown" >&2; exit 1 ;;
  stuck) echo $$ >"$here/pid"; exec sleep 600 ;;
  slow) for part in 1 2 3 4; do echo "$part" >>"$here/used"; sleep 1; done; : >"$here/present" ;;
  esac ;;
esac
"""
DF = """#!/bin/sh
used=0
grows=$HOME
[ ! -f "$HOME/containerd" ] || grows=/var/lib/containerd
[ ! -f "$HOME/busy" ] || echo x >>"$HOME/busy"
[ ! -f "$HOME/busy" ] || used=$(($(wc -l <"$HOME/busy") * 1500))
[ ! -f "$HOME/used" ] || [ "$2" != "$grows" ] || used=$(($(wc -l <"$HOME/used") * 2048))
printf 'Filesystem 1024-blocks Used Available Capacity Mounted on\\n/dev/sda1 999999 %s 1 1%% /\\n' "$used"
"""


def pulled(home: Path, mode: str, stall: float, shell: str = "dash", least: int = 0) -> Exit:
    for name, text in (("runtime", RUNTIME), ("bin/df", DF)):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    (home / "mode").write_text(mode)
    dialect = Dialect(
        path=str(home / "runtime"), kind="docker", root=False, updates=True, rootless=False, store=str(home)
    )
    command = pull(dialect, "engine:1", stall)
    if least:
        command = replace(command, argv=(*command.argv[:-1], str(least)))
    ended = subprocess.run(
        [*SHELLS[shell], "-s"],
        input=frame(command, "marker"),
        capture_output=True,
        env={"HOME": str(home), "PATH": f"{home}/bin:/usr/local/bin:/usr/bin:/bin"},
        timeout=120,
        check=False,
    )
    answer = unframe(ended.stdout, ended.stderr, "marker").exit
    assert answer is not None, ended.stderr
    assert not list((home / ".gpufleet").glob("pull-*")) if (home / ".gpufleet").exists() else True
    return answer


@pytest.mark.parametrize("shell", SHELLS)
def test_a_pull_that_succeeds_and_one_that_is_refused(tmp_path: Path, shell: str):
    answer = pulled(tmp_path, "absent", 60, shell)
    assert (answer.code, answer.stderr.splitlines()[-1]) == (
        1,
        "Error response from daemon: manifest unknown",
    )
    assert pulled(tmp_path, "good", 60, shell).ok
    assert pulled(tmp_path, "stuck", 60, shell).ok  # it is there


@pytest.mark.parametrize("shell", ["dash", "bash"])  # busybox would ask its own `df` of this machine's disk
def test_a_pull_that_brings_nothing_is_ended_and_leaves_no_process(tmp_path: Path, shell: str):
    answer = pulled(tmp_path, "stuck", 1, shell)
    assert answer.code == 1
    assert answer.stderr.splitlines()[-1] == "the pull of engine:1 brought nothing for 1 s"
    pid = (tmp_path / "pid").read_text().strip()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("containerd", [False, True])
def test_a_slow_pull_that_brings_something_is_not_ended(tmp_path: Path, *, containerd: bool):
    if containerd:
        (tmp_path / "containerd").touch()
    assert pulled(tmp_path, "slow", 3).ok


def test_what_logs_write_meanwhile_is_no_movement(tmp_path: Path):
    """Others write 3 MiB a second here; an hour's pull of a large image brings more, and logs bring less."""
    (tmp_path / "busy").touch()
    assert pulled(tmp_path, "stuck", 3, least=40_000).code == 1


@pytest.mark.parametrize(("stall", "least"), [(1.0, 1024), (300.0, 14_400), (3600.0, 172_800)])
def test_the_least_that_counts_grows_with_the_time(stall: float, least: int):
    dialect = Dialect(path="/usr/bin/docker", kind="docker", root=False, updates=True, rootless=False)
    assert pull(dialect, "engine:1", stall).argv[-1] == str(least)
