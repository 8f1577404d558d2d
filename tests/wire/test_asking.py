"""The look's Python, run for real against engines behind real sockets."""

import json
import subprocess
import sys
import time

import pytest

from gpufleet.deploy.asking import PYTHON
from gpufleet.engine.kinds import questions_of, senseless
from gpufleet.lab.vllm.engine import EngineServer
from gpufleet.lab.vllm.engine_model import Phase
from gpufleet.lab.vllm.spec import EngineSpec
from gpufleet.redact import Secret

pytestmark = pytest.mark.wire


def listening(server, engine):
    """The port it listens on, once it does."""
    until = time.monotonic() + 30
    while server.state(engine) is not Phase.READY:
        assert time.monotonic() < until
        time.sleep(0.01)
    return engine.addresses[0][1]


@pytest.mark.parametrize("kind", ["embedding", "rerank", "pooling", "transcription", "speech"])
def test_a_question_that_goes_by_python_is_answered(kind):
    with EngineServer() as server:
        spec = EngineSpec(model="m", kind=kind, load_seconds=0.0, keys=(Secret("k-1"),))
        engine = server.start((("127.0.0.1", 0),), spec)
        port = listening(server, engine)
        question, _ = questions_of(kind, "m", "hello")
        words = [sys.executable, "-c", PYTHON, f"http://127.0.0.1:{port}{question.path}", question.body]
        done = subprocess.run(words, input="k-1", capture_output=True, text=True, timeout=60, check=True)
        body, _, status = done.stdout.rstrip().rpartition("\nstatus ")
        assert (status, senseless(kind, body)) == ("200", "")
        wrong = subprocess.run(words, input="other", capture_output=True, text=True, timeout=60, check=True)
        assert wrong.stdout.rstrip().endswith(
            "status 401" if question.path.startswith("/v1") else "status 200"
        )
        assert json.loads(body)
