"""The real hosts themselves: they are what they claim to be, they break as told, and they leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import base, faults, snapshot
from tests.real.fleet import Fleet, leftovers, only_one, sweep
from tests.real.hosts import Site
from tests.real.machine import Failed, run, until

ROOT = Path(__file__).parents[2]


def test_each_host_answers_by_its_own_name_and_its_own_docker(fleet: Fleet) -> None:
    names = {name: fleet.ssh(name, "hostname").strip() for name in fleet.hosts}
    engines = {fleet.ssh(name, "docker info --format '{{.ID}}'").strip() for name in fleet.hosts}
    assert names == {name: name for name in fleet.hosts}
    assert len(engines) == len(fleet.hosts)


def test_each_trio_runs_the_docker_of_its_release(fleet: Fleet) -> None:
    versions = {"trixie": "26.1", "bookworm": "20.10"}
    asked = "docker version --format '{{.Server.Version}}'"
    for name, host in fleet.hosts.items():
        assert fleet.ssh(name, asked).startswith(f"{versions[base.release_of(host.number)]}."), name


def test_a_container_gets_the_gpu_it_was_given_and_serves(fleet: Fleet) -> None:
    host, image = fleet.hosts["h1"], fleet.images["v0.11.2"]
    gpu = host.gpus[2]
    fleet.ssh("h1", f"docker pull -q {image}")
    fleet.ssh(
        "h1",
        f"""docker run -d --name served --gpus '"device={gpu}"' -p 8123:8000 {image} some/model --served-model-name m""",
    )
    try:
        until(
            lambda: fleet.ssh_answer("h1", "curl -sf http://127.0.0.1:8123/health").returncode == 0,
            within=20,
            what="engine is ready",
        )
        assert '"id": "m"' in fleet.ssh("h1", "curl -sf http://127.0.0.1:8123/v1/models")
        wish = '{"model": "m", "stream": true, "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}'
        streamed = fleet.ssh("h1", f"curl -sfN http://127.0.0.1:8123/v1/chat/completions -d '{wish}'")
        assert streamed.count("data: ") == 5
        assert streamed.endswith("data: [DONE]\n\n")
        assert "vllm:num_requests_running" in run("curl", "-sf", f"http://{host.address}:8123/metrics").stdout
        given = fleet.ssh("h1", "docker inspect served --format '{{json .HostConfig.DeviceRequests}}'")
        assert gpu in given
        assert gpu in host.shell("tail -n 1 /run/host/devices.log")
    finally:
        fleet.ssh("h1", "docker rm -f served")


def test_a_gpu_that_the_host_does_not_have_is_refused_as_nvidias_hook_does(fleet: Fleet) -> None:
    command = f"""docker run --rm --gpus '"device=GPU-none"' {fleet.images["v0.11.2"]} m"""
    answer = fleet.ssh_answer("h1", command)
    assert answer.returncode == 125
    assert "nvidia-container-cli: device error: GPU-none: unknown device" in answer.stderr


def test_without_the_toolkit_docker_knows_no_gpu_driver(fleet: Fleet) -> None:
    host = fleet.hosts["h2"]
    with faults.hook_gone(host):
        answer = fleet.ssh_answer("h2", f"docker run --rm --gpus all {fleet.images['v0.11.2']} m")
    assert answer.returncode == 125
    assert 'could not select device driver "" with capabilities: [[gpu]]' in answer.stderr


@pytest.mark.parametrize(
    ("user", "command", "exit_code", "text"),
    [
        ("ops", "sudo -n id -u", 0, "0"),
        ("pwops", "sudo -n true", 1, "a password is required"),
        ("nosudo", "sudo -n true", 1, "a password is required"),
        ("nodock", "docker ps", 1, "permission denied"),
        ("noisy", "echo done", 0, "### welcome to the cluster ###\ndone"),
        ("fishy", "echo $FISH_VERSION | string match -r '^[0-9]'", 0, ""),
        ("cshy", "echo $tcsh | grep -c '^6'", 0, "1"),
        ("nologin", "true", 1, "This account is currently not available."),
    ],
)
def test_accounts_differ_as_operators_accounts_do(
    fleet: Fleet, user: str, command: str, exit_code: int, text: str
) -> None:
    answer = fleet.ssh_answer("h1", command, user=user)
    assert answer.returncode == exit_code, answer
    assert text in answer.stdout + answer.stderr


def test_a_changed_host_key_is_noticed_by_openssh(fleet: Fleet) -> None:
    with faults.host_key_changed(fleet.hosts["h2"]):
        answer = fleet.ssh_answer("h2", "true")
    assert answer.returncode == 255
    assert "Host key verification failed" in answer.stderr
    assert fleet.ssh("h2", "echo back") == "back\n"


def test_a_full_disk_refuses_a_container_and_is_given_back(fleet: Fleet) -> None:
    command = f"docker run --rm --entrypoint true {fleet.images['v0.11.2']}"
    with faults.disk_full(fleet.hosts["h2"], "/var/lib/docker"):
        answer = fleet.ssh_answer("h2", command)
    assert answer.returncode == 125
    assert "no space left on device" in answer.stderr
    fleet.ssh("h2", command)


def test_a_cut_link_a_stopped_sshd_and_a_frozen_docker_look_different(fleet: Fleet) -> None:
    host = fleet.hosts["h3"]
    with faults.link_cut(host):
        assert (
            run(
                "ssh", "-F", fleet.path("ssh_config"), "-o", "ConnectTimeout=1", "h3", "true", check=False
            ).returncode
            == 255
        )
    with faults.service(host, "ssh", "stop"):
        assert "Connection refused" in fleet.ssh_answer("h3", "true").stderr
    with faults.service(host, "docker", "freeze"):
        assert fleet.ssh_answer("h3", "timeout 1 docker ps").returncode == 124
    assert fleet.ssh("h3", "docker ps -q")


def test_a_host_comes_back_from_power_off_with_its_key_and_its_containers(fleet: Fleet) -> None:
    before = snapshot.look(fleet, ["h3"])
    with faults.powered_off(fleet, fleet.hosts["h3"]):
        assert not fleet.hosts["h3"].is_on
    assert snapshot.settled_as(fleet, before) == []


def test_a_difference_names_what_is_lost_and_what_is_left_over(fleet: Fleet) -> None:
    before = snapshot.look(fleet, ["h1"])
    fleet.ssh("h1", f"docker create --name extra {fleet.images['v0.11.2']} m")
    after = snapshot.look(fleet, ["h1"])
    fleet.ssh("h1", "docker rm extra")
    assert [line.split("\t")[1] for line in snapshot.difference(before, after)] == ["extra"]
    assert snapshot.difference(after, before)[0].startswith("h1: lost")
    assert snapshot.difference(before, snapshot.look(fleet, ["h1"])) == []


def test_an_absent_image_is_absent_by_tag_and_by_digest(fleet: Fleet) -> None:
    repository = fleet.images["v0.11.2"].partition("@")[0]
    for reference in (f"{repository}:nosuch", f"{repository}@sha256:{'0' * 64}"):
        answer = fleet.ssh_answer("h1", f"docker pull -q {reference}")
        assert answer.returncode == 1
        assert "manifest unknown" in answer.stderr


@pytest.fixture
def second_site() -> Site:
    return Site(
        name="gpufleet-second", short="gfmore", network="10.78.0", directory=Path("/var/lib/gpufleet-second")
    )


def test_a_fleet_whose_session_was_killed_is_found_and_removed(second_site: Site) -> None:
    """kill -9 of the process that holds a fleet: its hosts live on, and the next start removes them all."""
    environment = {**os.environ, "GPUFLEET_REAL_SITE": "10.78.0/gpufleet-second", "PYTHONPATH": str(ROOT)}
    other = subprocess.Popen(
        (sys.executable, "-m", "tests.real.fleet", "up", "2", "--bare"),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline().startswith("up in ")
        other.send_signal(signal.SIGKILL)
    finally:
        other.kill()
        other.communicate()
    with only_one(second_site):
        assert any(line.startswith("process ") for line in leftovers(second_site))
        sweep(second_site)
        assert leftovers(second_site) == []


def test_a_fleet_whose_session_was_killed_while_starting_is_removed_too(second_site: Site) -> None:
    environment = {**os.environ, "GPUFLEET_REAL_SITE": "10.78.0/gpufleet-second", "PYTHONPATH": str(ROOT)}
    other = subprocess.Popen(
        (sys.executable, "-m", "tests.real.fleet", "up", "3", "--bare"), cwd=ROOT, env=environment
    )
    try:
        until(
            lambda: any(line.startswith("process ") for line in leftovers(second_site)),
            within=60,
            what="a first process",
        )
    finally:
        other.kill()
        other.wait()
    with only_one(second_site):
        sweep(second_site)
        assert leftovers(second_site) == []


def test_a_failing_program_of_the_harness_says_what_it_printed() -> None:
    with pytest.raises(Failed, match=r"-> 3\nout\nerr"):
        run("sh", "-c", "echo out; echo err >&2; exit 3")
