"""The weights of a pool: what its hosts need first, and how they give it to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpufleet.deploy.staging.give import Giving
from gpufleet.deploy.staging.spots import spots_of
from gpufleet.deploy.staging.steps import Staging
from gpufleet.deploy.staging.survey import prepare as prepare_staging
from gpufleet.deploy.staging.wish import source_of
from gpufleet.deploy.staging.word import new_word
from gpufleet.deploy.tools import Tools
from gpufleet.hosts.model import HostFacts
from gpufleet.inventory.model import Host
from gpufleet.inventory.secrets import resolve
from gpufleet.names import HostName, RunId
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret


def staging_of(
    tools: Tools, pool: Pool, hosts: Sequence[Host], facts: Mapping[HostName, HostFacts], run: RunId
) -> Staging | None:
    """The weights that the pool's hosts need first, found at their source; None when they are there already.

    Raises:
        PreflightFailed: the source refuses, or a host has no room.
    """
    if pool.staging is None:
        return None
    base = Path(tools.inventory.path).parent
    staging = prepare_staging(
        source_of(pool.staging, lambda reference: resolve(reference, base)),
        tuple(host.name for host in hosts),
        store=pool.staging.store,
        shared=pool.staging.shared,
        verify=False,
        transport=tools.change.transport,
        clock=tools.change.clock,
        forks=tools.change.forks,
        warn=tools.warn,
        in_place=pool.staging.in_place,
        state_dir=tools.change.state_dir,
    )
    if staging.in_place:
        return staging
    giving = Giving(
        image=tools.engine.container(pool, key=None, devices=1).image,
        word=new_word(tools.change.state_dir, run),
        spots=spots_of(hosts, facts),
    )
    return replace(staging, giving=giving, stall=pool.gate.pull_stall)


def word_of(staging: Staging | None) -> Secret[str] | None:
    """What opens the givers of a run; None when there are none."""
    return staging.giving.word if staging is not None and staging.giving is not None else None
