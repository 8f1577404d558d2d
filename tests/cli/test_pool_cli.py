"""`gpufleet pool` where no host is needed: definitions, the record, the route table, and every refusal."""

from __future__ import annotations

import json

import pytest

from gpufleet.cli.app import main
from gpufleet.clock import SystemClock
from gpufleet.names import HostName, PoolName, ReplicaId
from gpufleet.pools import document, membership, record
from gpufleet.pools.model import Endpoint, Pool
from gpufleet.pools.record import PoolRecord
from gpufleet.pools.store import PoolStore

INVENTORY = """\
version: 1
hosts:
  gpu-01: {address: 192.0.2.1}
  gpu-02: {address: 192.0.2.2}
pools:
  chat: {model: qwen, replicas: 2, hosts: "gpu-0*"}
"""


class Desk:
    """An inventory, a state directory, and the command line in this process."""

    def __init__(self, path, capsys):
        self.path = path
        self.capsys = capsys
        self.store = PoolStore(path / "state", SystemClock())
        (path / "inventory.yaml").write_text(INVENTORY)

    def run(self, *words):
        code = main(
            [
                *words,
                "-i",
                str(self.path / "inventory.yaml"),
                "--state-dir",
                str(self.path / "state"),
                "--no-input",
            ]
        )
        return code, self.capsys.readouterr()

    def json(self, *words):
        code, said = self.run(*words, "-o", "json")
        answer = json.loads(said.out)
        assert answer["exit"] == code
        return answer

    def deployed(self):
        pool = Pool(name=PoolName("chat"), model="qwen", replicas=2, hosts=("gpu-0*",))
        endpoints = [
            Endpoint(replica=ReplicaId(f"{host}/0"), host=HostName(host), url=f"http://{address}:8000")
            for host, address in (("gpu-01", "192.0.2.1"), ("gpu-02", "192.0.2.2"))
        ]
        route = membership.route(pool, endpoints, key="${file:/k}", health="/health", metrics="/metrics")
        self.store.publish(lambda table: membership.with_pool(table, route))
        written = PoolRecord(
            revision=1, pool=document.from_model(pool), endpoints=record.endpoint_records(endpoints)
        )
        self.store.save(pool.name, written)


@pytest.fixture
def desk(tmp_path, capsys):
    return Desk(tmp_path, capsys)


def test_a_defined_pool_is_listed_before_it_is_deployed(desk):
    answer = desk.json("pool", "list")
    assert answer["outcome"] == "ok"
    assert answer["pools"] == [
        {
            "pool": "chat",
            "model": "qwen",
            "algorithm": "round-robin",
            "replicas": 2,
            "served": 0,
            "revision": 0,
        }
    ]


def test_show_gives_the_members(desk):
    desk.deployed()
    answer = desk.json("pool", "show", "chat")
    assert answer["served"] == 2
    assert answer["members"][0] == {
        "replica": "gpu-01/0",
        "endpoint": "http://192.0.2.1:8000",
        "weight": 1,
        "state": "active",
    }
    code, said = desk.run("pool", "show", "chat")
    assert code == 0
    assert "gpu-02/0" in said.out


def test_weights_and_algorithm_are_live(desk):
    desk.deployed()
    answer = desk.json("pool", "set", "chat", "--algorithm", "weighted-static", "--weight", "gpu-01/0=4")
    assert (answer["outcome"], answer["generation"]) == ("committed", 2)
    (route,) = desk.store.routes().pools
    assert route.algorithm == "weighted-static"
    assert [endpoint.weight for endpoint in route.endpoints] == [4, 1]
    assert route.endpoints[0].key == "${file:/k}"
    again = desk.json("pool", "set", "chat", "--weight", "gpu-01/0=4")
    assert (again["outcome"], again["generation"]) == ("no_change", 2)


def test_drained_members_stay_in_the_table_as_draining(desk):
    desk.deployed()
    assert desk.json("pool", "drain", "chat", "gpu-01/0")["outcome"] == "committed"
    assert [one.state for one in desk.store.routes().pools[0].endpoints] == ["draining", "active"]
    assert desk.json("pool", "undrain", "chat", "gpu-01/0")["outcome"] == "committed"
    assert [one.state for one in desk.store.routes().pools[0].endpoints] == ["active", "active"]


REFUSALS = [
    (("show", "chta"), "did you mean `chat`?"),
    (("set", "chta", "--algorithm", "random"), "did you mean `chat`?"),
    (("set", "chat"), "nothing to set"),
    (("set", "chat", "--algorithm", "robin"), "no algorithm `robin`"),
    (("set", "chat", "--weight", "gpu-01=4"), "is not HOST/N=WEIGHT"),
    (("set", "chat", "--weight", "gpu-01/0=-4"), "is not HOST/N=WEIGHT"),
    (("set", "chat", "--weight", "gpu-09/0=4"), "no replica gpu-09/0"),
    (("drain", "chat", "gpu-01/7"), "no replica gpu-01/7"),
    (("deploy", "chta"), "did you mean `chat`?"),
    (("deploy",), "which pool?"),
    (("deploy", "../x", "--model", "m"), "no pool name"),
    (("deploy", "new", "--model=--privileged"), "starts with `-`"),
    (("deploy", "new", "--model", "m", "--image", "a b"), "no image reference"),
    (("deploy", "chat", "--replicas", "0"), "serves nothing"),
    (("deploy", "chat", "--hosts", "gpu-9*"), "gpu-9*"),
    (("deploy", "chat", "--gpus", "1", "--mig", "1g.10gb"), "exclude each other"),
    (("deploy", "chat", "--engine-arg=--max-model-len 8"), "two words in one item"),
    (("deploy", "-f", "nowhere.yaml"), "nowhere.yaml"),
    (("deploy", "--plan", "nowhere.json"), "saved plan cannot be read"),
    (("delete", "chta"), "did you mean `chat`?"),
]


@pytest.mark.parametrize(("words", "message"), REFUSALS, ids=[" ".join(words) for words, _ in REFUSALS])
def test_mistakes_are_one_clear_error_and_change_nothing(desk, words, message):
    desk.deployed()
    before = desk.store.routes_path.read_bytes()
    code, said = desk.run("pool", *words)
    assert code == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert desk.store.routes_path.read_bytes() == before


def test_a_pool_that_was_never_deployed_is_told_how(desk):
    answer = desk.json("pool", "drain", "chat", "gpu-01/0")
    assert answer["exit"] == 2
    assert answer["error"]["hints"] == ["gpufleet pool deploy chat"]


def test_a_wrong_definition_names_file_and_line(desk):
    path = desk.path / "pool.yaml"
    path.write_text("pool: chat\nmodel: m\nreplicas: many\ntypo: 1\n")
    answer = desk.json("pool", "plan", "-f", str(path))
    assert answer["exit"] == 2
    assert {row["where"] for row in answer["error"]["rows"]} == {f"{path}:3", f"{path}:4"}


def test_definitions_beside_the_inventory_are_found_and_defined_once(desk):
    folder = desk.path / "pools"
    folder.mkdir()
    (folder / "embed.yaml").write_text("pool: embed\nmodel: bge\n")
    assert [pool["pool"] for pool in desk.json("pool", "list")["pools"]] == ["chat", "embed"]
    (folder / "again.yaml").write_text("pool: chat\nmodel: other\n")
    answer = desk.json("pool", "list")
    assert answer["exit"] == 2
    assert "second time" in answer["error"]["message"]
