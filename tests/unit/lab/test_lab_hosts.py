"""A simulated host: files and rights, sudo, signals, background jobs, processes."""

from __future__ import annotations

import pytest

from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.shell.run import Ended
from gpufleet.lab.simfs import Denied, FsError, Full, NotFound, normal
from tests.kit.lab_kit import LabClock


@pytest.fixture
def host() -> LabHost:
    return build_fleet([HostWish(name="gpu-01")], LabClock())["gpu-01"]


def out(host: LabHost, text: str, **more) -> str:
    ended = host.sh(text, **more)
    assert ended.code == 0, ended
    return ended.stdout.decode()


def test_normal_paths():
    assert normal("a/../b/./c//d", "/x") == "/x/b/c/d"
    assert normal("../../..", "/x/y") == "/"


def test_rights_are_asked_for(host):
    fs = host.host.fs
    fs.write("/root/secret", b"x", mode=0o600)
    fs.chmod("/root", 0o755)
    with pytest.raises(Denied):
        fs.read("/root/secret", "ops")
    with pytest.raises(Denied):
        fs.mkdir("/etc/mine", "ops")
    with pytest.raises(NotFound):
        fs.read("/no/such")
    assert host.sh("cat /root/secret").code == 1
    assert out(host, "sudo -n cat /root/secret") == "x"
    assert host.sh("echo x > /etc/passwd-new").code == 2


def test_rename_is_atomic_and_picky(host):
    fs = host.host.fs
    fs.write("/srv/a", b"1")
    fs.write("/srv/b", b"2")
    fs.rename("/srv/a", "/srv/b")
    assert fs.read("/srv/b") == b"1"
    fs.mkdir("/srv/d")
    fs.write("/srv/d/f", b"")
    with pytest.raises(FsError, match="Is a directory"):
        fs.rename("/srv/b", "/srv/d")
    fs.mkdir("/srv/e")
    with pytest.raises(FsError, match="not empty"):
        fs.rename("/srv/e", "/srv/d")
    with pytest.raises(FsError, match="Invalid argument"):
        fs.rename("/srv/d", "/srv/d/g")


def test_a_disk_counts_what_is_written_and_gives_it_back(host):
    fs = host.host.fs
    disk = fs.disk_of("/srv")
    before = disk.used_kib
    fs.write("/srv/big", b"x" * 10_240)
    assert disk.used_kib == before + 10
    fs.unlink("/srv/big")
    assert disk.used_kib == before
    disk.full = True
    with pytest.raises(Full):
        fs.write("/srv/more", b"x")


def test_a_host_with_a_full_disk_comes_up_again(host):
    """What the kernel shows under /proc takes no room on a disk."""
    host.host.fs.disk_of("/srv").full = True
    host.power_off(0)
    host.power_on()
    assert not host.dead
    host.host.fs.write("/proc/made-up", b"x")
    with pytest.raises(Full):
        host.host.fs.write("/srv/more", b"x")


def test_links_that_turn_in_a_circle(host):
    host.host.fs.link("/srv/two", "/srv/one")
    host.host.fs.link("/srv/one", "/srv/two")
    with pytest.raises(FsError, match="Too many levels"):
        host.host.fs.read("/srv/one")


def test_sudo_keeps_home_and_names_apart(host):
    assert out(host, "sudo -n sh -c 'id -un; echo $HOME; echo $SUDO_USER'") == "root\n/root\nops\n"
    assert out(host, "cd /; sudo -n mkdir -p /opt/x && ls -ld /opt/x | cut -d' ' -f3") == "root\n"
    assert host.sh("sudo -n nope-nope").stderr == b"sudo: nope-nope: command not found\n"
    refused = host.sh("sudo id", user="pwops")
    assert b"a terminal is required to read the password" in refused.stderr


@pytest.mark.parametrize(
    ("script", "code", "stdout"),
    [
        ("sh -c 'kill -TERM $$; echo no'", 143, ""),
        ("sh -c 'trap \"echo caught\" TERM; kill -TERM $$; echo on'", 0, "caught\non\n"),
        ("sh -c 'kill -9 $$; echo no'; echo $?", 0, "137\n"),
        ("{ sleep 100; echo no; } & pid=$!; kill $pid; wait $pid; echo $?", 0, "143\n"),
        ("sleep 1 & kill -0 $! && echo alive", 0, "alive\n"),
        (
            "kill -0 $$ && [ -d /proc/$$ ] && cut -d ' ' -f 5 /proc/$$/stat | grep -qx $$ && echo leader",
            0,
            "leader\n",
        ),
    ],
)
def test_signals_and_jobs(host, script, code, stdout):
    ended = host.sh(script)
    assert (ended.code, ended.stdout.decode()) == (code, stdout)


def test_a_process_that_ended_is_gone_from_proc(host):
    pid = out(host, "sh -c 'echo $$'").strip()
    assert host.sh(f"[ -e /proc/{pid}/stat ]").code == 1
    assert host.sh(f"kill -0 {pid}").code == 1
    assert host.host.processes == {}


def test_a_job_in_the_background_ends_when_its_time_has_come(host):
    pid = out(host, "sleep 20 >/dev/null & echo $!").strip()
    assert host.sh(f"kill -0 {pid}").code == 0
    host.host.clock.sleep(21)
    assert host.sh(f"kill -0 {pid}").code == 1


def test_time_passes_by_sleeping_only(host):
    assert out(host, "a=$(date +%s); sleep 90; b=$(date +%s); echo $((b - a))") == "90\n"
    assert host.sh("timeout 5 sh -c 'timeout 50 sleep 60'; echo $?").stdout == b"124\n"
    assert (
        host.sh("timeout 50 sh -c 'timeout 5 sleep 60; echo inner $?'; echo $?").stdout == b"inner 124\n0\n"
    )


def test_services_and_ports(host):
    assert out(host, "systemctl is-active docker") == "active\n"
    assert host.sh("systemctl stop docker").code == 1
    assert (
        out(host, "sudo -n systemctl stop docker; systemctl is-active docker || echo $?") == "inactive\n3\n"
    )
    assert out(host, "ss -Htln | wc -l | tr -d ' '") == "1\n"


def test_faults_from_a_shell_on_the_host(host):
    assert out(host, "lab-fault daemon-killed; docker ps 2>&1 || true").startswith("Cannot connect")
    assert host.sh("lab-fault nonsense").code == 2
    for words in ("engine", "engine nonsense", "port-taken x", "port-taken 70000"):
        refused = host.sh(f"lab-fault {words}")
        assert refused.code == 2, words
    assert b"never-ready" in host.sh("lab-fault engine nonsense 2>&1").stdout
    assert host.sh("lab-fault engine gated").code == 0


def test_a_host_without_some_programs():
    bare = build_fleet([HostWish(name="h", gpus="", without=frozenset({"docker", "curl"}))], LabClock())["h"]
    assert bare.sh("docker ps; echo $?").stdout == b"127\n"
    assert bare.sh("command -v curl || echo none").stdout == b"none\n"
    assert bare.sh("nvidia-smi; echo $?").stdout == b"127\n"


def test_reboot_changes_the_boot_id_and_keeps_files(host):
    before = out(host, "echo x > kept; cat /proc/sys/kernel/random/boot_id")
    host.power_off(0)
    host.power_on()
    assert out(host, "cat kept; cat /proc/sys/kernel/random/boot_id") != f"x\n{before}"
    assert out(host, "cat kept") == "x\n"


def test_where_curl_is_missing_python_in_the_container_asks():
    wish = HostWish(name="h", without=frozenset({"curl"}), images=("vllm/vllm-openai:v1",))
    bare = build_fleet([wish], LabClock())["h"]
    bare.sh(
        "docker run -d --name mm -e VLLM_API_KEY=kk --entrypoint vllm vllm/vllm-openai:v1 serve some/model"
    )
    ask = (
        "printf kk | docker exec -i mm python3 -c 'import urllib.request' http://127.0.0.1:8000/v1/models ''"
    )
    assert bare.sh(ask).stdout.endswith(b"\nstatus 000\n")
    bare.host.clock.sleep(5)
    ended: Ended = bare.sh(ask)
    assert b"some/model" in ended.stdout
    assert ended.stdout.endswith(b"\nstatus 200\n")
