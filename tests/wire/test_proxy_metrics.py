"""What a proxy tells of itself and of its engines, read as Prometheus reads it."""

from __future__ import annotations

import importlib.util
import re

import pytest

from gpufleet.proxy.config import ScrapeRules
from tests.kit.engine_pages import Engine, page
from tests.kit.engines import chat, engines
from tests.kit.proxies import eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}
OFTEN = ScrapeRules(every=0.02, timeout=20.0)


def figures(running):
    """Name and labels to value, of every line that is none of a comment."""
    lines = running.admin("GET", "/metrics")[1].splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def engine_figure(running, name, member="gpu-0/0"):
    return figures(running).get(f'gpufleet_proxy_engine_{name}{{pool="chat",endpoint="{member}"}}')


def test_loads_of_engines_are_read_and_shown(tmp_path, caplog):
    with engines(chat, chat, chat) as members:
        members[0].page = page(
            "0.33.0", Engine(running=9, waiting=4, used=0.91), Engine(running=2, used=0.31)
        )
        members[1].page = b"vllm:num_requests_running 5\n"
        with proxy(tmp_path, table(*members), scrape=OFTEN) as running:
            eventually(lambda: engine_figure(running, "requests_running") == 11)
            assert engine_figure(running, "requests_waiting") == 6
            assert engine_figure(running, "kv_cache_used_ratio") == 0.91
            assert engine_figure(running, "asleep") == 0
            eventually(lambda: engine_figure(running, "requests_running", "gpu-1/0") == 5)
            assert engine_figure(running, "requests_waiting", "gpu-1/0") is None  # unknown is no line
            assert engine_figure(running, "requests_running", "gpu-2/0") is None
            eventually(
                lambda: figures(running)['gpufleet_proxy_scrape_failures_total{endpoint="gpu-2/0"}'] > 3
            )
            assert caplog.text.count("does not say waiting, kv_used") == 1
            assert caplog.text.count("was not got: it answers 404") == 1


def test_an_old_load_is_not_shown(tmp_path):
    with engines(chat) as (engine,):
        engine.page = page("0.12.0")
        with proxy(tmp_path, table(engine), scrape=OFTEN) as running:
            eventually(lambda: engine_figure(running, "requests_running") == 3)
            engine.page = None
            eventually(lambda: engine_figure(running, "requests_running") is None)
            assert engine_figure(running, "load_age_seconds") >= OFTEN.stale
            assert running.post(ASK)[0] == 200  # and nobody is punished for it


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 90000000\r\n\r\n" + b"x" * 300_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
)
def test_a_page_that_is_none_harms_nobody(tmp_path, answer):
    def lie(call):
        call.send(answer)
        call.reset()

    rules = ScrapeRules(every=0.02, timeout=20.0, largest=100_000)
    with engines(lie) as (engine,):
        routes = table(engine)
        pool = routes.pools[0]
        endpoint = type(pool.endpoints[0])(id="gpu-0/0", url=engine.url, metrics="/lies")
        with proxy(tmp_path, table(engine, endpoints=(endpoint,)), scrape=rules) as running:
            failures = 'gpufleet_proxy_scrape_failures_total{endpoint="gpu-0/0"}'
            eventually(lambda: figures(running).get(failures, 0) > 1)
            assert engine_figure(running, "requests_running") is None


LINE = re.compile(r'(# (HELP|TYPE) .+|[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [-+.0-9eEINaFn]+)')


def test_the_page_is_prometheus_text(tmp_path):
    with engines(chat) as (engine,):
        engine.page = page("0.33.0")
        with proxy(tmp_path, table(engine), scrape=OFTEN) as running:
            for body in (ASK, {**ASK, "stream": True}, {"model": "nobody"}):
                running.post(body)
            eventually(lambda: engine_figure(running, "requests_running"))
            text = running.admin("GET", "/metrics")[1]
    assert [line for line in text.splitlines() if not LINE.fullmatch(line)] == []
    typed = re.findall(r"# TYPE (\S+)", text)
    assert len(typed) == len(set(typed))
    assert all(name.startswith("gpufleet_proxy_") for name in typed)
    assert 'gpufleet_proxy_ttft_seconds_bucket{pool="chat",le="+Inf"} 1' in text
    if importlib.util.find_spec("prometheus_client") is None:
        return
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(text)}
    counted = families["gpufleet_proxy_requests"].samples
    assert sum(sample.value for sample in counted) == 3
    assert {sample.labels["code"] for sample in counted} == {"200", "404"}
    assert families["gpufleet_proxy_request_duration_seconds"].type == "histogram"
