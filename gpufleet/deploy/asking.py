"""How a replica is asked from inside its own container, and what an answer that comes whole means.

Python asks where the host has no curl, and always for sound: no shell can hold that in a variable. A model that
writes down speech is given a second of silence; of speech that is made only the size is told.
"""

from __future__ import annotations

from gpufleet.change.model import Fails, Holds
from gpufleet.engine import kinds, questions
from gpufleet.redact import scrub

PYTHON = r"""
import json, sys, urllib.error, urllib.request
key, address, content = sys.stdin.read(), sys.argv[1], sys.argv[2].encode()
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
if address.endswith("/v1/audio/transcriptions"):
    number = lambda value: value.to_bytes(4, "little")
    sound = b"RIFF" + number(32036) + b"WAVEfmt " + number(16) + b"\x01\x00\x01\x00" + number(16000) + number(32000)
    sound += b"\x02\x00\x10\x00data" + number(32000) + bytes(32000)
    part = b"--part\r\nContent-Disposition: form-data; name="
    model = json.loads(content)["model"].encode()
    content = part + b'"model"\r\n\r\n' + model + b"\r\n" + part
    content += b'"file"; filename="silence.wav"\r\nContent-Type: audio/wav\r\n\r\n' + sound + b"\r\n--part--\r\n"
    headers["Content-Type"] = "multipart/form-data; boundary=part"
request = urllib.request.Request(address, data=content or None, headers=headers)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(request, timeout=60) as answer:
        status, text = answer.status, answer.read()
    if address.endswith("/v1/audio/speech"):
        text = json.dumps({"bytes": len(text)}).encode()
except urllib.error.HTTPError as error:
    status, text = error.code, error.read()
except OSError:
    status, text = 0, b""
sys.stdout.buffer.write(text + b"\nstatus %03d\n" % status)
"""


def judge(kind: str, status: int, body: str) -> Holds | Fails | str:
    """What an answer that comes whole means: numbers, text or sound; a reason to ask again while it is none."""
    if status == 200:
        wrong = kinds.senseless(kind, body)
        hint = "damaged weights or a wrong --dtype produce this; a model of another kind: set gate.kind"
        return Fails(f"the engine answers with {wrong}", hint) if wrong else Holds()
    error = scrub(questions.stream_error(body))
    if "JSON compliant" in error:  # how Python's own encoder refuses NaN
        return Fails(
            "the engine answers with numbers that are not finite",
            "damaged weights or a wrong --dtype produce this",
        )
    if 400 <= status < 500:
        return Fails(
            error or f"a question of kind {kind} is answered {status}",
            f"this may be no {kind} model: set gate.kind",
        )
    return error or (f"the answer is {status}" if status else "no answer came within 60 seconds")
