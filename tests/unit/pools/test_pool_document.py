"""Pool definitions: read, written back, and every mistake at its line."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpufleet.errors import DocumentError
from gpufleet.located import Located, Problems
from gpufleet.pools.document import from_model, to_model
from gpufleet.pools.load import from_file
from gpufleet.pools.model import MemberState
from gpufleet.redact import Secret

WHOLE = """\
pool: chat
model: qwen/qwen2.5-7b-instruct
served_name: qwen
algorithm: least-busy
replicas: 6
hosts: [gpu-0*, "!gpu-03"]
slice: {gpus: 2}
engine:
  image: vllm/vllm-openai:v0.20.0
  args: [--max-model-len, 8192, '--hf-overrides={"a": 1}']
  env: {HF_TOKEN: "${env:HF_TOKEN}", NCCL_DEBUG: INFO}
weights: /models/qwen
gate: {stall: 60, within: 600}
limits: {memory: 64g, cpus: 8, shm: 16g}
members:
  gpu-01/0: {weight: 4}
  gpu-02/0: {state: draining}
owner: research
"""


def write(tmp_path, text):
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    return path


def test_every_field_arrives(tmp_path):
    pool = from_file(write(tmp_path, WHOLE))
    assert (pool.name, pool.public_name, pool.algorithm, pool.replicas) == ("chat", "qwen", "least-busy", 6)
    assert pool.hosts == ("gpu-0*", "!gpu-03")
    assert pool.slice.gpus == 2
    assert pool.engine.args == ("--max-model-len", "8192", '--hf-overrides={"a": 1}')
    assert pool.engine.env["NCCL_DEBUG"] == "INFO"
    token = pool.engine.env["HF_TOKEN"]
    assert isinstance(token, Secret)
    assert token.reference == "${env:HF_TOKEN}"
    assert (pool.limits.memory, pool.limits.cpus, pool.limits.shm) == ("64g", "8", "16g")
    assert [(member.replica, member.weight, member.state) for member in pool.members] == [
        ("gpu-01/0", 4, MemberState.ACTIVE),
        ("gpu-02/0", 1, MemberState.DRAINING),
    ]


def test_written_back_it_is_the_same(tmp_path):
    pool = from_file(write(tmp_path, WHOLE))
    problems = Problems()
    again = to_model(Located.of(from_model(pool)), problems)
    assert not problems.rows
    assert again is not None
    assert from_model(again) == from_model(pool)
    assert "hf_" not in str(from_model(pool))


SOURCES = [
    "hf://Qwen/Qwen3-8B@main",
    "file:///data/models/qwen",
    "host:///mnt/share/qwen",
    {"from": "host:///mnt/share/qwen", "in_place": True},
    {
        "from": "s3://models/qwen",
        "endpoint": "https://s3.local:9000",
        "access_key": "${env:A}",
        "secret_key": "${env:S}",
    },
    {
        "from": "hf://Qwen/Qwen3-8B",
        "token": "${env:HF_TOKEN}",
        "store": "~/models",
        "shared": True,
        "exclude": ["*.md"],
    },
]


@pytest.mark.parametrize(
    "weights", SOURCES, ids=["hub", "directory here", "share", "share in place", "s3", "hub with all"]
)
def test_a_source_of_weights_is_written_back_as_it_was(weights):
    problems = Problems()
    pool = to_model(Located.of({"pool": "chat", "model": "m", "weights": weights}), problems)
    assert not problems.rows
    assert pool is not None
    assert pool.staging is not None
    assert pool.weights is None
    assert from_model(pool)["weights"] == weights


@pytest.mark.parametrize("said", [{"share": 0.33}, {"gpus": 4, "across": True}, {"memory_gib": 24.0}])
def test_what_a_replica_needs_comes_back_as_it_was_written(said):
    problems = Problems()
    pool = to_model(Located.of({"model": "m", "slice": said, "placement": "spread"}), problems, "chat")
    assert not problems.rows
    assert pool is not None
    again = from_model(pool)
    assert (again["slice"], again["placement"]) == (said, "spread")


MISTAKES = [
    ("pool: chat\n", 1, "`model` is missing"),
    ("pool: chat\nmodel: m\nreplica: 3\n", 3, "unknown field `replica`"),
    ("pool: chat\nmodel: m\nreplicas: 0\n", 3, "replicas"),
    ("pool: chat\nmodel: m\nalgorithm: robin\n", 3, "algorithm"),
    ("pool: ../chat\nmodel: m\n", 1, "no pool name"),
    ("model: m\n", 1, "`pool` is missing"),
    ("pool: chat\nmodel: --privileged\n", 2, "starts with `-`"),
    ("pool: chat\nmodel: m\nslice:\n  gpus: 1\n  mig: 1g.10gb\n", 3, "`gpus` and `mig`"),
    ("pool: chat\nmodel: m\nslice:\n  gpus: 2\n  share: 0.5\n", 3, "`gpus` and `share`"),
    ("pool: chat\nmodel: m\nslice:\n  share: 1.5\n", 4, "share"),
    ("pool: chat\nmodel: m\nslice:\n  across: true\n", 4, "several GPUs"),
    ("pool: chat\nmodel: m\nplacement: tight\n", 3, "placement"),
    ("pool: chat\nmodel: m\nengine:\n  image: --privileged\n", 4, "no image reference"),
    ("pool: chat\nmodel: m\nengine:\n  image: a b\n", 4, "no image reference"),
    ("pool: chat\nmodel: m\nengine:\n  args:\n    - --max-model-len 8192\n", 5, "two words in one item"),
    ("pool: chat\nmodel: m\nengine:\n  env:\n    A-B: x\n", 5, "no name of a variable"),
    ('pool: chat\nmodel: m\nengine:\n  env:\n    A: "x\\ny"\n', 5, "line break"),
    ("pool: chat\nmodel: m\nengine:\n  env:\n    HF_TOKEN: plain-text\n", 5, "secret in plain text"),
    ("pool: chat\nmodel: m\nweights: models\n", 3, "absolute path"),
    ("pool: chat\nmodel: m\nweights: ftp://x\n", 3, "absolute path"),
    ("pool: chat\nmodel: m\nweights: s3://UPPER\n", 3, "no source of weights"),
    ("pool: chat\nmodel: m\nweights: file://models/qwen\n", 3, "no source of weights"),
    ("pool: chat\nmodel: m\nweights: host://~/qwen\n", 3, "no source of weights"),
    (
        "pool: chat\nmodel: m\nweights:\n  from: hf://a/b\n  in_place: true\n",
        5,
        "uses a directory of the hosts",
    ),
    ("pool: chat\nmodel: m\nweights:\n  from: /models\n", 4, "no source of weights"),
    ("pool: chat\nmodel: m\nweights:\n  from: hf://a/b\n  token: plain\n", 5, "secret in plain text"),
    ("pool: chat\nmodel: m\nweights:\n  from: s3://bucket\n  store: x\n", 5, "absolute path"),
    ("pool: chat\nmodel: m\nlimits:\n  memory: lots\n", 4, "no limit"),
    ("pool: chat\nmodel: m\nmembers:\n  gpu-01: {weight: 2}\n", 4, "no replica"),
]


@pytest.mark.parametrize(("text", "line", "message"), MISTAKES, ids=[message for _, _, message in MISTAKES])
def test_a_mistake_names_its_line(tmp_path, text, line, message):
    path = write(tmp_path, text)
    with pytest.raises(DocumentError) as caught:
        from_file(path)
    assert message in caught.value.summary
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.exit == 2


def test_all_mistakes_are_told_at_once(tmp_path):
    path = write(tmp_path, "pool: chat\nmodel: m\nreplicas: 0\nalgorithm: no\ntypo: 1\n")
    with pytest.raises(DocumentError) as caught:
        from_file(path)
    assert {row.where for row in caught.value.rows} == {f"{path}:{line}" for line in (3, 4, 5)}


def test_a_secret_in_plain_text_is_not_repeated_in_the_message(tmp_path):
    secret = "hf_abcdefghijklmnopqrstuvwx"
    path = write(
        tmp_path, f"pool: chat\nmodel: m\nengine:\n  env: {{A: {secret}}}\n  args: [--token={secret}]\n"
    )
    with pytest.raises(DocumentError) as caught:
        from_file(path)
    said = str(caught.value) + str(caught.value.rows) + str(caught.value.hints)
    assert secret not in said


@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_hostile_texts_are_taken_whole_or_refused(model, argument):
    problems = Problems()
    pool = to_model(Located.of({"model": model, "engine": {"args": [argument]}}), problems, "chat")
    assert (pool is None) == bool(problems.rows)
    if pool is not None:
        assert (pool.model, pool.engine.args) == (model, (argument,))
        assert not model.startswith("-")
        assert "\0" not in model + argument
