"""Trouble that other people had with fleets, each as a test of its whole kind; numbers as in the list of cases.

Inputs are of our own making in the shape of what was reported. Cases whose subject has a test file of its own are
named in `ELSEWHERE`, with the test that stands for them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.engine.diagnose import first_cause
from gpufleet.hosts.doctor import diagnose
from gpufleet.inventory.model import Address, Host
from gpufleet.lab.containers.model import Policy, Wish
from gpufleet.names import HostName
from tests.kit.deploy_site import IMAGE
from tests.kit.pool_desk import Desk
from tests.unit.hosts import answers

ROOT = Path(__file__).parents[2]

ELSEWHERE = {
    1: ("tests/unit/remote/test_keys.py", "passphrase"),
    2: ("tests/wire", "too_many"),
    4: ("tests/wire", "jump"),
    6: ("tests/unit/inventory", "ipv6"),
    7: ("tests/real/test_real_hosts.py", "test_sudo_reasons_differ_and_name_the_host"),
    8: ("tests/wire", "noisy"),
    10: ("tests/wire/test_openssh_trouble.py", "MaxStartups"),
    11: ("tests/real/test_real_fleet.py", "test_a_changed_host_key_is_noticed_by_openssh"),
    15: ("tests/real/cases.py", "docker not in PATH"),
    16: ("tests/real/cases.py", "docker socket refused"),
    17: ("tests/real/cases.py", "GPU toolkit missing"),
    25: ("tests/real/test_real_secrets.py", "test_a_planted_token_is_nowhere_but_in_the_engine"),
    26: ("tests/real/test_real_lease.py", "test_an_expired_lease_of_a_run_that_did_nothing_is_taken_over"),
    27: ("tests/unit/deploy/test_staging_scripts.py", "test_of_two_writers_one_copies_and_the_other_uses_it"),
}


@pytest.mark.parametrize("number", ELSEWHERE)
def test_the_case_has_its_test(number):
    place, words = ELSEWHERE[number]
    path = ROOT / place
    texts = [one.read_text() for one in ([path] if path.is_file() else sorted(path.glob("test_*.py")))]
    assert any(words in text for text in texts), f"case {number}: no test in {place} speaks of {words}"


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


def deployed(desk):
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    return next(
        one
        for one in desk.fleet["gpu-01"].containers.containers.values()
        if "gpufleet.pool" in one.wish.labels
    )


def findings(**changed: object):
    """What the doctor says of a healthy host whose runtime describes itself like this."""
    told = answers.section("info", json.dumps(answers.INFO | changed))
    facts = answers.facts(answers.healthy() | {"info": told})
    host = Host(name=HostName("gpu-01"), address=Address("gpu-01"))
    return {one.code: one for one in diagnose(facts, host)}


def test_case_13_rootless_docker_is_told_with_both_ways_out():
    found = findings(SecurityOptions=["name=seccomp,profile=builtin", "name=rootless"])
    fix = found["rootless-hook"].fix
    assert "CDI" in fix
    assert "no-cgroups = true" in fix
    said = "nvidia-container-cli: mount error: failed to add device rules: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown."
    cause = first_cause(f"docker: Error response from daemon: failed to create task: {said}")
    assert cause is not None
    assert "no-cgroups" in cause.fix


def test_case_14_a_missing_cdi_specification_is_found_before_anything_starts():
    for text in (
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=MIG-0e1f.",
    ):
        cause = first_cause(text)
        assert cause is not None
        assert "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml" in cause.fix


def test_case_19_a_lost_gpu_handle_is_drift_although_the_engine_answers(desk):
    one = deployed(desk)
    one.handles_lost = True
    answer = desk.json("pool", "drift", "chat")
    (found,) = [row for row in answer["findings"] if row["code"] == "gpu-lost"]
    assert answer["exit"] == 3
    assert "created anew" in found["hint"], found
    assert "cgroup-reload" in findings(CgroupDriver="systemd")


def test_case_20_a_slice_is_chosen_by_the_runtime_and_not_by_cuda_visible_devices(desk):
    text = "ValueError: invalid literal for int() with base 10: 'MIG-377e0049-554c-540b-93c6-d0976f8426cb'"
    cause = first_cause(
        f"{text}\npydantic_core.ValidationError: Model architectures ['X'] failed to be inspected"
    )
    assert cause is not None
    assert "CUDA_VISIBLE_DEVICES" in cause.fix
    one = deployed(desk)
    assert not any(text.startswith("CUDA_VISIBLE_DEVICES=") for text in one.wish.env)
    words = [word.partition("=")[0] for word in one.wish.arguments]
    assert {"--max-num-seqs", "--max-num-batched-tokens"} <= set(words)


def test_case_22_flags_that_were_lost_or_torn_are_refused_before_any_host_is_touched(desk):
    path = desk.path / "torn.yaml"
    for args in (["--enable-prefix-cache"], ["--max-model-len", "20480", "--reasoning-config\n--trust"]):
        engine = {"image": IMAGE, "args": args}
        path.write_text(json.dumps({"pool": "torn", "model": "qwen/qwen2.5", "engine": engine}))
        code, said = desk.run("pool", "deploy", "-f", str(path), "--yes")
        assert code == 2, said.err
        assert "torn.yaml" in said.err
        assert "Traceback" not in said.err
    assert desk.containers() == {"gpu-01": [], "gpu-02": []}


def test_case_24_what_somebody_else_runs_on_a_gpu_counts_as_occupied(desk):
    engine = desk.fleet["gpu-02"].containers
    engine.add_image("busybox:1")
    engine.start(engine.create(Wish(name="notebook", image="busybox:1", devices=("0",))))
    answer = desk.json("pool", "deploy", "chat", "--yes")
    assert answer["exit"] == 4
    assert "notebook" in json.dumps(answer["error"])
    assert desk.containers()["gpu-01"] == []
    texts = (
        "ValueError: Free memory on device (40.11/79.18 GiB) on startup is less than desired GPU memory utilization (0.6, 47.51 GiB).",
        "AssertionError: Error in memory profiling. Initial free memory 38.2 GiB, current free memory 41.0 GiB.",
    )
    assert all(first_cause(text) is not None for text in texts)


def test_case_30_after_a_reboot_a_replica_that_stayed_down_is_drift(desk):
    one = deployed(desk)
    one.policy = Policy(name="on-failure")  # as a restart policy that gave up
    one.wish = replace(one.wish, policy=one.policy)
    desk.fleet["gpu-01"].power_off(0.0)
    desk.fleet["gpu-01"].power_on()
    answer = desk.json("pool", "drift", "chat")
    codes = {row["code"] for row in answer["findings"] if row["host"] == "gpu-01"}
    assert answer["exit"] == 3
    assert "booted" in codes
    assert codes & {"container-stopped", "restart-policy"}
    cause = first_cause(
        "nvidia-container-cli: device error: MIG-377e0049-554c-540b-93c6-d0976f8426cb: unknown device: unknown"
    )
    assert cause is not None
