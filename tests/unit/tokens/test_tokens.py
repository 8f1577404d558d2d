"""Tokens: their shape, what is stored, and how a reader sees a change."""

from __future__ import annotations

import os
import stat

import pytest

from gpufleet.errors import Refused, UsageError
from gpufleet.tokens.model import Principal, digest, issue, mint, well_formed
from gpufleet.tokens.store import TokenReader, TokenStore


def made(name="demo", now=100.0, lifetime=None, **fields):
    return issue(Principal(name=name, **fields), now=now, lifetime=lifetime, random_bytes=os.urandom)


@pytest.fixture
def store(tmp_path):
    return TokenStore(tmp_path / "state" / "tokens.db")


def test_a_token_has_the_agreed_shape_and_never_prints():
    secret = mint(os.urandom)
    assert well_formed(secret.reveal())
    assert len(secret.reveal()) == 46
    assert secret.reveal() not in f"{secret}{secret!r}"
    assert not well_formed("sk-" + "a" * 43)


def test_only_the_hash_is_on_disk(store):
    secret, token = made(tenant="t", models=frozenset({"m"}))
    store.add(token)
    content = store.path.read_bytes()
    assert secret.reveal().encode() not in content
    assert digest(secret.reveal().encode()) in content
    assert store.all() == (token,)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_name_is_active_once(store):
    store.add(made()[1])
    with pytest.raises(Refused, match="is active"):
        store.add(made()[1])
    store.revoke("demo", 200.0)
    store.add(made()[1])
    assert [token.status(300.0) for token in store.all()] in (["revoked", "active"], ["active", "revoked"])


def test_revoking_what_is_not_there_is_a_usage_error(store):
    with pytest.raises(UsageError):
        store.revoke("nobody", 1.0)
    store.add(made()[1])
    with pytest.raises(UsageError):
        store.revoke("nobody", 1.0)


def test_rotation_keeps_the_scope_and_gives_the_old_one_a_grace(store):
    _, old = made(tenant="t", lifetime=1000.0)
    store.add(old)
    fresh = store.rotate("demo", made(now=150.0)[1], grace=60.0)
    assert (fresh.principal, fresh.expires_at) == (old.principal, old.expires_at)
    by_id = {token.id: token for token in store.all()}
    assert by_id[old.id].status(209.0) == "active"
    assert by_id[old.id].status(210.0) == "expired"
    store.revoke("demo", 160.0)
    assert {token.status(161.0) for token in store.all()} == {"revoked"}


def test_rotation_without_grace_ends_the_old_one(store):
    _, old = made()
    store.add(old)
    store.rotate("demo", made(now=150.0)[1], grace=0.0)
    assert {token.id: token.status(150.0) for token in store.all()}[old.id] == "revoked"


def test_a_reader_sees_every_commit(store):
    reader = TokenReader(str(store.path))
    assert reader.read() == {}
    assert not reader.changed()
    for number in range(5):
        store.add(made(f"n{number}")[1])
        assert reader.changed()
        assert len(reader.read()) == number + 1
        assert not reader.changed()
    store.revoke("n0", 1.0)
    assert reader.changed()
    store.path.unlink()
    assert reader.changed()
    assert reader.read() == {}


def test_a_broken_store_is_refused_with_its_path(store):
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(b"not a database at all, " * 50)
    with pytest.raises(Refused) as refused:
        store.all()
    assert str(store.path) in str(refused.value)
