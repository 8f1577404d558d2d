"""Models that do not chat: what they are asked, and which answers make no sense."""

import json

import pytest

from gpufleet.engine.kinds import Question, kind_of, questions_of, senseless
from gpufleet.names import PoolName
from gpufleet.pools.model import EngineWish, GateWish, Pool


def pool(*args, kind="auto"):
    return Pool(
        name=PoolName("p"), model="m", engine=EngineWish(image="x", args=args), gate=GateWish(kind=kind)
    )


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        ((), "chat"),
        (("--task", "embed"), "embedding"),
        (("--task=score",), "rerank"),
        (("--task", "generate"), "chat"),
        (("--runner", "pooling"), "embedding"),
        (("--runner", "pooling", "--convert", "classify"), "pooling"),
        (("--runner", "generate"), "chat"),
    ],
)
def test_the_arguments_tell_the_kind_unless_the_gate_says_it(args, kind):
    assert kind_of(pool(*args)) == kind
    assert kind_of(pool(*args, kind="speech")) == "speech"


def test_a_name_alone_is_no_question():
    assert questions_of("models", "m", "hi") == (Question(), Question())


@pytest.mark.parametrize(
    "kind", ["chat", "completion", "embedding", "rerank", "pooling", "transcription", "speech"]
)
def test_every_question_names_the_model(kind):
    for question in questions_of(kind, "m", "hi"):
        if question.path:
            assert json.loads(question.body)["model"] == "m"
    assert questions_of(kind, "m", "hi")[0].path


def data(*rows):
    return json.dumps({"object": "list", "data": list(rows)})


@pytest.mark.parametrize(
    ("kind", "body", "wrong"),
    [
        ("embedding", data({"embedding": [0.1, -0.2]}), ""),
        ("embedding", data({"embedding": [0.0, 0.0]}), "nothing but zeros"),
        ("embedding", data({"embedding": []}), "no numbers"),
        ("embedding", data({"embedding": [None, 0.1]}), "not finite"),
        ("embedding", '{"data": [{"embedding": [NaN, 0.1]}]}', "not finite"),
        ("embedding", '{"data": [{"embedding": [0.1,-Infinity]}]}', "not finite"),
        ("embedding", "hello", "no JSON"),
        ("embedding", "[]", "no JSON object"),
        ("rerank", json.dumps({"results": [{"index": 1, "relevance_score": 0.9}]}), ""),
        ("rerank", data({"score": 0.5}), ""),
        ("rerank", json.dumps({"results": []}), "no numbers"),
        ("pooling", data({"data": [[0.1], [0.2]]}), ""),
        ("pooling", data({"label": "x", "probs": [0.9, 0.1]}), ""),
        ("transcription", '{"text": ""}', ""),
        ("transcription", '{"error": "x"}', "no text"),
        ("speech", '{"bytes": 44}', ""),
        ("speech", '{"bytes": 0}', "no sound"),
    ],
)
def test_answers_that_make_sense_and_those_that_do_not(kind, body, wrong):
    found = senseless(kind, body)
    assert (wrong in found) if wrong else found == ""
