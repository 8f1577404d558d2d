"""Document to model: inheritance, groups, and every mistake with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.inventory.document import schema, to_model
from gpufleet.inventory.model import Address, Become, Connection, Inventory, PortRange, Runtime
from gpufleet.located import Located, Problems
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.yaml_source import parse, read


def loaded(text: str) -> tuple[Inventory | None, list[str]]:
    problems = Problems()
    source = parse(text.encode(), "i.yaml", problems)
    assert source is not None, problems.rows
    model = to_model(source, lambda reference: Secret("", reference=reference), problems)
    return model, [f"{row.where}: {row.message}" for row in problems.rows]


def inventory(text: str) -> Inventory:
    model, problems = loaded(text)
    assert problems == []
    assert model is not None
    return model


def mistakes(text: str) -> list[str]:
    return loaded(text)[1]


NEITHER = (
    "i.yaml:6: `1:2:3` is neither an IPv6 address nor a host with a port; "
    "an IPv6 address with a port is written `[2001:db8::12]:2222`"
)


def host(model: Inventory, name: str):
    return model.hosts[HostName(name)]


def test_the_smallest_inventory():
    model = inventory("hosts:\n  gpu-01:\n")
    only = host(model, "gpu-01")
    assert only.address == Address("gpu-01")
    assert only.connection is Connection.SSH
    assert only.ports == PortRange(8000, 8999)
    assert only.declared_at == "i.yaml:2"


def test_everything_a_host_may_say():
    model = inventory("""
version: 1
hosts:
  gpu-01:
    address: "[2001:db8::12]:2222"
    user: ops
    identity_file: ~/.ssh/gpu
    proxy_jump: bastion
    known_hosts: /etc/known
    ssh_config: /etc/ssh_config
    connection: ssh
    groups: [a]
    labels: {rack: 7, hot: true, site: north}
    runtime: podman
    runtime_path: /opt/podman
    become: always
    sudo_password: ${env:SUDO}
    ssh_password: ${file:~/pw}
    passphrase: "${cmd:pass show gpu}"
    service_address: 10.0.0.1
    ports: {first: 9000, last: 9009}
    connect_timeout: 2.5
""")
    only = host(model, "gpu-01")
    assert only.address == Address("2001:db8::12", 2222)
    assert only.labels == {"rack": "7", "hot": "true", "site": "north"}
    assert (only.runtime, only.runtime_path) == (Runtime.PODMAN, "/opt/podman")
    assert only.become is Become.ALWAYS
    assert only.service_address == "10.0.0.1"
    assert only.ports == PortRange(9000, 9009)
    assert only.ssh.connect_timeout == 2.5
    references = [
        secret and secret.reference for secret in (only.sudo_password, only.ssh.password, only.ssh.passphrase)
    ]
    assert references == ["${env:SUDO}", "${file:~/pw}", "${cmd:pass show gpu}"]


def test_the_nearest_word_wins():
    model = inventory("""
defaults: {user: default, port: 22, become: never, labels: {a: defaults, b: defaults, c: defaults}}
groups:
  child: {hosts: ["x*"], user: child, labels: {b: child}}
  parent: {children: [child], user: parent, port: 2200, labels: {b: parent, c: parent}}
  later: {user: later}
hosts:
  x1: {labels: {a: host}}
  x2: {user: host, port: 23}
  x3: {groups: [parent, later], address: "10.0.0.3:24"}
  y:
""")
    assert [host(model, name).ssh.user for name in ("x1", "x2", "x3", "y")] == [
        "child",
        "host",
        "child",
        "default",
    ]
    assert [host(model, name).address.port for name in ("x1", "x2", "x3", "y")] == [2200, 23, 24, 22]
    assert host(model, "x1").labels == {"a": "host", "b": "child", "c": "parent"}
    assert host(model, "y").become is Become.NEVER
    assert model.groups == {"child": ("x1", "x2", "x3"), "parent": ("x1", "x2", "x3"), "later": ("x3",)}
    assert host(model, "x3").groups == {"child", "parent", "later"}


def test_groups_that_only_hosts_name_exist_and_a_near_miss_is_a_warning():
    model = inventory("groups: {a100: {hosts: [x]}}\nhosts: {x: , y: {groups: [a10, fast]}}\n")
    assert model.groups["fast"] == ("y",)
    assert model.warnings == ("group `a10` of host `y` is not under `groups`: did you mean `a100`?",)


def test_every_mistake_at_once_with_its_line():
    assert mistakes("""version: 2
defaults: {usr: x}
hosts:
  a: {adress: 10.0.0.1}
  b: {port: 70000}
  c: {address: "1:2:3"}
  d: {become: sometimes, connect_timeout: 0}
  e: {address: "10.0.0.1:22", port: 23}
  f: {ports: {first: 9, last: 8}}
  g: {service_address: "10.0.0.1:80"}
  "a b":
  all:
  h: 3
groups:
  g: {hosts: [aa, "z*"], children: [gg]}
poools: {}
""") == [
        "i.yaml:2: unknown field `usr`, did you mean `user`?",
        "i.yaml:4: unknown field `adress`, did you mean `address`?",
        "i.yaml:5: `port`: expected a whole number <= 65535",
        "i.yaml:7: `become`: unknown value 'sometimes'",
        "i.yaml:7: `connect_timeout`: expected a number > 0.0",
        "i.yaml:13: `h`: expected a mapping, got a whole number",
        "i.yaml:16: unknown field `poools`, did you mean `pools`?",
        "i.yaml:1: version 2 is not known",
        "i.yaml:11: `a b` is no name for a host",
        "i.yaml:12: `all` means every host",
        "i.yaml:15: group `g` has an unknown child `gg`, did you mean `g`?",
        "i.yaml:15: group `g` lists an unknown host `aa`, did you mean `a`?",
        "i.yaml:15: group `g` lists an unknown host `z*`",
        NEITHER,
        "i.yaml:8: `port` says 23 and `address` says 22",
        "i.yaml:9: `ports` of `f`: first 9 is larger than last 8",
        "i.yaml:10: `service_address` of `g` has a port",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: {a: }\ngroups:\n  'x y': {}", "i.yaml:3: `x y` is no name for a group"),
        ("hosts: {a: {groups: ['x,y']}}", "i.yaml:1: `x,y` is no name for a group"),
        ("hosts:\n  a:\n    labels: {group: x}", "i.yaml:3: `group` is no name for a label"),
        ("defaults:\n  labels: {'a=b': x}\nhosts: {a: }", "i.yaml:2: `a=b` is no name for a label"),
        ("hosts: {}", "i.yaml:1: no host is declared"),
        ("hosts:\n", "i.yaml:1: `hosts`: expected a mapping, got nothing"),
        ("version: 1", "i.yaml:1: `hosts` is missing"),
        ("- a", "i.yaml:1: expected a mapping, got a list"),
        (
            "hosts: {a: }\ngroups:\n  x: {children: [y]}\n  y: {children: [x]}",
            "i.yaml:3: groups contain each other: x -> y -> x",
        ),
        ("hosts: {a: }\ngroups:\n  x: {children: [x]}", "i.yaml:3: groups contain each other: x -> x"),
    ],
)
def test_single_mistakes(text, message):
    assert mistakes(text) == [message]


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ("address: 10.0.0.1", "address: '10.0.0.1:22'", "the address 10.0.0.1:22"),
        ("address: GPU.example", "address: gpu.example.", "the address gpu.example."),
        ("address: '2001:db8:0::1'", "address: '2001:db8::1'", "the address 2001:db8::1"),
        ("connection: local", "connection: local", "this machine"),
    ],
)
def test_one_machine_under_two_names_is_refused(first, second, what):
    assert mistakes(f"hosts:\n  a: {{{first}}}\n  b: {{{second}}}\n") == [
        f"i.yaml:3: `b` and `a` (line 2) are one host: both are {what}"
    ]


def test_one_address_behind_two_jump_hosts_or_on_two_ports_is_two_machines():
    inventory("""hosts:
  a: {address: 10.0.0.1, proxy_jump: one}
  b: {address: 10.0.0.1, proxy_jump: two}
  c: {address: "127.0.0.1:2201"}
  d: {address: "127.0.0.1:2202"}
""")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", "-oProxyCommand=id"),
        ("user", "a b"),
        ("user", "a\\nb"),
        ("proxy_jump", "-oProxyCommand=id"),
        ("proxy_jump", "one, two"),
        ("identity_file", "a\\nProxyCommand id"),
        ("ssh_config", "-v"),
        ("known_hosts", ""),
        ("runtime_path", "docker; id"),
        ("runtime_path", "/bin/docker\\nid"),
        ("address", "-oProxyCommand=id"),
    ],
)
def test_nothing_becomes_an_option_or_a_second_line_of_ssh(field, value):
    (message,) = mistakes(f'hosts:\n  a:\n    {field}: "{value}"\n')
    assert message.startswith("i.yaml:3: ")


@pytest.mark.parametrize("field", ["sudo_password", "ssh_password", "passphrase"])
@pytest.mark.parametrize(
    "value", ["hunter2", "'12345678'", "12345678", "${env:}", "$HOME", "x${env:A}", "[a]"]
)
def test_secrets_in_plain_text_are_refused_and_not_repeated(field, value):
    (message,) = mistakes(f"hosts:\n  a:\n    {field}: {value}\n")
    assert message.startswith(f"i.yaml:3: `{field}`: expected a reference to a secret, ${{env:NAME}}")
    assert "hunter2" not in message
    assert "12345678" not in message


def test_pools_models_and_proxy_keep_their_lines():
    model = inventory("hosts: {a: }\npools:\n  chat: {replicas: 2}\nmodels: {m: {}}\nproxy:\n  listen: x\n")
    pool = model.pools["chat"]
    assert isinstance(pool, Located)
    assert pool.at("replicas").where == "i.yaml:3"
    assert isinstance(model.proxy, Located)
    assert model.proxy.plain() == {"listen": "x"}
    assert list(model.models) == ["m"]


def test_the_addresses_of_case_06():
    path = Path(__file__).parents[4] / "shared/cases/fleet/06-ipv6-literals.txt"
    if not path.exists():
        pytest.skip("the collected cases are not on this machine")
    text = path.read_text().partition("---- input ----\n")[2].partition("---- end ----")[0]
    model = inventory(text)
    assert [str(entry.address) for entry in model.hosts.values()] == [
        "2001:db8::12",
        "[2001:db8::12]:2222",
        "fe80::1%eth0",
        "192.0.2.5:2222",
        "gpu7.example:2222",
    ]


def test_the_schema_refuses_unknown_fields_and_knows_every_field():
    made = schema()
    fields = made["$defs"]["HostDocument"]
    assert fields["additionalProperties"] is False
    assert {"address", "user", "ports", "sudo_password"} <= set(fields["properties"])
    json.dumps(made)


def test_the_example_is_right():
    source = read(Path(__file__).parents[3] / "inventory.example.yaml")
    problems = Problems()
    model = to_model(source, lambda reference: Secret("", reference=reference), problems)
    assert problems.rows == []
    assert model is not None
    assert model.warnings == ()
    assert len(model.hosts) == 5
    assert host(model, "gpu-03").labels == {"site": "north", "rack": "r1"}
