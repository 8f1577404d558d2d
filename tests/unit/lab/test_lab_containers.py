"""Simulated docker and podman say what the real ones say, and containers live as theirs do."""

from __future__ import annotations

import json

import pytest

from gpufleet.lab.containers.model import Daemon
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.simhost import Listener
from tests.kit.lab_kit import LabClock

IMAGE = "vllm/vllm-openai:v0.33.0"
RUN = f"docker run -d --name m1 -p 8000:8000 --entrypoint vllm {IMAGE} serve some/model"


def lab(**more) -> LabHost:
    wish = HostWish(**{"name": "gpu-01", "address": "127.77.0.1", "images": (IMAGE,), **more})
    return build_fleet([wish], LabClock())["gpu-01"]


def sh(host: LabHost, text: str, *, user: str = "ops", ok: bool = True) -> str:
    ended = host.sh(text, user=user)
    assert not ok or ended.code == 0, ended
    return ended.stdout.decode()


def fails(host: LabHost, text: str, code: int, words: str, *, user: str = "ops") -> str:
    ended = host.sh(text, user=user)
    assert ended.code == code, ended
    assert words in ended.stderr.decode()
    return ended.stdout.decode()


def state(host: LabHost, name: str = "m1") -> str:
    return sh(host, f"docker inspect --format '{{{{.State.Status}}}} {{{{.State.ExitCode}}}}' {name}").strip()


def test_a_container_from_run_to_rm():
    host = lab()
    identity = sh(host, RUN).strip()
    assert len(identity) == 64
    assert sh(host, "docker ps -q --no-trunc") == f"{identity}\n"
    assert (
        sh(host, "docker ps --format '{{.ID}} {{.Names}} {{.Status}}'")
        == f"{identity[:12]} m1 Up Less than a second\n"
    )
    host.host.clock.sleep(3)
    assert sh(host, "docker ps --format '{{.Status}}'") == "Up 3 seconds\n"
    assert "Application startup complete." in sh(host, "docker logs m1 2>&1")
    assert sh(host, "docker logs --tail 1 m1").count("\n") == 1
    assert sh(host, "docker stop -t 5 m1") == "m1\n"
    assert state(host) == "exited 0"
    assert sh(host, "docker ps -q") == ""
    assert sh(host, "docker start m1") == "m1\n"
    assert state(host) == "running 0"
    fails(host, "docker rm m1", 1, "container is running: stop the container before removing or force remove")
    assert sh(host, "docker rm -f m1") == "m1\n"
    assert sh(host, "docker ps -aq") == ""
    fails(host, "docker inspect m1", 1, "Error: No such object: m1")


def test_what_inspect_says_of_every_option():
    host = lab()
    gpu = host.gpus.gpus[2].uuid
    sh(
        host,
        "umask 077; printf 'A=1\\nVLLM_API_KEY=k e y\\n' > e\n"
        f"docker run -d --name m2 --restart on-failure:3 --stop-timeout 90 --gpus '\"device={gpu}\"' --ipc host"
        " --ulimit memlock=-1 --ulimit stack=67108864 --env-file e -e B=2 --mount type=bind,source=/models,target=/models,readonly"
        " -v cache:/root/.cache -p 127.77.0.1:8001:8000 --label gpufleet.pool=chat --label gpufleet.step=s1 --memory 64g --cpus 8"
        f" --entrypoint vllm {IMAGE} serve /models/x --max-num-seqs 8",
    )
    (item,) = json.loads(sh(host, "docker inspect m2"))
    assert item["HostConfig"]["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 3}
    assert item["HostConfig"]["DeviceRequests"][0] == {
        "Driver": "", "Count": 0, "DeviceIDs": [gpu], "Capabilities": [["gpu"]], "Options": {},
    }  # fmt: skip
    assert item["HostConfig"]["Memory"] == 64 << 30
    assert item["HostConfig"]["NanoCpus"] == 8_000_000_000
    assert item["HostConfig"]["Binds"] == ["cache:/root/.cache", "/models:/models:ro"]
    assert item["HostConfig"]["PortBindings"] == {"8000/tcp": [{"HostIp": "127.77.0.1", "HostPort": "8001"}]}
    assert {"A=1", "VLLM_API_KEY=k e y", "B=2"} <= set(item["Config"]["Env"])
    assert item["Config"]["Labels"] == {"gpufleet.pool": "chat", "gpufleet.step": "s1"}
    assert item["Config"]["StopTimeout"] == 90
    assert (item["Path"], item["Args"]) == ("vllm", ["serve", "/models/x", "--max-num-seqs", "8"])
    assert sh(host, "docker ps -aq --filter label=gpufleet.pool=chat --filter label=gpufleet.step=s1") != ""
    assert sh(host, "docker ps -aq --filter label=gpufleet.pool=other") == ""
    assert (
        sh(
            host,
            "docker inspect --format '{{index .Config.Labels \"gpufleet.pool\"}} {{json .Config.StopTimeout}}' m2",
        )
        == "chat 90\n"
    )
    assert (
        sh(
            host,
            "docker update --restart always m2; docker inspect -f '{{.HostConfig.RestartPolicy.Name}}' m2",
        )
        == "m2\nalways\n"
    )


@pytest.mark.parametrize("version", ["20.10.24", "26.1.5"])
def test_refusals_in_dockers_words(version):
    host = lab(version=version)
    sh(host, RUN)
    fails(host, RUN, 125, 'Conflict. The container name "/m1" is already in use by container "')
    other = RUN.replace("m1", "m3")
    identity = fails(host, other, 125, "Bind for 0.0.0.0:8000 failed: port is already allocated.")
    assert state(host, "m3") == "created 128"
    assert identity.strip() == sh(host, "docker inspect -f '{{.Id}}' m3").strip()
    host.host.listeners.append(Listener("0.0.0.0", 9000))
    taken = other.replace("m3", "m4").replace("8000:", "9000:")
    fails(
        host,
        taken,
        125,
        "Error starting userland proxy: listen tcp4 0.0.0.0:9000: bind: address already in use.",
    )
    fails(host, "docker run -d -m 1m nginx", 125, "Minimum memory limit allowed is 6MB.")
    fails(
        host,
        f"docker run -d --entrypoint nosuch {IMAGE}",
        127,
        'exec: "nosuch": executable file not found in $PATH',
    )
    fails(host, "docker run -d --pull never absent:1", 125, "No such image: absent:1.")
    host.containers.registry.absent.add("vllm/vllm-openai:gone")
    fails(
        host,
        "docker pull vllm/vllm-openai:gone",
        1,
        "manifest for vllm/vllm-openai:gone not found: manifest unknown: manifest unknown",
    )
    fails(host, "docker run -d vllm/vllm-openai:gone", 125, "manifest unknown")
    fails(host, "docker stop nope", 1, "Error response from daemon: No such container: nope")
    fails(host, "docker image inspect nope", 1, "No such image: nope:latest")


def test_gpus_are_checked():
    host = lab()
    fails(
        host,
        f"docker run -d --gpus '\"device=GPU-bbb\"' {IMAGE}",
        125,
        "nvidia-container-cli: device error: GPU-bbb: unknown device: unknown.",
    )
    fails(
        host,
        f"docker run -d --gpus device=0,1 {IMAGE}",
        125,
        "cannot set both Count and DeviceIDs on device request.",
    )
    host.containers.gpu_hook = False
    fails(
        host,
        f"docker run -d --gpus all {IMAGE}",
        125,
        'could not select device driver "" with capabilities: [[gpu]].',
    )
    old = lab(version="20.10.24")
    fails(
        old,
        f"docker run -d --device nvidia.com/gpu=0 {IMAGE}",
        125,
        "docker: nvidia.com/gpu=0 is not an absolute path.",
    )
    fails(
        lab(),
        f"docker run -d --device nvidia.com/gpu=0 {IMAGE}",
        125,
        'could not select device driver "cdi" with capabilities: [].',
    )
    fails(
        lab(cdi=True),
        f"docker run -d --device nvidia.com/gpu=77 {IMAGE}",
        125,
        "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=77.",
    )


def test_the_daemon_down_hung_and_closed_to_us():
    host = lab()
    fails(
        host,
        "docker ps",
        1,
        "permission denied while trying to connect to the Docker daemon socket",
        user="nodock",
    )
    assert sh(host, "sudo -n docker ps -q", user="nodock") == ""
    host.host.change_service("docker", active=False)
    fails(
        host,
        "docker ps",
        1,
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    )
    fails(host, RUN, 125, "Is the docker daemon running?")
    host.host.change_service("docker", active=True)
    host.containers.daemon = Daemon.HUNG
    assert host.sh("timeout 30 docker ps").code == 124


def test_a_full_disk():
    host = lab()
    host.host.fs.disks[0].full = True
    fails(host, RUN, 125, "no space left on device")
    fails(host, "docker pull vllm/vllm-openai:v2", 1, "write /var/lib/docker/tmp/GetImageBlob")
    assert sh(host, "docker ps -q; docker info --format '{{.ServerVersion}}'") == "26.1.5\n"


def policies(host: LabHost) -> None:
    for at, policy in enumerate(("always", "unless-stopped", "on-failure:3", "no")):
        sh(
            host,
            f"docker run -d --name p{at} --restart {policy} -p 900{at}:8000 --entrypoint vllm {IMAGE} serve m",
        )


def running(host: LabHost) -> set[str]:
    return set(sh(host, "docker ps --format '{{.Names}}'").split())


def test_what_comes_back_after_each_kind_of_end():
    host = lab()
    policies(host)
    host.host.change_service("docker", active=False)
    host.host.change_service("docker", active=True)
    assert running(host) == {"p0", "p1"}
    host = lab()
    policies(host)
    host.containers.kill_daemon()
    host.containers.start_daemon()
    assert running(host) == {"p0"}
    assert state(host, "p1") == "exited 0"
    host = lab()
    policies(host)
    sh(host, "docker run -d --name p9 --restart unless-stopped nginx && docker stop p9")
    host.host.reboot()
    assert running(host) == {"p0", "p1", "p2"}
    assert state(host, "p3") == "exited 255"


def test_always_comes_back_even_when_somebody_stopped_it():
    host = lab()
    policies(host)
    sh(host, "docker stop p0 p1")
    host.host.change_service("docker", active=True, restarted=True)
    assert running(host) == {"p0"}
    sh(host, "docker update --restart no p0 && docker stop p0")
    host.host.reboot()
    assert running(host) == set()


def test_a_port_that_is_taken_at_boot_keeps_a_container_down():
    host = lab()
    policies(host)
    host.host.on_boot.insert(0, lambda: host.host.listeners.append(Listener("0.0.0.0", 9000)))
    host.host.reboot()
    assert running(host) == {"p1", "p2"}
    assert state(host, "p0") == "exited 128"


def test_a_crash_loop_and_its_limit():
    host = lab()
    host.containers.launch_words = {"GPUFLEET_LAB_ENGINE": "mode=crash load_seconds=1"}
    sh(host, RUN.replace("--name", "--restart on-failure:2 --name"))
    seen = []
    for _ in range(5):
        host.host.clock.sleep(2)
        seen.append(sh(host, "docker inspect -f '{{.State.Status}} {{.RestartCount}}' m1").strip())
    assert seen[:2] == ["running 1", "running 2"]
    assert seen[-1] == "exited 2"
    host.containers.launch_words = {"GPUFLEET_LAB_ENGINE": "mode=oom load_seconds=1"}
    sh(host, "docker rm -f m1; " + RUN)
    host.host.clock.sleep(2)
    assert sh(host, "docker inspect -f '{{.State.ExitCode}} {{.State.OOMKilled}}' m1") == "137 true\n"


def test_curl_before_during_and_after_the_engine():
    host = lab()
    code = "curl -s -m 5 -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/health; echo \" $?\""
    assert sh(host, code) == "000 7\n"
    sh(host, RUN)
    assert sh(host, code) == "000 56\n"
    host.host.clock.sleep(2)
    assert sh(host, code) == "200 0\n"
    body = '{"model":"some/model","messages":[{"role":"user","content":"hi"}],"max_tokens":4,"stream":true}'
    streamed = sh(
        host,
        f"printf '%s' '{body}' | curl -s -N -H 'Content-Type: application/json' -d @- http://127.0.0.1:8000/v1/chat/completions",
    )
    assert "data: [DONE]" in streamed
    fails(host, "curl -sS -f http://127.0.0.1:8000/nope", 22, "The requested URL returned error: 404")
    sh(host, "docker stop m1")
    assert sh(host, code) == "000 7\n"


def test_an_engine_that_hangs_meets_curls_limit():
    host = lab()
    host.containers.launch_words = {"GPUFLEET_LAB_ENGINE": "mode=hang load_seconds=1"}
    sh(host, RUN)
    host.host.clock.sleep(2)
    body = '{"model":"some/model","prompt":"hi","stream":true}'
    fails(host, f"curl -sS -m 7 -d '{body}' http://127.0.0.1:8000/v1/completions", 28, "timed out")


def test_podman_speaks_its_own_way():
    host = lab(runtime="podman", version="4.3.1")
    gpu = host.gpus.gpus[0].uuid
    sh(
        host,
        f"podman run -d --name aa --device nvidia.com/gpu={gpu} --entrypoint vllm {IMAGE} serve m",
        user="root",
    )
    (row,) = json.loads(sh(host, "podman ps --format json", user="root"))
    assert row["Names"] == ["aa"]
    fails(
        host,
        f"podman run -d --device nvidia.com/gpu=7g {IMAGE}",
        126,
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=7g",
        user="root",
    )
    info = json.loads(sh(host, "podman info --format '{{json .}}'", user="root"))
    assert info["store"]["graphRoot"]
    sh(host, f"podman run -d --name bb --gpus all {IMAGE}")
    assert json.loads(sh(host, "podman inspect bb"))[0]["HostConfig"]["DeviceRequests"] is None


def test_podmans_own_texts_and_statuses_as_seen_of_4_3():
    host = lab(runtime="podman", version="4.3.1")
    gpu = host.gpus.gpus[0].uuid
    run = f"podman run -d --name aa --device nvidia.com/gpu={gpu} -p 127.0.0.1:8000:8000 --entrypoint vllm {IMAGE} serve m"
    sh(host, run)
    described = json.loads(sh(host, "podman inspect aa"))[0]
    assert [one["PathOnHost"] for one in described["HostConfig"]["Devices"]] == ["/dev/nvidia0"]
    assert f"nvidia.com/gpu={gpu}" in described["Config"]["CreateCommand"]
    fails(host, run, 125, 'creating container storage: the container name "aa" is already in use by')
    fails(host, run.replace("aa", "bb"), 126, "cannot listen on the TCP port: listen tcp4 127.0.0.1:8000")
    fails(
        host,
        f"podman run -d --name cc --entrypoint nosuch {IMAGE}",
        127,
        "crun: executable file `nosuch` not found",
    )
    fails(
        host, "podman stop nope", 125, 'Error: no container with name or ID "nope" found: no such container'
    )
    fails(host, "podman inspect nope", 125, 'Error: inspecting object: no such object: "nope"')
    fails(host, "podman image inspect nope", 125, "Error: inspecting object: nope: image not known")
    fails(host, "podman update --restart no aa", 125, "Error: unknown flag: --restart")
    sh(host, "podman rm -f nope")
    new = lab(runtime="podman", version="5.4.2")
    sh(new, run.replace(gpu, new.gpus.gpus[0].uuid))
    sh(new, "podman update --restart no aa")


def test_after_a_boot_podman_starts_what_has_the_policy_always_when_its_service_is_enabled():
    for enabled in (True, False):
        host = lab(runtime="podman", version="5.4.2")
        if not enabled:
            del host.host.services["podman-restart"]
        sh(host, f"podman run -d --name aa --restart always --entrypoint vllm {IMAGE} serve m")
        sh(host, f"podman run -d --name bb --restart on-failure:3 --entrypoint vllm {IMAGE} serve m")
        host.containers.boot()
        assert host.containers.find("aa").running is enabled
        assert not host.containers.find("bb").running


def test_old_docker_prints_the_word_json():
    host = lab(version="20.10.24")
    sh(host, RUN)
    assert sh(host, "docker ps --format json") == "json\n"
    assert json.loads(sh(host, "docker ps --format '{{json .}}'"))["Names"] == "m1"


def test_rename_rmi_images_and_load():
    host = lab()
    sh(host, RUN)
    sh(host, "docker rename m1 m1-old")
    assert state(host, "m1-old") == "running 0"
    assert sh(host, "docker images --format '{{.Repository}}:{{.Tag}}'") == f"{IMAGE}\n"
    assert sh(host, "docker pull -q redis:7") == "docker.io/library/redis:7\n"
    assert sh(host, "docker image inspect -f '{{.Id}}' redis:7").startswith("sha256:")
    sh(host, "docker rmi redis:7")
    named = "docker image inspect -f '{{.Id}} {{json .RepoDigests}}'"
    before = sh(host, f"{named} {IMAGE}").split()[0]
    sh(host, f"docker save {IMAGE} >/tmp/image.tar; docker rm -f m1-old; docker rmi {IMAGE}")
    assert sh(host, "docker load </tmp/image.tar") == f"Loaded image: {IMAGE}\n"
    assert sh(host, f"{named} {IMAGE}") == f"{before} []\n"
    assert sh(host, "printf x >>/tmp/image.tar; docker load -i /tmp/image.tar 2>&1", ok=False).startswith(
        "unexpected"
    )
