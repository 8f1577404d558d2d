"""The script in the shells that are installed here, against programs of our own that answer as the real ones do."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gpufleet.hosts.compose import compose
from gpufleet.hosts.model import HostFacts, Known, Symptom, Unknown
from gpufleet.hosts.probes import script
from gpufleet.inventory.model import Become, Runtime
from gpufleet.names import HostName
from tests.unit.hosts.answers import INFO, recorded

SHELLS = [
    shell
    for shell in (["/bin/sh"], ["dash"], ["bash", "--posix"], ["busybox", "ash"])
    if shutil.which(shell[0])
]
ASKING = [shell for shell in SHELLS if shell[0] != "busybox"]
"""Those that ask the PATH for `id`: busybox prefers its own."""


class Machine:
    """A directory of programs that stand for a host's; nothing else is on the PATH before the system's own."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.home = root / "home"
        self.bin.mkdir()
        self.home.mkdir()
        self.program("id", "echo 'uid=1000(kim) gid=1000(kim) groups=1000(kim)'")
        self.program("sudo", "echo 'sudo: a password is required' >&2; exit 1")
        for absent in ("nvidia-ctk", "nvidia-smi"):
            self.program(absent, "exit 127")

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def says(self, name: str, answers: dict[str, tuple[str, int]]) -> None:
        """A program that answers by a word among its arguments."""
        cases = "".join(
            f"*' {word} '*) cat <<'END'\n{text}\nEND\nexit {status};;\n"
            for word, (text, status) in answers.items()
        )
        self.program(name, f'case " $* " in\n{cases}esac\nexit 64')

    def ask(
        self,
        shell: list[str],
        *,
        runtime: Runtime = Runtime.AUTO,
        runtime_path: str | None = None,
        become: Become = Become.AUTO,
        text: str = script.SCRIPT,
    ) -> HostFacts:
        command = script.command(runtime=runtime, runtime_path=runtime_path, become=become)
        words = command.wire().replace(script.SCRIPT.rstrip(), text.rstrip())
        done = subprocess.run(
            [*shell, "-s"],
            input=f"ask() {{\n{words}\n}}\n( ask ) </dev/null\n",
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home), "LC_ALL": "C"},
        )
        sections = script.parse(done.stdout, done.stderr)
        assert "runs" in sections
        return compose(HostName("here"), sections, at="now", noisy_login=False)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    made.says(
        "docker",
        {
            "version": ("26.1.5", 0),
            "info": (json.dumps(INFO | {"DockerRootDir": str(tmp_path)}), 0),
            "ps": ("9f0e" + "0" * 60, 0),
            "inspect": (recorded("containers", "docker-26-gpu-by-uuid").rstrip(), 0),
        },
    )
    return made


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_host_with_everything(machine, shell):
    machine.says(
        "nvidia-ctk", {"--version": ("NVIDIA Container Toolkit CLI version 1.17.8", 0), "cdi": ("", 0)}
    )
    machine.says(
        "nvidia-smi",
        {
            "-L": ("\n".join(recorded("list", "h100-580-slices").splitlines()[:4]), 0),
            "--format=csv,noheader,nounits": (recorded("query", "h100-580-with-header").rstrip(), 0),
            "-q": (recorded("report", "h100-580-slices").rstrip(), 0),
            "-lgi": (recorded("lgi", "h100-580-unsorted").rstrip(), 0),
            "-lci": (recorded("lci", "h100-580-starred").rstrip(), 0),
        },
    )
    runs = machine.home / ".gpufleet" / "runs"
    for name, mark in (("20261130T101010-aaaaaa", None), ("20261130T101010-bbbbbb", "settled")):
        (runs / name).mkdir(parents=True)
        (runs / name / "journal.jsonl").write_text("{}")
        if mark:
            (runs / name / mark).write_text("")
    lease = machine.home / ".gpufleet" / "lease"
    lease.mkdir()
    (lease / "lease.json").write_text(
        '{"token":"t","run":"r","seat":"s","holder":"kim@desk","operation":"deploy"}'
    )
    (lease / "beat-t").write_text("1000000000\n")

    seen = machine.ask(shell)

    assert isinstance(seen.gpus, Known)
    (gpu,) = seen.gpus.value
    assert isinstance(gpu.mig.instances, Known)
    assert [one.profile for one in gpu.mig.instances.value] == ["1c.3g.40gb", "1g.10gb+me", "1g.10gb"]
    assert isinstance(seen.runtime, Known)
    assert (seen.runtime.value.path, seen.runtime.value.version) == (str(machine.bin / "docker"), "26.1.5")
    assert isinstance(seen.containers, Known)
    assert [one.name for one in seen.containers.value] == ["chat-0"]
    assert seen.toolkit == Known("1.17.8")
    assert isinstance(seen.disks, Known)
    assert {"/", str(machine.home)} <= {disk.path for disk in seen.disks.value}
    assert isinstance(seen.listening, Known)
    if shell in ASKING:
        assert seen.sudo == Known(False)
    assert seen.open_runs == Known(("20261130T101010-aaaaaa",))
    assert seen.lease == Known("kim@desk deploy r")
    assert [symptom.code for symptom in seen.symptoms] == ["lease-stale"]


def test_free_space_is_asked_where_the_runtime_keeps_its_data(machine, tmp_path):
    seen = machine.ask(["/bin/sh"])
    assert isinstance(seen.disks, Known)
    assert str(tmp_path) in {disk.path for disk in seen.disks.value}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_socket_that_refuses_is_tried_through_sudo(machine, shell):
    machine.program("docker", '[ "$(cat "$HOME/root" 2>/dev/null)" = yes ] || { echo "permission denied" >&2; exit 1; }\n'
                    'case "$1" in version) echo 26.1.5;; info) cat "$HOME/info";; ps) ;; esac')  # fmt: skip
    (machine.home / "info").write_text(json.dumps(INFO))
    refused = machine.ask(shell)
    assert isinstance(refused.runtime, Unknown)
    assert refused.symptoms[0].code == "runtime-refused"

    machine.program("sudo", 'shift; echo yes >"$HOME/root"; "$@"; status=$?; rm "$HOME/root"; exit $status')
    opened = machine.ask(shell)
    assert isinstance(opened.runtime, Known)
    assert opened.runtime.value.needs_sudo is True
    assert opened.containers == Known(())

    never = machine.ask(shell, become=Become.NEVER)
    assert isinstance(never.runtime, Unknown)
    assert isinstance(never.sudo, Unknown)


@pytest.mark.parametrize("become", [Become.AUTO, Become.ALWAYS])
@pytest.mark.parametrize("shell", ASKING, ids=" ".join)
def test_root_is_not_asked_for_sudo(machine, shell, become):
    machine.program("id", "echo 'uid=0(root) gid=0(root) groups=0(root)'")
    machine.program("sudo", 'touch "$HOME/asked"; exit 1')
    seen = machine.ask(shell, become=become)
    assert seen.user == Known("root")
    assert seen.sudo == Known(True)
    assert isinstance(seen.runtime, Known)
    assert not (machine.home / "asked").exists()


@pytest.mark.parametrize("shell", ASKING, ids=" ".join)
def test_a_user_id_that_only_begins_with_0_is_not_root(machine, shell):
    machine.program("id", "echo 'uid=0123(kim) gid=1(kim) groups=1(kim)'")
    assert machine.ask(shell).sudo == Known(False)


@pytest.mark.parametrize("shell", ASKING, ids=" ".join)
@pytest.mark.parametrize(
    ("told", "status", "known"),
    [
        ("No GPU instances found: Not Found", 6, True),
        ("|   0  MIG 1g.10gb          19        7          0:1     |", 0, True),
        ("", 1, False),  # sudo that wants a password prints nothing here
    ],
)
def test_what_nvidia_smi_tells_root_is_taken_however_it_ends(machine, shell, told, status, known):
    refused = ("Insufficient Permissions", 4)
    on = "0, GPU-0d0831da-0c98-2717-6446-8acd91d39b65, NVIDIA H100, 00000000:01:00.0, 580.95.05, 81559, 0, 30, [N/A], Enabled, Enabled"
    machine.says(
        "nvidia-smi",
        {
            "-L": ("GPU 0: NVIDIA H100 (UUID: GPU-0d0831da-0c98-2717-6446-8acd91d39b65)", 0),
            "--format=csv,noheader,nounits": (on, 0),
            "-q": ("", 255),
            "-lgi": refused,
            "-lci": refused,
        },
    )
    machine.program("sudo", f"[ -z '{told}' ] || echo '{told}'; exit {status}")
    seen = machine.ask(shell)
    assert isinstance(seen.gpus, Known)
    (gpu,) = seen.gpus.value
    assert gpu.mig.current == Known(True)
    assert isinstance(gpu.mig.gpu_instances, Known) == known, gpu.mig.gpu_instances
    if known:
        assert len(gpu.mig.gpu_instances.value) == (status == 0)
    else:
        assert "Insufficient Permissions" in gpu.mig.gpu_instances.reason


@pytest.mark.skipif(not shutil.which("timeout"), reason="timeout is not installed")
def test_a_program_that_hangs_costs_its_own_answer_alone(machine):
    machine.program("docker", "sleep 30")
    seen = machine.ask(
        ["/bin/sh"], text=script.SCRIPT.replace(f"timeout {script.PROBE_SECONDS}", "timeout 1")
    )
    assert isinstance(seen.runtime, Unknown)
    assert seen.symptoms[0] == Symptom("runtime-silent", f"no answer within {script.PROBE_SECONDS} s")
    assert isinstance(seen.listening, Known)


def test_a_program_that_reads_its_input_does_not_eat_the_script(machine):
    machine.program("docker", "cat; exit 1")
    assert isinstance(machine.ask(["/bin/sh"]).open_runs, Known)


def test_the_runtime_of_the_inventory_is_taken(machine, tmp_path):
    special = tmp_path / "opt dir"
    special.mkdir()
    shutil.copy(machine.bin / "docker", special / "podman")
    seen = machine.ask(["/bin/sh"], runtime_path=str(special / "podman"))
    assert isinstance(seen.runtime, Known)
    assert (seen.runtime.value.kind, seen.runtime.value.path) == ("podman", str(special / "podman"))

    missing = machine.ask(["/bin/sh"], runtime_path="/nowhere/docker; touch /tmp/owned")
    assert missing.symptoms[0].code == "runtime-missing"


def test_a_runtime_of_a_kind_that_is_not_there_is_not_replaced(machine):
    seen = machine.ask(["/bin/sh"], runtime=Runtime.NERDCTL)
    assert seen.symptoms[0].code == "runtime-missing"


def test_the_script_stays_in_the_dialect():
    """Hosts may have no python, perl, awk, sed or jq, and the shell may be dash or busybox."""
    words = set(script.SCRIPT.replace("(", " ").replace(")", " ").split())
    assert not words & {
        "python",
        "python3",
        "perl",
        "awk",
        "sed",
        "jq",
        "[[",
        "function",
        "declare",
        "local",
        "<<<",
    }
    assert "&>" not in script.SCRIPT
    assert not any(line.rstrip().endswith("\\") for line in script.SCRIPT.splitlines())


def test_text_between_sections_spoils_the_one_before():
    stream = "@@gf begin list\na\n\n@@gf end list 0\nforged\n@@gf begin query\nb\n\n@@gf end query 0\n"
    assert set(script.parse(stream, "")) == {"query"}


def test_a_section_without_an_end_is_left_out():
    assert script.parse("@@gf begin list\nGPU 0: half a li", "") == {}
