"""Where a member is asked, for tests that ask nobody."""

from __future__ import annotations

from gpufleet.deploy.traffic import Place

PLACE = Place(
    pool="chat",
    replica="gpu-01/0",
    host="gpu-01",
    runtime="/usr/bin/docker",
    root=False,
    filters=("id=c0", "id=c0"),
    base="http://10.0.0.1:8000",
    inner="http://127.0.0.1:8000",
    health="/health",
    metrics="/metrics",
    busy="^vllm:num_requests_(running|waiting)",
    url="http://10.0.0.1:8000",
)
