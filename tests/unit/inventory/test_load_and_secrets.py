"""Files on disk: what lies beside an inventory, and secrets that are looked up when they are used."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.errors import DocumentError, SecretUnresolved
from gpufleet.inventory import secrets
from gpufleet.inventory.load import load
from gpufleet.inventory.secrets import LazySecret, resolve
from gpufleet.located import Located
from gpufleet.names import HostName


def test_models_and_proxy_beside_the_inventory(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: {a: }\nmodels: {own: {}}\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "first.yaml").write_text("name: named\n")
    (tmp_path / "models" / "second.yaml").write_text("memory_gib: 3\n")
    (tmp_path / "proxy.yaml").write_text("listen: 127.0.0.1:8080\n")
    inventory = load(path)
    assert sorted(inventory.models) == ["named", "own", "second"]
    assert isinstance(inventory.proxy, Located)
    assert inventory.proxy.at("listen").where == f"{tmp_path}/proxy.yaml:1"
    assert inventory.path == str(path)


def test_mistakes_of_all_files_at_once(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: {a: {prot: 1}}\nproxy: {}\nmodels: {m: {}}\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.yaml").write_text("a: 1\na: 2\n")
    (tmp_path / "proxy.yaml").write_text("listen: x\n")
    with pytest.raises(DocumentError, match="is not usable: 4 problems") as caught:
        load(path)
    messages = [f"{row.where}: {row.message}".replace(f"{tmp_path}/", "") for row in caught.value.rows]
    assert messages == [
        "inventory.yaml:1: unknown field `prot`, did you mean `port`?",
        "models/m.yaml:1: `m` stands here and in inventory.yaml:3",
        "models/m.yaml:2: duplicate key `a`, first on line 1",
        "proxy.yaml:1: the proxy section stands here and in inventory.yaml:2",
    ]


def test_loading_follows_no_reference(tmp_path):
    mark = tmp_path / "ran"
    path = tmp_path / "inventory.yaml"
    path.write_text(
        f"hosts:\n  a:\n    sudo_password: ${{cmd:touch {mark}}}\n    passphrase: ${{env:NOT_SET_AT_ALL}}\n"
    )
    host = load(path).hosts[HostName("a")]
    assert not mark.exists()
    assert host.ssh.passphrase is not None
    assert host.ssh.passphrase.reference == "${env:NOT_SET_AT_ALL}"
    with pytest.raises(SecretUnresolved, match="NOT_SET_AT_ALL"):
        host.ssh.passphrase.reveal()


def test_the_three_kinds(tmp_path, monkeypatch):
    monkeypatch.setenv("SUDO_PASSWORD", "from the environment")
    (tmp_path / "pw").write_text("from a file\n")
    assert resolve("${env:SUDO_PASSWORD}", tmp_path).reveal() == "from the environment"
    assert resolve("${file:pw}", tmp_path).reveal() == "from a file"
    assert resolve(f"${{file:{tmp_path}/pw}}", tmp_path.parent).reveal() == "from a file"
    assert resolve("${cmd:printf '%s\\n' 'a  $HOME;b'}", tmp_path).reveal() == "a  $HOME;b"


def test_a_program_is_started_once_and_only_when_it_is_needed(tmp_path):
    (tmp_path / "count.py").write_text("print(open('log', 'a').write('x') and 'value')\n")
    secret = LazySecret(f"${{cmd:{sys.executable} count.py}}", tmp_path)
    assert repr(secret) == str(secret) == f"{secret}" == "•••"
    assert not (tmp_path / "log").exists()
    assert [secret.reveal(), secret.reveal()] == ["value", "value"]
    assert (tmp_path / "log").read_text() == "x"
    assert secret == LazySecret(secret.reference, tmp_path)
    assert len({secret, LazySecret(secret.reference, tmp_path)}) == 1


def test_hosts_share_a_secret_and_its_program_runs_once(tmp_path):
    (tmp_path / "count.py").write_text("print(open('log', 'a').write('x') and 'value')\n")
    path = tmp_path / "inventory.yaml"
    hosts = "".join(f"  gpu-{number}:\n" for number in range(20))
    path.write_text(f"defaults:\n  sudo_password: ${{cmd:{sys.executable} count.py}}\nhosts:\n{hosts}")
    secrets_of_all = [host.sudo_password for host in load(path).hosts.values()]
    with ThreadPoolExecutor(20) as pool:
        values = list(pool.map(lambda secret: secret.reveal() if secret else "", secrets_of_all))
    assert values == ["value"] * 20
    assert (tmp_path / "log").read_text() == "x"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("plain", "not a reference"),
        ("${env:NOT_SET_AT_ALL}", "not set"),
        ("${file:absent}", "no such file"),
        ("${file:binary}", "not UTF-8"),
        ("${file:empty}", "is empty"),
        ("${file:nul}", "NUL"),
        ("${cmd:absent-program-of-ours}", "no such file"),
        ("${cmd:false}", "ended with status 1"),
        ("${cmd:cat binary}", "did not print UTF-8"),
        ("${cmd:cat 'open}", "no closing quotation"),
        ("${cmd:  }", "no program"),
    ],
)
def test_references_that_lead_nowhere(tmp_path, reference, says):
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "nul").write_bytes(b"a\0b")
    with pytest.raises(SecretUnresolved, match=says) as caught:
        resolve(reference, tmp_path)
    assert reference in str(caught.value) or reference == "plain"


def test_a_program_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "TIMEOUT", 0.2)
    with pytest.raises(SecretUnresolved, match="no answer within"):
        resolve("${cmd:sleep 60}", tmp_path)


def test_the_output_of_a_failing_program_is_not_repeated(tmp_path):
    (tmp_path / "pw").write_text("hunter2")
    with pytest.raises(SecretUnresolved) as caught:
        resolve("${cmd:sh -c 'cat pw; cat pw >&2; exit 3'}", tmp_path)
    assert "hunter2" not in f"{caught.value} {caught.value.hints}"
