"""A pool: N replicas of one model behind one address; what is wanted and where it is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpufleet.names import GpuUuid, HostName, PoolName, ReplicaId
from gpufleet.redact import Secret

ALGORITHMS = ("round-robin", "least-busy", "weighted-static", "random", "cache-aware")
PLACEMENTS = ("best-fit", "spread")


class MemberState(Enum):
    """ACTIVE takes requests; DRAINING finishes what it has and gets nothing new; REMOVED runs on outside the pool."""

    ACTIVE = "active"
    DRAINING = "draining"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWish:
    """What one replica needs.

    Attributes:
        gpus: whole GPUs of one host, on one NVLink island of it.
        mig: one MIG slice of this profile.
        memory_gib: the smallest free GPU or slice with that much memory, all of it.
        share: percent of one GPU that replicas may share; all of it when None.
        across: lets the GPUs of a replica lie on several islands.
    """

    gpus: int = 1
    mig: str | None = None
    memory_gib: float | None = None
    share: int | None = None
    across: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWish:
    """What runs in the container.

    Attributes:
        args: separate words.
        env: variables; values may be secrets.
        version: of the engine, where the image's tag does not tell it.
        lint: `strict` refuses what this version would refuse; `warn` only says it, for engines that were altered.
        args_at: where each of `args` was written, `file:line`; for messages alone.
    """

    image: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str | Secret[str]] = field(default_factory=dict)
    version: str = ""
    lint: str = "strict"
    args_at: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWish:
    """How long a new replica may take, in seconds, and what it is asked.

    Attributes:
        kind: of the model: `chat`, `completion`, `embedding`, `rerank`, `pooling`, `transcription`, `speech`;
            `models` asks for its name alone, and `auto` takes what the arguments tell, else a chat.
        pull_stall: how long the image, or weights, may come without a byte.
    """

    stall: float = 600.0
    pull_stall: float = 300.0
    within: float = 3600.0
    every: float = 2.0
    prompt: str = "Say hello."
    kind: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Container limits, in the runtime's own notation (`64g`, `8`).

    Attributes:
        shm: size of /dev/shm; the host's own is shared when it is not set.
        memlock: `unlimited`, or `inherit` for a runtime that may not raise it.
    """

    memory: str | None = None
    cpus: str | None = None
    shm: str | None = None
    memlock: str = "unlimited"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyWish:
    """How replicas are replaced.

    Attributes:
        kind: one of STRATEGIES.
        max_unavailable: replicas that may be out of service at once, as a number or `25%` of those wanted.
        canary: new replicas that are watched before the others follow, as a number or a share.
        traffic: share of requests in percent that canaries get; None gives every replica the same.
        observe: seconds that new replicas are watched.
        min_requests: answers of the new ones that are enough to judge by.
        deadline: seconds that are waited for that many; then nothing is known, and `unknown` says what follows.
        unknown: `rollback`, or `proceed` without a judgement.
        max_error_rate: errors in percent of the new ones' answers that are allowed beyond the old ones' share.
        max_ttft: how many times the old ones' mean time to first token is allowed.
    """

    kind: str = "all-at-once"
    max_unavailable: int | str = 1
    canary: int | str = 1
    traffic: int | None = None
    observe: float = 0.0
    min_requests: int = 20
    deadline: float = 900.0
    unknown: str = "rollback"
    max_error_rate: float = 1.0
    max_ttft: float = 2.0


STRATEGIES = ("all-at-once", "rolling", "canary", "blue-green")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What an operator set for one replica.

    Attributes:
        container: name of a running container that was added and is not the pool's own; empty for its own.
        port: published port of such a container.
        key: reference to the key that it asks for, empty when it asks for none; None means the pool's key.
    """

    replica: ReplicaId
    weight: int = 1
    state: MemberState = MemberState.ACTIVE
    container: str = ""
    port: int = 0
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsWish:
    """Where weights come from, when they are brought to each host before an engine starts.

    Attributes:
        source: `hf://ORG/NAME[@REVISION]`, `s3://BUCKET/PREFIX`, `file:///DIRECTORY` on the operator's machine, or
            `host:///DIRECTORY` on the hosts.
        endpoint: address of another hub or S3 service.
        token: of the hub.
        access_key, secret_key, session_token: of the S3 service.
        store: directory on the hosts, absolute or below `~/`; empty for the default.
        shared: every host sees the same store.
        in_place: a directory on the hosts is used where it is, read-only, and must not change meanwhile.
        include, exclude: shell patterns of paths.
    """

    source: str
    endpoint: str = ""
    region: str = ""
    token: Secret[str] | None = None
    access_key: Secret[str] | None = None
    secret_key: Secret[str] | None = None
    session_token: Secret[str] | None = None
    store: str = ""
    shared: bool = False
    in_place: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What an operator wants served.

    Attributes:
        model: what the engine loads: a hub name or a path in the container.
        served_name: the name clients use; `model` when empty.
        hosts: a selector.
        weights: directory on the host that is mounted read-only at the same path, or None.
        staging: where weights are brought from before an engine starts, or None.
        placement: how replicas are laid on hosts: one of `PLACEMENTS`.
        lora: adapters that are served beside the model, by name: a directory of the host, or a hub name.
        lora_from: directory of the host with adapters, mounted read-only; those that are loaded later lie there.
        kv_offload: GiB of the host's memory that hold KV cache of one replica, all its GPUs together.
        hosts_at: where the selector was written, `file:line`; for messages alone.
        written_at: where other parts were written, by their names (`kv_offload`, `engine.env.HF_TOKEN`).
    """

    name: PoolName
    model: str
    served_name: str = ""
    algorithm: str = "round-robin"
    replicas: int = 1
    hosts: tuple[str, ...] = ("all",)
    slice: SliceWish = field(default_factory=SliceWish)
    engine: EngineWish = field(default_factory=EngineWish)
    weights: str | None = None
    staging: WeightsWish | None = None
    gate: GateWish = field(default_factory=GateWish)
    limits: Limits = field(default_factory=Limits)
    kv_offload: float | None = None
    lora: Mapping[str, str] = field(default_factory=dict)
    lora_from: str | None = None
    strategy: StrategyWish = field(default_factory=StrategyWish)
    placement: str = "best-fit"
    members: tuple[Member, ...] = ()
    owner: str = ""
    hosts_at: str = field(default="", compare=False)
    written_at: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def public_name(self) -> str:
        """The model name that a client sends."""
        return self.served_name or self.model

    @property
    def takes_adapters(self) -> bool:
        """Whether its engines serve LoRA adapters."""
        return bool(self.lora) or self.lora_from is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A replica that is up: where it is, and what it runs on.

    `container`: full id of one that was added, and is not known by the pool's labels; `key`: as in `Member`.
    """

    replica: ReplicaId
    host: HostName
    url: str
    gpus: tuple[GpuUuid, ...] = ()
    slice: str = ""
    revision: str = ""
    container: str = ""
    key: str | None = None
