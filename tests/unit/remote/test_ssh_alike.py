"""One `ssh -G` for many hosts says what one for each would have said."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.remote.ssh.alike import for_host, patterns
from gpufleet.remote.ssh.config import STOCK, SshConfig
from gpufleet.remote.ssh.options import Asked

HOSTS = ("gpu-01", "gpu-02", "web", "10.0.0.7", "gpu-x.example", "::1", "GPU-01")
real_ssh = pytest.mark.skipif(
    shutil.which("ssh") != STOCK, reason=f"needs OpenSSH at {STOCK} (Debian: openssh-client)"
)

pattern = st.sampled_from(
    ["*", "gpu-*", "gpu-0?", "!gpu-02", "web", "10.0.*", "!*.example", "GPU-*", '"gpu-01"']
)
option = st.sampled_from(
    [
        "Port 2222",
        "User ops",
        "User=root",
        "ProxyJump bastion",
        "IdentityFile ~/.ssh/%h_key",
        "UserKnownHostsFile /tmp/known_%n",
        "HostName %h.inner",
        "HostKeyAlias fleet",
        "# a comment",
        "",
    ]
)
block = st.builds(
    lambda head, options: [head, *options],
    st.one_of(
        st.lists(pattern, min_size=1, max_size=3).map(lambda found: "Host " + " ".join(found)),
        st.sampled_from(["Match host gpu-01", "Match all"]),
    ),
    st.lists(option, max_size=3),
)


class Counting(SshConfig):
    asked = 0

    def _ask(self, asked: Asked) -> str | None:
        self.asked += 1
        return super()._ask(asked)


@real_ssh
@settings(max_examples=30)
@given(blocks=st.lists(block, max_size=4))
def test_every_host_gets_the_answer_it_would_have_got_alone(blocks):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text("\n".join(line for lines in blocks for line in lines) + "\n")
        together = SshConfig()
        for host in HOSTS:
            asked = Asked(host=host, config_file=str(path))
            alone = SshConfig()
            alone._patterns[str(path)] = patterns(["Match all"], lambda _name: None)
            assert together.look(asked) == alone.look(asked)


@real_ssh
def test_hosts_that_are_spoken_of_alike_cost_one_question(tmp_path):
    path = tmp_path / "config"
    path.write_text("Host gpu-*\n  User ops\nHost *\n  Port 2222\n")
    config = Counting()
    users = {
        host: config.look(Asked(host=host, config_file=str(path))).user
        for host in ("gpu-01", "gpu-02", "gpu-03")
    }
    assert set(users.values()) == {"ops"}
    assert config.asked == 1
    config.look(Asked(host="web", config_file=str(path)))
    assert config.asked == 2


@pytest.mark.parametrize(
    "text",
    [
        "Match exec true\n",
        "HostName other\n",
        "CanonicalizeHostname yes\n",
        'Host "open\n',
        "Host GPU-*\n",
        "%%%\n",
        "UserKnownHostsFile /tmp/known_%n\n",
    ],
)
def test_what_is_not_understood_makes_hosts_unlike(text):
    assert patterns([text], lambda _name: []).signature("gpu-01") is None


def test_tokens_of_values_that_nobody_reads_do_not_matter():
    assert patterns(["ControlPath ~/.ssh/%C\n"], lambda _name: []).signature("gpu-01") == ()


@pytest.mark.parametrize("line", ["HostName 10.0.0.1", "HostName=10.0.0.1", "IdentityFile ~/.ssh/%h"])
def test_a_block_of_one_host_leaves_the_others_alike(line):
    found = patterns([f"Host gpu-01\n  {line}\nHost *\n  User ops\n"], lambda _name: [])
    assert found.signature("gpu-01") is None
    assert found.signature("gpu-02") == found.signature("10.0.0.1") == (False, True)


def test_an_address_in_an_included_file_stays_with_its_block():
    found = patterns(
        ["Host gpu-*\nInclude extra\nHost web\n"], lambda _name: ["User ops\nHost gpu-01\nHostName a\n"]
    )
    assert found.signature("gpu-01") is None
    assert found.signature("gpu-02") is not None
    assert patterns(["Include extra\n"], lambda _name: ["HostName a\n"]).signature("web") is None


@real_ssh
def test_a_token_in_a_value_is_expanded_for_each_host(tmp_path):
    path = tmp_path / "config"
    path.write_text("Host *\n  UserKnownHostsFile /tmp/known_%n\n")
    config = SshConfig()
    assert [config.look(Asked(host=host, config_file=str(path))).known_hosts[0] for host in ("a", "b")] == [
        "/tmp/known_a",
        "/tmp/known_b",
    ]


def test_included_files_count():
    found = patterns(["Include extra\n"], lambda name: ["Host gpu-*\n"] if name == "extra" else None)
    assert found.signature("gpu-01") == (True,)
    assert found.signature("web") == (False,)
    assert patterns(["Include gone\n"], lambda _name: None).signature("web") is None
    assert patterns(["Include self\n"], lambda _name: ["Include self\n"]).signature("web") is None


def test_an_answer_that_names_another_machine_is_not_shared():
    assert for_host("host a\nhostname elsewhere\nport 22\n", "a", "b") is None
    assert for_host("host a\nhostname a\nport 22\n", "a", "b") == "host b\nhostname b\nport 22"


@real_ssh
def test_the_stock_ssh_is_the_one_that_answers():
    assert subprocess.run([STOCK, "-G", "x"], capture_output=True, check=False).returncode == 0
