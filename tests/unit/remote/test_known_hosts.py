"""known_hosts lines, with `ssh-keygen -F` as the judge of which line speaks of which host."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.remote.ssh.known_hosts import (
    Changed,
    Matches,
    NotKnown,
    Revoked,
    fingerprint,
    line_for,
    lookup,
    names_of,
    parse,
    preferred_algorithms,
    removal_command,
)
from gpufleet.remote.ssh.known_hosts_file import KnownHostsFiles, add_line

needs_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


def key(kind: str, seed: str) -> bytes:
    name, body = kind.encode(), hashlib.sha256(seed.encode()).digest()
    return len(name).to_bytes(4, "big") + name + len(body).to_bytes(4, "big") + body


def text(kind: str, seed: str) -> str:
    return f"{kind} {base64.b64encode(key(kind, seed)).decode()}"


ED, RSA = "ssh-ed25519", "ssh-rsa"
OLD, NEW = text(ED, "old"), text(ED, "new")


def verdict(lines: str, host: str = "gpu", port: int = 22, kind: str = ED, seed: str = "new"):
    return lookup(parse(lines, "kh").entries, host, port, kind, key(kind, seed))


@pytest.mark.parametrize(
    "line",
    [
        f"gpu {NEW}",
        f"GPU {NEW} a comment",
        f"a,gpu,b {NEW}",
        f"g?u {NEW}",
        f"* {NEW}",
        f"[gpu]:22 {NEW}",
        f"\tgpu   {NEW}  ",
    ],
)
def test_matches(line: str):
    assert isinstance(verdict(line), Matches)


@pytest.mark.parametrize(
    "line",
    ["", f"gp {NEW}", f"gpu2 {NEW}", f"*,!gpu {NEW}", f"!gpu,* {NEW}", f"[gpu]:2222 {NEW}", f"# gpu {NEW}"],
)
def test_does_not_match(line: str):
    assert verdict(line) == NotKnown()


def test_another_port():
    assert isinstance(verdict(f"[gpu]:2222 {NEW}", port=2222), Matches)
    # A line without a port vouches for its own key, and says nothing against another.
    assert isinstance(verdict(f"gpu {NEW}", port=2222), Matches)
    assert verdict(f"gpu {OLD}", port=2222) == NotKnown()


def test_changed_names_the_line():
    found = verdict(f"# head\ngpu {OLD}\n")
    assert isinstance(found, Changed)
    assert found.entry.place == "kh:2"


def test_one_right_key_among_several_is_enough():
    assert isinstance(verdict(f"gpu {OLD}\ngpu {NEW}\n"), Matches)


def test_another_type_is_not_changed():
    found = verdict(f"gpu {text(RSA, 'old')}\n")
    assert isinstance(found, NotKnown)
    assert [entry.key_type for entry in found.others] == [RSA]


@pytest.mark.parametrize("order", [0, 1])
def test_revoked_wins_over_a_match(order: int):
    lines = [f"gpu {NEW}\n", f"@revoked * {NEW}\n"]
    assert isinstance(verdict("".join(lines if order else reversed(lines))), Revoked)
    assert isinstance(verdict(f"@revoked gpu {NEW}\n", port=2222), Revoked)
    # A revoked line says nothing of other keys.
    assert verdict(f"@revoked gpu {OLD}\n") == NotKnown()


@pytest.mark.parametrize(
    "line",
    [
        f"@cert-authority * {NEW}",
        f"@unheard-of gpu {NEW}",
        "gpu",
        "gpu ssh-ed25519",
        "gpu ssh-ed25519 !!!notbase64",
        f"gpu ssh-rsa {NEW.split()[1]}",
        "@revoked",
        "gpu ssh-ed25519 AAAA",
    ],
)
def test_a_line_that_cannot_be_used_is_skipped_with_a_warning(line: str):
    found = parse(f"{line}\ngpu {NEW}\n", "kh")
    assert len(found.entries) == 1
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("kh:1: ")


@given(st.text())
def test_any_text_is_read(noise: str):
    found = parse(noise + f"\ngpu {NEW}\n", "kh")
    assert isinstance(lookup(found.entries, "gpu", 22, ED, key(ED, "new")), Matches)


def test_hashed():
    salt = b"0123456789abcdef0123"
    for name, port in (("gpu", 22), ("[gpu]:2222", 2222)):
        digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
        line = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()} {NEW}"
        assert isinstance(verdict(line, port=port), Matches)
        assert verdict(line, host="other", port=port) == NotKnown()


@needs_keygen
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    host=st.text(st.sampled_from("abA.1-"), min_size=1, max_size=5).filter(lambda name: name[0] not in "-."),
    patterns=st.lists(st.text(st.sampled_from("abA.1-*?!"), min_size=1, max_size=6), min_size=1, max_size=3),
)
def test_the_same_lines_speak_as_for_openssh(host: str, patterns: list[str], tmp_path: Path):
    names = ",".join(patterns)
    file = tmp_path / "known_hosts"
    file.write_text(f"{names} {NEW}\n")
    judge = subprocess.run(["ssh-keygen", "-F", host, "-f", str(file)], capture_output=True, check=False)
    ours = any(entry.matches(host) for entry in parse(file.read_text(), "kh").entries)
    assert ours == (judge.returncode == 0)


@needs_keygen
def test_what_is_added_is_found_by_openssh_even_hashed(tmp_path: Path):
    file = tmp_path / "folder" / "known_hosts"
    for host, port in (("gpu.example", 22), ("10.0.0.5", 2222), ("2001:db8::12", 22), ("::1", 2222)):
        add_line(file, line_for(host, port, ED, key(ED, host)))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    entries = KnownHostsFiles(lambda _: None).entries((str(file),))
    for host, port in (("gpu.example", 22), ("10.0.0.5", 2222), ("2001:db8::12", 22), ("::1", 2222)):
        assert isinstance(lookup(entries, host, port, ED, key(ED, host)), Matches)
        name = names_of(host, port)[0]
        assert (
            subprocess.run(
                ["ssh-keygen", "-F", name, "-f", str(file)], capture_output=True, check=False
            ).returncode
            == 0
        )


def test_adding_keeps_what_was_there_and_its_mode(tmp_path: Path):
    file = tmp_path / "known_hosts"
    file.write_text("without a last newline")
    file.chmod(0o644)
    link = tmp_path / "link"
    link.symlink_to(file)
    add_line(link, "new line")
    assert file.read_text() == "without a last newline\nnew line\n"
    assert file.stat().st_mode & 0o777 == 0o644
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["known_hosts", "link"]


def test_files_that_are_not_there_or_cannot_be_read(tmp_path: Path):
    warnings: list[str] = []
    assert KnownHostsFiles(warnings.append).entries((str(tmp_path / "none"), str(tmp_path))) == ()
    assert len(warnings) == 1
    assert "cannot be read" in warnings[0]


def test_known_types_are_asked_for_first():
    offered = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    entries = parse(f"gpu {text(RSA, 'x')}\n", "kh").entries
    assert preferred_algorithms(entries, "gpu", 22, offered) == (*offered[2:], *offered[:2])
    assert preferred_algorithms(entries, "gpu", 2222, offered) == (*offered[2:], *offered[:2])
    assert preferred_algorithms(entries, "other", 22, offered) == offered


def test_the_removal_command_is_quoted():
    entry = parse(f"[gpu]:2222 {OLD}\n", "/home/my ops/known_hosts").entries[0]
    assert removal_command(entry, "gpu", 2222) == "ssh-keygen -f '/home/my ops/known_hosts' -R '[gpu]:2222'"


def test_fingerprint_has_no_padding():
    assert fingerprint(b"x").startswith("SHA256:")
    assert not fingerprint(b"x").endswith("=")
