"""Real HTTP servers as sites of a lab: what a simulated host asks is asked for real."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from gpufleet.lab.network import Network
from gpufleet.lab.simhost import Answer


def bridge(network: Network, url: str) -> None:
    """Let every host of the lab reach the server at `url`."""
    place = urlsplit(url)

    def site(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection(place.netloc, timeout=30)
        connection.request(method, path, body=body or None, headers=dict(headers))
        answer = connection.getresponse()

        def content() -> Iterator[bytes]:
            try:
                yield answer.read()
            except http.client.IncompleteRead as cut:
                yield cut.partial
                raise ConnectionResetError("cut") from cut
            finally:
                connection.close()

        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, content()

    network.sites[place.netloc] = site
