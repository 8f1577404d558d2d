"""The simulated nvidia-smi prints what the real one prints, and hands out what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import HostFacts, Known
from gpufleet.inventory.model import Address, Host
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet, parse_gpus
from gpufleet.lab.gpus.boards import BOARDS
from gpufleet.lab.gpus.simgpu import NoRoom, make_gpus
from gpufleet.lab.memory import MemoryTransport
from gpufleet.names import HostName
from tests.kit.lab_kit import LabClock

CAPTURES = Path(__file__).parents[4] / "shared" / "fixtures" / "mig"
MIXED = {0: ("1g.10gb:6", "3g.40gb:0", "1g.10gb+me:4")}
TWO = {0: ("1g.10gb:4", "1g.10gb:6")}
SEVEN = {0: tuple(f"1g.10gb:{at}" for at in range(7))}


def lab(gpus: str = "1xH100-80GB", **more) -> LabHost:
    return build_fleet([HostWish(**{"name": "gpu-01", "gpus": gpus, **more})], LabClock())["gpu-01"]


def smi(host: LabHost, words: str, *, user: str = "root", code: int = 0) -> str:
    ended = host.sh(f"nvidia-smi {words}", user=user)
    assert ended.code == code, ended
    return ended.stdout.decode()


def shape(text: str) -> list[str]:
    """Rows in any order, without trailing blanks, and with one UUID for all."""
    lines = (re.sub("(GPU|MIG)-[0-9a-f-]{36}", r"\1-UUID", line.rstrip()) for line in text.splitlines())
    return sorted(line for line in lines if line)


@pytest.mark.parametrize(
    ("capture", "words", "wish"),
    [
        ("h100-default-580.173.02.L", "-L", {}),
        ("h100-default-580.173.02.lgip", "mig -lgip", {}),
        ("h100-mig-580.173.02.L", "-L", {"layouts": TWO}),
        ("h100-mig-580.173.02.lgip", "mig -lgip", {"layouts": TWO}),
        ("h100-mig-580.173.02.lgi", "mig -lgi", {"layouts": TWO}),
        ("h100-mig-580.173.02.lci", "mig -lci", {"layouts": TWO}),
        ("h100-mig-mixed-580.173.02.lgip", "mig -lgip", {"layouts": MIXED}),
        ("h100-mig-mixed-580.173.02.lgi", "mig -lgi", {"layouts": MIXED}),
        ("h100-80gb-57col.lgi", "mig -lgi", {"layouts": SEVEN, "driver": "550.54.14"}),
        ("h100-80gb-57col.lgip", "mig -lgip", {"driver": "550.54.14"}),
        ("h100-80gb-57col.lgipp", "mig -lgipp", {"driver": "550.54.14"}),
        ("h200-mig-580.173.02.lgip", "mig -lgip", {"gpus": "1xH200-141GB", "layouts": {0: ("1g.18gb:4", "1g.18gb:6")}}),
        ("h200-mig-580.173.02.lgi", "mig -lgi", {"gpus": "1xH200-141GB", "layouts": {0: ("1g.18gb:4", "1g.18gb:6")}}),
    ],
)  # fmt: skip
def test_tables_are_those_of_a_real_card(capture, words, wish):
    path = CAPTURES / f"{capture}.txt"
    if not path.exists():
        pytest.skip(f"the captured output {path.name} is not beside this checkout")
    assert shape(smi(lab(**wish), words)) == shape(path.read_text())


@pytest.mark.parametrize(
    ("words", "code", "text", "wish"),
    [
        ("mig -lgi", 3, "No MIG-enabled devices found.", {}),
        ("mig -lgi", 6, "No GPU instances found: Not Found", {"layouts": {0: ()}}),
        ("mig -lci", 6, "No compute instances found: Not Found", {"layouts": {0: ()}}),
        ("mig -lgip", 3, "No MIG-supported devices found.", {"gpus": "1xL40S-48GB"}),
        ("-i 7 -L", 6, "No devices were found", {}),
        ("--query-gpu=nonsense --format=csv", 2, 'Field "nonsense" is not a valid field to query.', {}),
    ],
)
def test_refusals_stand_on_standard_output(words, code, text, wish):
    assert text in smi(lab(**wish), words, code=code)


def test_instances_are_for_root_unless_the_host_was_opened():
    host = lab(layouts=TWO)
    assert "Insufficient Permissions" in smi(host, "mig -lci", user="ops", code=4)
    host.gpus.strict = False
    assert "MIG 1g.10gb" in smi(host, "mig -lci", user="ops")


@pytest.mark.parametrize(("trouble", "code", "text"), [("no-driver", 9, "couldn't communicate"), ("mismatch", 18, "version mismatch"), ("no-devices", 6, "No devices")])  # fmt: skip
def test_a_driver_in_trouble(trouble, code, text):
    host = lab()
    host.gpus.trouble = trouble
    assert text in smi(host, "-L", code=code)


def test_queries_with_and_without_header_and_units():
    host = lab()
    plain = smi(
        host,
        "--query-gpu=index,name,memory.total,utilization.gpu,mig.mode.current --format=csv,noheader,nounits",
    )
    assert plain == "0, NVIDIA H100 80GB HBM3, 81559, 0, Disabled\n"
    with_all = smi(host, "--query-gpu=index,memory.total --format=csv")
    assert with_all == "index, memory.total [MiB]\n0, 81559 MiB\n"
    assert smi(lab(layouts=TWO), "--query-gpu=utilization.gpu --format=csv,noheader") == "[N/A]\n"
    assert smi(lab("2xL40S-48GB"), "--query-gpu=mig.mode.current --format=csv,noheader") == "[N/A]\n[N/A]\n"


def run(host: LabHost, device: str) -> None:
    image = "vllm/vllm-openai:v1"
    text = f"docker run -d --gpus '\"device={device}\"' --entrypoint vllm {image} serve m"
    assert host.sh(text).code == 0
    host.host.clock.sleep(10)


def test_containers_show_as_processes_and_memory():
    host = lab("2xH100-80GB")
    run(host, host.gpus.gpus[1].uuid)
    apps = smi(
        host, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader,nounits"
    )
    assert apps.startswith(f"{host.gpus.gpus[1].uuid}, ")
    assert smi(host, "--query-gpu=memory.used --format=csv,noheader,nounits").split() == ["0", "73403"]
    assert "VLLM::EngineCore" in smi(host, "")


@pytest.mark.parametrize("driver", ["535.183.01", "550.54.14", "580.95.05"])
def test_facts_join_slices_with_their_placement_and_process(driver):
    fleet = build_fleet(
        [HostWish(name="gpu-01", gpus="2xH100-80GB", layouts=MIXED, driver=driver)], LabClock()
    )
    small = next(one for one in fleet["gpu-01"].gpus.gpus[0].instances if one.start == 6)
    run(fleet["gpu-01"], small.uuid)
    host = Host(name=HostName("gpu-01"), address=Address("127.0.0.1"))
    found = gather(MemoryTransport(fleet), [host], clock=fleet.clock)[host.name]
    assert isinstance(found, HostFacts)
    assert isinstance(found.gpus, Known)
    first, second = found.gpus.value
    assert isinstance(first.mig.instances, Known)
    assert {
        (one.profile, one.start, one.size, one.uuid == small.uuid) for one in first.mig.instances.value
    } == {
        ("3g.40gb", Known(0), Known(4), False),
        ("1g.10gb+me", Known(4), Known(1), False),
        ("1g.10gb", Known(6), Known(1), True),
    }
    assert second.mig.current == Known(False)
    assert isinstance(first.processes, Known)
    assert [process.gi for process in first.processes.value] == [small.gi]


def test_placements_keep_apart():
    (gpu,) = make_gpus("h", "H100-80GB", 1)
    gpu.set_mig(enabled=True)
    gpu.create("3g.40gb", 4)
    with pytest.raises(NoRoom):
        gpu.create("3g.40gb", 4)
    with pytest.raises(NoRoom):
        gpu.create("1g.10gb", 5)
    gpu.create("1g.10gb+me", 0)
    with pytest.raises(NoRoom):
        gpu.create("1g.10gb+me", 1)
    with pytest.raises(KeyError):
        gpu.create("9g.90gb")
    assert gpu.occupied() == {0, 4, 5, 6, 7}


def test_names_of_gpus():
    assert parse_gpus("8xH200-141GB") == (8, "H200-141GB")
    for text in ("", "8", "8xNOPE", "0xH100-80GB", "17xH100-80GB"):
        with pytest.raises(ValueError, match="write NUMBERxBOARD"):
            parse_gpus(text)
    assert {"A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB"} <= BOARDS.keys()
