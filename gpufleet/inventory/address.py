"""Text to Address: names, IPv4 and IPv6 with and without a port.

gpu7.example   gpu7.example:2222   192.0.2.5:2222   2001:db8::12   [2001:db8::12]:2222   fe80::1%eth0
"""

from __future__ import annotations

import ipaddress
import re

from gpufleet.inventory.model import Address

_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_DOTTED_NUMBERS = re.compile(r"[0-9.]+")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,15}")


def parse_address(text: str) -> Address:
    """The address and, when it is written, the port.

    Raises:
        ValueError: neither a name nor an address; the message says what it looks like.
    """
    if "://" in text:
        raise ValueError(f"`{text}` is a URL: write the host alone, with `user` and `port` beside it")
    if "@" in text:
        raise ValueError(f"`{text}` holds a user: write it under `user`")
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"`{text}` is no address: brackets are written `[2001:db8::12]:2222`")
        return Address(_ipv6(inside, text), _port(rest[1:], text) if rest else None)
    if text.count(":") > 1:
        return Address(_ipv6(text, text))
    host, colon, port = text.partition(":")
    return Address(_name_or_ipv4(host, text), _port(port, text) if colon else None)


def identity(address: Address) -> str:
    """The same text for two spellings of one address: case, zeros and a final dot say nothing."""
    host, percent, zone = address.host.partition("%")
    try:
        return f"{ipaddress.ip_address(host)}{percent}{zone}"
    except ValueError:
        return address.host.rstrip(".").lower()


def _ipv6(text: str, whole: str) -> str:
    host, percent, zone = text.partition("%")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError(
            f"`{whole}` is neither an IPv6 address nor a host with a port; "
            "an IPv6 address with a port is written `[2001:db8::12]:2222`"
        ) from None
    if percent and not _ZONE.fullmatch(zone):
        raise ValueError(f"`{whole}` has no interface after `%`")
    return text


def _name_or_ipv4(host: str, whole: str) -> str:
    if _DOTTED_NUMBERS.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise ValueError(f"`{whole}` is no IPv4 address: {str(error).lower()}") from None
        return host
    if not _NAME.fullmatch(host) or len(host) > 253:
        raise ValueError(f"`{whole}` is no host name: letters, digits, dots, hyphens and underscores only")
    return host


def _port(text: str, whole: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 65535:
        raise ValueError(f"`{whole}` has no valid port: a port is a number from 1 to 65535")
    return int(text)
