"""vLLM's OpenAI server with our worker, in a process of its own, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from .engine import WORKER, speculation
from .pair import TARGET

__all__ = ["Server", "serving"]

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
        return asyncio.run(self._ask(bodies, set(abort)))

    async def _ask(self, bodies: Sequence[dict[str, Any]], abort: set[int]) -> list[Any]:
        connections = aiohttp.TCPConnector(limit=0)
        patience = aiohttp.ClientTimeout(total=_PATIENCE)
        async with aiohttp.ClientSession(connector=connections, timeout=patience) as session:
            each = (self._one(session, body, i in abort) for i, body in enumerate(bodies))
            return await asyncio.gather(*each)

    async def _one(self, session: Any, body: dict[str, Any], aborted: bool) -> Any:
        request = {"model": str(TARGET), "stream": aborted, **body}
        async with session.post(f"{self.url}/v1/completions", json=request) as answer:
            if aborted:
                await answer.content.readline()
                answer.close()
                return None
            said = await answer.json()
            if answer.status != 200:
                raise RuntimeError(json.dumps(said))
            return said

    def metric(self, name: str) -> float:
        """The sum of one of vLLM's metrics over its labels."""
        return asyncio.run(self._metric(name))

    async def _metric(self, name: str) -> float:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))

    async def _answers(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.url}/health") as answer,
            ):
                return bool(answer.status == 200)
        except aiohttp.ClientError:
            return False

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until it answers, or its process has ended."""
        until = time.monotonic() + _PATIENCE
        while not asyncio.run(self._answers()):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the server does not answer; its output is above")
            time.sleep(1)


@contextmanager
def serving(model: Path, drafter: Path) -> Iterator[Server]:
    """A server that drafts with a calibrated directory, while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(TARGET), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--max-num-seqs", "64", "--worker-cls", WORKER]
    command += ["--speculative-config", json.dumps(speculation(model))]
    command += ["--additional-config", json.dumps({"rdk_cuda": {"drafter": str(drafter)}})]
    with subprocess.Popen(command, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}) as process:
        server = Server(f"http://127.0.0.1:{port}")
        try:
            server.wait(process)
            yield server
        finally:
            process.terminate()
