"""Which `vllm serve` flags each version of vLLM knows, as a table; read lazily by `engine.flags`.

Source: the argument definitions (`vllm/engine/arg_utils.py` and the front end's `cli_args.py`) in fifteen source
distributions of vLLM on PyPI, 0.6.6 to 0.33.0. A flag may have come or gone in a version between two samples, and
the oldest sample means that version or an earlier one. What stands instead of a flag that is gone is from vLLM's
documentation and its own messages; a flag without an entry there has no known successor.
"""

from __future__ import annotations

SAMPLES = (
    "0.6.6",
    "0.8.5",
    "0.9.2",
    "0.10.2",
    "0.11.0",
    "0.12.0",
    "0.14.1",
    "0.16.0",
    "0.18.1",
    "0.20.2",
    "0.22.1",
    "0.25.1",
    "0.28.0",
    "0.30.0",
    "0.33.0",
)
"""Versions that were read, oldest first; `.post` releases under the number they mend."""

TABLE = """\
0.6.6 0.6.6:
  disable-logprobs-during-spec-decoding ngram-prompt-lookup-max ngram-prompt-lookup-min
  num-speculative-tokens quantization-param-path spec-decoding-acceptance-method
  speculative-disable-by-batch-size speculative-disable-mqa-scorer speculative-draft-tensor-parallel-size
  speculative-max-model-len speculative-model speculative-model-quantization
  typical-acceptance-sampler-posterior-alpha typical-acceptance-sampler-posterior-threshold worker-use-ray
0.6.6 0.9.2:
  device enable-prompt-adapter long-lora-scaling-factors max-prompt-adapter-token max-prompt-adapters
  multi-step-stream-outputs num-scheduler-steps override-neuron-config prompt-adapters
  qlora-adapter-name-or-path tokenizer-pool-extra-config tokenizer-pool-size tokenizer-pool-type
  use-v2-block-manager
0.6.6 0.10.2:
  disable-async-output-proc max-seq-len-to-capture preemption-mode scheduler-delay-factor
0.6.6 0.11.0:
  enable-lora-bias guided-decoding-backend lora-extra-vocab-size num-lookahead-slots
  override-pooler-config rope-scaling rope-theta
0.6.6 0.12.0:
  disable-mm-preprocessor-cache task
0.6.6 0.16.0:
  disable-log-requests logits-processor-pattern swap-space
0.6.6 0.18.1:
  disable-frontend-multiprocessing
0.6.6 0.33.0:
  allow-credentials allowed-headers allowed-local-media-path allowed-methods allowed-origins api-key
  block-size chat-template chat-template-content-format code-revision collect-detailed-traces
  compilation-config config-format cpu-offload-gb disable-custom-all-reduce disable-fastapi-docs
  disable-log-stats disable-sliding-window distributed-executor-backend download-dir dtype
  enable-auto-tool-choice enable-chunked-prefill enable-lora enable-prefix-caching
  enable-prompt-tokens-details enable-request-id-headers enforce-eager fully-sharded-loras
  generation-config gpu-memory-utilization hf-overrides host ignore-patterns kv-cache-dtype
  kv-transfer-config limit-mm-per-prompt load-format lora-dtype lora-modules max-cpu-loras max-log-len
  max-logprobs max-lora-rank max-loras max-model-len max-num-batched-tokens max-num-seqs
  max-parallel-loading-workers middleware mm-processor-kwargs model model-loader-extra-config
  num-gpu-blocks-override otlp-traces-endpoint pipeline-parallel-size port quantization
  ray-workers-use-nsight response-role return-tokens-as-token-ids revision root-path scheduling-policy
  seed served-model-name skip-tokenizer-init ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-keyfile
  tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin
  trust-remote-code uvicorn-log-level worker-cls
0.8.5 0.9.2:
  enable-reasoning
0.8.5 0.25.1:
  calculate-kv-scales max-long-partial-prefills max-num-partial-prefills
0.8.5 0.33.0:
  additional-config data-parallel-size disable-cascade-attn disable-chunked-mm-input
  disable-uvicorn-access-log enable-expert-parallel enable-server-load-tracking enable-sleep-mode
  enable-ssl-refresh hf-config-path hf-token long-prefill-token-threshold model-impl
  override-generation-config prefix-caching-hash-algo reasoning-parser scheduler-cls
  show-hidden-metrics-for-version speculative-config use-tqdm-on-load worker-extension-cls
0.9.2 0.9.2:
  expand-tools-even-if-tool-choice-none
0.9.2 0.11.0:
  eplb-log-balancedness eplb-step-interval eplb-window-size guided-decoding-disable-additional-properties
  guided-decoding-disable-any-whitespace guided-decoding-disable-fallback num-redundant-experts
0.9.2 0.12.0:
  cuda-graph-sizes enable-multimodal-encoder-data-parallel
0.9.2 0.25.1:
  override-attention-dtype
0.9.2 0.33.0:
  data-parallel-address data-parallel-backend data-parallel-rank data-parallel-rpc-port
  data-parallel-size-local disable-hybrid-kv-cache-manager enable-eplb enable-force-include-usage
  enable-prompt-embeds kv-events-config log-config-file media-io-kwargs pt-load-map-location
0.10.2 0.33.0:
  api-server-count async-scheduling config convert data-parallel-hybrid-lb data-parallel-start-rank
  decode-context-parallel-size default-mm-loras enable-log-outputs enable-log-requests
  enable-tokenizer-info-endpoint eplb-config exclude-tools-when-tool-choice-none h11-max-header-count
  h11-max-incomplete-event-size headless interleave-mm-strings io-processor-plugin kv-cache-memory-bytes
  kv-sharing-fast-prefill log-error-stack logits-processors logprobs-mode mamba-cache-dtype
  mamba-ssm-cache-dtype mm-encoder-tp-mode mm-processor-cache-gb runner safetensors-load-strategy
  skip-mm-profiling tool-server uds
0.11.0 0.33.0:
  allowed-media-domains dbo-decode-token-threshold dbo-prefill-token-threshold enable-dbo
  expert-placement-strategy mm-processor-cache-type mm-shm-cache-max-object-size-mb pooler-config
  structured-outputs-config trust-request-chat-template video-pruning-rate
0.12.0 0.33.0:
  aggregate-engine-logging all2all-backend cp-kv-cache-interleave-size cudagraph-capture-sizes
  data-parallel-external-lb dcp-kv-cache-interleave-size disable-nccl-for-dp-synchronization
  ec-transfer-config enable-mm-embeds kv-cache-metrics kv-cache-metrics-sample kv-offloading-backend
  kv-offloading-size mamba-block-size master-addr master-port max-cudagraph-capture-size
  mm-encoder-attn-backend nnodes node-rank optimization-level prefill-context-parallel-size
  reasoning-parser-plugin stream-interval tokens-only
0.14.1 0.33.0:
  allow-deprecated-quantization attention-backend attention-config cudagraph-metrics
  default-chat-template-kwargs enable-layerwise-nvtx-tracing enable-log-deltas
  enable-logging-iteration-details enable-mfu-metrics enable-offline-docs enable-return-routed-experts
  enable-tower-connector-lora profiler-config ubatch-size
0.16.0 0.33.0:
  disable-access-log-for-endpoints enable-flashinfer-autotune kernel-config mamba-cache-mode
  mm-encoder-only specialize-active-lora ssl-ciphers weight-transfer-config
0.18.1 0.33.0:
  cpu-offload-params dcp-comm-backend distributed-timeout-seconds enable-elastic-ep
  enable-ep-weight-filter fail-on-environ-validation gdn-prefill-backend language-model-only moe-backend
  offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step
  performance-mode shutdown-timeout
0.20.2 0.33.0:
  enable-flash-late-interaction enable-mamba-cache-stochastic-rounding grpc ir-op-priority
  kv-cache-dtype-skip-layers lora-target-modules mamba-backend mamba-cache-philox-rounds mm-tensor-ipc
  numa-bind numa-bind-cpus numa-bind-nodes reasoning-config renderer-num-workers
  scheduler-reserve-full-isl
0.22.1 0.33.0:
  cpu-distributed-timeout-seconds data-parallel-multi-port-external-lb data-parallel-supervisor-port
  dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
  enable-cumem-allocator enable-mixed-moe-lora-format fingerprint-mode fingerprint-value linear-backend
  mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
  mm-encoder-fp8-scale-save-path quantization-config safetensors-prefetch-block-size
  safetensors-prefetch-num-threads spec-method spec-model spec-tokens use-fp64-gumbel
0.25.1 0.33.0:
  device-ids diffusion-config enable-per-request-metrics jit-monitor-mode jit-monitor-verbose
  mm-ipc-gpu-memory-gb model-class-overrides prefill-schedule-interval watermark
0.28.0 0.28.0:
  enable-bf16x3-router-gemm
0.28.0 0.33.0:
  cohere-format cohere-is-reasoning-model ec-manager-config enable-fault-tolerance enable-moe-shared-loras
  fault-tolerance-config kda-prefill-backend mamba-ssu-algorithm max-num-scheduled-tokens
  mm-device-do-normalize mm-hasher-algorithm mm-processor-device prefix-match-unit replayssm-buffer-len
  return-sampling-mask use-replayssm video-pruning-method
0.30.0 0.30.0:
  enable-mamba-fine-grained-prefix-cache
0.30.0 0.33.0:
  dcp-q-replicate dp-sync-interval elastic-ep-max-dp-size enable-batch-sharded-sampling
  enable-nccl-comm-suspend enable-scale-out enable-trace-replay engram-config kda-decode-backend
  max-num-queued-reqs max-num-queued-tokens per-request-spec-decode-metrics
  prefix-cache-retention-interval sparse-indexer-topk-backend sse-keep-alive-interval watermark-config
0.33.0 0.33.0:
  anthropic-disabled-thinking-effort aux-output-config custom-histogram-buckets device-memory-utilization
  enable-hc-sp enable-mamba-shared-prefix-checkpoint enable-shm-tensor-arena grpc-port log-level
  logging-config long-prefill-token-threshold-adaptive max-lora-cls-labels max-num-active-seqs monokernel
  reasoning-effort-map sleep-mode-backend sleep-mode-offload-cudagraph sleep-preserve-parameter-names
  swa-bounded-replay tool-strict-level trust-request-mm-kwargs watchdog-config
"""
"""First and last sample that has them, then the names without their dashes."""

REPLACEMENTS = {
    "calculate-kv-scales": "leave it out: it was removed without a successor",
    "cuda-graph-sizes": "--cudagraph-capture-sizes",
    "device": "leave it out: the platform is detected",
    "disable-async-output-proc": "leave it out; --no-async-scheduling is the nearest",
    "disable-frontend-multiprocessing": "leave it out: it was removed without a successor",
    "disable-log-requests": "leave it out: requests are no longer logged by default (--enable-log-requests turns it on)",
    "disable-mm-preprocessor-cache": "--mm-processor-cache-gb 0",
    "enable-lora-bias": "leave it out: it was removed without a successor",
    "enable-multimodal-encoder-data-parallel": "--mm-encoder-tp-mode data",
    "enable-prompt-adapter": "leave it out: it was removed without a successor",
    "enable-reasoning": "--reasoning-parser NAME alone",
    "eplb-log-balancedness": "--eplb-config",
    "eplb-step-interval": "--eplb-config",
    "eplb-window-size": "--eplb-config",
    "expand-tools-even-if-tool-choice-none": "leave it out: it is the default (--exclude-tools-when-tool-choice-none turns it off)",
    "guided-decoding-backend": "--structured-outputs-config.backend",
    "guided-decoding-disable-additional-properties": "--structured-outputs-config",
    "guided-decoding-disable-any-whitespace": "--structured-outputs-config",
    "guided-decoding-disable-fallback": "--structured-outputs-config",
    "logits-processor-pattern": "--logits-processors",
    "lora-extra-vocab-size": "leave it out: it was removed without a successor",
    "max-long-partial-prefills": "leave it out: it was removed without a successor",
    "max-num-partial-prefills": "leave it out: it was removed without a successor",
    "max-prompt-adapter-token": "leave it out: it was removed without a successor",
    "max-prompt-adapters": "leave it out: it was removed without a successor",
    "max-seq-len-to-capture": "--max-cudagraph-capture-size, or --cudagraph-capture-sizes",
    "multi-step-stream-outputs": "leave it out: it was removed without a successor",
    "ngram-prompt-lookup-max": "--speculative-config",
    "ngram-prompt-lookup-min": "--speculative-config",
    "num-lookahead-slots": "leave it out: it was removed without a successor",
    "num-redundant-experts": "--eplb-config",
    "num-scheduler-steps": "leave it out: it belonged to the V0 engine",
    "num-speculative-tokens": "--speculative-config '{\"num_speculative_tokens\": N, ...}' (from 0.22 also --spec-tokens)",
    "override-attention-dtype": "leave it out: it was removed without a successor",
    "override-neuron-config": "--additional-config, perhaps",
    "override-pooler-config": "--pooler-config",
    "preemption-mode": "leave it out: it was removed without a successor",
    "quantization-param-path": "leave it out: it was removed without a successor",
    "rope-scaling": "--hf-overrides '{\"rope_parameters\": {...}}'",
    "rope-theta": '--hf-overrides \'{"rope_parameters": {"rope_theta": N}}\'',
    "scheduler-delay-factor": "leave it out: it was removed without a successor",
    "speculative-draft-tensor-parallel-size": "--speculative-config",
    "speculative-model": "--speculative-config '{\"model\": ..., ...}' (from 0.22 also --spec-model)",
    "swap-space": "leave it out: V1 has no swap; the pool's kv_offload keeps KV cache in the host's memory",
    "task": "--runner pooling for embeddings, rerankers and rewards, with --convert where the model is made for chat",
    "tokenizer-pool-extra-config": "leave it out: it was removed without a successor",
    "tokenizer-pool-size": "leave it out: it was removed without a successor",
    "tokenizer-pool-type": "leave it out: it was removed without a successor",
    "use-v2-block-manager": "leave it out: it was removed without a successor",
    "worker-use-ray": "--distributed-executor-backend ray",
}
"""What to write instead, by the name of the flag that is gone."""

ALIASES = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-ep": "enable-expert-parallel",
    "-asc": "api-server-count",
    "-q": "quantization",
    "-O": "compilation-config",
    "-cc": "compilation-config",
    "-ac": "attention-config",
    "-sc": "speculative-config",
    "-n": "nnodes",
    "-r": "node-rank",
}
"""Short spellings; `-O3` is looked at apart."""

_SWITCH_BEGINNINGS = ("enable-", "disable-", "skip-", "trust-", "return-", "use-")
_SWITCH_NAMES = """
    allow-credentials allow-deprecated-quantization async-scheduling calculate-kv-scales
    cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb
    data-parallel-multi-port-external-lb enforce-eager eplb-log-balancedness
    exclude-tools-when-tool-choice-none expand-tools-even-if-tool-choice-none fail-on-environ-validation
    fully-sharded-loras grpc headless interleave-mm-strings kv-cache-metrics kv-sharing-fast-prefill
    language-model-only log-error-stack mm-encoder-only numa-bind ray-workers-use-nsight
    scheduler-reserve-full-isl specialize-active-lora tokens-only worker-use-ray
"""
_SWITCHES = frozenset(_SWITCH_NAMES.split())
_OPEN_NAMES = """
    cp-kv-cache-interleave-size dcp-q-replicate fingerprint-value jit-monitor-verbose
    long-prefill-token-threshold-adaptive mamba-cache-philox-rounds mm-device-do-normalize monokernel
    multi-step-stream-outputs per-request-spec-decode-metrics return-sampling-mask
    sleep-mode-offload-cudagraph sleep-preserve-parameter-names swa-bounded-replay tool-strict-level
    trust-request-mm-kwargs use-tqdm-on-load video-pruning-method watermark
"""
_OPEN = frozenset(_OPEN_NAMES.split())
_VALUED = frozenset({"disable-access-log-for-endpoints"})
_ONE_VALUE_BEGINNINGS = ("max-", "num-", "gpu-")
_ONE_VALUE_ENDINGS = (
    "-size", "-len", "-parser", "-utilization", "-dtype", "-gb", "-bytes", "-timeout", "-revision", "-backend",
    "-config", "-policy", "-mode", "-rank", "-port", "-template",
)  # fmt: skip
_ONE_VALUE = frozenset(
    {"model", "tokenizer", "revision", "dtype", "quantization", "seed", "runner", "convert", "host", "port"}
)


def stands_alone(flag: str) -> bool | None:
    """Whether a flag takes no value; None where the sources that were read leave it open. `flag` has no dashes."""
    if flag in _VALUED:
        return False
    if flag in _OPEN:
        return None
    return flag in _SWITCHES or flag.startswith(_SWITCH_BEGINNINGS)


def takes_one(flag: str) -> bool:
    """Whether a flag takes exactly one value for certain; others may take none or several."""
    if flag in _OPEN or stands_alone(flag):
        return False
    return flag in _ONE_VALUE or flag.startswith(_ONE_VALUE_BEGINNINGS) or flag.endswith(_ONE_VALUE_ENDINGS)
