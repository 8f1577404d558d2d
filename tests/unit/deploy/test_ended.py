"""Why a container is not there: log, runtime and kernel each tell, and a wrapper never does."""

import pytest

from gpufleet.change.model import Fails
from gpufleet.deploy.ended import Remains, ended

WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
MEMORY = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
HELD = "ValueError: Free memory on device (1.0/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71 GiB)."
NO_DRIVER = 'could not select device driver "" with capabilities: [[gpu]]'


def remains(status="exited", exit_code=1, restarts=0, killed=False, limit=0, error="", log=""):
    return Remains(
        status=status,
        exit_code=exit_code,
        restarts=restarts,
        out_of_memory=killed,
        memory_limit=limit,
        error=error,
        log=log,
    )


def fails(**fields):
    verdict = ended(remains(**fields))
    assert isinstance(verdict, Fails)
    return verdict


def test_the_hint_on_memory_depends_on_whether_a_limit_is_set():
    assert "the host has none left" in fails(exit_code=137, killed=True).reason
    limited = fails(exit_code=137, killed=True, limit=64 << 30)
    assert "its limit is 64 GiB" in limited.reason
    assert "raise the pool's limits.memory" in limited.hint
    assert "where it is set" in fails(exit_code=137, killed=True, limit=None).hint


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (126, "was not started"),
        (127, "was not started"),
        (137, "was killed"),
        (139, "native code"),
        (143, "outside"),
    ],
)
def test_a_status_of_the_kernel_is_put_in_words(status, words):
    for log in ("", "last words"):
        verdict = fails(exit_code=status, log=log)
        assert words in verdict.reason
        assert f"status {status}" in verdict.reason
        assert verdict.hint


def test_what_the_runtime_says_of_a_start_is_the_cause():
    verdict = fails(status="created", exit_code=128, error=NO_DRIVER)
    assert verdict.reason == NO_DRIVER
    assert "nvidia-container-toolkit" in verdict.hint
    assert "something new" in fails(status="created", exit_code=128, error="something new").reason


def test_a_wrapper_is_never_shown_as_the_reason():
    verdict = fails(log=f"first line\n{WRAPPER}")
    assert "root cause" not in verdict.reason
    assert "names no cause" in verdict.reason
    assert "first line" in verdict.hint


def test_a_transient_cause_leaves_the_runtime_its_restarts():
    assert ended(remains(status="running", restarts=2, log=HELD)) is None
    assert fails(status="running", restarts=4, log=HELD).reason == HELD
    assert fails(status="exited", restarts=3, log=HELD).reason == HELD
    assert fails(status="running", restarts=1, log=MEMORY).reason == MEMORY


def test_a_process_that_hangs_on_after_a_permanent_error_is_not_waited_for():
    assert fails(status="running", log=f"{MEMORY}\n{WRAPPER}").reason == MEMORY
    assert fails(status="running", log=f"ERROR 01-01 00:00:00 [core.py:1] {MEMORY}").reason == MEMORY
    assert (
        ended(remains(status="running", log=f"{MEMORY}\n{WRAPPER}\nINFO Starting to load model q...")) is None
    )
    assert ended(remains(status="running", log=f"{HELD}\n{WRAPPER}")) is None
    assert ended(remains(status="running", log="retrying after 401 Client Error")) is None


def test_forty_lines_without_secrets_are_shown_when_nothing_is_known():
    log = "\n".join([*(f"line {number}" for number in range(60)), "token hf_abcdefghijklmnopqrstuv"])
    verdict = fails(log=log)
    assert "line 21" in verdict.hint
    assert "line 20\n" not in verdict.hint
    assert "hf_abc" not in verdict.hint + verdict.reason
