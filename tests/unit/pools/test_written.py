"""Definitions that people wrote are changed with their comments and order, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.errors import DocumentError, UsageError
from gpufleet.names import ReplicaId
from gpufleet.pools import membership, written
from gpufleet.pools.load import from_file

TEXT = """\
# our chat pool
pool: chat
model: qwen   # small

# never more than six: the rack's power
replicas: 6
hosts: [gpu-0*]
engine:
    image: "vllm/vllm-openai:v0.20.0"   # pinned by ann
    args: [--max-model-len, "8192"]
members:
    gpu-01/0: {weight: 2}     # the big one
"""


def define(tmp_path, text=TEXT):
    path = tmp_path / "chat.yaml"
    path.write_text(text)
    return path


def test_comments_quotes_and_order_stay(tmp_path):
    path = define(tmp_path)
    pool = from_file(path)
    wanted = membership.set_weights(replace(pool, algorithm="weighted-static"), {ReplicaId("gpu-01/0"): 4})
    assert written.edit(path, "chat", pool, wanted)
    assert path.read_text() == TEXT.replace("weight: 2", "weight: 4") + "algorithm: weighted-static\n"
    assert from_file(path).algorithm == "weighted-static"
    assert not written.edit(path, "chat", wanted, wanted)


def test_a_pool_of_an_inventory_is_changed_there_and_nothing_else(tmp_path):
    text = "version: 1\nhosts:\n  a: {address: 192.0.2.1}   # rack 1\npools:\n  embed: {model: bge}\n  chat:   # ours\n    model: qwen\n"
    path = define(tmp_path, text)
    before = from_file(define(tmp_path, "pool: chat\nmodel: qwen\n"))
    path.write_text(text)
    assert written.edit(path, "chat", before, replace(before, replicas=3))
    assert path.read_text() == f"{text}    replicas: 3\n"


def test_a_member_that_is_as_by_default_again_needs_no_entry(tmp_path):
    path = define(tmp_path)
    pool = from_file(path)
    wanted = membership.set_weights(pool, {ReplicaId("gpu-01/0"): 1})
    assert written.edit(path, "chat", pool, wanted)
    assert "gpu-01/0" not in path.read_text()


def test_a_mode_and_a_link_stay(tmp_path):
    path = define(tmp_path)
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    pool = from_file(link)
    assert written.edit(link, "chat", pool, replace(pool, replicas=2))
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "text", ["[]\n", "pool: other\nmodel: m\n", "pool: chat\nmodel: *x\n", "pools: {chat: 7}\n"]
)
def test_what_cannot_be_changed_is_left_as_it_was(tmp_path, text):
    pool = from_file(define(tmp_path))
    path = define(tmp_path, text)
    with pytest.raises(DocumentError, match="cannot be changed in this form"):
        written.edit(path, "chat", pool, replace(pool, replicas=2))
    assert path.read_text() == text


def test_a_file_that_is_gone_is_a_clear_error(tmp_path):
    path = define(tmp_path)
    pool = from_file(path)
    path.unlink()
    with pytest.raises(UsageError, match="was not written"):
        written.edit(path, "chat", pool, replace(pool, replicas=2))
