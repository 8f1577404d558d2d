"""Trouble that other people had with MIG, each as a test of its whole kind; numbers as in the list of cases.

Inputs are of our own making in the shape of what was reported. Cases whose subject has a test file of its own are
named in `ELSEWHERE`, with the test that stands for them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.engine.diagnose import first_cause
from gpufleet.errors import UsageError
from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes import mig_tables, nvidia_smi, nvidia_xml
from gpufleet.lab.fleet import HostWish, build_fleet
from gpufleet.mig.commands import Target
from gpufleet.mig.messages import Said, Verb, judge
from gpufleet.names import GpuUuid
from tests.kit.lab_kit import LabClock
from tests.kit.pool_desk import Desk

ROOT = Path(__file__).parents[2]
CUT = ("1g.10gb:0", "1g.10gb:1", "3g.40gb:4")
IMAGE = "vllm/vllm-openai:v0.20.0"

ELSEWHERE = {
    1: ("tests/flow/test_mig_services_flow.py", "test_cases_01_and_02_a_reset_goes_through"),
    2: ("tests/flow/test_mig_services_flow.py", "test_cases_01_and_02_a_reset_goes_through"),
    16: ("tests/unit/hosts/test_nvml.py", "test_case_16_without_rights_text_stands_in"),
    20: ("tests/flow/test_mig_runtime_files.py", "test_case_20_a_specification_from_before_the_change"),
    22: ("tests/unit/mig/test_holders.py", "test_case_22_only_what_runs_is_stopped"),
    24: ("tests/cli/test_mig_persist_cli.py", "test_case_24_what_is_kept_comes_back_before_containers_do"),
    27: ("tests/flow/test_mig_runtime_files.py", "test_case_27_device_files_of_new_instances"),
    28: ("tests/unit/mig/test_seen.py", "test_case_28_the_same_uuid_may_name_another_slice"),
}


@pytest.mark.parametrize("number", ELSEWHERE)
def test_the_case_has_its_test(number):
    place, name = ELSEWHERE[number]
    assert f"def {name}" in (ROOT / place).read_text(), f"case {number}: {place} has no {name}"


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    wishes = [
        HostWish(name="gpu-01", address="127.77.0.1", gpus="2xH100-80GB", layouts={0: CUT}, images=(IMAGE,)),
        HostWish(name="gpu-02", address="127.77.0.2", gpus="1xA100-80GB", images=(IMAGE,)),
    ]
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, monkeypatch, capsys, fleet=build_fleet(wishes, LabClock()))


def places(desk, index=0):
    return {f"{one.profile.name}:{one.start}" for one in desk.fleet["gpu-01"].gpus.gpus[index].instances}


def deployed(desk):
    answer = desk.json(
        "pool", "deploy", "small", "--model", "qwen/qwen2.5", "--hosts", "gpu-01", "--replicas", "1",
        "--mig", "1g.10gb", "--image", IMAGE, "--ignore-memory", "--yes",
    )  # fmt: skip
    assert answer["outcome"] == "committed", answer
    return next(
        one
        for one in desk.fleet["gpu-01"].containers.containers.values()
        if "gpufleet.pool" in one.wish.labels
    )


def test_case_03_a_half_by_the_name_of_another_driver_is_refused_with_the_name_of_this_one(desk):
    answer = desk.json("mig", "plan", "gpu-02:0", "--layout", "2x3g.39gb")
    assert (answer["exit"], answer["error"]["code"]) == (4, "unplaceable")
    assert "did you mean 3g.40gb" in answer["error"]["hints"][0]


def test_case_04_a_profile_of_an_earlier_board_fails_before_anything_is_destroyed(desk):
    answer = desk.json("mig", "plan", "--model", "GB200-186GB", "--layout", "7x1g.24gb")
    assert answer["exit"] == 4
    assert "1g.24gb" in answer["error"]["message"]
    near, offered = answer["error"]["hints"]
    assert near.startswith("did you mean 1g.23gb")
    assert "1g.23gb, 1g.23gb+me, 1g.47gb" in offered
    answer = desk.json("mig", "reconfigure", "gpu-01:0", "--layout", "7x1g.12gb", "--yes")
    assert answer["exit"] == 4
    assert places(desk) == set(CUT)


def test_case_06_a_message_of_success_is_no_success(desk):
    desk.fleet["gpu-01"].sh("lab-fault gpu-mishap -cgi lie", user="root")
    answer = desk.json("mig", "reconfigure", "gpu-01:0", "--layout", "half", "--yes")
    assert (answer["exit"], answer["outcome"]) == (9, "rolled_back")
    assert places(desk) == set(CUT)
    assert judge(Verb.CREATE, "MIG configuration applied successfully", 0).said is Said.UNKNOWN
    (desk.path / "empty.yaml").write_text(
        "version: v1\nmig-configs:\n  other: [{devices: [5], mig-enabled: true}]\n"
    )
    answer = desk.json("mig", "plan", "gpu-01:0", "--layout", "other", "-f", "empty.yaml")
    assert "no entry for GPU 0" in answer["error"]["message"]


def test_case_08_not_supported_is_a_failure_whatever_the_status(desk):
    said = "Unable to enable MIG Mode for GPU 00000000:21:00.0: Not Supported\nTreating as warning and moving on.\nAll done."
    verdict = judge(Verb.MODE, said, 0)
    assert verdict.said is Said.REFUSED
    assert all(word in verdict.advice for word in ("display mode", "vBIOS"))
    desk.fleet["gpu-01"].sh("lab-fault gpu-mishap -mig Not Supported", user="root")
    answer = desk.json("mig", "reconfigure", "gpu-01:1", "--layout", "half", "--yes")
    assert answer["exit"] == 9
    assert "vBIOS" in json.dumps(answer["error"])
    assert not desk.fleet["gpu-01"].gpus.gpus[1].mig


def test_case_11_instances_that_were_destroyed_before_the_refusal_are_made_again(desk):
    desk.fleet["gpu-01"].gpus.clients[desk.fleet["gpu-01"].gpus.gpus[0].instances[2].uuid] = "dcgm"
    answer = desk.json("mig", "reconfigure", "gpu-01:0", "--layout", "7x1g.10gb", "--yes")
    assert answer["exit"] in {8, 9}
    assert "In use by another client" in json.dumps(answer["error"])
    assert places(desk) == set(CUT)


def test_cases_12_and_13_a_replica_on_a_slice_is_given_it_by_the_runtime_and_told_its_batch(desk):
    one = deployed(desk)
    assert len(one.wish.devices) == 1
    assert next(iter(one.wish.devices)).rpartition("=")[2].startswith("MIG-")
    assert not any(text.startswith("CUDA_VISIBLE_DEVICES=") for text in one.wish.env)
    words = {word.partition("=")[0] for word in one.wish.arguments}
    assert {"--max-num-seqs", "--max-num-batched-tokens"} <= words
    line = "ValueError: invalid literal for int() with base 10: 'MIG-377e0049-554c-540b-93c6-d0976f8426cb'"
    for log in (line, f"{line}\nModel architectures ['X'] failed to be inspected"):
        cause = first_cause(log)
        assert cause is not None
        assert "CUDA_VISIBLE_DEVICES" in cause.fix


def test_case_14_tensor_parallel_over_slices_is_refused_before_any_host_is_touched(desk):
    engine = {"image": IMAGE, "args": ["--tensor-parallel-size", "2"]}
    pool = {"pool": "two", "model": "qwen/qwen2.5", "engine": engine, "slice": {"mig": "3g.40gb"}}
    (desk.path / "two.yaml").write_text(json.dumps(pool))
    code, said = desk.run("pool", "deploy", "-f", "two.yaml", "--yes")
    assert code in {2, 4}, said.err
    assert "a process uses one slice: run more replicas" in said.err
    assert "Traceback" not in said.err
    assert desk.containers() == {"gpu-01": [], "gpu-02": []}


def test_case_15_a_slice_is_sized_by_its_own_memory(desk):
    answer = desk.json("mig", "profiles", "gpu-01:0")
    (gpu,) = answer["gpus"]
    assert {one["name"]: one["memory_gib"] for one in gpu["profiles"]}["1g.10gb"] == 9.75
    whole, small = (
        desk.json(
            "models", "fit", "--parameters", "8000000000", "--gpu", "H200-141GB", *more,
            "--config", str(_config(desk)),
        )
        for more in ((), ("--slice", "1g.18gb"))
    )  # fmt: skip
    assert (whole["verdict"], small["verdict"]) == ("fits", "no")
    assert small["memory_gib"] == 16.0  # as nvidia-smi prints it, and not the 18 of its name


def _config(desk):
    path = desk.path / "config.json"
    path.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 128256,
                "max_position_embeddings": 131072,
                "torch_dtype": "bfloat16",
            }
        )
    )
    return path


@pytest.mark.parametrize(
    "word",
    ["Insufficient Permissions", "N/A", "[N/A]", "Not Supported", "GPU requires reset", "Unknown Error", ""],
)
def test_case_17_words_in_the_place_of_numbers_are_unknown_and_their_neighbours_are_read(word):
    report = nvidia_xml.parse_report(
        "<nvidia_smi_log><gpu><mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device>"
        "<index>0</index><gpu_instance_id>10</gpu_instance_id><compute_instance_id>0</compute_instance_id>"
        f"<fb_memory_usage><total>{word}</total></fb_memory_usage></mig_device></mig_devices>"
        f"<fb_memory_usage><total>{word}</total></fb_memory_usage></gpu></nvidia_smi_log>"
    )
    assert isinstance(report, Known)
    (gpu,) = report.value.gpus
    assert isinstance(nvidia_smi.parse_number(gpu.memory_total), Unknown)
    assert isinstance(gpu.slices, Known)
    (one,) = gpu.slices.value
    assert (one.gi, one.ci) == (Known(10), Known(0))
    assert isinstance(one.memory_mib, Unknown)


def test_case_21_all_means_every_gpu_of_the_host_and_is_never_sent_to_it(desk):
    assert [one["index"] for one in desk.json("mig", "show", "gpu-01:all")["gpus"]] == [0, 1]
    with pytest.raises((UsageError, ValueError)):
        Target(GpuUuid("all"))
    verdict = judge(Verb.MODE, "No devices were found", 6)
    assert (verdict.id, verdict.said) == ("no-such-gpu", Said.REFUSED)


def test_case_25_a_header_with_an_error_under_it_is_no_empty_table(desk):
    text = "+------+\n| GPU instance profiles: |\n|======|\nFailed to display GPU instance profiles: Unknown Error"
    found = mig_tables.parse_profiles(text)
    assert isinstance(found, Unknown)
    assert "Unknown Error" in found.reason
    for verb in ("-lgip", "-lgi"):
        desk.fleet["gpu-01"].sh(f"lab-fault gpu-mishap {verb} Unknown Error", user="root")
        answer = desk.json("mig", "plan", "gpu-01:0", "--layout", "half")
        assert (answer["exit"], answer["error"]["code"]) == (4, "fact-unknown")
        assert "Unknown Error" in answer["error"]["message"]
    assert places(desk) == set(CUT)


def test_case_29_a_scalar_is_told_with_the_list_that_it_should_be_and_fits_are_asked_offline(desk):
    (desk.path / "parted.yaml").write_text(
        'version: v1\nmig-configs:\n  one:\n  - devices: 7\n    mig-enabled: true\n    mig-devices: {"1g.10gb": 1}\n'
    )
    code, said = desk.run("mig", "plan", "gpu-01:0", "--layout", "one", "-f", "parted.yaml")
    assert code == 2
    assert "parted.yaml:4" in said.err
    assert "write a list: [7]" in said.err
    answer = desk.json("mig", "plan", "--model", "A100-40GB", "--layout", "4g.20gb,3g.20gb")
    assert (answer["exit"], [one["start"] for one in answer["create"]]) == (0, [0, 4])
    assert desk.json("mig", "plan", "--model", "A100-40GB", "--layout", "4g.20gb,4g.20gb")["exit"] == 4


def test_case_31_no_command_leaves_out_the_gpu(desk):
    for index, layout in ((0, "half"), (1, "balanced")):
        answer = desk.json("mig", "plan", f"gpu-01:{index}", "--layout", layout)
        uuid = desk.fleet["gpu-01"].gpus.gpus[index].uuid
        assert answer["commands"]
        assert all(words[words.index("-i") + 1] == uuid for words in answer["commands"])
    before = places(desk)
    assert desk.json("mig", "reconfigure", "gpu-01:1", "--layout", "balanced", "--yes")["exit"] == 0
    assert places(desk) == before
    assert len(places(desk, 1)) == 4
