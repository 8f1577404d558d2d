"""Every mistake that an operator is likely to make, through the command line and real SSH, as runbooks see it.

Each gives the documented exit code, one line that names file and line or host, a next step, the same in JSON, and
leaves this machine and every host as they were.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest

from gpufleet.cli.app import main
from gpufleet.clock import SystemClock
from gpufleet.lab.fleet import HostWish, build_fleet
from gpufleet.lab.lab_files import LabFolder
from gpufleet.lab.simfs import File
from gpufleet.lab.sshd import LabServer
from tests.kit.lab_kit import own_network

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's client (openssh-client)")
CHECKOUT = Path(__file__).parents[2]
POOL = "  chat:\n    model: m/x\n    hosts: {hosts}\n    engine: {{image: 'vllm/vllm-openai:v0.20.0'}}\n"
CHECK = ("hosts", "check")
DEPLOY = ("pool", "deploy", "chat", "--yes")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One row of the table.

    Attributes:
        hosts: the lines under `hosts:`; `{net}` is the lab's network and `{port}` its SSH port.
        chosen: the pool's selector.
        place: what the error names: a host, or `file:line`.
        says, hint: parts of the message and of the next step.
        commands: what is run; both must end alike.
        defaults: instead of what the lab accepts.
        also: where the same mistake is shown to a real OpenSSH, a real sudo, or the parser alone.
    """

    exit: int
    place: str
    says: str
    hint: str
    hosts: str = "  well: {{address: '{net}.1:{port}'}}\n"
    chosen: str = "all"
    whole: bytes | None = None
    commands: tuple[tuple[str, ...], ...] = (CHECK, DEPLOY)
    defaults: tuple[tuple[str, str], ...] = ()
    also: str


def on(name: str, number: int, more: str = "") -> str:
    return f"  {name}: {{{{address: '{{net}}.{number}:{{port}}'{more}}}}}\n"


FILE = "inventory.yaml"
TABLE = {
    "duplicate keys": Mistake(
        hosts="  a: {{user: x}}\n  a: {{user: y}}\n",
        exit=2,
        place=f"{FILE}:9",
        says="duplicate key `a`, first on line 8",
        hint="keep one of them",
        also="tests/unit/test_yaml_source.py",
    ),
    "unknown fields": Mistake(
        hosts="  a: {{adress: x}}\n",
        exit=2,
        place=f"{FILE}:8",
        says="unknown field `adress`, did you mean `address`?",
        hint="run the command again",
        also="tests/unit/inventory/test_document.py",
    ),
    "a port out of range": Mistake(
        hosts="  a: {{port: 70000}}\n",
        exit=2,
        place=f"{FILE}:8",
        says="`port`: expected a whole number <= 65535",
        hint="run the command again",
        also="tests/unit/inventory/test_document.py",
    ),
    "an unknown host in a pool's selector": Mistake(
        chosen="wel",
        exit=2,
        place=f"{FILE}:12",
        says="unknown host `wel`",
        hint="did you mean `well`?",
        commands=(DEPLOY, ("pool", "plan", "chat")),
        also="tests/unit/inventory/test_select.py",
    ),
    "an unknown host in a typed selector": Mistake(
        exit=2,
        place="",
        says="unknown host `wel`",
        hint="did you mean `well`?",
        commands=((*CHECK, "wel"), (*DEPLOY, "--hosts", "wel")),
        also="tests/cli/test_inventory.py",
    ),
    "an empty selection": Mistake(
        chosen="['well', '!well']",
        exit=2,
        place=f"{FILE}:12",
        says="`well,!well` leaves no host",
        hint="take a `!` word out",
        commands=(DEPLOY, ("pool", "plan", "chat")),
        also="tests/unit/inventory/test_select.py",
    ),
    "an empty list of hosts": Mistake(
        chosen="[]",
        exit=2,
        place=f"{FILE}:12",
        says="no host is selected",
        hint="`all` selects every host",
        commands=(DEPLOY, ("pool", "plan", "chat")),
        also="tests/unit/inventory/test_select.py",
    ),
    "a host listed twice by address": Mistake(
        hosts=on("well", 1) + on("twin", 1),
        exit=2,
        place=f"{FILE}:9",
        says="`twin` and `well` (line 8) are one host",
        hint="keep one of them",
        also="tests/unit/inventory/test_document.py",
    ),
    "an unreachable host": Mistake(
        hosts=on("down", 9),
        exit=7,
        place="down",
        says="refuses connections",
        hint="is sshd running there",
        also="tests/wire/test_openssh_trouble.py",
    ),
    "a wrong key": Mistake(
        defaults=(("identity_file", "other_key"),),
        exit=7,
        place="well",
        says="refused",
        hint="`identity_file`",
        also="tests/wire/test_openssh_keys.py",
    ),
    "a changed host key": Mistake(
        defaults=(("known_hosts", "changed"),),
        exit=7,
        place="well",
        says="has changed",
        hint="gpufleet hosts trust well --fingerprint SHA256:",
        also="tests/wire/test_openssh_keys.py",
    ),
    "sudo refused": Mistake(
        hosts=on("well", 1, ", user: nosudo, become: always"),
        exit=8,
        place="well",
        says="sudo needs a password, or does not know this user",
        hint="give or correct `sudo_password`",
        also="tests/real/test_real_hosts.py",
    ),
    "a wrong sudo password": Mistake(
        hosts=on("well", 1, ", user: asking, sudo_password: '${{env:SUDO_WORD}}'"),
        exit=8,
        place="well",
        says="sudo does not accept the password",
        hint="give or correct `sudo_password`",
        also="tests/real/test_real_hosts.py",
    ),
    "sudo refused to a command": Mistake(
        hosts=on("well", 1, ", user: nosudo"),
        exit=7,
        place="well",
        says="sudo needs a password, or does not know this user",
        hint="give `sudo_password` for the host as a reference",
        commands=(("hosts", "run", "well", "--sudo", "--", "touch", "made"),),
        also="tests/unit/remote/test_sudo.py",
    ),
    "no GPU": Mistake(
        hosts=on("plain", 3),
        exit=8,
        place="plain",
        says="no GPU: nvidia-smi is not installed",
        hint="leave this host out of GPU pools",
        also="tests/unit/hosts/test_compose.py",
    ),
    "no runtime": Mistake(
        hosts=on("bare", 2),
        exit=8,
        place="bare",
        says="no container runtime was found; looked in PATH",
        hint="install docker",
        also="tests/unit/hosts/test_compose.py",
    ),
    "runtime socket refused": Mistake(
        hosts=on("well", 1, ", user: nodock, become: never"),
        exit=8,
        place="well",
        says="the container runtime refuses nodock: permission denied on its socket",
        hint="add nodock to the docker group",
        also="tests/real/test_real_hosts.py",
    ),
    "YAML with tabs": Mistake(
        hosts="\tb: {{}}\n",
        exit=2,
        place=f"{FILE}:8",
        says="a tab indents this line",
        hint="spaces only",
        also="tests/unit/test_yaml_source.py",
    ),
    "an empty file": Mistake(
        whole=b"",
        exit=2,
        place=FILE,
        says="the file is empty",
        hint="gpufleet inventory schema",
        also="tests/unit/test_yaml_source.py",
    ),
    "a 10 MB file": Mistake(
        whole=b"hosts: {a: }\n# " + b"x" * 10_000_000,
        exit=2,
        place=FILE,
        says="the file is larger than 5 MB and was not parsed",
        hint="is it the right one?",
        also="tests/unit/test_yaml_source.py",
    ),
    "invalid UTF-8": Mistake(
        whole=b"hosts:\n  a: {user: \xe9}\n",
        exit=2,
        place=f"{FILE}:2",
        says="not UTF-8: byte 0xe9",
        hint="save the file as UTF-8",
        also="tests/unit/test_yaml_source.py",
    ),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    network = own_network(3)
    wishes = [
        HostWish(name="well", address=f"{network}.1", gpus="2xH100-80GB"),
        HostWish(name="bare", address=f"{network}.2", gpus="2xH100-80GB", without=frozenset({"docker"})),
        HostWish(name="plain", address=f"{network}.3", gpus=""),
    ]
    with LabServer(build_fleet(wishes, SystemClock()), LabFolder(tmp_path_factory.mktemp("lab"))) as server:
        users = server.fleet["well"].host.users
        users["asking"] = replace(users["pwops"], name="asking", groups=("asking",), home="/home/nodock")
        paramiko.ECDSAKey.generate().write_private_key_file(str(server.folder.path / "other_key"))
        first, second = server.folder.known_hosts.read_text().splitlines()[:2]
        changed = " ".join([first.split()[0], *second.split()[1:]])
        (server.folder.path / "changed").write_text(f"{changed}\n")
        yield server


@pytest.fixture
def desk(lab, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("SUDO_WORD", "not.the.password")
    for name in [name for name in os.environ if name.startswith("GPUFLEET")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Desk(lab, tmp_path, capsys)


class Desk:
    """Where the mistake is made."""

    def __init__(self, lab, path, capsys):
        self.lab, self.path, self.capsys = lab, path, capsys

    def write(self, mistake: Mistake) -> None:
        folder = self.lab.folder
        names = {
            "identity_file": folder.key,
            "known_hosts": folder.known_hosts,
            "ssh_config": folder.ssh_config,
        }
        names |= {key: folder.path / name for key, name in mistake.defaults}
        head = "version: 1\ndefaults:\n  user: ops\n" + "".join(
            f"  {key}: {at}\n" for key, at in names.items()
        )
        address = self.lab.fleet["well"].host.address
        hosts = mistake.hosts.format(net=address.rpartition(".")[0], port=self.lab.port)
        text = f"{head}hosts:\n{hosts}pools:\n{POOL.format(hosts=mistake.chosen)}"
        (self.path / FILE).write_bytes(text.encode() if mistake.whole is None else mistake.whole)

    def run(self, *words: str) -> tuple[int, str, str]:
        at = words.index("--") if "--" in words else len(words)
        options = ("-i", FILE, "--state-dir", "state", "--no-input")
        code = main([*words[:at], *options, *words[at:]])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def world(self) -> list[object]:
        """Every file, container and image of every host, past every transport; and the names on this desk."""
        seen: list[object] = [sorted(path.name for path in self.path.iterdir())]
        for one in self.lab.fleet:
            with one.lock:
                for path, node in one.host.fs.walk("/"):
                    made_up = isinstance(node, File) and node.source is not None
                    content = node.content if isinstance(node, File) and not made_up else b""
                    seen.append((one.name, path, node.owner, node.mode, content))
                engine = one.containers
                seen.append((one.name, sorted(engine.containers), sorted(map(str, engine.images))))
        return seen


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", TABLE)
def test_a_mistake_is_told_and_nothing_is_changed(desk, name):
    mistake = TABLE[name]
    desk.write(mistake)
    before = desk.world()
    for words in mistake.commands:
        code, out, err = desk.run(*words)
        text = out + err
        assert code == mistake.exit, text
        (line,) = [line for line in err.splitlines() if line.startswith("error:")]
        assert mistake.place in line
        assert mistake.says in text
        assert mistake.hint in text
        assert "Traceback" not in text
        code, out, err = (
            desk.run(*words, "-o", "json") if "--" not in words else desk.run("-o", "json", *words)
        )
        answer = json.loads(out)
        assert (code, answer["exit"], answer["schema"]) == (mistake.exit, mistake.exit, 1)
        assert answer["command"] == " ".join(words[:2])
        assert answer["outcome"] in {"failed", "refused"}
        error = answer["error"]
        assert error["code"]
        assert error["hints"]
        assert mistake.place in error["where"]
        assert error["message"] in text
        said = "\n".join(strings(answer))
        assert mistake.says in said
        assert mistake.hint in said
    assert desk.world() == before
    assert not (desk.path / "state").exists()


@pytest.mark.parametrize(
    ("content", "place", "says"),
    [
        (b"pool: chat\nmodel: m\nmodel: n\n", "pool.yaml:3", "duplicate key `model`, first on line 2"),
        (b"pool: chat\nmodell: m\n", "pool.yaml:2", "unknown field `modell`, did you mean `model`?"),
        (b"pool: chat\nmodel: m\nreplicas: 0\n", "pool.yaml:3", "expected a whole number >= 1"),
        (b"pool: chat\nmodel: m\nhosts: [wel]\n", "pool.yaml:3", "unknown host `wel`"),
        (b"pool: chat\n\tmodel: m\n", "pool.yaml:2", "a tab indents this line"),
        (b"", "pool.yaml", "the file is empty"),
        (b"model: m\n# " + b"x" * 10_000_000, "pool.yaml", "larger than 5 MB"),
        (b"pool: chat\nmodel: \xe9\n", "pool.yaml:2", "not UTF-8: byte 0xe9"),
    ],
)
def test_a_definition_in_a_file_of_its_own_is_told_alike(desk, content, place, says):
    desk.write(TABLE["no GPU"])
    (desk.path / "pool.yaml").write_bytes(content)
    before = desk.world()
    words = ("pool", "deploy", "-f", "pool.yaml", "--yes")
    code, _, err = desk.run(*words)
    assert code == 2
    assert place in err
    assert says in err
    assert "hint:" in err
    error = json.loads(desk.run(*words, "-o", "json")[1])["error"]
    rows = error.get("rows", [error])
    assert any(place in row["where"] and says in row["message"] for row in rows), error
    assert error["hints"]
    assert desk.world() == before


def test_the_table_names_where_each_mistake_meets_its_real_part():
    assert [row.also for row in TABLE.values() if not (CHECKOUT / row.also).is_file()] == []


def test_a_host_without_a_mistake_is_well(desk):
    """The table shows nothing if everything is refused."""
    desk.write(replace(TABLE["no GPU"], hosts=on("well", 1)))
    before = desk.world()
    assert desk.run(*CHECK)[0] == 0
    assert desk.run(*DEPLOY, "--dry-run")[0] == 0
    assert desk.run("pool", "deploy", "chat", "--check")[0] == 3
    assert desk.run("pool", "deploy", "chat")[0] == 2  # nobody can be asked
    assert desk.world() == before
