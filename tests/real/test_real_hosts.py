"""`gpufleet hosts` on real hosts: what other people's tools got wrong, each as a test of the whole kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real import faults
from tests.real.base import PASSWORD
from tests.real.desk import Answer, Operator
from tests.real.fleet import Fleet
from tests.real.machine import run

Desk = Callable[..., Operator]


@pytest.fixture
def desk(fleet: Fleet, tmp_path: Path) -> Desk:
    """Make an operator for some hosts, as some account."""

    def make(*hosts: str, user: str = "ops", extra: str = "", **environment: str) -> Operator:
        return Operator(fleet, tmp_path, hosts, user=user, extra=extra, environment=environment)

    return make


def codes(answer: Answer, host: str) -> set[str]:
    """Slugs of the findings of a host."""
    return {finding["code"] for finding in answer.host(host)["findings"]}


def said(answer: Answer, host: str, code: str) -> str:
    """Message and fix of one finding."""
    found = [one for one in answer.host(host)["findings"] if one["code"] == code]
    assert found, answer
    return f"{found[0]['message']}; {found[0]['fix']}"


def fingerprint(fleet: Fleet, host: str) -> str:
    """SHA256 fingerprint of the key that a host shows now."""
    return fleet.hosts[host].shell("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]


def test_facts_are_what_the_hosts_say_of_themselves(fleet: Fleet, desk: Desk) -> None:
    answer = desk(*fleet.hosts).run("hosts", "facts")
    assert answer.exit == 0, answer
    for name, host in fleet.hosts.items():
        row = answer.host(name)
        assert [gpu["uuid"] for gpu in row["gpus"]] == list(host.gpus)
        assert {gpu["memory_total_mib"] for gpu in row["gpus"]} == {81559}
        assert {gpu["name"] for gpu in row["gpus"]} == {"NVIDIA H100 80GB HBM3"}
        assert row["hostname"] == name
        assert row["runtime"]["kind"] == "docker"
        assert (
            row["runtime"]["version"]
            == fleet.ssh(name, "docker version --format '{{.Server.Version}}'").strip()
        )
        assert [one["name"] for one in row["containers"]] == ["somebody-elses"]
        assert 22 in row["listening"]
        assert row["unknown"] == {}


def test_healthy_hosts_pass_the_check(fleet: Fleet, desk: Desk) -> None:
    answer = desk(*fleet.hosts).run("hosts", "check")
    assert answer.exit == 0, answer
    assert answer.fields["outcome"] == "ok"
    assert {row["status"] for row in answer.fields["hosts"]} == {"ok"}


def test_a_command_runs_everywhere_and_every_answer_comes_back(fleet: Fleet, desk: Desk) -> None:
    hostile = 'it\'s $HOME `id` "x" \\ \t ! * é'
    answer = desk(*fleet.hosts).run("hosts", "run", "all", "--", "printf", "%s", hostile)
    assert answer.exit == 0, answer
    assert {row["stdout"] for row in answer.fields["hosts"]} == {hostile}
    failing = desk(*fleet.hosts).run(
        "hosts", "run", "all", "--", "sh", "-c", "test $(hostname) != h2 || exit 9"
    )
    assert failing.exit == 8
    assert failing.host("h2")["exit"] == 9
    assert failing.host("h1")["exit"] == 0


@pytest.mark.parametrize("user", ["ops", "fishy", "cshy", "noisy"])
def test_every_login_shell_runs_the_same_words(desk: Desk, user: str) -> None:
    answer = desk("h1", user=user).run("hosts", "run", "h1", "--", "printf", "%s|", "a!b", "c\nd", "$e", "'")
    assert answer.exit == 0, answer
    assert answer.host("h1")["stdout"] == "a!b|c\nd|$e|'|"


# --- sudo that needs a password, or a terminal, or does not know us ---------------------------------------------------


def test_sudo_with_a_password_works_and_never_shows_it(desk: Desk) -> None:
    operator = desk("h1", user="pwops", extra="  sudo_password: ${env:SUDO_WORD}\n", SUDO_WORD=PASSWORD)
    answer = operator.run("hosts", "run", "h1", "--sudo", "--", "id", "-u")
    assert answer.exit == 0, answer
    assert answer.host("h1")["stdout"] == "0\n"
    assert PASSWORD not in answer.text


def test_sudo_reasons_differ_and_name_the_host(fleet: Fleet, desk: Desk) -> None:
    needed = desk("h1", user="pwops").run("hosts", "run", "h1", "--sudo", "--", "id")
    extra = "  sudo_password: ${env:SUDO_WORD}\n"
    wrong = desk("h1", user="pwops", extra=extra, SUDO_WORD="not-this-one").run(
        "hosts", "run", "h1", "--sudo", "--", "id"
    )
    stranger = desk("h1", user="nosudo", extra=extra, SUDO_WORD=PASSWORD).run(
        "hosts", "run", "h1", "--sudo", "--", "id"
    )
    answers = (needed, wrong, stranger)
    assert [answer.exit for answer in answers] == [7, 7, 7], answers
    reasons = {str(answer.host("h1")["reason"]) for answer in answers}
    assert len(reasons) == 3, reasons
    assert "sudoers" in stranger.text
    assert not any("not-this-one" in answer.text or PASSWORD in answer.text for answer in answers)


def test_sudo_that_wants_a_terminal_is_said(fleet: Fleet, desk: Desk) -> None:
    host = fleet.hosts["h2"]
    host.shell("echo 'Defaults requiretty' > /etc/sudoers.d/zz-tty; chmod 440 /etc/sudoers.d/zz-tty")
    try:
        answer = desk("h2").run("hosts", "run", "h2", "--sudo", "--", "id")
    finally:
        host.shell("rm /etc/sudoers.d/zz-tty")
    assert answer.exit == 7, answer
    assert "tty" in answer.text


def test_check_tells_that_sudo_needs_a_password(desk: Desk) -> None:
    answer = desk("h1", user="pwops").run("hosts", "check")
    assert "sudo-password" in codes(answer, "h1"), answer
    assert "pwops" in said(answer, "h1", "sudo-password")


# --- text that a login prints -----------------------------------------------------------------------------------------


def test_a_noisy_login_changes_nothing_but_a_warning(desk: Desk) -> None:
    quiet = desk("h1").run("hosts", "facts").host("h1")
    noisy = desk("h1", user="noisy").run("hosts", "facts")
    assert noisy.exit == 0, noisy
    row = noisy.host("h1")
    same = ("gpus", "runtime", "containers", "listening", "hostname", "kernel")
    assert {key: row[key] for key in same} == {key: quiet[key] for key in same}
    assert row["noisy_login"] is True
    assert quiet["noisy_login"] is False
    checked = desk("h1", user="noisy").run("hosts", "check")
    assert checked.exit == 0, checked
    assert "noisy-login" in codes(checked, "h1")


# --- many handshakes at once ------------------------------------------------------------------------------------------


def test_a_server_that_takes_few_handshakes_at_once_is_asked_again(fleet: Fleet, desk: Desk) -> None:
    """MaxStartups 2: of eight commands at the same moment sshd drops some; each tries again and succeeds."""
    host = fleet.hosts["h2"]
    path = "/etc/ssh/sshd_config.d/few.conf"
    host.shell(f"echo 'MaxStartups 2:100:2' > {path}; kill -HUP $(cat /run/sshd.pid)")
    try:
        operator = desk("h2")
        with ExitStack() as stack:
            begun = [
                stack.enter_context(operator.start("hosts", "run", "h2", "--", "true")) for _ in range(8)
            ]
            answers = [started.answer() for started in begun]
    finally:
        host.shell(f"rm {path}; kill -HUP $(cat /run/sshd.pid)")
    assert [answer.exit for answer in answers] == [0] * 8, answers


def test_a_jump_host_carries_many_targets(fleet: Fleet, desk: Desk) -> None:
    """All other hosts through one whose sshd takes two handshakes at once."""
    others = [name for name in fleet.hosts if name != "h1"]
    jump = fleet.hosts["h1"]
    path = "/etc/ssh/sshd_config.d/few.conf"
    jump.shell(f"echo 'MaxStartups 2:100:2' > {path}; kill -HUP $(cat /run/sshd.pid)")
    try:
        answer = desk(*others, extra=f"  proxy_jump: ops@{jump.address}\n").run(
            "hosts", "run", "all", "--", "printenv", "SSH_CONNECTION"
        )
    finally:
        jump.shell(f"rm {path}; kill -HUP $(cat /run/sshd.pid)")
    assert answer.exit == 0, answer
    assert {row["stdout"].split()[0] for row in answer.fields["hosts"]} == {jump.address}


def test_refused_logins_leave_no_connection_behind(fleet: Fleet, desk: Desk) -> None:
    operator = desk("h1")
    operator.write_inventory(fleet.inventory(names=["h1"]).replace(str(fleet.key), str(fleet.strange_key)))
    for _ in range(3):
        answer = operator.run("hosts", "facts")
        assert answer.exit == 7, answer
        assert answer.host("h1")["code"] == "authentication"
    assert fleet.hosts["h1"].shell("ss -Htn state established '( sport = :22 )'") == ""


# --- host keys --------------------------------------------------------------------------------------------------------


def test_a_changed_host_key_is_shown_and_never_accepted(fleet: Fleet, desk: Desk) -> None:
    old = fingerprint(fleet, "h2")
    with faults.host_key_changed(fleet.hosts["h2"]):
        new = fingerprint(fleet, "h2")
        answer = desk("h1", "h2").run("hosts", "facts")
        trusted = desk("h2").run("hosts", "trust", "h2", "--fingerprint", new)
    assert answer.exit == 7, answer
    assert answer.host("h1")["status"] == "ok"
    row = answer.host("h2")
    assert row["code"] == "host-key-changed"
    text = f"{row['reason']} {row['hint']}"
    line = next(
        n
        for n, text in enumerate(fleet.path("known_hosts").read_text().splitlines(), 1)
        if text.startswith(f"{fleet.hosts['h2'].address} ")
    )
    for part in (old, new, f"{fleet.path('known_hosts')}:{line}"):
        assert part in text, (part, text)
    assert "ssh-keygen" in answer.text
    assert trusted.exit == 7, trusted


def test_an_unknown_host_key_is_trusted_on_purpose_only(fleet: Fleet, desk: Desk, tmp_path: Path) -> None:
    own = tmp_path / "known_hosts"
    own.write_text("")
    operator = desk("h3")
    operator.write_inventory(fleet.inventory(names=["h3"]).replace(str(fleet.path("known_hosts")), str(own)))
    unknown = operator.run("hosts", "facts")
    assert unknown.exit == 7, unknown
    assert unknown.host("h3")["code"] == "host-key-unknown"
    asked = operator.run("hosts", "trust", "h3")
    assert asked.exit == 2, asked
    wrong = operator.run("hosts", "trust", "h3", "--fingerprint", "SHA256:" + "A" * 43)
    assert wrong.exit == 7, wrong
    assert own.read_text() == ""
    right = operator.run("hosts", "trust", "h3", "--fingerprint", fingerprint(fleet, "h3"))
    assert right.exit == 0, right
    assert operator.run("hosts", "facts").exit == 0
    assert run("ssh-keygen", "-F", fleet.hosts["h3"].address, "-f", own).returncode == 0


# --- where the runtime is, and who may use it -------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/opt/bin", "/snap/bin", "/home/ops/bin"])
def test_docker_off_the_search_path_is_found(fleet: Fleet, desk: Desk, place: str) -> None:
    host = fleet.hosts["h2"]
    host.shell(f"mkdir -p {place}; mv /usr/bin/docker {place}/docker; chmod 755 {place}")
    try:
        answer = desk("h2").run("hosts", "facts")
    finally:
        host.shell(f"mv {place}/docker /usr/bin/docker")
    assert answer.exit == 0, answer
    assert answer.host("h2")["runtime"]["path"] == f"{place}/docker"


def test_docker_nowhere_is_said_with_the_places_and_mended_by_its_path(fleet: Fleet, desk: Desk) -> None:
    host = fleet.hosts["h2"]
    host.shell("mkdir -p /srv/apps; mv /usr/bin/docker /srv/apps/docker")
    try:
        lost = desk("h2").run("hosts", "check")
        mended = desk("h2", extra="  runtime: docker\n  runtime_path: /srv/apps/docker\n").run(
            "hosts", "check"
        )
    finally:
        host.shell("mv /srv/apps/docker /usr/bin/docker")
    assert lost.exit == 8, lost
    text = said(lost, "h2", "runtime-missing")
    assert all(part in text for part in ("/snap/bin", "/opt/bin", "~/.local/bin", "runtime_path")), text
    assert mended.exit == 0, mended


def test_a_refused_socket_names_the_user_or_goes_through_sudo(fleet: Fleet, desk: Desk) -> None:
    through = desk("h1", user="nodock").run("hosts", "facts")
    assert through.exit == 0, through
    assert through.host("h1")["runtime"]["needs_sudo"] is True
    refused = desk("h1", user="nodock", extra="  become: never\n").run("hosts", "check")
    assert refused.exit == 8, refused
    assert "nodock" in said(refused, "h1", "runtime-refused")


def test_a_new_group_is_seen_by_the_next_command(fleet: Fleet, desk: Desk) -> None:
    host = fleet.hosts["h2"]
    operator = desk("h2", user="nodock", extra="  become: never\n")
    assert operator.run("hosts", "check").exit == 8
    host.shell("usermod -aG docker nodock")
    try:
        assert operator.run("hosts", "check").exit == 0
    finally:
        host.shell("gpasswd -d nodock docker")


# --- GPUs for containers ----------------------------------------------------------------------------------------------


def test_three_reasons_for_no_gpu_driver_have_three_fixes(fleet: Fleet, desk: Desk) -> None:
    host = fleet.hosts["h2"]
    hook, away = "/usr/bin/nvidia-container-runtime-hook", "/root/hook-away"
    operator = desk("h2")
    try:
        host.shell(f"mv {hook} {away}; mv /usr/bin/nvidia-ctk {away}-ctk; systemctl restart docker")
        missing = operator.run("hosts", "check")
        host.shell(f"mv {away}-ctk /usr/bin/nvidia-ctk")
        unconfigured = operator.run("hosts", "check")
        host.shell(f"sleep 1.1; cp {away} {hook}; chmod 755 {hook}")
        stale = operator.run("hosts", "check")
        host.shell("systemctl restart docker")
        mended = operator.run("hosts", "check")
    finally:
        host.shell(
            f"[ -e {hook} ] || mv {away} {hook}; [ -e /usr/bin/nvidia-ctk ] || mv {away}-ctk /usr/bin/nvidia-ctk; rm -f {away} {away}-ctk; systemctl restart docker"
        )
    assert "toolkit-missing" in codes(missing, "h2"), missing
    assert "runtime-not-configured" in codes(unconfigured, "h2"), unconfigured
    assert "runtime-not-restarted" in codes(stale, "h2"), stale
    assert [answer.exit for answer in (missing, unconfigured, stale, mended)] == [8, 8, 8, 0], mended


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.", "driver-down"),
        (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.82", "driver-mismatch"),
        (6, "No devices were found", "gpu-none"),
    ],
)  # fmt: skip
def test_a_driver_that_fails_is_unknown_and_never_no_gpus(
    fleet: Fleet, desk: Desk, status: int, text: str, code: str
) -> None:
    with faults.driver_fails(fleet.hosts["h2"], status, text):
        checked = desk("h2").run("hosts", "check")
        facts = desk("h2").run("hosts", "facts").host("h2")
    assert checked.exit == 8, checked
    assert code in codes(checked, "h2"), checked
    if code != "gpu-none":
        assert facts["gpus"] is None
        assert "gpus" in facts["unknown"]


# --- hosts that do not answer -----------------------------------------------------------------------------------------


def test_a_frozen_docker_is_silent_and_the_others_are_not_held_up(fleet: Fleet, desk: Desk) -> None:
    with faults.service(fleet.hosts["h3"], "docker", "freeze"):
        answer = desk("h1", "h3").run("hosts", "check")
    assert answer.exit == 8, answer
    assert answer.host("h1")["status"] == "ok"
    assert answer.host("h1")["duration_s"] < answer.host("h3")["duration_s"]
    assert codes(answer, "h3") & {"runtime-silent", "runtime-unknown", "runtime-down"}, answer


def test_one_host_away_is_one_row_and_exit_7(fleet: Fleet, desk: Desk) -> None:
    for broken in (
        faults.link_cut(fleet.hosts["h3"]),
        faults.service(fleet.hosts["h3"], "ssh", "freeze"),
        faults.service(fleet.hosts["h3"], "ssh", "stop"),
    ):
        with broken:
            answer = desk("h1", "h3", extra="  connect_timeout: 1\n").run("hosts", "facts")
        assert answer.exit == 7, answer
        assert answer.host("h1")["status"] == "ok"
        assert answer.host("h3")["status"] == "unreachable"
        assert answer.host("h3")["hint"], answer


def test_a_login_shell_that_refuses_is_said(desk: Desk) -> None:
    answer = desk("h1", user="nologin").run("hosts", "facts")
    assert answer.exit == 7, answer
    assert re.search(r"not available|login shell", answer.text), answer
