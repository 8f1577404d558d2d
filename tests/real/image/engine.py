#!/usr/bin/python3 -SE
"""`vllm`: a small engine that speaks the server's HTTP surface without a GPU. It lives in the test image only.

Its behaviour is one word, from the environment variable ENGINE_BEHAVIOUR or from the file /run/engine that the
host's GPU hook leaves in the container, so that one host of a fleet can be told to misbehave. A version behind the
word (`crash 0.12.0`) leaves engines of other versions alone:

    ok            ready after ENGINE_LOAD_SECONDS (0.05)
    never         the port stays closed
    unhealthy     listens, /health is 503
    crash         prints an error as vLLM does and exits 1
    oom           takes memory until the control group ends it (give the container a limit)
    cuda-oom      prints CUDA's out-of-memory error and exits 1
    other-model   serves, under another model name
    mute          /health is 200, a completion never gets a token
    garbage       every token is "!"
    exit-after-ready  becomes ready, then exits 1 some 0.3 s later
    leak          prints its environment's secrets, as a careless library does, and exits 1
    slow          as ok, but ready only after 3 s
    tardy         as ok, but from its third completion on the first token comes a second late
    stubborn      as ok, but ignores SIGTERM
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ["The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", "."]


def behaviour():
    try:
        with open("/run/engine") as file:  # noqa: PTH123  # pathlib would slow its start-up
            word, _, version = file.read().strip().partition(" ")
            return word if version in {"", VERSION} else "ok"
    except OSError:
        return os.environ.get("ENGINE_BEHAVIOUR", "ok")


def options(argv):
    """`vllm serve MODEL --flag value --switch` as a dictionary; the model stands under `model`."""
    words = [word for word in argv if word != "serve"]
    found = {}
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals:
                value = words.pop(0) if words and not words[0].startswith("--") else "true"
            found[name] = value
        else:
            found.setdefault("model", word)
    return found


OPTIONS = options(sys.argv[1:])
MODEL = OPTIONS.get("model", "Qwen/Qwen3-0.6B")
NAME = OPTIONS.get("served-model-name", MODEL)
KEY = OPTIONS.get("api-key") or os.environ.get("VLLM_API_KEY", "")
VERSION = os.environ.get("ENGINE_VERSION", "0.11.2")
BEHAVIOUR = behaviour()
counts = {"running": 0, "prompt": 0, "generated": 0, "finished": 0, "begun": 0, "waited": 0.0}
lock = threading.Lock()


def say(text, level="INFO"):
    print(f"{level} {time.strftime('%m-%d %H:%M:%S')} [api_server.py:1] {text}", flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, content, kind="application/json"):
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refused(self):
        if KEY and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.answer(401, {"error": "Unauthorized"})
            return True
        return False

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/health":
            self.answer(503 if BEHAVIOUR == "unhealthy" else 200, "", "text/plain")
        elif path == "/version":
            self.answer(200, {"version": VERSION})
        elif path == "/metrics":
            self.answer(200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
        elif self.refused():
            return
        elif path == "/v1/models":
            name = "somebody/else" if BEHAVIOUR == "other-model" else NAME
            card = {
                "id": name,
                "object": "model",
                "created": 1767225600,
                "owned_by": "vllm",
                "root": MODEL,
                "parent": None,
            }
            self.answer(
                200,
                {
                    "object": "list",
                    "data": [{**card, "max_model_len": int(OPTIONS.get("max-model-len", 4096))}],
                },
            )
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.refused():
            return
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            self.answer(404, {"detail": "Not Found"})
            return
        try:
            wish = json.loads(body)
        except ValueError:
            self.answer(400, error("request is no JSON", "BadRequestError", 400))
            return
        if wish.get("model") != NAME or BEHAVIOUR == "other-model":
            self.answer(404, error(f"The model `{wish.get('model')}` does not exist.", "NotFoundError", 404))
            return
        with lock:
            counts["running"] += 1
        self.asked = time.monotonic()
        try:
            self.complete(wish, chat)
        finally:
            with lock:
                counts["running"] -= 1

    def complete(self, wish, chat):
        if BEHAVIOUR == "mute":
            time.sleep(3600)
        if BEHAVIOUR == "tardy" and counts["finished"] >= 2:
            time.sleep(1)
        amount = int(wish.get("max_tokens") or wish.get("max_completion_tokens") or 16)
        tokens = ["!" if BEHAVIOUR == "garbage" else WORDS[number % len(WORDS)] for number in range(amount)]
        prompt = len(json.dumps(wish.get("messages") or wish.get("prompt") or "")) // 4 + 1
        usage = {"prompt_tokens": prompt, "completion_tokens": amount, "total_tokens": prompt + amount}
        head = {"id": f"chatcmpl-{time.time_ns():x}", "created": int(time.time()), "model": NAME}
        if wish.get("stream"):
            self.stream(wish, chat, tokens, head, usage)
        else:
            text = "".join(tokens)
            choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            kind = "chat.completion" if chat else "text_completion"
            choices = [{"index": 0, **choice, "finish_reason": "length"}]
            self.answer(200, {**head, "object": kind, "choices": choices, "usage": usage})
        with lock:
            counts["prompt"] += prompt
            counts["generated"] += amount
            counts["finished"] += 1

    def stream(self, wish, chat, tokens, head, usage):
        head["object"] = "chat.completion.chunk" if chat else "text_completion"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if chat:
            self.event(
                {
                    **head,
                    "choices": [
                        {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                    ],
                }
            )
        pause = float(os.environ.get("ENGINE_TOKEN_SECONDS", "0.002"))
        with lock:
            counts["begun"] += 1
            counts["waited"] += pause + time.monotonic() - self.asked
        for number, token in enumerate(tokens, 1):
            time.sleep(pause)
            part = {"delta": {"content": token}} if chat else {"text": token}
            reason = "length" if number == len(tokens) else None
            self.event({**head, "choices": [{"index": 0, **part, "finish_reason": reason}]})
        if (wish.get("stream_options") or {}).get("include_usage"):
            self.event({**head, "choices": [], "usage": usage})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, content):
        text = content if isinstance(content, str) else json.dumps(content)
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def error(message, kind, code):
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def metrics():
    labels = f'{{engine="0",model_name="{NAME}"}}'
    with lock:
        now = dict(counts)
    lines = []
    for name, kind, value in (
        ("vllm:num_requests_running", "gauge", now["running"]),
        ("vllm:num_requests_waiting", "gauge", 0),
        ("vllm:kv_cache_usage_perc", "gauge", min(1.0, now["running"] / 8)),
        ("vllm:prompt_tokens_total", "counter", now["prompt"]),
        ("vllm:generation_tokens_total", "counter", now["generated"]),
    ):
        lines += [f"# TYPE {name} {kind}", f"{name}{labels} {float(value)}"]
    lines.append("# TYPE vllm:time_to_first_token_seconds histogram")
    lines.append(f"vllm:time_to_first_token_seconds_count{labels} {float(now['begun'])}")
    lines.append(f"vllm:time_to_first_token_seconds_sum{labels} {now['waited']:.6f}")
    lines.append("# TYPE vllm:request_success_total counter")
    reason = f'{{engine="0",finished_reason="length",model_name="{NAME}"}}'
    lines.append(f"vllm:request_success_total{reason} {float(now['finished'])}")
    return "\n".join(lines) + "\n"


def fail(text):
    print(text, file=sys.stderr, flush=True)
    os._exit(1)


def take_memory():
    taken = []
    while True:
        taken.append(os.urandom(4 << 20))


def main():
    if "--version" in sys.argv:
        print(VERSION)
        return
    say(f"vLLM API server version {VERSION}")
    if OPTIONS.get("api-key"):
        say(f"non-default args: {{'model': '{MODEL}', 'api_key': ['{OPTIONS['api-key']}']}}")
    leave = signal.SIG_IGN if BEHAVIOUR == "stubborn" else (lambda *_: os._exit(0))
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    if BEHAVIOUR == "crash":
        fail(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    if BEHAVIOUR == "cuda-oom":
        fail(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free."
        )
    if BEHAVIOUR == "leak":
        told = " ".join(os.environ.get(name, "") for name in ("HF_TOKEN", "VLLM_API_KEY", "OTHER_SECRET"))
        fail(f"ValueError: cannot log in with {told}")
    if BEHAVIOUR == "oom":
        take_memory()
    say("Starting to load model " + MODEL + "...")
    time.sleep(3 if BEHAVIOUR == "slow" else float(os.environ.get("ENGINE_LOAD_SECONDS", "0.05")))
    while BEHAVIOUR == "never":
        time.sleep(3600)
    host, port = OPTIONS.get("host", "0.0.0.0"), int(OPTIONS.get("port", "8000"))
    try:
        server = Server((host, port), Exchange)
    except OSError as problem:
        fail(f"OSError: [Errno {problem.errno}] {problem.strerror}")
    say(f"Starting vLLM API server 0 on http://{host}:{port}")
    say("Application startup complete.")
    if BEHAVIOUR == "exit-after-ready":
        threading.Timer(
            0.3,
            fail,
            ["EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."],
        ).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


main()
