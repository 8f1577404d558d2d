"""What the gate's look means: ready, still coming, or never."""

import json

import pytest

from gpufleet.change.model import CannotTell, Fails, Holds, Waits
from gpufleet.deploy.gate import PREDICATES, ready
from gpufleet.remote.result import Exit


def http(status, body=""):
    return f"{body}\nstatus {status:03d}"


def sse(*pieces, key="content", done=True, field="delta"):
    events = [
        {"choices": [{"index": 0, field: {key: piece}} if field == "delta" else {"index": 0, key: piece}]}
        for piece in pieces
    ]
    lines = [f"data: {json.dumps(event)}\n" for event in events]
    return "\n".join([*lines, *(["data: [DONE]\n"] if done else [])])


MODELS = json.dumps({"object": "list", "data": [{"id": "chat", "object": "model"}]})


def look(state="running 0 0 false 77", health=None, models=None, tokens=None, log="", network=None):
    parts = ["== state", state]
    for name, text in (("health", health), ("network", network), ("models", models), ("tokens", tokens)):
        if text is not None:
            parts += [f"== {name}", text]
    return Exit(code=0, stdout="\n".join([*parts, "== log", log, ""]))


def judge(answer, name="chat"):
    return ready(answer, (name,))


def test_a_token_makes_it_ready():
    answer = look(health=http(200), models=http(200, MODELS), tokens=http(200, sse("Hel", "lo")))
    assert judge(answer) == Holds()


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning"])
def test_reasoning_counts_as_tokens(key):
    assert (
        judge(look(health=http(200), models=http(200, MODELS), tokens=http(200, sse("so", key=key))))
        == Holds()
    )


def test_completions_count_as_tokens():
    tokens = http(200, sse("once", key="text", field="flat"))
    assert judge(look(health=http(200), models=http(200, MODELS), tokens=tokens)) == Holds()


@pytest.mark.parametrize(
    "answer",
    [
        look(health=http(0)),
        look(health=http(503)),
        look(health=http(200), models=http(500, "{}")),
        look(health=http(200), models=http(200, MODELS), tokens=http(500, "{}")),
        look(health=http(200), models=http(200, MODELS), tokens=http(0)),
        look(health=http(200), models=http(200, MODELS), tokens=http(200, sse(done=False))),
        look(state="restarting 1 1 false"),
        look(state="running 0 1 false", log="something went wrong"),
    ],
)
def test_what_may_still_come_is_waited_for(answer):
    assert isinstance(judge(answer), Waits)


def test_another_model_is_a_failure():
    verdict = judge(look(health=http(200), models=http(200, MODELS)), name="other")
    assert isinstance(verdict, Fails)
    assert "serves chat, not other" in verdict.reason


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (http(200, sse("!!!!", "!!!!!!")), "over and over"),
        (http(200, sse("")), "no token"),
        (http(200, sse(" ", "\n")), "nothing but white space"),
        (http(200, sse("!!", "!!")), "`!!!!` over and over"),
        (http(200, sse("\ufffd\ufffd a")), "no UTF-8"),
        (http(404, '{"error": {"message": "no such thing"}}'), "no such thing"),
    ],
)
def test_senseless_answers_are_failures(tokens, reason):
    verdict = judge(look(health=http(200), models=http(200, MODELS), tokens=tokens))
    assert isinstance(verdict, Fails)
    assert reason in verdict.reason


def test_a_refused_key_is_a_failure():
    assert isinstance(judge(look(health=http(200), models=http(401))), Fails)


def test_the_first_cause_in_the_log_is_told_and_no_wrapper():
    wrapper = "RuntimeError: Engine core initialization failed. See root cause above."
    cause = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
    log = f"{wrapper}\n{cause}"
    verdict = judge(look(state="exited 1 3 false", log=log))
    assert isinstance(verdict, Fails)
    assert verdict.reason.startswith("ValueError: No available memory")
    assert "--max-num-seqs" in verdict.hint


def test_a_known_cause_ends_the_wait_while_the_runtime_still_restarts_it():
    verdict = judge(look(state="running 0 1 false", log="torch.OutOfMemoryError: CUDA out of memory."))
    assert isinstance(verdict, Fails)


def test_a_warning_in_the_log_of_a_container_that_never_fell_is_no_cause():
    assert isinstance(judge(look(health=http(0), log="retrying after 401 Client Error")), Waits)


@pytest.mark.parametrize("state", ["exited 1 0 false", "dead 1 0 false", "running 0 4 false"])
def test_an_unknown_end_shows_the_end_of_the_log_without_secrets(state):
    verdict = judge(look(state=state, log="first\ntoken hf_abcdefghijklmnopqrstuv\nlast words"))
    assert isinstance(verdict, Fails)
    assert verdict.reason.endswith("its last line: last words")
    assert "first" in verdict.hint
    assert "hf_abc" not in verdict.reason + verdict.hint


def test_an_end_without_a_log_is_told_in_one_line():
    verdict = judge(look(state="exited 0 0 false"))
    assert isinstance(verdict, Fails)
    assert verdict.reason == "the container exited with status 0 without a log"


def test_memory_and_disappearance_are_told():
    assert "memory" in getattr(judge(look(state="exited 137 0 true")), "reason", "")
    assert "gone" in getattr(judge(look(state="gone 0 0 false")), "reason", "")


def test_a_look_that_failed_tells_nothing():
    assert isinstance(judge(Exit(code=1, stderr="Cannot connect to the Docker daemon")), CannotTell)
    assert isinstance(judge(Exit(code=0, stdout="noise")), CannotTell)


def test_progress_moves_with_phases_and_shards_and_not_with_clocks():
    def progress(log):
        verdict = judge(look(health=http(0), log=log))
        assert isinstance(verdict, Waits)
        return verdict.progress

    assert progress("INFO 12:00:01 still waiting") == progress("INFO 12:00:31 still waiting")
    shards = "Loading safetensors checkpoint shards:  {}% Completed | {}/5 [00:02<00:01]"
    assert progress(shards.format(20, 1)) != progress(shards.format(40, 2))
    assert progress("INFO Starting to load model x...") != progress(
        "INFO Model loading took 1 GiB and 2 seconds"
    )


def test_people_read_the_line_whole_and_without_what_stands_in_front():
    line = "(APIServer pid=12) INFO 07-01 10:11:12 [utils.py:233] non-default args: {'port': 8000}"
    verdict = judge(look(health=http(0), log=line))
    assert isinstance(verdict, Waits)
    assert verdict.reason.endswith("the log's last line: non-default args: {'port': 8000}")


NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: {lo} 0 0 0 0 0 0 0 999999999999 0 0 0 0 0 0 0
  eth0: {eth} 16 0 0 0 0 0 0 999999999999 4 0 0 0 0 0 0
"""


def test_a_silent_download_is_progress_and_our_own_questions_are_not():
    def progress(**received):
        verdict = judge(
            look(health=http(0), log="INFO Starting to load model x...", network=NETWORK.format(**received))
        )
        assert isinstance(verdict, Waits)
        return verdict.progress

    assert progress(lo=0, eth=2 << 30) != progress(lo=0, eth=3 << 30)
    assert "2048 MiB received" in progress(lo=0, eth=2 << 30)
    assert progress(lo=0, eth=1 << 20) == progress(lo=5 << 30, eth=2 << 20)


def test_a_log_cannot_forge_the_answers_before_it():
    forged = "== tokens\n" + http(200, sse("hello")) + "\n== state\nrunning 0 0 false"
    assert isinstance(judge(look(health=http(0), log=forged)), Waits)
    assert isinstance(judge(look(state="exited 1 0 false", log=forged)), Fails)


@pytest.mark.parametrize(
    ("name", "stdout", "data", "verdict"),
    [
        ("image-present", "sha256:1\n", ("x",), Holds),
        ("image-present", "", ("x",), Fails),
        ("container-started", "running on-failure\n", (), Holds),
        ("container-started", "exited on-failure\n", (), Holds),
        ("container-started", "created on-failure\n", (), Waits),
        ("container-started", "", (), Waits),
        ("nothing-left", "", (), Holds),
        ("nothing-left", "created no\n", (), Fails),
        ("nothing-left", "environment-file\n", (), Fails),
        ("container-in-state", "exited no\n", ("exited,dead", "no"), Holds),
        ("container-in-state", "running always\n", ("running,restarting", "always"), Holds),
        ("container-in-state", "running on-failure\n", ("running,restarting", "on-failure:3"), Holds),
        ("container-in-state", "running on-failure\n", ("running", "always"), Fails),
        ("container-in-state", "running no\n", ("exited", "no"), Waits),
        ("container-in-state", "", ("exited", ""), Fails),
    ],
)
def test_the_other_looks(name, stdout, data, verdict):
    assert isinstance(PREDICATES[name](Exit(code=0, stdout=stdout), data), verdict)


@pytest.mark.parametrize("name", ["container-started", "nothing-left", "container-in-state", "engine-ready"])
def test_a_runtime_that_does_not_answer_is_unknown_and_never_nothing(name):
    assert isinstance(PREDICATES[name](Exit(code=1, stderr="no daemon"), ("a", "b")), CannotTell)


def judge_kind(kind, tokens, models=None):
    return ready(look(health=http(200), models=models or http(200, MODELS), tokens=tokens), ("chat", kind))


def test_a_vector_makes_an_embedding_model_ready():
    vector = '{"data": [{"embedding": [0.5, -0.5]}]}'
    assert judge_kind("embedding", http(200, vector)) == Holds()
    assert isinstance(judge_kind("chat", http(200, vector)), Waits)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (http(200, '{"data": [{"embedding": [NaN]}]}'), "not finite"),
        (
            http(500, '{"error": {"message": "Out of range float values are not JSON compliant: nan"}}'),
            "not finite",
        ),
        (http(404, '{"detail": "Not Found"}'), "is answered 404"),
        (
            http(400, '{"error": {"message": "The model does not support Embeddings API"}}'),
            "does not support",
        ),
    ],
)
def test_a_model_of_another_kind_or_without_sense_fails(answer, reason):
    verdict = judge_kind("embedding", answer)
    assert isinstance(verdict, Fails)
    assert reason in verdict.reason


def test_an_answer_that_may_still_come_is_waited_for():
    assert isinstance(judge_kind("embedding", http(503)), Waits)
    assert isinstance(judge_kind("embedding", http(0)), Waits)


def test_the_name_alone_is_enough_when_that_is_asked():
    assert judge_kind("models", None) == Holds()
    assert isinstance(judge_kind("models", None, http(200, '{"data": [{"id": "other"}]}')), Fails)
