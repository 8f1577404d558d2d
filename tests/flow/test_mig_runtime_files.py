"""Device files of capabilities and CDI specifications after a change, on simulated hosts and in real shells."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import replace

import pytest

from gpufleet.change.flow import Tools, run_change
from gpufleet.change.model import CannotTell, Check, Fails, Holds, Plan, Step, Verdict
from gpufleet.errors import RolledBack
from gpufleet.hosts.model import Known
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus import cdi
from gpufleet.lab.gpus.kernel_files import capability
from gpufleet.lab.memory import MemoryTransport
from gpufleet.mig import runtime_files
from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit
from tests.kit.lab_kit import LabClock

HOST = HostName("gpu-01")
SHELLS = [
    words
    for words in (("dash",), ("bash", "--posix"), ("busybox", "sh"))
    if shutil.which(words[0]) is not None
]


class Desk:
    def __init__(self, path, **more) -> None:
        wish = {"name": "gpu-01", "gpus": "2xH100-80GB", "layouts": {0: ("1g.10gb:0",)}, "cdi": True, **more}
        self.fleet = build_fleet([HostWish(**wish)], LabClock())
        self.lab: LabHost = self.fleet["gpu-01"]
        self.transport = MemoryTransport(self.fleet)
        self.tools = Tools(
            transport=self.transport,
            clock=self.lab.host.clock,
            predicates=runtime_files.PREDICATES,
            state_dir=path / "state",
            operator="ann@desk pid 1",
        )

    def ask(self, command: Command) -> Exit:
        answer = self.transport.open(HOST).run(command)
        assert isinstance(answer, Exit), answer
        return answer

    def fresh(self, *data: str) -> Verdict:
        return runtime_files.fresh(self.ask(runtime_files.look()), data or (runtime_files.STRICT,))

    def refresh(self, create: str = "") -> Exit:
        return self.ask(runtime_files.refresh(create))

    def smi(self, words: str) -> None:
        ended = self.lab.sh(f"nvidia-smi {words}", user="root")
        assert ended.code == 0, ended


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def test_a_host_as_it_was_set_up_is_fresh(desk):
    assert desk.fresh() == Holds()


def test_case_20_a_specification_from_before_the_change(desk):
    desk.smi("mig -i 0 -cgi 3g.40gb:4 -C")
    new = desk.lab.gpus.gpus[0].devices()[0][1]
    run = f"docker run -d --device nvidia.com/gpu={new.uuid} busybox:1 sleep 9"
    desk.lab.containers.add_image("busybox:1")
    refused = desk.lab.sh(run, user="root")
    assert b"unresolvable CDI devices" in refused.stderr
    desk.smi("-L")
    verdict = desk.fresh()
    assert isinstance(verdict, Fails)
    assert f"does not name slice {new.uuid}" in verdict.reason
    assert "/etc/cdi/nvidia.yaml" in verdict.hint
    assert desk.refresh().code == 0
    assert desk.fresh(runtime_files.STRICT, new.uuid) == Holds()
    assert desk.lab.sh(run, user="root").code == 0


def test_stale_names_are_found(desk):
    old = desk.lab.gpus.gpus[0].devices()[0][1]
    desk.smi(f"mig -i 0 -gi {old.gi} -ci 0 -dci")
    desk.smi(f"mig -i 0 -gi {old.gi} -dgi")
    desk.smi("mig -i 0 -cgi 2g.20gb:2 -C")
    desk.smi("-L")
    assert isinstance(desk.fresh(runtime_files.STRICT, old.uuid), Fails)
    verdict = desk.fresh()
    assert isinstance(verdict, Fails)
    assert desk.refresh().code == 0
    assert desk.fresh() == Holds()
    assert old.uuid not in cdi.named(desk.lab.host)


def test_case_27_device_files_of_new_instances(desk):
    desk.smi("mig -i 0 -cgi 1g.10gb:4 -C")
    new = next(one for one in desk.lab.gpus.gpus[0].instances if one.start == 4)
    verdict = desk.fresh()
    assert isinstance(verdict, Fails)
    assert f"nvidia-cap{capability(0, new.gi)} is missing" in verdict.reason
    assert desk.refresh().code == 0
    assert desk.fresh() == Holds()
    names = desk.lab.host.fs.names("/dev/nvidia-caps")
    assert {f"nvidia-cap{capability(0, new.gi)}", f"nvidia-cap{capability(0, new.gi, 0)}"} <= set(names)


def test_nothing_can_be_written_while_a_gpu_is_empty(desk):
    desk.smi("-i 1 -mig 1")
    assert desk.refresh().code == 0
    assert desk.fresh() == Holds()
    desk.smi("mig -i 0 -cgi 1g.10gb:4 -C")
    assert desk.refresh().code == 0
    verdict = desk.fresh()
    assert isinstance(verdict, Fails)
    assert "GPU 1 has MIG on and no slice" in verdict.reason
    assert desk.fresh(runtime_files.LENIENT) == Holds()


def test_the_toolkits_own_service_is_restarted(desk):
    host = desk.lab.host
    cdi.add_refresh(host, desk.lab.gpus)
    host.fs.unlink(cdi.PLACE)
    desk.smi("mig -i 0 -cgi 1g.10gb:4 -C")
    assert desk.refresh().code == 0
    assert desk.fresh() == Holds()
    assert not host.fs.exists(cdi.PLACE)


def test_a_specification_is_begun_only_when_asked_for(desk):
    desk.lab.host.fs.unlink(cdi.PLACE)
    desk.lab.host.fs.write("/etc/cdi/other.yaml", b"kind: k8s.device-plugin.nvidia.com/gpu\n")
    assert desk.refresh().code == 0
    assert not desk.lab.host.fs.exists(cdi.PLACE)
    assert desk.fresh() == Holds()
    assert desk.refresh(runtime_files.PLACE).code == 0
    assert desk.lab.host.fs.exists(cdi.PLACE)
    assert desk.fresh() == Holds()


def test_without_the_toolkit_there_is_only_the_device_files(tmp_path):
    desk = Desk(tmp_path, toolkit=False)
    desk.smi("mig -i 0 -cgi 1g.10gb:4 -C")
    assert desk.refresh().code == 0
    assert desk.fresh() == Holds()


def test_no_answer_of_nvidia_smi_is_not_no_slices(desk):
    desk.lab.gpus.trouble = "no-driver"
    assert isinstance(desk.fresh(), CannotTell)


def plan(last: str) -> Plan:
    guard = runtime_files.guard_step(HOST)

    def step(name: str, do: str, undo: str, after: Step) -> Step:
        return Step(
            id=StepId(name),
            host=HOST,
            title=name,
            do=(Command(script=do, mutates=True, become=True),),
            undo=(Command(script=undo, mutates=True, become=True),) if undo else (),
            verify=Check(look=Command(script=":", mutates=False), expect="runtime-files-any"),
            after=frozenset({after.id}),
        )

    make = step(
        "make",
        "nvidia-smi mig -i 0 -cgi 1g.10gb:4 -C",
        "nvidia-smi mig -i 0 -gi 11 -ci 0 -dci && nvidia-smi mig -i 0 -gi 11 -dgi",
        guard,
    )
    files = runtime_files.refresh_step(HOST, after=frozenset({make.id}))
    return Plan(title="x", command="x", steps=(guard, make, files, step("last", last, "", files)))


def test_a_change_leaves_the_files_fresh_both_ways(desk):
    before = cdi.named(desk.lab.host)
    with pytest.raises(RolledBack):
        run_change(plan("exit 1"), desk.tools, on_commit=lambda _run, _context: None)
    assert (cdi.named(desk.lab.host), desk.fresh()) == (before, Holds())
    run_change(plan("exit 0"), desk.tools, on_commit=lambda _run, _context: None)
    assert len(cdi.named(desk.lab.host)) == len(before) + 2
    assert desk.fresh() == Holds()


SMI = """#!/bin/sh
case $1 in
-L) printf 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0d0831da-0c98-2717-6446-8acd91d39b65)\\n'
    printf '  MIG 1g.10gb     Device  0: (UUID: MIG-8443519f-66f7-5962-8955-60dba0866f3a)\\n' ;;
*) printf '0, Enabled\\n' ;;
esac
"""
CTK = """#!/bin/sh
printf 'nvidia.com/gpu=0:0\\nnvidia.com/gpu=all\\n'
"""


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_real_shells_run_the_look(shell, tmp_path):
    for name, text in (("nvidia-smi", SMI), ("nvidia-ctk", CTK)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    done = subprocess.run(
        [*shell, "-s"],
        input=frame(runtime_files.look(), "m"),
        capture_output=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        timeout=60,
        check=False,
    )
    answer = unframe(done.stdout, done.stderr, "m").exit
    assert answer is not None
    seen = runtime_files.read(answer)
    assert seen.slices == Known({"MIG-8443519f-66f7-5962-8955-60dba0866f3a": "0:0"})
    assert seen.names == Known(frozenset({"0:0", "all"}))
    assert seen.empty == ()
    checked = subprocess.run(
        [*shell, "-n"], input=runtime_files.REFRESH.encode(), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, b"")


ROOM = """
set -e
mount -t tmpfs none /etc
mount -t tmpfs none /run
mkdir -p /etc/cdi /var/run/cdi
printf 'kind: nvidia.com/gpu\\n' >/etc/cdi/nvidia.yaml
printf 'kind: k8s.device-plugin.nvidia.com/gpu\\n' >/etc/cdi/other.yaml
printf '{"kind": "nvidia.com/gpu"}\\n' >/var/run/cdi/nvidia.json
"$@" -s
cat /etc/cdi/other.yaml
"""
WRITES = """#!/bin/sh
[ "$1 $2" = 'cdi generate' ] || exit 64
[ -z "$(cat "$0.refuses" 2>/dev/null)" ] || { echo 'level=error msg="failed"' >&2; exit 1; }
printf '%s\\n' "$*" >>"$0.calls"
"""


def own_room() -> bool:
    """Whether this user may have an /etc of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    trial = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/etc"]
    return subprocess.run(trial, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_real_shells_write_specifications_where_they_found_them(shell, tmp_path):
    if not own_room():
        pytest.skip("needs root and namespaces for an /etc of its own")
    for name, text in (("nvidia-smi", SMI), ("nvidia-ctk", WRITES)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)

    def refresh() -> Exit:
        done = subprocess.run(
            ["unshare", "-m", "/bin/sh", "-c", ROOM, "sh", shutil.which(shell[0]) or "", *shell[1:]],
            input=frame(replace(runtime_files.refresh(runtime_files.PLACE), become=False), "m"),
            capture_output=True,
            env={"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin"},
            timeout=60,
            check=False,
        )
        answer = unframe(done.stdout, done.stderr, "m").exit
        assert answer is not None, done
        return answer

    assert refresh().code == 0
    calls = (tmp_path / "nvidia-ctk.calls").read_text().splitlines()
    assert calls == [
        "cdi generate --format=yaml --output=/etc/cdi/nvidia.yaml",
        "cdi generate --format=json --output=/var/run/cdi/nvidia.json",
    ]
    (tmp_path / "nvidia-ctk.refuses").write_text("yes")
    failed = refresh()
    assert failed.code == 1
    assert "cannot be written: nvidia-ctk cdi generate --format=yaml" in failed.stderr
    (tmp_path / "nvidia-smi").write_text(
        SMI.replace("  MIG 1g", "  NO 1g")
    )  # MIG is on, and there is no slice
    assert refresh().code == 0
