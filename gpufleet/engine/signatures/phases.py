"""The phases of vLLM's start, in order, in the words of versions 0.6.6 to 0.33.0."""

from __future__ import annotations

import re

from gpufleet.engine.signatures.model import Phase


def _phase(name: str, needles: str | tuple[str, ...], pattern: str, told: str) -> Phase:
    words = (needles,) if isinstance(needles, str) else needles
    return Phase(id=name, needles=words, pattern=re.compile(pattern), told=told)


VERSION = _phase("version", ("vLLM server version ", "vLLM API server version "), r"vLLM (?:API )?server version (?P<version>[\w.+-]{1,100})", "vLLM {version} begins")  # fmt: skip
"""The first line of a run: what stands before the last of these is an earlier life of the container."""

PHASES = (
    VERSION,
    _phase("args", "non-default args: ", r"non-default args: ", "reading its arguments"),
    _phase("engine_init", "Initializing a V", r"Initializing a V[01] LLM engine", "initialising"),
    _phase("load_start", "Starting to load model ", r"Starting to load model ", "loading the model"),
    _phase("download_done", "Time spent downloading weights for ", r"downloading weights for \S{1,300}: (?P<s>[\d.]{1,20}) seconds", "weights downloaded in {s} s"),
    _phase("shards", ("% Completed | ", "checkpoint shards: "), r"shards:\s{1,9}(?P<percent>\d{1,3})% Completed \| (?P<i>\d{1,7})/(?P<n>\d{1,7})", "loading weights {i}/{n}"),
    _phase("weights_loaded", "Loading weights took ", r"Loading weights took (?P<s>[\d.]{1,20}) s", "weights read in {s} s"),
    _phase("model_loaded", ("Model loading took ", "Loading model weights took "), r"(?:Model loading|Loading model weights) took (?P<gib>[\d.]{1,20}) Gi?B", "model loaded, {gib} GiB"),
    _phase("dynamo", "Dynamo bytecode transform time: ", r"transform time: [\d.]{1,20} s", "compiling"),
    _phase("compiled", ("torch.compile takes ", "torch.compile took "), r"torch\.compile (?:takes|took) (?P<s>[\d.]{1,20}) s", "compiled in {s} s"),
    _phase("graph_estimate", "Estimated CUDA graph memory: ", r"CUDA graph memory: (?P<gib>-?[\d.]{1,20}) GiB", "measuring memory"),
    _phase("kv_available", "Available KV cache memory: ", r"KV cache memory: (?P<gib>-?[\d.]{1,20}) GiB", "KV cache {gib} GiB"),
    _phase("kv_size", " KV cache size: ", r"KV cache size: (?P<tokens>[\d,]{1,30}) tokens", "KV cache {tokens} tokens"),
    _phase("kv_concurrency", "Maximum concurrency for ", r"(?:KV cache size: (?P<tokens>[\d,]{1,30}) tokens, )?Maximum concurrency for (?P<length>[\d,]{1,30}) tokens per request: (?P<times>[\d.]{1,20})x", "KV cache for {times} requests of {length} tokens"),
    _phase("graphs", "Graph capturing finished in ", r"capturing finished in (?P<s>\d{1,9}) secs", "CUDA graphs captured in {s} s"),
    _phase("engine_ready", "init engine (profile, create kv cache, warmup model) took ", r"warmup model\) took [\d.]{1,20} s", "the engine is warm"),
    _phase("listening", ("Starting vLLM server ", "Starting vLLM API server "), r"Starting vLLM (?:API )?server(?: \d{1,5})? on ", "opening its port"),
    _phase("routes", "Available routes are:", r"Available routes are:", "opening its port"),
    _phase("ready", "Application startup complete", r"Application startup complete", "up"),
)  # fmt: skip
