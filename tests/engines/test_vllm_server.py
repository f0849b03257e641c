"""The OpenAI server over HTTP, with its engine in another process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from .jobs import PROMPTS
from .server import Server, serving


@pytest.fixture(scope="module")
def server(drafters: Path) -> Iterator[Server]:
    with serving(drafters / "model", drafters / "virtual-dynamic-25") as started:
        yield started


def texts(answers: list[Any]) -> list[str]:
    return [answer["choices"][0]["text"] for answer in answers]


def test_min_p_and_logit_bias_are_served(server: Server, plain: dict[str, Any]) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 24, "return_token_ids": True}
    likeliest, biased = server.ask(
        [
            body | {"temperature": 1.0, "min_p": 1.0},  # only the likeliest token is left
            body | {"temperature": 0, "logit_bias": {"5000": 100}},
        ]
    )
    assert likeliest["choices"][0]["token_ids"] == plain["greedy"][0][:24]
    assert biased["choices"][0]["token_ids"] == [5000] * 24


def test_a_thinking_budget_is_refused_and_the_server_goes_on(server: Server) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 4, "temperature": 0}
    with pytest.raises(HTTPError, match="400") as refused:
        server.ask([body | {"thinking_token_budget": 2}])
    assert "thinking_token_budget is not supported by rdk_cuda" in refused.value.read().decode()
    (after,) = server.ask([body])
    assert after["usage"]["completion_tokens"] == 4


def test_the_counters_agree_with_those_of_vllm(server: Server) -> None:
    """They are written when the server is idle, and it is when it has answered."""
    server.ask([{"prompt": prompt, "max_tokens": 24, "temperature": 1} for prompt in PROMPTS[:8]])
    names = {"rdk_cuda:drafted_tokens": "draft", "rdk_cuda:accepted_tokens": "accepted"}
    theirs = {
        own: server.metric(f"vllm:spec_decode_num_{name}_tokens_total")
        for own, name in names.items()
    }
    assert min(theirs.values()) > 0
    until = time.monotonic() + 10
    while (ours := {own: server.metric(f"{own}_total") for own in names}) != theirs:
        assert time.monotonic() < until, (ours, theirs)
        time.sleep(0.2)
    assert server.metric("rdk_cuda:verified_steps_total") > 0


def test_two_hundred_requests_with_aborts_lose_and_hang_none(server: Server) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.7, "min_p": 0.1, "seed": 3},
        {"temperature": 1.0, "repetition_penalty": 1.2, "logit_bias": {"12": -3}},
        {"temperature": 1.0, "top_k": 20, "logprobs": 3},
    ]
    bodies = [
        kinds[i % len(kinds)]
        | {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 8 + i % 30, "ignore_eos": True}
        for i in range(200)
    ]
    aborted = range(3, 200, 4)
    answers = server.ask(bodies, abort=aborted)
    for i, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        if i in aborted:
            assert answer is None
        else:
            assert answer["usage"]["completion_tokens"] == body["max_tokens"]
    (after,) = server.ask([bodies[0]])
    assert texts([after]) == texts(answers[:1])
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:num_requests_waiting") == 0
    assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
