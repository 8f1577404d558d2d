"""Trouble that other people had with fleets, each as a test of its whole kind; numbers as in the list of cases.

Inputs are of our own making in the shape of what was reported. Cases whose subject has a test file of its own are
named in `ELSEWHERE`, with the test that stands for them.
"""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.engine.diagnose import first_cause
from gpufleet.hosts.doctor import diagnose
from gpufleet.inventory.model import Address, Host
from gpufleet.lab.containers.model import Policy, Wish
from gpufleet.lab.fleet import build_fleet, wishes_of
from gpufleet.lab.vllm.engines import ModelEngines
from gpufleet.lab.vllm.spec import EngineSpec
from gpufleet.names import HostName
from tests.kit.deploy_site import IMAGE
from tests.kit.lab_kit import LabClock
from tests.kit.pool_desk import Desk
from tests.unit.hosts import answers

ROOT = Path(__file__).parents[2]

KEYS, TROUBLE, WAYS = (f"tests/wire/test_openssh_{name}.py" for name in ("keys", "trouble", "ways"))
REAL = "tests/real/test_real_hosts.py"
SCRIPTS = "tests/unit/deploy/test_staging_scripts.py"
ELSEWHERE = (
    (1, KEYS, "test_none_given", "test_a_wrong_one", "test_the_agent_holds_the_key", "test_a_person_is_asked_once"),
    (2, KEYS, "test_the_named_identity_alone_is_offered", "test_also_when_only_the_agent_has_its_private_half",
     "test_the_identity_may_be_named_by_ssh_config", "test_too_many_are_counted"),
    (4, WAYS, "test_one_connection_to_each_hop_for_all_hosts_behind_it", "test_the_hop_that_fails_is_named",
     "test_the_host_key_of_every_hop_is_checked"),
    (6, WAYS, "test_ipv6"),
    (6, "tests/unit/inventory/test_address.py", "test_the_forms", "test_what_is_refused"),
    (6, "tests/unit/inventory/test_document.py", "test_the_addresses_of_case_06"),
    (7, REAL, "test_sudo_with_a_password_works_and_never_shows_it", "test_sudo_reasons_differ_and_name_the_host",
     "test_sudo_that_wants_a_terminal_is_said"),
    (7, "tests/unit/remote/test_sudo.py", "test_with_the_password_as_the_first_line",
     "test_each_refusal_has_its_reason_and_ran_nothing", "test_a_wrong_password_costs_one_attempt"),
    (8, TROUBLE, "test_answers_are_clean_and_files_arrive"),
    (8, REAL, "test_a_noisy_login_changes_nothing_but_a_warning"),
    (10, TROUBLE, "test_a_server_that_takes_no_more", "test_tried_again_when_there_is_room",
     "test_many_at_once_to_one_address", "test_a_refused_login_leaves_nothing_open"),
    (11, WAYS, "test_changed", "test_the_command_it_names_forgets_the_old_key", "test_trusting_on_purpose",
     "test_the_server_is_asked_for_the_type_that_is_known"),
    (11, REAL, "test_a_changed_host_key_is_shown_and_never_accepted"),
    (11, "tests/cli/test_bad_input.py", "test_a_mistake_is_told_and_nothing_is_changed"),
    (15, REAL, "test_docker_off_the_search_path_is_found",
     "test_docker_nowhere_is_said_with_the_places_and_mended_by_its_path"),
    (15, "tests/unit/hosts/test_script.py", "test_the_runtime_of_the_inventory_is_taken"),
    (16, REAL, "test_a_refused_socket_names_the_user_or_goes_through_sudo",
     "test_a_new_group_is_seen_by_the_next_command"),
    (16, "tests/unit/hosts/test_script.py", "test_a_socket_that_refuses_is_tried_through_sudo"),
    (17, REAL, "test_three_reasons_for_no_gpu_driver_have_three_fixes"),
    (22, "tests/unit/engine/test_flags.py", "test_a_lost_line_continuation_leaves_words_that_are_found"),
    (24, "tests/flow/test_deploy_flow.py", "test_replicas_share_gpus_one_after_the_other"),
    (24, "tests/unit/deploy/test_deploy_plan.py",
     "test_replicas_that_share_a_gpu_reserve_their_part_and_start_one_after_the_other"),
    (25, "tests/real/test_real_secrets.py", "test_a_planted_token_is_nowhere_but_in_the_engine"),
    (26, "tests/real/test_real_lease.py", "test_an_expired_lease_of_a_run_that_did_nothing_is_taken_over",
     "test_an_expired_lease_of_an_open_run_offers_resume_and_undo_first", "test_a_lease_cannot_be_broken_without_a_reason"),
    (26, "tests/cli/test_two_operators_cli.py", "test_a_held_lease_names_its_holder_and_waiting_ends",
     "test_waiting_goes_on_as_soon_as_the_lease_is_given_back"),
    (27, SCRIPTS, "test_of_two_writers_one_copies_and_the_other_uses_it", "test_a_copy_that_was_killed_is_resumed_by_the_next",
     "test_a_wrong_checksum_at_the_source_is_an_error_that_names_both"),
    (27, "tests/flow/test_staging_flow.py", "test_of_a_shared_store_one_host_is_the_writer",
     "test_a_deploy_brings_the_weights_first_and_engines_read_them_offline"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("number", "path", "tests"), [(number, path, tests) for number, path, *tests in ELSEWHERE]
)
def test_the_case_has_its_tests(number, path, tests):
    tree = ast.parse((ROOT / path).read_text())
    there = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    assert set(tests) <= there, f"case {number}: {path} has no {sorted(set(tests) - there)}"


def test_every_case_that_was_collected_has_a_test():
    folder = ROOT.parent / "shared" / "cases" / "fleet"
    if not folder.is_dir():
        pytest.skip("the collected cases are not beside this checkout")
    here = {int(name.split("_")[2]) for name in globals() if name.startswith("test_case_")}
    collected = {int(path.name.partition("-")[0]) for path in folder.glob("*.txt")}
    assert collected == here | {number for number, *_ in ELSEWHERE}


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


@pytest.fixture
def desk_of(tmp_path, monkeypatch, capsys):
    """A desk in front of two hosts with one H100 each, made as its arguments say."""

    def make(**wish):
        clock = LabClock()
        quick = EngineSpec(load_seconds=0.1)
        wishes = [replace(one, **wish) for one in wishes_of(2, "1xH100-80GB")]
        fleet = build_fleet(wishes, clock, engines=lambda _host: ModelEngines(clock, quick))
        return Desk(tmp_path, monkeypatch, capsys, fleet=fleet)

    return make


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


@pytest.mark.parametrize("way", ["CDI", "no-cgroups"])
def test_case_13_rootless_docker_is_refused_with_both_ways_out_and_each_works(desk_of, way):
    desk = desk_of(rootless=True, version="28.1.1")
    checked = desk.json("hosts", "check", "gpu-01")
    found = {one["code"]: one for one in checked["hosts"][0]["findings"]}["rootless-hook"]
    assert (checked["exit"], found["severity"]) == (8, "error")
    assert "feature `cdi`" in found["fix"]
    assert "no-cgroups = true in /etc/nvidia-container-runtime/config.toml" in found["fix"]
    refused = desk.json("pool", "deploy", "chat", "--yes")
    assert (refused["exit"], found["fix"] in json.dumps(refused["error"])) == (8, True)
    assert not any(desk.containers().values())
    for lab in desk.fleet:
        if way == "CDI":
            lab.containers.setup.cdi = True
        else:
            settings = b"[nvidia-container-cli]\nno-cgroups = true\n"
            lab.host.fs.write("/etc/nvidia-container-runtime/config.toml", settings)
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    for lab in desk.fleet:
        (one,) = replicas(desk, lab.name)
        given = one.wish.cdi if way == "CDI" else one.wish.devices
        assert given == (lab.gpus.gpus[0].uuid,)
        assert one.wish.ulimits == ()  # a daemon without root may not raise them


def test_case_13_what_the_hook_says_is_explained():
    said = "nvidia-container-cli: mount error: failed to add device rules: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown."
    cause = first_cause(f"docker: Error response from daemon: failed to create task: {said}")
    assert cause is not None
    assert "no-cgroups" in cause.fix


def sliced(**engine: object) -> dict[str, object]:
    """A pool of two replicas, each on a slice of half a GPU."""
    return {"pool": "sliced", "model": "qwen/qwen2.5", "replicas": 2, "hosts": ["gpu-01"],
            "slice": {"mig": "3g.40gb"}, "engine": {"image": IMAGE, **engine}}  # fmt: skip


def replicas(desk, host="gpu-01"):
    """Containers of gpufleet on a host, in the order of their names."""
    known = desk.fleet[host].containers.containers.values()
    return sorted((one for one in known if "gpufleet.pool" in one.wish.labels), key=lambda one: one.wish.name)


def command_in(text: str) -> str:
    """The command of a fix, without the remark behind it."""
    return text.partition(" (")[0]


@pytest.mark.parametrize("toolkit", ["1.17.8", "1.14.6"])
def test_case_14_a_missing_cdi_specification_is_found_before_anything_starts(desk_of, toolkit):
    desk = desk_of(runtime="podman", version="5.2.0", ctk=toolkit)
    lab = desk.fleet["gpu-02"]
    lab.host.fs.unlink("/etc/cdi/nvidia.yaml")
    checked = desk.json("hosts", "check")
    (found,) = next(one for one in checked["hosts"] if one["host"] == "gpu-02")["findings"]
    assert (checked["exit"], found["code"], found["severity"]) == (8, "cdi-missing", "error")
    for words in (("pool", "plan", "chat"), ("pool", "deploy", "chat", "--yes")):
        answer = desk.json(*words)
        assert answer["exit"] == 8
        (row,) = answer["error"]["rows"]
        assert (row["where"], row["hint"]) == ("gpu-02", found["fix"])
    assert not any(desk.containers().values())

    assert lab.sh(command_in(found["fix"]), user="root").code == 0
    if toolkit < "1.15":  # it writes numbers alone, and replicas are started by UUID
        (stale,) = desk.json("hosts", "check", "gpu-02")["hosts"][0]["findings"]
        assert (stale["code"], "GPU 0" in stale["message"]) == ("cdi-stale", True)
        refused = desk.json("pool", "deploy", "chat", "--yes")
        assert (refused["exit"], "does not name GPU-" in json.dumps(refused["error"])) == (4, True)
        assert "--device-name-strategy=uuid" in stale["fix"]
        again = f"{command_in(stale['fix'])} --device-name-strategy=uuid"
        assert lab.sh(again, user="root").code == 0
    assert desk.json("hosts", "check")["exit"] == 0
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    (one,) = replicas(desk, "gpu-02")
    assert one.wish.cdi == (lab.gpus.gpus[0].uuid,)


def test_case_14_a_specification_that_did_not_follow_mig_is_told_and_its_slices_left_alone(desk_of):
    desk = desk_of(runtime="podman", version="5.2.0")
    lab = desk.fleet["gpu-01"]
    lab.gpus.gpus[0].set_mig(enabled=True)
    for start in (0, 4):
        lab.gpus.gpus[0].create("3g.40gb", start)
    (found,) = desk.json("hosts", "check", "gpu-01")["hosts"][0]["findings"]
    assert (found["code"], found["severity"]) == ("cdi-stale", "warning")
    assert "slice 3g.40gb of GPU 0 (MIG-" in found["message"]
    (desk.path / "sliced.json").write_text(json.dumps(sliced()))
    answer = desk.json("pool", "deploy", "-f", str(desk.path / "sliced.json"), "--yes")
    assert (answer["exit"], command_in(found["fix"]) in json.dumps(answer["error"])) == (4, True)
    assert lab.sh(command_in(found["fix"]), user="root").code == 0
    assert desk.json("pool", "deploy", "-f", str(desk.path / "sliced.json"), "--yes")["exit"] == 0
    wanted = {instance.uuid for _, instance in lab.gpus.gpus[0].devices()}
    assert {device for one in replicas(desk) for device in one.wish.cdi} == wanted


def test_case_14_what_a_runtime_says_of_it_is_explained():
    for text in (
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=MIG-0e1f.",
    ):
        cause = first_cause(text)
        assert cause is not None
        assert "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml" in cause.fix


@pytest.mark.parametrize(
    ("toolkit", "code", "fix"),
    [
        (False, "toolkit-missing", "install nvidia-container-toolkit"),
        (True, "runtime-not-configured", "nvidia-ctk runtime configure --runtime=docker"),
    ],
)
def test_case_17_without_the_toolkit_a_host_is_refused_before_anything_starts(desk_of, toolkit, code, fix):
    desk = desk_of(toolkit=toolkit)
    if toolkit:  # installed, and docker was not told of it
        for lab in desk.fleet:
            lab.containers.gpu_hook = False
            lab.host.fs.unlink("/usr/bin/nvidia-container-runtime-hook")
    (found,) = desk.json("hosts", "check", "gpu-01")["hosts"][0]["findings"]
    assert (found["code"], fix in found["fix"]) == (code, True)
    answer = desk.json("pool", "deploy", "chat", "--yes")
    assert (answer["exit"], {row["hint"] for row in answer["error"]["rows"]}) == (8, {found["fix"]})
    assert not any(desk.containers().values())


def test_case_17_docker_as_a_snap_has_a_fix_of_its_own():
    snap = answers.section("runtime", "kind=docker\npath=/snap/bin/docker\nreal=/usr/bin/snap")
    facts = answers.facts(answers.healthy() | {"runtime": snap})
    found = {
        one.code: one for one in diagnose(facts, Host(name=HostName("gpu-01"), address=Address("gpu-01")))
    }
    assert "sudo snap remove docker" in found["runtime-snap"].fix


def test_case_19_a_lost_gpu_handle_is_drift_although_the_engine_answers(desk):
    one = deployed(desk)
    one.handles_lost = True
    answer = desk.json("pool", "drift", "chat")
    (found,) = [row for row in answer["findings"] if row["code"] == "gpu-lost"]
    assert answer["exit"] == 3
    assert "created anew" in found["hint"], found
    assert "cgroup-reload" in findings(CgroupDriver="systemd")


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_case_20_a_slice_is_chosen_by_the_runtime_and_not_by_cuda_visible_devices(desk_of, runtime):
    more = {"runtime": "podman", "version": "5.2.0"} if runtime == "podman" else {}
    desk = desk_of(layouts={0: ("3g.40gb:0", "3g.40gb:4")}, **more)
    (desk.path / "sliced.json").write_text(json.dumps(sliced()))
    assert desk.json("pool", "deploy", "-f", str(desk.path / "sliced.json"), "--yes")["exit"] == 0
    lab = desk.fleet["gpu-01"]
    uuids = {instance.uuid: place for place, instance in lab.gpus.gpus[0].devices()}
    given = {}
    for one in replicas(desk):
        assert not any("VISIBLE_DEVICES" in text for text in one.wish.env)
        (device,) = one.wish.cdi if runtime == "podman" else one.wish.devices
        given[device] = one.name
        words = dict(zip(one.wish.arguments, one.wish.arguments[1:], strict=False))
        assert (words["--max-num-seqs"], words["--max-num-batched-tokens"]) == ("128", "2048")
        assert "--tensor-parallel-size" not in words
        inside = lab.sh(f"{runtime} exec {one.name} nvidia-smi -L", user="root").stdout.decode()
        assert [uuid for uuid in uuids if uuid in inside] == [device]
    assert given.keys() == uuids.keys()
    facts = desk.json("hosts", "facts", "gpu-01")["hosts"][0]
    told = {one["name"]: one["devices"] for one in facts["containers"]}
    assert {device: name for device, name in given.items() if told[name] == [device]} == given
    assert desk.json("pool", "drift", "sliced")["findings"] == []


def test_case_20_the_variable_is_refused_where_it_is_written(desk):
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        wish = sliced(env={name: "MIG-377e0049-554c-540b-93c6-d0976f8426cb"})
        (desk.path / "sliced.json").write_text(json.dumps(wish))
        answer = desk.json("pool", "deploy", "-f", str(desk.path / "sliced.json"), "--yes")
        assert answer["exit"] == 2
        text = json.dumps(answer["error"])
        assert "sliced.json:1" in text
        assert "leave it out" in text
        assert "the runtime gives the container its GPU" in text
    assert not any(desk.containers().values())


def test_case_20_an_engine_that_dies_of_it_is_explained_and_taken_back(desk_of):
    """`lint: warn` trusts an altered engine over what is known; one that was not altered stops all the same."""
    desk = desk_of(layouts={0: ("3g.40gb:0", "3g.40gb:4")})
    wish = sliced(lint="warn", env={"CUDA_VISIBLE_DEVICES": "MIG-377e0049-554c-540b-93c6-d0976f8426cb"})
    (desk.path / "sliced.json").write_text(json.dumps(wish))
    code, said = desk.run("pool", "deploy", "-f", str(desk.path / "sliced.json"), "--yes")
    assert code == 9
    assert "invalid literal for int() with base 10: 'MIG-" in said.err
    assert "hint: remove CUDA_VISIBLE_DEVICES from engine.env" in said.err
    assert "Model architectures" not in said.err.splitlines()[-3]
    assert not any(desk.containers().values())


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


def test_case_30_after_a_reboot_a_replica_without_its_policy_is_drift(desk):
    one = deployed(desk)
    one.policy = Policy(name="no")
    one.wish = replace(one.wish, policy=one.policy)
    reboot(desk)
    answer = desk.json("pool", "drift", "chat")
    codes = {row["code"] for row in answer["findings"] if row["host"] == "gpu-01"}
    assert answer["exit"] == 3
    assert {"booted", "container-stopped", "restart-policy"} <= codes
    cause = first_cause(
        "nvidia-container-cli: device error: MIG-377e0049-554c-540b-93c6-d0976f8426cb: unknown device: unknown"
    )
    assert cause is not None


def reboot(desk):
    lab = desk.fleet["gpu-01"]
    lab.power_off(0.0)
    lab.power_on()
    return lab


def drifted(desk, pool="sliced"):
    answer = desk.json("pool", "drift", pool)
    return {(row["replica"] or row["host"], row["code"]) for row in answer["findings"]}


def test_case_30_a_boot_that_lost_the_slices_is_told_until_they_are_back(desk_of):
    """Replicas are bound by GPU, profile and place: in the same places they get homes again, whatever their UUIDs."""
    desk = desk_of(layouts={0: ("3g.40gb:0", "3g.40gb:4")})
    (desk.path / "sliced.json").write_text(json.dumps(sliced()))
    deploy = ("pool", "deploy", "-f", str(desk.path / "sliced.json"), "--yes")
    assert desk.json(*deploy)["exit"] == 0
    assert {one.policy.name for one in replicas(desk)} == {"always"}
    before = {one.name: one.wish.devices for one in replicas(desk)}
    lab = reboot(desk)
    gpu = lab.gpus.gpus[0]
    assert (gpu.mig, gpu.instances) == (False, [])
    assert {(one.status, one.exit_code) for one in replicas(desk)} == {("exited", 128)}
    down = {(f"gpu-01/{number}", what) for number in (0, 1) for what in ("container-stopped", "slice")}
    assert drifted(desk) == down | {("gpu-01", "booted")}
    gone = {one["container"]: one["device"] for one in desk.json("mig", "show", "gpu-01")["without_slice"]}
    assert gone == {name: device for name, (device,) in before.items()}

    refused = desk.json(*deploy)
    assert (refused["exit"], refused["nearest"][-1]["kind"]) == (4, "other-host")
    (uncut,) = [one for one in refused["nearest"] if one["kind"] == "uncut"]
    assert "mig plan gpu-01:0 --add 3g.40gb" in uncut["text"]
    assert "mig persist" in uncut["text"]
    gpu.set_mig(enabled=True)
    for start in (0, 4):
        gpu.create("3g.40gb", start)
    for number, instance in enumerate(gpu.instances):  # as when something else took the first ids
        instance.uuid = f"MIG-00000000-0000-5000-a000-00000000000{number}"
    assert desk.json(*deploy)["outcome"] == "committed"
    assert {device for one in replicas(desk) for device in one.wish.devices} == {
        one.uuid for one in gpu.instances
    }
    assert drifted(desk) == set()


def test_case_30_what_mig_persist_keeps_comes_back_with_its_replicas(desk_of):
    desk = desk_of(layouts={0: ("3g.40gb:0", "3g.40gb:4")})
    (desk.path / "sliced.json").write_text(json.dumps(sliced()))
    assert desk.json("pool", "deploy", "-f", str(desk.path / "sliced.json"), "--yes")["exit"] == 0
    before = {one.id: one.wish.devices for one in replicas(desk)}
    assert desk.json("mig", "persist", "gpu-01", "--yes")["outcome"] == "committed"
    lab = reboot(desk)
    assert {f"{one.profile.name}:{one.start}" for one in lab.gpus.gpus[0].instances} == {
        "3g.40gb:0",
        "3g.40gb:4",
    }
    assert {one.id: one.wish.devices for one in replicas(desk) if one.running} == before
    assert drifted(desk) == {("gpu-01", "booted")}  # nothing else is to be done
    assert desk.json("pool", "drift", "sliced", "--accept-boots")["exit"] == 0
    assert drifted(desk) == set()
