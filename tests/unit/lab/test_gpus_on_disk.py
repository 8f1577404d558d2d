"""The double with its state in a file answers as the one in memory, keeps what it is told, and loses what a boot takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.lab.fleet import HostWish, build_fleet
from gpufleet.lab.gpus.on_disk import lab_gpus, nvidia_smi
from tests.kit.lab_kit import LabClock

UUIDS = tuple(f"GPU-{at:08x}-1111-4222-8333-444444444444" for at in range(2))
CHANGES = (
    "-i 0 -mig 1",
    "mig -i 0 -cgi 3g.40gb:4 -C",
    "mig -i 0 -cgi 1g.10gb:0,1g.10gb+me:1 -C",
    "mig -i 0 -cgi 3g.40gb:0 -C",
    "mig -i 0 -gi 7 -dgi",
    "mig -i 0 -gi 7 -ci 0 -dci",
    "mig -i 0 -gi 7 -dgi",
    "mig -i 1 -dgi",
)
LOOKS = ("-L", "mig -lgip", "mig -lgipp", "mig -lgi", "mig -lci", "")


class Host:
    """A folder that stands for a host."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.built_in, self._said = place / "state", place / "gpus.json", capsys
        (self.folder / "holders").mkdir(parents=True)
        self.built_in.write_text(json.dumps([{"uuid": one, "board": "H100-80GB"} for one in UUIDS]))
        self.boot("first")

    def boot(self, name: str) -> None:
        (self.folder / "boot").write_text(name)

    def smi(self, words: str) -> tuple[int, str]:
        code = nvidia_smi(words.split(), self.folder, self.built_in)
        return code, self._said.readouterr().out

    def arrange(self, *words: str) -> int:
        return lab_gpus(words, self.folder, self.built_in)

    def hold(self, device: str) -> None:
        """As the runtime's hook does for a container; this process is its first one."""
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        (self.folder / "holders" / str(os.getpid())).write_text(f"{started}\n{device}\n")


@pytest.fixture
def host(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Host(tmp_path, capsys)


def test_it_answers_as_the_double_in_memory(host):
    lab = build_fleet([HostWish(name="gpu-01", gpus="2xH100-80GB")], LabClock())["gpu-01"]
    for gpu, uuid in zip(lab.gpus.gpus, UUIDS, strict=True):
        gpu.uuid, gpu.bus_id = uuid, f"00000000:{gpu.index + 1:02X}:00.0"
    for words in (*CHANGES, *LOOKS):
        told = lab.sh(f"nvidia-smi {words}", user="root")
        code, said = host.smi(words)
        assert (code, _undated(said)) == (told.code, _undated(told.stdout.decode())), words
    assert (host.folder / "devices").read_text().splitlines() == [
        name for name in lab.gpus.names() if ":" in name or name.startswith("MIG-")
    ]


def _undated(text: str) -> list[str]:
    return [
        line for line in text.splitlines() if not line[:3].isalpha() or line.startswith(("GPU", "Suc", "Una"))
    ]


def test_a_boot_takes_slices_and_the_mode_of_hopper(host):
    for words in CHANGES[:3]:
        assert host.smi(words)[0] == 0
    host.boot("second")
    assert host.smi("mig -i 0 -lgi") == (3, "No MIG-enabled devices found.\n")
    assert host.arrange("board", "1", "A30-24GB") == 0
    assert host.smi("-i 1 -mig 1")[0] == 0
    assert host.smi("mig -i 1 -cgi 2g.12gb:2 -C")[0] == 0
    host.boot("third")
    assert host.smi("mig -i 1 -lgi") == (6, "No GPU instances found: Not Found\n")


def test_who_runs_on_a_slice_keeps_it(host):
    host.smi("-i 0 -mig 1")
    host.smi("mig -i 0 -cgi 1g.10gb:0,1g.10gb:1 -C")
    slices = [line for line in (host.folder / "devices").read_text().splitlines() if line.startswith("MIG-")]
    host.hold(slices[0])
    code, said = host.smi("mig -i 0 -gi 7 -ci 0 -dci")
    assert (code, "In use by another client" in said) == (19, True)
    assert f"<pid>{os.getpid()}</pid>" in host.smi("-q -x")[1]
    assert host.smi("mig -i 0 -gi 8 -ci 0 -dci")[0] == 0
    holder = host.folder / "holders" / str(os.getpid())
    holder.write_text(f"1\n{slices[0]}\n")  # the number was given to another process since
    assert host.smi("mig -i 0 -gi 7 -ci 0 -dci")[0] == 0


def test_what_goes_wrong_is_arranged(host):
    host.smi("-i 0 -mig 1")
    assert host.arrange("mishap", "-cgi", "Insufficient Resources/1") == 0
    assert host.arrange("mishap", "-lgi", "Unknown Error") == 0
    assert host.smi("mig -i 0 -cgi 1g.10gb:0 -C")[0] == 0
    assert host.smi("mig -i 0 -cgi 1g.10gb:1 -C")[0] == 23
    code, said = host.smi("mig -lgi")
    assert (code, said.splitlines()[-1]) == (255, "Failed to display GPU instances: Unknown Error")
    assert said.splitlines()[-2].startswith("|==")
    assert host.smi("mig -lgi")[0] == 0
    host.arrange("client", UUIDS[0], "dcgm")
    assert host.smi("mig -i 0 -gi 7 -ci 0 -dci")[0] == 19
    host.arrange("fault", "0", "lost")
    assert host.smi(f"mig -i {UUIDS[0]} -lgi")[0] == 15
    assert UUIDS[1] in host.smi("-L")[1]
    host.arrange("trouble", "mismatch")
    assert host.smi("-L")[0] == 18
    host.arrange("calm")
    assert host.smi("mig -i 0 -gi 7 -ci 0 -dci")[0] == 0
    for words in (("mishap", "-cgi", "bad luck"), ("fault", "9", "lost"), ("board", "0", "H900"), ("dance",)):
        assert host.arrange(*words) == 2


def test_changes_do_not_meet(host):
    """Several at a time, in processes of their own: each slice is made once, and none is lost."""
    host.smi("-i 0 -mig 1")
    program = (
        "import sys; from pathlib import Path; from gpufleet.lab.gpus.on_disk import nvidia_smi; import os\n"
        "os.geteuid = lambda: 0\n"
        "sys.exit(nvidia_smi(sys.argv[3:], Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                program,
                host.folder,
                host.built_in,
                "mig",
                "-i",
                "0",
                "-cgi",
                f"1g.10gb:{at}",
                "-C",
            ],
            stdout=subprocess.DEVNULL,
        )
        for at in (0, 1, 1, 2, 3)
    ]
    assert sorted(one.wait(timeout=60) for one in running) == [0, 0, 0, 0, 23]
    assert host.smi("-L")[1].count("1g.10gb") == 4


def test_the_lock_of_root_is_one_that_others_can_take(host):
    before = os.umask(0o077)
    try:
        assert host.arrange("mishap", "-lgi", "Unknown Error") == 0
    finally:
        os.umask(before)
    assert (host.folder / "lock").stat().st_mode & 0o777 == 0o666
