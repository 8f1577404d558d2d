"""The file of slices, and the script that brings them back: in the lab, and in real shells over the double's GPUs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.hosts.boot_drift import Standing, drift
from gpufleet.hosts.model import BootGpu, BootLayout, BootSlice, GpuInstanceFact, Known, Unknown
from gpufleet.hosts.probes import boot_layout
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus.mishaps import parse as mishap
from gpufleet.lab.gpus.simgpu import NoRoom
from gpufleet.lab.shell.run import Ended
from gpufleet.mig import boot_unit
from gpufleet.names import GpuUuid
from tests.kit import fleet_facts as facts
from tests.kit.lab_kit import LabClock

SHELLS = [
    words
    for words in (("dash",), ("bash", "--posix"), ("busybox", "sh"))
    if shutil.which(words[0]) is not None
]
UUID = GpuUuid("GPU-0d0831da-0c98-2717-6446-8acd91d39b65")
OTHER = GpuUuid("GPU-0d0831da-0c98-2717-6446-8acd91d39b66")
DATA = "/etc/gpufleet/mig-layout"

slices = st.builds(
    BootSlice,
    profile=st.sampled_from(
        ["1g.10gb", "1g.10gb+me", "3g.40gb", "1g.24gb-me", "4g.96gb+gfx", "1g.24gb+me.all"]
    ),
    start=st.integers(0, 11),
    size=st.integers(1, 12),
    uuid=st.sampled_from(["", "MIG-8443519f-66f7-5962-8955-60dba0866f3a", f"MIG-{UUID}/1/0"]),
)


@given(
    gpus=st.lists(
        st.builds(BootGpu, st.sampled_from([UUID, OTHER]), st.lists(slices).map(tuple)),
        unique_by=lambda one: one.uuid,
    ),
    cdi=st.lists(st.sampled_from(["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"]), unique=True),
)
def test_a_layout_comes_back_as_it_was_written(gpus, cdi):
    text = boot_layout.render(gpus, cdi)
    if not gpus:
        assert text == ""
        return
    wanted = BootLayout(tuple(sorted(gpus, key=lambda one: one.uuid)), tuple(sorted(cdi)))
    assert boot_layout.read(text) == Known(wanted)
    for cut in range(1, len(text) - 1, 7):
        assert isinstance(boot_layout.read(text[:cut]), Unknown)


@given(st.text())
def test_what_is_none_of_ours_is_not_half_believed(text):
    seen = boot_layout.read(f"{text}\nend\n")
    known = ("#", "cdi /", "gpu GPU-")
    told = [line for line in text.splitlines() if line.strip() and not line.startswith(known)]
    assert isinstance(seen, Unknown) or not told


def layout(*wanted: str, uuid: str, cdi: tuple[str, ...] = ()) -> str:
    sizes = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}
    made = [
        BootSlice(profile=name, start=int(start), size=sizes[name[:2]])
        for name, _, start in (word.partition(":") for word in wanted)
    ]
    return boot_layout.render([BootGpu(GpuUuid(uuid), tuple(made))], cdi)


class Booted:
    """A simulated host with the script and a file of slices."""

    def __init__(self, *wanted: str, gpus: str = "2xH100-80GB", **more) -> None:
        self.lab: LabHost = build_fleet([HostWish(name="gpu-01", gpus=gpus, **more)], LabClock())["gpu-01"]
        self.gpu = self.lab.gpus.gpus[0]
        self.lab.host.fs.write(boot_unit.SCRIPT_PATH, boot_unit.BOOT.encode(), mode=0o755)
        self.lab.host.fs.write(DATA, layout(*wanted, uuid=self.gpu.uuid).encode())

    def run(self, code: int = 0) -> Ended:
        ended = self.lab.sh(f"sh {boot_unit.SCRIPT_PATH} {DATA}", user="root")
        assert ended.code == code, ended
        return ended

    def places(self) -> set[str]:
        return {f"{one.profile.name}:{one.start}" for one in self.gpu.instances if one.ci is not None}


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        ("1xH100-80GB", ("3g.40gb:4", "1g.10gb+me:0", "1g.10gb:2")),
        ("1xA100-80GB", ("3g.40gb:0", "3g.40gb:4")),
        ("1xH100-80GB", ("1g.10gb:6",)),
    ],
)
def test_case_24_slices_come_back_with_their_places(gpus, wanted):
    host = Booted(*wanted, gpus=gpus)
    host.gpu.set_mig(enabled=True)
    for one in wanted:
        host.gpu.create(one.partition(":")[0], int(one.partition(":")[2]))
    uuids = {one.uuid for one in host.gpu.instances}
    host.lab.gpus.reset()
    assert host.gpu.mig == gpus.startswith("1xA100")
    host.run()
    assert host.places() == set(wanted)
    assert {one.uuid for one in host.gpu.instances} == uuids
    assert not host.lab.gpus.gpus[-1].instances or len(host.lab.gpus.gpus) == 1


def test_what_is_there_is_left_alone_and_of_a_part_the_rest_is_made():
    host = Booted("3g.40gb:4", "1g.10gb:0")
    host.gpu.set_mig(enabled=True)
    kept = host.gpu.create("3g.40gb", 4)
    assert b"1 slices made" in host.run().stdout
    assert kept in host.gpu.instances
    before = list(host.gpu.instances)
    assert b"0 slices made" in host.run().stdout
    assert host.gpu.instances == before


def test_a_missing_compute_instance_is_made():
    host = Booted("3g.40gb:4")
    host.gpu.set_mig(enabled=True)
    host.gpu.create("3g.40gb", 4, compute=False)
    host.run()
    assert host.places() == {"3g.40gb:4"}


def test_what_others_made_is_left_alone():
    host = Booted("3g.40gb:4", "1g.10gb:0")
    host.gpu.set_mig(enabled=True)
    foreign = host.gpu.create("2g.20gb", 2)
    ended = host.run(code=1)
    assert b"holds 2g.20gb:2, which is not in" in ended.stderr
    assert host.gpu.instances == [foreign]


def test_a_gpu_in_use_is_not_switched():
    host = Booted("3g.40gb:4")
    host.lab.containers.add_image("busybox:1")
    assert host.lab.sh("docker run -d --gpus all busybox:1 sleep 900", user="root").code == 0
    assert b"is in use" in host.run(code=1).stderr
    assert (host.gpu.mig, host.gpu.pending) == (False, False)


def test_a_mode_that_stays_pending_is_taken_back():
    host = Booted("3g.40gb:4", gpus="1xA100-80GB")
    host.lab.gpus.passthrough = True
    assert b"could not be switched on" in host.run(code=1).stderr
    assert (host.gpu.mig, host.gpu.pending) == (False, False)


@pytest.mark.parametrize(
    ("arranged", "said"),
    [
        ("-cgi Insufficient Resources", b"is not there: Unable to create"),
        ("-cgi lie", b"is not there: Successfully"),
        ("-lgi Unknown Error", b"cannot be read: Failed to display"),
    ],
)
def test_a_failure_is_told_and_what_can_be_made_is_made(arranged, said):
    host = Booted("3g.40gb:4", "1g.10gb:0")
    host.gpu.set_mig(enabled=True)
    if not arranged.startswith("-cgi"):
        host.gpu.create("1g.10gb", 0)
    host.lab.gpus.mishaps.append(mishap(arranged))
    ended = host.run(code=1)
    assert said in ended.stderr
    if arranged.startswith("-cgi"):
        assert host.places() == {"1g.10gb:0"}


def test_a_file_that_is_not_whole_changes_nothing():
    host = Booted("3g.40gb:4")
    text = host.lab.host.fs.read(DATA)
    host.lab.host.fs.write(DATA, text[:-5])
    assert b"is not whole" in host.run(code=1).stderr
    assert not host.gpu.mig


def test_a_slice_with_another_uuid_is_told():
    host = Booted("3g.40gb:4")
    text = host.lab.host.fs.read(DATA).replace(b" 4 4 -", b" 4 4 MIG-8443519f-66f7-5962-8955-60dba0866f3a")
    host.lab.host.fs.write(DATA, text)
    assert b"is not MIG-8443519f" in host.run(code=1).stderr
    assert host.places() == {"3g.40gb:4"}


def test_the_specification_is_written_anew():
    host = Booted("3g.40gb:4")
    host.lab.host.fs.write(
        DATA, layout("3g.40gb:4", uuid=host.gpu.uuid, cdi=("/var/run/cdi/nvidia.yaml",)).encode()
    )
    host.run()
    assert host.gpu.instances[0].uuid in host.lab.host.fs.read("/var/run/cdi/nvidia.yaml").decode()


@settings(max_examples=30, deadline=None)
@given(
    board=st.sampled_from(["H100-80GB", "A100-80GB", "A30-24GB"]),
    words=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7)), max_size=12),
    kept=st.integers(0, 2**7 - 1),
    more=st.booleans(),
)
def test_any_layout_is_brought_back_and_nothing_of_others_is_touched(board, words, kept, more):
    host = Booted("7g.80gb:0", gpus=f"1x{board}")
    gpu = host.gpu
    gpu.set_mig(enabled=True)
    for number, start in words:  # what fits of it is a legal layout
        with suppress(NoRoom):
            gpu.create(gpu.board.profiles[number % len(gpu.board.profiles)].name, start)
    wanted = [(one.profile.name, one.start, one.profile.size) for one in gpu.instances]
    if not wanted:
        return
    gpu.instances = [one for at, one in enumerate(gpu.instances) if kept >> at & 1]
    foreign = None
    if more:
        free = [one for one in gpu.board.profiles if gpu.free_count(one)]
        foreign = gpu.create(free[0].name) if free else None
    before = list(gpu.instances)
    entry = BootGpu(
        GpuUuid(gpu.uuid),
        tuple(BootSlice(profile=name, start=start, size=size) for name, start, size in wanted),
    )
    host.lab.host.fs.write(DATA, boot_layout.render([entry], ()).encode())
    if foreign is not None and (foreign.profile.name, foreign.start, foreign.profile.size) not in wanted:
        host.run(code=1)
        assert gpu.instances == before
        return
    host.run()
    assert {(one.profile.name, one.start, one.profile.size) for one in gpu.instances} == set(wanted)
    assert all(one in gpu.instances and one.ci is not None for one in before)


SMI = """\
import os, sys
from pathlib import Path
sys.path[:0] = {path!r}
os.geteuid = lambda: 0
from gpufleet.lab.gpus.on_disk import nvidia_smi
sys.exit(nvidia_smi(sys.argv[1:], Path({folder!r}), Path({folder!r}) / "built-in.json"))
"""


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_real_shells_bring_slices_back(shell, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "holders").mkdir()
    (tmp_path / "built-in.json").write_text(json.dumps([{"uuid": UUID, "board": "H100-80GB"}]))
    smi = tmp_path / "bin" / "nvidia-smi"
    (tmp_path / "smi.py").write_text(SMI.format(path=sys.path, folder=str(tmp_path)))
    smi.write_text(f'#!/bin/sh\nexec {sys.executable} -S {tmp_path}/smi.py "$@"\n')
    smi.chmod(0o755)
    ctk = tmp_path / "bin" / "nvidia-ctk"
    ctk.write_text('#!/bin/sh\necho "$*" >"${3#--output=}"\n')
    ctk.chmod(0o755)
    data = tmp_path / "mig-layout"
    data.write_text(layout("3g.40gb:4", "1g.10gb+me:0", uuid=UUID, cdi=(f"{tmp_path}/spec.yaml",)))
    (tmp_path / "boot.sh").write_text(boot_unit.BOOT)

    def boot() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*shell, str(tmp_path / "boot.sh"), str(data)],
            env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
            capture_output=True,
            timeout=120,
            check=False,
        )

    ended = boot()
    assert (ended.returncode, ended.stderr) == (0, b"")
    state = json.loads((tmp_path / "gpus.json").read_text())["gpus"][0]
    assert state["mig"]
    assert {(one["profile"], one["start"]) for one in state["instances"]} == {
        ("3g.40gb", 4),
        ("1g.10gb+me", 0),
    }
    assert "cdi generate" in (tmp_path / "spec.yaml").read_text()
    data.write_text(layout("3g.40gb:4", uuid=UUID))
    ended = boot()
    assert ended.returncode == 1
    assert b"holds 1g.10gb+me:0, which is not in" in ended.stderr


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_real_shells_write_and_take_away_the_files(shell, tmp_path):
    paths = [
        tmp_path / name
        for name in ("gpufleet/boot.sh", "gpufleet/layout", "system/x.service", "wants/x.service")
    ]

    def run(script: str, *words: str) -> str:
        text = f"set -- {' '.join(repr(word) for word in words)}\n"
        done = subprocess.run(
            [*shell, "-s"], input=(text + script).encode(), capture_output=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

    names = [str(path) for path in paths]
    run(boot_unit.WRITE, "echo boot", "end", "[Unit]", "linked", *names)
    assert [path.read_text() for path in paths] == ["echo boot", "end", "[Unit]", "[Unit]"]
    assert paths[3].readlink() == paths[2]
    assert (paths[0].stat().st_mode & 0o777, paths[1].stat().st_mode & 0o777) == (0o755, 0o644)
    assert "@@gf end link 0" in run(boot_unit.LOOK, *names)
    run(boot_unit.WRITE, "", "", "", "", *names)
    assert not any(path.exists() or path.is_symlink() for path in paths)
    assert not paths[0].parent.exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / boot_unit.NAME
    unit.write_text(boot_unit.UNIT)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--generators=no", str(unit)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    said = done.stderr.decode()
    assert "Unknown" not in said, said
    assert "ordering cycle" not in said, said


def test_the_unit_comes_before_what_starts_containers():
    lines = [line for line in boot_unit.UNIT.splitlines() if line.startswith(("Before=", "After="))]
    before = {word for line in lines if line.startswith("Before=") for word in line[7:].split()}
    after = {word for line in lines if line.startswith("After=") for word in line[6:].split()}
    assert {"docker.service", "podman.service", "containerd.service", "nvidia-cdi-refresh.service"} <= before
    assert {
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "systemd-modules-load.service",
    } <= after
    assert not before & after


def test_drift():
    there = [facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)]
    gpu = facts.gpu("a", 0, instances=there)
    assert isinstance(gpu.mig.gpu_instances, Known)
    rows: tuple[GpuInstanceFact, ...] = gpu.mig.gpu_instances.value
    same = [
        BootSlice(profile=one.profile, start=one.start, size=one.size, uuid=f"MIG-a-0-{at}")
        for at, one in enumerate(rows)
    ]

    def standing(*kept: BootSlice, of=gpu) -> Standing:
        return drift(of, Known(BootLayout((BootGpu(gpu.uuid, kept),)))).standing

    assert standing(*same) is Standing.SAME
    assert standing(same[0]) is Standing.DIFFERS
    assert standing(*same, BootSlice(profile="1g.10gb", start=9, size=1)) is Standing.DIFFERS
    renamed = BootSlice(profile=same[0].profile, start=0, size=4, uuid="MIG-other")
    found = drift(gpu, Known(BootLayout((BootGpu(gpu.uuid, (renamed, same[1])),))))
    assert (found.standing, found.renamed) == (Standing.DIFFERS, ("3g.40gb:0",))
    assert standing(*same, of=facts.gpu("a", 0)) is Standing.LOST
    assert drift(gpu, Known(BootLayout())).standing is Standing.NOT_KEPT
    assert drift(facts.gpu("a", 0), Known(BootLayout())).standing is Standing.NOTHING
    assert drift(gpu, Unknown("no answer")).standing is Standing.UNKNOWN
