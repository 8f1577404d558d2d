"""Nothing that somebody writes in YAML becomes shell: it is refused at its line, or arrives as exactly that word.

SAFETY. For every place of an inventory and of a pool definition, and for every text: either reading it raises an
error that names file and line, before anything is sent, or what the host's programs are given is that text and
nothing else. Shown on simulated hosts, whose programs record their words, and with the same scripts in the real
/bin/sh with programs of our own in front of its PATH.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from gpufleet.change.flow import Tools as ChangeTools
from gpufleet.cli import hosts_run, wiring
from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.deploy.tools import Tools
from gpufleet.errors import (
    DocumentError,
    FleetError,
    HostUnreachable,
    RolledBack,
    SecretUnresolved,
    SelectionError,
)
from gpufleet.inventory.load import load
from gpufleet.inventory.model import Address, Host, Inventory
from gpufleet.lab.fleet import Fleet, HostWish, build_fleet
from gpufleet.lab.memory import MemoryTransport
from gpufleet.located import Located, Problems
from gpufleet.names import HostName
from gpufleet.pools.document import to_model
from gpufleet.pools.load import definitions
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit, Lost, Outcome
from gpufleet.remote.ssh.config import SshConfig
from tests.kit.lab_kit import LabClock
from tests.kit.recorder import Ran, record
from tests.kit.shell_hosts import ShellHosts
from tests.unit.hosts.answers import INFO, recorded

EXAMPLES = settings().max_examples
ENDINGS = {"committed", "document", "refused", "rolled-back", "unplaceable", "preflight", "usage"}
IMAGE = "vllm/vllm-openai:v0.20.0"
LATEST = "vllm/vllm-openai:latest"
GATE = {"within": 300, "stall": 120}

HOSTILE = (
    "$(touch pwned)", "`touch pwned`", "; touch pwned", "& touch pwned &", "| touch pwned", "> pwned", "&& touch pwned",
    "'; touch pwned; '", '"; touch pwned; "', "'\"'\"'", "\\", "\\'", "\\\\", "$HOME", "${HOME}", "${env:HOME}x",
    "!", "!!", "!touch", "#", "# x", "~", "~root", "*", "/*", "?", "[a-z]", "{a,b}", "%s%n", "%", "-", "--", "-rf", "-oProxyCommand=touch pwned",
    "--privileged", "--env-file=/etc/passwd", "--config", "-v/:/host", "", " ", "  two  spaces ", "a b", "a\tb", "a\nb",
    "a\r\nb", "\n", "x\ny: z", "EOF", "\x00", "a\x00b", "\x1b[2J", "\x7f", "\x85", "\x9b31m", "\u2028", "\ufeffx",
    "ü", "日本語", "🙂", "e\u0301", "\u202egnp", "=", "A=b", "if", "@file", "@/etc/passwd", "../../etc", "/", "a,b",
    'a"b', "a:b", "{{.Id}}", "gpufleet-lab-frame-end 0", "null", "true", "1e3", "a" * 500, "$(touch pwned)" * 20,
    "x" * 70_000, "é" * 70_000,
)  # fmt: skip
texts = st.one_of(
    st.sampled_from([text for text in HOSTILE if len(text) < 10_000]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.lists(st.sampled_from(HOSTILE[:60]), min_size=2, max_size=4).map("".join),
)
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def document(
    pool: dict[str, Any] | None = None, host: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A small fleet as YAML would hold it, with something of its own in places."""
    engine = {"image": IMAGE, "args": ["--max-model-len", "4096"], "env": {"PLAIN": "value"}}
    chat = {
        "model": "qwen/qwen2.5",
        "served_name": "qwen",
        "hosts": ["gpu-01"],
        "engine": engine,
        "gate": GATE,
        **(pool or {}),
    }
    inventory = {"hosts": {"gpu-01": {"address": "127.77.0.1", **(host or {})}}, "pools": {"chat": chat}}
    return {**inventory, **more}


def engine(**parts: Any) -> dict[str, Any]:
    return document({"engine": {"image": IMAGE, **parts}})


PLACES = {
    "pool name": lambda text: document(pools={text: {"model": "m", "engine": {"image": IMAGE}}}),
    "model": lambda text: document({"model": text}),
    "served_name": lambda text: document({"served_name": text}),
    "selector": lambda text: document({"hosts": [text]}),
    "owner": lambda text: document({"owner": text}),
    "weights": lambda text: document({"weights": text}),
    "weights below a folder": lambda text: document({"weights": f"/srv/{text}"}),
    "image": lambda text: engine(image=text),
    "image tag": lambda text: engine(image=f"{IMAGE}{text}"),
    "argument": lambda text: engine(args=[text, "--seed", text]),
    "value of a flag": lambda text: engine(args=[f"--chat-template={text}"]),
    "variable": lambda text: engine(env={text: "value"}),
    "value of a variable": lambda text: engine(env={"PLAIN": text, "LAST": "1"}),
    "prompt": lambda text: document({"gate": {**GATE, "prompt": text}}),
    "memory": lambda text: document({"limits": {"memory": text}}),
    "cpus": lambda text: document({"limits": {"cpus": text}}),
    "shm": lambda text: document({"limits": {"shm": text}}),
    "slice": lambda text: document({"slice": {"mig": text}}),
    "member": lambda text: document({"members": {text: {"weight": 2}}}),
    "host": lambda text: document({"hosts": "all"}, hosts={text: {"address": "127.77.0.1"}}),
    "address": lambda text: document(host={"address": text}),
    "service_address": lambda text: document(host={"service_address": text}),
    "label": lambda text: document(host={"labels": {text: "x"}}),
    "value of a label": lambda text: document(host={"labels": {"rack": text}}),
    "group": lambda text: document(groups={text: {"hosts": ["gpu-01"]}}),
    "runtime_path": lambda text: document(host={"runtime_path": text}),
    "runtime_path below /": lambda text: document(host={"runtime_path": f"/{text}"}),
    "sudo_password": lambda text: document(host={"sudo_password": text}),
}


def yaml_of(value: object) -> str:
    """JSON is YAML; what YAML refuses unescaped is escaped."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def read(folder: Path, written: object) -> tuple[Inventory, Pool]:
    path = folder / "inventory.yaml"
    path.write_text(yaml_of(written), encoding="utf-8")
    inventory = load(path)
    (pool,) = definitions(inventory).values()
    return inventory, pool


def assert_places(error: FleetError) -> None:
    """Every complaint names its line."""
    for row in (error,) if error.where else error.rows:
        assert re.fullmatch(r".*inventory\.yaml:\d+", row.where), (row.where, str(error))


def tools_of(folder: Path, inventory: Inventory, transport: Any) -> Tools:
    change = ChangeTools(
        transport=transport,
        clock=transport.fleet.clock if isinstance(transport, MemoryTransport) else LabClock(),
        predicates={},
        state_dir=folder / "state",
        operator="ann@desk pid 1",
        observer=lambda _step, _event: None,
        forks=1,
    )
    return Tools.of(inventory, change)


def one_host(inventory: Inventory) -> Fleet:
    """The simulated machine behind the only host of an inventory, whatever its name."""
    ((name, host),) = inventory.hosts.items()
    return build_fleet([HostWish(name=name, address=host.address.host, gpus="1xH100-80GB")], LabClock())


def expected(pool: Pool, key: Secret[str]) -> tuple[tuple[str, ...], str]:
    """The end of the runtime's words, and the environment file, from what was read."""
    words = (
        "--entrypoint",
        "vllm",
        pool.engine.image or LATEST,
        "serve",
        pool.model,
        "--served-model-name",
        pool.public_name,
    )
    lines = [f"{name}={value}\n" for name, value in pool.engine.env.items()]
    lines.append(f"VLLM_API_KEY={key.reveal()}\n")
    if pool.weights is not None:
        lines.append("HF_HUB_OFFLINE=1\n")
    return words, "".join(lines)


def assert_exactly(pool: Pool, host: str, ran: Ran, key: Secret[str]) -> None:
    """The runtime was given the words of the definition, each one whole, and nothing of them elsewhere."""
    words, env_file = expected(pool, key)
    at = ran.argv.index("--entrypoint")
    assert ran.argv[at : at + len(words)] == words
    if pool.engine.args:
        assert ran.argv[-len(pool.engine.args) :] == pool.engine.args
    assert sorted(ran.env_file.split("\n")) == sorted(env_file.split("\n"))
    options = ran.argv[:at]
    assert f"gpufleet.pool={pool.name}" in options
    assert f"gpufleet.replica={host}/0" in options
    mounts = [word for word, before in zip(options[1:], options, strict=False) if before == "--mount"]
    wanted = (
        [] if pool.weights is None else [f"type=bind,source={pool.weights},target={pool.weights},readonly"]
    )
    assert mounts == wanted
    assert "--privileged" not in options
    assert not any(word.startswith(("-v", "--volume", "--config")) for word in options)


def play(written: object) -> str:
    """Read, deploy, look; gives what became of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            inventory, pool = read(folder, written)
        except DocumentError as error:
            assert_places(error)
            assert not (folder / "state").exists()
            return "refused"
        fleet = one_host(inventory)
        recorder = record(fleet)
        tools = tools_of(folder, inventory, MemoryTransport(fleet))
        key = Secret("")
        try:
            prepared = prepare(tools, pool, command="pool deploy")
            key = prepared.key
            carry_out(tools, prepared)
        except SelectionError as error:
            assert_places(error)
            return "refused"
        except FleetError as error:
            outcome = error.code
            if not isinstance(error, RolledBack):
                assert not recorder.of("docker", "run")
        else:
            outcome = "committed"
        for ran in recorder.of("docker", "run"):
            assert_exactly(pool, ran.host, ran, key)
        for ran in recorder.of("docker", "pull"):
            assert ran.argv[2:] == ("-q", pool.engine.image or LATEST)
        bodies = [
            json.loads(one.argv[one.argv.index("-d") + 1]) for one in recorder.of("curl") if "-d" in one.argv
        ]
        for body in bodies:
            assert body["model"] == pool.public_name
            assert body.get("prompt", pool.gate.prompt) == pool.gate.prompt
            assert all(message["content"] == pool.gate.prompt for message in body.get("messages", ()))
        for lab in fleet:
            assert not [
                path for path, _ in lab.host.fs.walk("/") if "pwned" in path and "runtime" not in path
            ]
        return outcome


@pytest.mark.parametrize("place", PLACES)
def test_every_place_refuses_or_delivers_what_is_known_to_be_hostile(place):
    """Each place takes its share of the list; the deep profile takes all of it."""
    shares = 14 if EXAMPLES < 1000 else 1
    first = list(PLACES).index(place) % shares
    assert {play(PLACES[place](text)) for text in HOSTILE[first::shares]} <= ENDINGS


@given(place=st.sampled_from(sorted(PLACES)), text=texts)
@settings(max_examples=EXAMPLES)
def test_every_place_refuses_or_delivers_any_text(place, text):
    assert play(PLACES[place](text)) in ENDINGS


def test_what_can_be_delivered_is():
    """Refusing everything would be safe too: what an engine may well be given commits."""
    words = [text for text in HOSTILE if 0 < len(text.encode()) < 5000 and "\0" not in text]
    words = [text for text in words if not re.search(r"^--\S*\s|[\n\r]", text)]
    args = [word for text in words for word in ("--chat-template", f"./{text}")]
    env = {f"V{number}": text for number, text in enumerate(words)}
    gate = {**GATE, "prompt": "".join(words)[:9000]}
    chat = {"engine": {"image": IMAGE, "args": args, "env": env}, "gate": gate}
    assert play(document(chat)) == "committed"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (engine(args=["x" * 70_000]), "longer than 64 KiB"),
        (engine(args=["x" * 60_000] * 9), "longer than 512 KiB in all"),
        (engine(env={"LONG": "é" * 40_000}), "longer than 64 KiB"),
        (engine(args=["a\0b"]), "NUL"),
        (engine(env={"A": "a\0b"}), "NUL"),
        (document({"model": "a\0b"}), "control character"),
        (document({"gate": {"prompt": "x" * 10_001}}), "<= 10000"),
        (document({"limits": {"memory": "٣g"}}), "no limit"),
        (document(host={"user": "é" * 70_000}), "a user name of at most 256"),
        (document(host={"user": "root\n"}), "a user name"),
        (document(host={"identity_file": "x" * 70_000}), "the path of a file, at most"),
        (document(host={"runtime_path": f"/{'x' * 70_000}"}), "an absolute path"),
        (document(host={"proxy_jump": "x" * 70_000}), "jump hosts"),
    ],
)
def test_what_no_program_can_receive_is_refused_at_its_line(tmp_path, written, says):
    with pytest.raises(DocumentError) as caught:
        read(tmp_path, written)
    assert says in str(caught.value)
    assert_places(caught.value)


def test_bytes_of_a_command_line_that_are_no_text():
    problems = Problems()
    assert (
        to_model(Located.of(document()["pools"]["chat"] | {"model": "\udcff"}, "command line"), problems)
        is None
    )
    assert "not UTF-8" in problems.rows[0].message


@given(value=texts)
@example(value="\ud800")
@settings(max_examples=EXAMPLES)
def test_the_value_behind_a_reference_is_refused_or_delivered(value):
    """It is looked up when it is used, so what cannot be delivered is known then; the value is never in the error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "secret").write_bytes(value.encode("utf-8", "surrogatepass"))
        inventory, pool = read(folder, engine(env={"HF_TOKEN": "${file:secret}", "OTHER": "1"}))
        fleet = one_host(inventory)
        recorder = record(fleet)
        tools = tools_of(folder, inventory, MemoryTransport(fleet))
        try:
            carry_out(tools, prepare(tools, pool, command="pool deploy"))
        except SecretUnresolved as error:
            assert not recorder.ran
            assert len(value) < 8 or value not in str(error)
            return
        (ran,) = recorder.of("docker", "run")
        given_value = value.removesuffix("\n").removesuffix("\r")
        assert f"HF_TOKEN={given_value}\n" in ran.env_file
        assert len(given_value) < 8 or not [word for word in recorder.words() if given_value in word]


@given(words=st.lists(texts.filter(lambda text: "\0" not in text), min_size=1, max_size=6))
@example(words=[text for text in HOSTILE if "\0" not in text])
@settings(max_examples=EXAMPLES)
def test_the_words_of_hosts_run_arrive_whole(words):
    fleet = build_fleet([HostWish(name="gpu-01", gpus="")], LabClock())
    fleet["gpu-01"].host.programs["/usr/bin/engine"] = lambda _call: 0
    recorder = record(fleet)
    inventory = Inventory(
        hosts={HostName("gpu-01"): Host(name=HostName("gpu-01"), address=Address("127.77.0.1"))},
        path="inventory.yaml",
    )
    for become in (False, True):
        answer = hosts_run.run(
            MemoryTransport(fleet),
            tuple(inventory.hosts.values()),
            ["engine", *words],
            timeout=60.0,
            become=become,
            forks=1,
        )
        assert answer.outcome == "ok"
    seen = recorder.of("engine")
    assert [one.argv[1:] for one in seen] == [tuple(words)] * 2
    assert not [path for path, _ in fleet["gpu-01"].host.fs.walk("/") if "pwned" in path]


@given(password=texts.filter(lambda text: text and not re.search("[\0\n]", text)), other=texts)
@settings(max_examples=EXAMPLES)
def test_a_sudo_password_is_given_whole_and_to_sudo_alone(password, other):
    fleet = build_fleet([HostWish(name="gpu-01", gpus="")], LabClock())
    host = fleet["gpu-01"].host
    host.users["pwops"] = replace(host.users["pwops"], password=password)
    recorder = record(fleet)
    command = Command(argv=("id", "-u"), mutates=False, become=True)
    for tried in (password, other):
        if "\0" in tried or "\n" in tried:
            continue
        transport = MemoryTransport(
            fleet, users={"gpu-01": "pwops"}, sudo_passwords={"gpu-01": Secret(tried)} if tried else {}
        )
        answer = transport.open(HostName("gpu-01")).run(command)
        assert isinstance(answer, Exit)
        assert (answer.stdout == "0\n") is (tried == password)
    if len(password) >= 8:
        assert not [word for word in recorder.words() if password in word]


SSH = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >"$0.words"
printf 'hostname 127.77.0.1\\nport 22\\nuser ops\\n'
"""
SSH_PLACES = {
    "user": lambda text: document(host={"user": text}),
    "address": lambda text: document(host={"address": text}),
    "identity_file": lambda text: document(host={"identity_file": text}),
    "known_hosts": lambda text: document(host={"known_hosts": text}),
    "ssh_config": lambda text: document(host={"ssh_config": text}),
    "proxy_jump": lambda text: document(host={"proxy_jump": text}),
}


@given(place=st.sampled_from(sorted(SSH_PLACES)), text=texts)
@example(place="user", text="-oProxyCommand=touch pwned")
@example(place="proxy_jump", text="-oProxyCommand=touch${IFS}pwned")
@example(place="ssh_config", text="$(touch pwned)")
@settings(max_examples=EXAMPLES)
def test_what_ssh_is_asked_for_are_words(place, text):
    """The client on this machine is started without a shell, and no value can be read as an option of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "ssh"
        program.write_text(SSH)
        program.chmod(0o755)
        try:
            inventory, _ = read(folder, SSH_PLACES[place](text))
        except DocumentError as error:
            assert_places(error)
            return
        (host,) = inventory.hosts.values()
        target = wiring.target_of(host)
        try:
            SshConfig(str(program)).route(target)
        except HostUnreachable as error:
            assert "\0" in text or place == "proxy_jump", error
        if (folder / "ssh.words").exists():
            words = (folder / "ssh.words").read_bytes().decode().split("\0")[:-1]
            at = words.index("--")
            assert words[:2] == ["-G", "-T"]
            assert len(words) == at + 2
            assert list(words[2:at:2]) == [word for word in ("-F", "-l", "-p") if word in words[2:at:2]]
            assert place != "user" or text in words[2:at]
        assert not list(folder.glob("**/pwned*"))


DOCKER = """#!/bin/sh
here=$(dirname "$0")
record=$(mktemp "$here/words.XXXXXXXX")
for word in "$@"; do printf '%s\\0' "$word"; done >"$record"
case "$1 $*" in
version*) echo 26.1.5 ;;
info*) cat "$here/info.json" ;;
image*) echo sha256:1 ;;
ps*gpufleet.step*) [ ! -e "$here/up" ] || cat "$here/up" ;;
run*) cp "$5" "$here/environment" 2>/dev/null || cp "$4" "$here/environment"; echo c0ffee >"$here/up" ;;
inspect*RestartCount*) echo running 0 0 false ;;
inspect*RestartPolicy*) if [ -e "$here/always" ]; then echo running always; else echo running on-failure; fi ;;
update*) touch "$here/always" ;;
rm*) rm -f "$here/up" ;;
esac
"""
CURL = """#!/bin/sh
here=$(dirname "$0")
record=$(mktemp "$here/asked.XXXXXXXX")
for word in "$@"; do printf '%s\\0' "$word"; done >"$record"
cat >>"$here/given"
case "$*" in
*/v1/models*) cat "$here/models.json" ;;
*/v1/chat*) printf 'data: {"choices": [{"delta": {"content": "Hello there"}}]}\\n\\ndata: [DONE]\\n' ;;
esac
printf '\\nstatus 200\\n'
"""
SMI = """#!/bin/sh
here=$(dirname "$0")
case "$*" in -L) cat "$here/list" ;; *query-gpu*) cat "$here/query" ;; *query-compute*) ;; *) exit 2 ;; esac
"""


@dataclass
class Machines(ShellHosts):
    """Folders whose `bin` stands first in PATH."""

    def _executed(self, host: HostName, command: Command) -> Outcome:
        home = self.home(host)
        ended = subprocess.run(
            [*self.shell, "-s"],
            input=frame(command, "marker-0123456789"),
            capture_output=True,
            env={"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"},
            cwd=home,
            timeout=60,
            check=False,
        )
        seen = unframe(ended.stdout, ended.stderr, "marker-0123456789", become=command.become)
        return seen.exit or Lost(reason="the shell died", sent=True)


def furnish(home: Path, served: str) -> None:
    folder = home / "bin"
    folder.mkdir(parents=True)
    for name, body in (
        ("docker", DOCKER),
        ("curl", CURL),
        ("nvidia-smi", SMI),
        ("sudo", "#!/bin/sh\nexit 1\n"),
    ):
        (folder / name).write_text(body)
        (folder / name).chmod(0o755)
    (folder / "info.json").write_text(json.dumps(INFO))
    (folder / "models.json").write_text(json.dumps({"data": [{"id": served}]}))
    (folder / "list").write_text(recorded("list", "h200-570-two-gpus"))
    (folder / "query").write_text(recorded("query", "h200-570-plain"))


line = texts.filter(lambda text: not re.search("[\0\n\r]", text) and len(text) < 9000)
word = texts.filter(lambda text: "\0" not in text and len(text) < 9000 and not re.search(r"^--\S*\s", text))
name = line.filter(lambda text: text.isprintable() and text.strip() and not text.startswith("-"))


@given(
    model=name,
    served=name,
    words=st.lists(word, max_size=6),
    values=st.lists(line, max_size=4),
    prompt=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60),
)
@example(
    model="'; touch pwned; '",
    served="$(touch pwned)",
    words=[
        text for text in HOSTILE if len(text) < 9000 and "\0" not in text and not re.search(r"^--\S*\s", text)
    ],
    values=[text for text in HOSTILE if len(text) < 9000 and not re.search("[\0\n\r]", text)],
    prompt="`touch pwned`\n'\"$HOME",
)
@settings(max_examples=max(5, EXAMPLES // 10))
def test_the_real_shell_gives_real_programs_the_same(model, served, words, values, prompt):
    """One deploy by /bin/sh from facts to routes: docker, curl and the environment file see the definition's text."""
    env = {f"V{number}": value for number, value in enumerate(values)}
    engine = {
        "image": IMAGE,
        "args": words,
        "env": env,
        "lint": "warn",
    }  # what an engine refuses is delivered too
    chat = {"model": model, "served_name": served, "engine": engine}
    chat["gate"] = {**GATE, "prompt": prompt}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            inventory, pool = read(folder, document(chat))
        except DocumentError as error:
            assert_places(error)
            return
        machines = Machines(folder / "hosts")
        furnish(machines.home("gpu-01"), served)
        tools = tools_of(folder, inventory, machines)
        prepared = prepare(tools, pool, command="pool deploy")
        assert carry_out(tools, prepared).outcome == "committed"
        programs = machines.home("gpu-01") / "bin"
        runs = [split(path) for path in programs.glob("words.*")]
        (argv,) = [one for one in runs if one[0] == "run"]
        environment = (programs / "environment").read_bytes().decode()
        assert_exactly(pool, "gpu-01", Ran("gpu-01", ("docker", *argv), {}, environment), prepared.key)
        asked = [split(path) for path in programs.glob("asked.*")]
        bodies = [json.loads(one[one.index("-d") + 1]) for one in asked if "-d" in one]
        assert [(body["model"], body["messages"][0]["content"]) for body in bodies] == [(served, prompt)]
        secret = prepared.key.reveal()
        assert f'header = "Authorization: Bearer {secret}"' in (programs / "given").read_text()
        assert not [one for one in [*runs, *asked] if any(secret in part for part in one)]
        left = [path.name for path in folder.rglob("*") if "pwned" in path.name]
        assert left == []
        assert not list((machines.home("gpu-01") / ".gpufleet" / "env").iterdir())


def split(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode().split("\0")[:-1])
