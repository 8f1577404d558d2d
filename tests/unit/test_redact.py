"""Secrets of this process are masked wherever a text passes, as long as somebody holds them."""

import gc
import threading

from gpufleet.cli import app, settings
from gpufleet.inventory.secrets import LazySecret
from gpufleet.redact import MASK, Secret, live, scrub


def test_a_secret_that_somebody_holds_is_masked_without_being_named():
    secret = Secret("plain.words-that-look-like-nothing")
    assert scrub(f"<{secret.reveal()}>") == f"<{MASK}>"
    assert secret in live()
    value = secret.reveal()
    del secret
    gc.collect()
    assert scrub(f"<{value}>") == f"<{value}>"


def test_a_second_holder_of_a_value_keeps_it_masked():
    first, second = Secret("twice-held-value"), Secret("twice-held-value")
    del first
    gc.collect()
    assert scrub(second.reveal()) == MASK


def test_short_ones_are_masked_only_where_somebody_says_that_they_may_stand():
    short, shorter = Secret("q7w8e"), Secret("q7w")
    assert scrub("q7w8e") == "q7w8e"
    assert scrub("q7w8e", (short, shorter)) == MASK
    assert scrub("q7w", (shorter,)) == "q7w"


def test_of_two_the_longer_one_is_masked_first():
    inner, outer = Secret("inner-part"), Secret("outer-inner-part-outer")
    assert scrub(f"{outer.reveal()} {inner.reveal()}") == f"{MASK} {MASK}"


def test_bytes_are_no_hindrance():
    held = Secret(b"bytes-of-a-secret")
    assert scrub("text") == "text"
    assert held not in live()


def test_a_reference_is_not_followed_by_scrubbing(tmp_path):
    secret = LazySecret("${env:NOBODY_SET_THIS}", tmp_path)
    assert scrub("some text") == "some text"
    assert secret not in live()


def test_threads_may_make_secrets_meanwhile():
    stop = threading.Event()
    made: list[Secret[str]] = []

    def make():
        while not stop.is_set():
            made.append(Secret(f"secret-number-{len(made) % 50}"))
            if len(made) > 500:
                made.clear()

    worker = threading.Thread(target=make)
    worker.start()
    try:
        for _ in range(300):
            scrub("some text")
    finally:
        stop.set()
        worker.join()


def test_a_crash_file_holds_none(tmp_path, capsys, monkeypatch):
    secret = Secret("w0rd5")

    def broken(_words):
        raise RuntimeError(f"unexpected {secret.reveal()}")

    monkeypatch.setattr(app, "_invoke", broken)
    code = app.main(["inventory", "validate", "--state-dir", str(tmp_path)])
    settings.install(settings.Settings())
    assert code == 1
    (file,) = (tmp_path / "crashes").iterdir()
    assert MASK in file.read_text()
    assert "w0rd5" not in file.read_text() + capsys.readouterr().err


def test_a_token_that_begins_like_a_known_one_leaves_no_tail():
    known = (Secret("gf-abcdefgh"),)
    assert scrub("asked with gf-abcdefgh1234 and gf-abcdefgh.", known) == f"asked with {MASK} and {MASK}."
