"""Stands in for vLLM's program: `vllm serve MODEL --host HOST --port PORT --served-model-name NAME [--fake JSON]`.

JSON:
- `fails`: what it prints before it ends with status 1; `wait`: seconds until it is healthy; `models`: names that it
  serves instead;
- `lives`, `sick`, `silent`: health checks until it dies, reports that it is unhealthy, does not answer them;
- `deaf`: ignores SIGTERM; `child`: starts a process outside of its process group, and writes its number to this file;
- `dies`: dies at this chat request, if it can create the file `once`; `log`: a file that gets a line for each answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    behaviour: dict[str, Any] = {}
    models: list[str] = []
    began = time.monotonic()
    asked = 0
    chats = 0

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self.say(200, {"data": [{"id": name} for name in self.models]})
        if time.monotonic() - self.began < self.behaviour.get("wait", 0):
            return self.say(503, {})
        Handler.asked += 1
        if Handler.asked > self.behaviour.get("lives", 1 << 30):
            print("engine core died", flush=True)  # noqa: T201
            os._exit(3)
        if Handler.asked > self.behaviour.get("silent", 1 << 30):
            time.sleep(60)
        return self.say(503 if Handler.asked > self.behaviour.get("sick", 1 << 30) else 200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.chats += 1
        if Handler.chats == self.behaviour.get("dies"):
            with contextlib.suppress(FileExistsError):
                Path(self.behaviour["once"]).touch(exist_ok=False)
                os._exit(4)
        content = body["messages"][-1]["content"]
        with Path(self.behaviour["log"]).open("a") as log:
            log.write(f"{os.getpid()} {content}\n")
        choice = {"index": 0, "message": {"role": "assistant", "content": f"said {content}"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        self.say(200, {"model": body["model"], "choices": [choice], "usage": usage})

    def say(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("serve", "model"):
        parser.add_argument(name)
    for name in ("--host", "--served-model-name"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fake", type=json.loads, default={})
    given = parser.parse_args()
    Handler.behaviour, Handler.models = given.fake, given.fake.get("models", [given.served_model_name])
    if "fails" in given.fake:
        sys.exit(given.fake["fails"])
    if given.fake.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in given.fake:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(given.fake["child"]).write_text(str(child.pid))
    ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
