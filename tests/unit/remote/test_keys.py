"""Key files as ssh-keygen writes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.remote.ssh.keys import inspect, public_blob

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")

FORMS = {
    "ed25519": ["-t", "ed25519"],
    "ecdsa": ["-t", "ecdsa"],
    "rsa": ["-t", "rsa", "-b", "2048"],
    "rsa pem": ["-t", "rsa", "-b", "2048", "-m", "PEM"],
    "ecdsa pem": ["-t", "ecdsa", "-m", "PEM"],
    "rsa pkcs8": ["-t", "rsa", "-b", "2048", "-m", "PKCS8"],
}


@pytest.mark.parametrize("passphrase", ["", "secret phrase"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, passphrase: str, tmp_path: Path):
    path = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", *FORMS[form], "-N", passphrase, "-f", str(path)], check=True)
    seen = inspect(path.read_bytes())
    assert seen is not None
    assert seen.private
    assert seen.encrypted == bool(passphrase)
    public = public_blob((tmp_path / "id.pub").read_text())
    assert public is not None
    # OpenSSH's own form tells its public half even when it is shut; the older ones do not.
    assert seen.public == (None if "p" in form.partition(" ")[2] else public)
    half = inspect((tmp_path / "id.pub").read_bytes())
    assert half is not None
    assert (half.private, half.public) == (False, public)


@given(st.one_of(st.binary(), st.binary().map(lambda raw: b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + raw)))
def test_anything_else_is_no_key(content: bytes):
    seen = inspect(content)
    assert seen is None or not seen.private or seen.public is None
