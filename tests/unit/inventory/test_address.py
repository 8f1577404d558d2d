"""Case 06: one parser for names, IPv4 and IPv6, with and without a port."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.inventory.address import identity, parse_address
from gpufleet.inventory.model import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("2001:db8::12", "2001:db8::12", None),
        ("[2001:db8::12]:2222", "2001:db8::12", 2222),
        ("[2001:db8::12]", "2001:db8::12", None),
        ("fe80::1%eth0", "fe80::1%eth0", None),
        ("[fe80::1%eth0]:22", "fe80::1%eth0", 22),
        ("::1", "::1", None),
        ("192.0.2.5:2222", "192.0.2.5", 2222),
        ("192.0.2.5", "192.0.2.5", None),
        ("gpu7.example:2222", "gpu7.example", 2222),
        ("gpu_7", "gpu_7", None),
    ],
)
def test_the_forms(text, host, port):
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a:b:c", "neither an IPv6 address nor a host with a port"),
        ("2001:db8::12:99999", "neither an IPv6"),
        ("[2001:db8::12", "brackets are written"),
        ("[2001:db8::12]22", "brackets are written"),
        ("[gpu7]:22", "neither an IPv6"),
        ("fe80::1%", "no interface"),
        ("gpu7:0", "from 1 to 65535"),
        ("gpu7:65536", "from 1 to 65535"),
        ("gpu7:ssh", "from 1 to 65535"),
        ("gpu7:", "from 1 to 65535"),
        ("300.1.2.3", "no IPv4 address"),
        ("10.0.0", "no IPv4 address"),
        ("-oProxyCommand=x", "no host name"),
        ("a b", "no host name"),
        ("$(id)", "no host name"),
        ("ops@gpu7", "write it under `user`"),
        ("ssh://gpu7", "is a URL"),
        ("", "no host name"),
        ("bücher.example", "no host name"),
        ("gpu7:٢٢", "from 1 to 65535"),
    ],
)
def test_what_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        parse_address(text)


def test_brackets_come_back_in_urls():
    assert parse_address("2001:db8::12").url_host() == "[2001:db8::12]"
    assert str(parse_address("[2001:db8::12]:2222")) == "[2001:db8::12]:2222"


def test_two_spellings_have_one_identity():
    assert identity(Address("2001:DB8:0::12")) == identity(Address("2001:db8::12"))
    assert identity(Address("GPU7.example.")) == identity(Address("gpu7.example"))
    assert identity(Address("fe80::1%eth0")) != identity(Address("fe80::1%eth1"))


@given(st.ip_addresses(), st.none() | st.integers(1, 65535))
def test_what_is_printed_is_read_back(host, port):
    address = Address(str(host), port)
    assert parse_address(str(address)) == address


@given(st.text(max_size=40))
def test_any_text_gives_an_address_without_shell_signs_or_a_reason(text):
    try:
        host = parse_address(text).host
    except ValueError:
        return
    assert not set(host) & set(" '\"$`\\;|&<>()\n\t/@")
    assert not host.startswith("-")
