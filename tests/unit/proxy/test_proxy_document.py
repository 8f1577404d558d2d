"""`proxy.yaml` over the defaults."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.document import HealthDocument, ProxyDocument, ScrapeDocument, TimeoutsDocument, to_config

HERE = Address(host="127.0.0.1", port=1)
BASE = ProxyConfig(listen=HERE, admin=HERE, routes="r", tokens="t")


def read(**fields):
    return to_config(msgspec.convert(fields, ProxyDocument), BASE)


def test_nothing_said_changes_nothing():
    assert read() == BASE
    assert read(version=1, timeouts={}, health={}, scrape={}) == BASE


def test_every_field_reaches_its_place():
    config = read(
        listen="[::1]:8443",
        connections=5,
        workers=3,
        access_share=0.5,
        timeouts={"first_byte": 7},
        health={"eject_after": 9},
        scrape={"every": 2},
    )
    assert config.listen == Address(host="::1", port=8443)
    assert (config.connection_limit, config.workers, config.access_share) == (5, 3, 0.5)
    assert (config.timeouts.first_byte, config.timeouts.total) == (7, 3600.0)
    assert (config.health.eject_after, config.health.every) == (9, 5.0)
    assert config.scrape.stale == 6


@pytest.mark.parametrize(
    ("document", "place"),
    [(TimeoutsDocument, "timeouts"), (HealthDocument, "health"), (ScrapeDocument, "scrape")],
)
def test_every_name_is_one_of_the_rules(document, place):
    known = {field.name for field in dataclasses.fields(getattr(BASE, place))}
    assert set(document.__struct_fields__) <= known


def test_an_address_that_is_none_names_its_field():
    with pytest.raises(ValueError, match=r"^admin: "):
        read(admin="here")
