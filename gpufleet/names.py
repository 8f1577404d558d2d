"""A type of its own for every identifier, so that mypy tells a host from a pool."""

from __future__ import annotations

from typing import NewType

HostName = NewType("HostName", str)
"""The name of a host in the inventory, never its address."""

PoolName = NewType("PoolName", str)

ReplicaId = NewType("ReplicaId", str)
"""`HOST/N`: the replica's number on that host, from 0."""

GpuUuid = NewType("GpuUuid", str)
"""As `nvidia-smi -L` prints it, with its `GPU-` prefix. GPUs are never named by index to a host."""

StepId = NewType("StepId", str)
"""Unique inside one plan."""

RunId = NewType("RunId", str)
"""One run of one plan: `YYYYMMDDTHHMMSS-xxxxxx`, sorts by time."""
