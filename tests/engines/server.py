"""vLLM's OpenAI server with our worker, in a process of its own, asked over HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from .engine import WORKER, speculation
from .pair import TARGET

# With it a thinking budget would be served by vLLM.
REASONING = {"reasoning_start_str": "begin", "reasoning_end_str": "end"}
MODULE = "vllm.entrypoints.launchers.api_server.entry"  # as in docs/serving.md
_PATIENCE = 300.0  # seconds until it answers


class Server:
    """One that listens at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, bodies: Sequence[dict[str, Any]], abort: Sequence[int] = ()) -> list[Any]:
        """All requests at once; the answers in their order, None for those that are aborted.

        Args:
            bodies: of `/v1/completions`.
            abort: which of them lose their connection after the first piece of text.
        """
        with ThreadPoolExecutor(len(bodies)) as threads:
            return list(threads.map(self._one, bodies, (i in abort for i in range(len(bodies)))))

    def _one(self, body: dict[str, Any], aborted: bool) -> Any:
        content = json.dumps({"model": str(TARGET), "stream": aborted, **body}).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.url}/v1/completions", content, headers)
        with urlopen(request, timeout=_PATIENCE) as answer:
            return answer.readline() and None if aborted else json.load(answer)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urlopen(f"{self.url}/metrics", timeout=_PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until it answers, or its process has ended."""
        until = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < until:
            try:
                urlopen(f"{self.url}/health", timeout=_PATIENCE).close()
            except (URLError, ConnectionError):
                time.sleep(1)
            else:
                return
        raise RuntimeError("the server does not answer; its output is above")


@contextmanager
def serving(model: Path, drafter: Path) -> Iterator[Server]:
    """A server that drafts with a calibrated directory, while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-m", MODULE]
    command += ["--model", str(TARGET), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--max-num-seqs", "64", "--worker-cls", WORKER, "--reasoning-parser", "granite"]
    command += ["--reasoning-config", json.dumps(REASONING)]
    command += ["--speculative-config", json.dumps(speculation(model))]
    command += ["--additional-config", json.dumps({"rdk_cuda": {"drafter": str(drafter)}})]
    with subprocess.Popen(command, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}) as process:
        server = Server(f"http://127.0.0.1:{port}")
        try:
            server.wait(process)
            yield server
        finally:
            process.terminate()
