"""`ssh -G` as a value, from text and from the real program, and routes through jump hosts."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import HostUnreachable
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.ssh.config import SshConfig
from gpufleet.remote.ssh.options import Asked, SshOptions, defaults, parse, parse_jumps, route, split_paths
from gpufleet.remote.target import Target

GPU = HostName("gpu-01")
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="the ssh program is not installed")

TEXT = """\
user ops
hostname 10.20.0.11
port 2222
stricthostkeychecking accept-new
identityfile ~/.ssh/fleet
identityfile /keys/%r at %h
certificatefile ~/.ssh/fleet-cert.pub
globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2
userknownhostsfile /home/ops/.ssh/known hosts /home/ops/kh2
hostkeyalias gpu
connecttimeout 3
identityagent /run/agent
proxyjump ops@bastion.example:2222,[2001:db8::1]:22
proxycommand none
"""


def test_everything_that_counts():
    said = parse(TEXT, Asked(host="gpu"))
    assert (said.user, said.hostname, said.port, said.host_key_alias) == ("ops", "10.20.0.11", 2222, "gpu")
    assert said.identity_files == ("~/.ssh/fleet", "/keys/ops at 10.20.0.11")
    assert said.identity_named
    assert said.known_hosts[:2] == ("/home/ops/.ssh/known hosts", "/home/ops/kh2")
    assert said.identity_agent == "/run/agent"
    assert said.connect_timeout == 3.0
    assert said.jumps == (
        Asked(host="bastion.example", user="ops", port=2222),
        Asked(host="2001:db8::1", port=22),
    )
    assert said.proxy_command == ""
    assert "fleet-cert.pub" in said.warnings[0]


def test_default_identities_are_nobodys_choice():
    text = "".join(f"identityfile ~/.ssh/id_{kind}\n" for kind in ("rsa", "ecdsa", "ed25519", "dsa"))
    assert not parse(text, Asked(host="x")).identity_named
    assert parse("identityfile ~/.ssh/id_rsa\n", Asked(host="x")).identity_named


@pytest.mark.parametrize(("value", "agent"), [("none", None), ("SSH_AUTH_SOCK", ""), ("/a b", "/a b")])
def test_the_agent(value: str, agent: str | None):
    assert parse(f"identityagent {value}\n", Asked(host="x")).identity_agent == agent


@given(st.text())
def test_any_text_is_read(text: str):
    # A number or a jump that is none: `SshConfig.route` turns it into an error about the configuration.
    with contextlib.suppress(ValueError):
        parse(text, Asked(host="x"))


@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("", ()),
        ("none", ()),
        ("a", (Asked(host="a"),)),
        ("ops@a:2222, b", (Asked(host="a", user="ops", port=2222), Asked(host="b"))),
        ("ssh://ops@a:22/", (Asked(host="a", user="ops", port=22),)),
        ("a@b@c", (Asked(host="c", user="a@b"),)),
        ("[::1]:22,fe80::1%eth0", (Asked(host="::1", port=22), Asked(host="fe80::1%eth0"))),
    ],
)
def test_jumps(text: str, hops: tuple[Asked, ...]):
    assert parse_jumps(text) == hops


@pytest.mark.parametrize("text", ["a:b", "a:", "ops@", ":22", "a:0", "a:70000"])
def test_jumps_that_are_none(text: str):
    with pytest.raises(ValueError, match="jump host"):
        parse_jumps(text)


def test_paths_with_spaces():
    assert split_paths("/a b /c ~/d e") == ("/a b", "/c", "~/d e")


def target(**more) -> Target:
    return replace(Target(name=GPU, host="far"), **more)


def look_from(book: dict[str, SshOptions]):
    asked: list[Asked] = []

    def look(question: Asked) -> SshOptions:
        asked.append(question)
        return book.get(question.host, replace(defaults(question, "me"), user=question.user or "me"))

    return look, asked


def test_a_route_of_the_inventory_wins():
    look, _ = look_from(
        {"far": replace(defaults(Asked(host="far"), "me"), jumps=(Asked(host="x"),), proxy_command="y")}
    )
    hops = route(target(proxy_jump="ops@one:2222,two"), look)
    assert [(hop.hostname, hop.port, hop.user, hop.is_jump) for hop in hops] == [
        ("one", 2222, "ops", True),
        ("two", 22, "me", True),
        ("far", 22, "me", False),
    ]
    assert hops[-1].proxy_command == ""
    assert [hop.hostname for hop in route(target(proxy_jump="none"), look)] == ["far"]


def test_the_first_jumps_own_jumps_come_before_it_and_those_of_later_ones_do_not_count():
    book = {
        "far": replace(defaults(Asked(host="far"), "me"), jumps=(Asked(host="a"), Asked(host="b"))),
        "a": replace(defaults(Asked(host="a"), "me"), jumps=(Asked(host="door"),)),
        "b": replace(defaults(Asked(host="b"), "me"), jumps=(Asked(host="ignored"),)),
    }
    look, _ = look_from(book)
    assert [hop.hostname for hop in route(target(), look)] == ["door", "a", "b", "far"]


def test_a_circle_of_jumps():
    look, _ = look_from({"far": replace(defaults(Asked(host="far"), "me"), jumps=(Asked(host="far"),))})
    with pytest.raises(ValueError, match="circle"):
        route(target(), look)


def test_wishes_of_the_inventory():
    named = replace(defaults(Asked(host="a"), "me"), identity_files=("/of/a",), identity_named=True)
    look, asked = look_from({"a": named})
    first, second, last = route(
        target(proxy_jump="a,b", identity_file="/k", known_hosts="/kh", config_file="/c", user="u", port=7),
        look,
    )
    assert asked[0] == Asked(host="far", user="u", port=7, config_file="/c")
    assert first.identity_files == ("/of/a",)
    assert second.identity_files == last.identity_files == ("/k",)
    assert last.identity_named
    assert {hop.known_hosts for hop in (first, second, last)} == {("/kh",)}


@needs_ssh
def test_the_real_program(tmp_path: Path):
    (tmp_path / "more").write_text(
        "Host gpu*\n ProxyJump ops@door:2222\n IdentityFile ~/.ssh/fleet\n Port 2200\n"
    )
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/more\nHost *\n User someone\n")
    hops = SshConfig().route(Target(name=GPU, host="gpu7", config_file=str(config)))
    assert [(hop.hostname, hop.port, hop.user) for hop in hops] == [
        ("door", 2222, "ops"),
        ("gpu7", 2200, "someone"),
    ]
    assert hops[-1].identity_files == ("~/.ssh/fleet",)
    assert hops[-1].identity_named
    assert not hops[0].identity_named


@needs_ssh
@pytest.mark.parametrize("host", ["2001:db8::12", "fe80::1%eth0", "192.0.2.5", "-oProxyCommand=x"])
def test_odd_names_are_names(host: str, tmp_path: Path):
    config = tmp_path / "config"
    config.write_text("")
    try:
        (hop,) = SshConfig().route(
            Target(name=GPU, host=host, port=2222, user="ops", config_file=str(config))
        )
    except HostUnreachable:
        assert host.startswith("-")
    else:
        assert (hop.hostname, hop.port, hop.user, hop.proxy_command) == (host, 2222, "ops", "")


def test_without_the_program():
    (hop,) = SshConfig("gpufleet-no-such-ssh").route(Target(name=GPU, host="far", user="ops"))
    assert (hop.hostname, hop.port, hop.user) == ("far", 22, "ops")
    assert not hop.identity_named


@needs_ssh
def test_each_question_is_asked_once(tmp_path: Path):
    log = tmp_path / "log"
    config = tmp_path / "config"
    config.write_text(f'Match exec "echo x >>{log}"\n User ops\n')
    reader = SshConfig()
    for _ in range(3):
        reader.route(Target(name=GPU, host="far", config_file=str(config)))
    assert log.read_text() == "x\n"


def test_a_jump_that_cannot_be_read_names_the_host():
    with pytest.raises(HostUnreachable, match="gpu-01: jump host 'a:b'"):
        SshConfig().route(Target(name=GPU, host="far", proxy_jump="a:b"))


def test_the_program_sees_no_credential(tmp_path: Path, monkeypatch):
    seen = tmp_path / "seen"
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\n{{ env; echo "$@"; }} >{seen}\necho hostname x\n')
    program.chmod(0o755)
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SUDO_PASSWORD"):
        monkeypatch.setenv(name, "planted-value")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    secret = Secret("planted-value")
    SshConfig(str(program)).route(target(passphrase=secret, password=secret, sudo_password=secret))
    assert "planted-value" not in seen.read_text()
    assert "SSH_AUTH_SOCK=/run/agent" in seen.read_text()
