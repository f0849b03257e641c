"""A step of vLLM's model runners, by our functions and vLLM's kernels, where vLLM may be missing.

python -m tests.gpu.engine --device cuda --output engine.json
python -m tests.gpu.engine --device cpu                 a rehearsal, on small vocabularies

First ours run between the kernels of vLLM, or of what `profiling.peers.carried` took out of its
wheel. Each row of the results is a part of a step, and has, with what all rows have (results.py),

    runner, whose, part         v1 or v2; ours or vllm's own; "verify", or "step": and all drafts
    requests ... dynamic_width  the shape; vllm's has the drafter's full head
    median_us, p10_us, p90_us   cold: nothing in the last-level cache
    host_us, peak_bytes         until its calls have returned; allocated beyond the inputs
    vllm                        the version of its kernels
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch

from profiling.bench.timing import clock_of
from profiling.commands import Parser, add_measuring, measure_rows, run_columns, run_command
from profiling.peers.carried import importable
from profiling.peers.memory import peak_bytes
from profiling.results import Row
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.timing import spread
from tests.engines.bare_step import READ, Of, StepV1, StepV2

Parts = tuple[Callable[[], Any], Callable[[], Any]]
V2, SIZES = "vllm.v1.worker.gpu", (1, 64, 256)
TINY = {"drafts": 2, "tokens": 128, "width": 8}
SERVED = {"tokens": 128_256, "states": 2048, "dtype": torch.bfloat16}


def of_size(device: torch.device, requests: int, sizes: dict[str, Any]) -> Of:
    """A step of this many requests."""
    return Of(device, lambda own: own.to(device), requests, **sizes)


def ours(runner: str, of: Of) -> Parts:
    """A verification, and a whole step: its tokens, and what it drafts."""
    step = StepV1(of) if runner == "v1" else StepV2(of)
    (rows, drafts), hidden = of.verified(), of.hidden()
    rows = rows.float() if runner == "v2" else rows  # as its processing leaves them
    verify = partial(step.verify, rows, drafts)
    return verify, lambda: [verify(), *(step.draft(own, j) for j, own in enumerate(hidden))]


def vllm_s(of: Of) -> Parts:
    """The same by V2's own kernels: a full head, and logits of every token kept for each draft."""
    verified = import_module(f"{V2}.spec_decode.rejection_sampler_utils").rejection_sample
    drawn = import_module(f"{V2}.sample.gumbel").gumbel_sample
    step, rows, each = StepV2(of), of.verified()[0].float(), of.drafts + 1
    head, slots = step.speculator._full_head[0].t(), step.slots.int()
    kept = of.put(torch.zeros(of.requests, of.drafts, of.tokens, dtype=of.dtype))
    ends, columns = (torch.arange(n, device=of.device).int() for n in (of.requests + 1, of.drafts))
    of_rows = ends * each, step.rows, slots, slots.repeat_interleave(each), step.rows.int() % each
    settings = step.temperature, step.seeds
    hidden, by = of.hidden(), (slots, *settings, step.positions, True, True, kept)
    verify = partial(verified, rows, kept, step.inputs, *of_rows, *settings, of.drafts)
    draft = lambda own, j: drawn(own.mm(head), *by, columns[j])  # noqa: E731
    return verify, lambda: [verify(), *(draft(own, j) for j, own in enumerate(hidden))]


def handed_over_v2(of: Of) -> list[list[int]]:
    """vLLM's kernels prepare a step of requests, ours decide it, and vLLM's take their tokens."""
    batches = import_module(f"{V2}.input_batch")
    gather = import_module(f"{V2}.spec_decode.rejection_sampler").gather_draft_sampled
    step, rows, each = StepV2(of), of.verified()[0], of.drafts + 1
    drafts = of.put(torch.zeros(of.requests, of.drafts, dtype=torch.int64))
    for j, own in enumerate(of.hidden()):
        drafts[step.slots, j] = step.draft(own, j)
    states, slots, place = step.speculator._request_states, step.slots.int(), step.rows.int() % each
    total, known = states.total_len.gpu, states.all_token_ids.gpu
    ends = of.put(torch.arange(of.requests + 1).int() * each)
    last, lengths = known[:, READ - 1 : READ].clone(), total + of.drafts
    prefill, computed = torch.full_like(total, 9), total - 1
    inputs = torch.zeros_like(step.inputs)
    at = batches.combine_sampled_and_draft_tokens(
        inputs, slots, last, ends, lengths, prefill, drafts, ends, len(rows)
    )
    positions, request = READ - 1 + place.long(), slots.repeat_interleave(each)
    judged, pos = gather(inputs, positions, at, request, place, prefill)
    assert judged.tolist() == torch.cat([last, drafts], 1)[step.slots].flatten().tolist()
    given = rows, judged, range(0, len(rows) + 1, each), pos, step.slots, step.slots_np
    sampled, counts = step.sampler.decide(given, None, None)
    counts, rejected = batches.get_num_sampled_and_rejected(counts, lengths, ends, slots, prefill)
    assert (counts + rejected).tolist() == [each] * of.requests
    batches.post_update(slots, computed, last, None, sampled, counts, rejected, ends, known, total)
    tokens = [row[:n] for row, n in zip(sampled.tolist(), counts.tolist(), strict=True)]
    for slot, own in zip(step.slots.tolist(), tokens, strict=True):
        assert known[slot, READ : int(total[slot])].tolist() == own
        assert (int(last[slot]), int(computed[slot])) == (own[-1], READ - 1 + len(own))
    return tokens


def handed_over_v1(of: Of) -> list[list[int]]:
    """vLLM's kernel takes the tokens that ours decide as those behind which to draft."""
    kernel = import_module("vllm.v1.spec_decode.utils").eagle_prepare_next_token_padded_kernel
    sampled = StepV1(of).verify(*of.verified())
    batch, width = sampled.shape
    newest, counts, backup = (torch.full((batch,), -7, device=of.device).int() for _ in range(3))
    sizes = of.tokens, width, batch, sampled.stride(0), 1 << (width - 1).bit_length()
    kernel[(batch,)](sampled, torch.zeros_like(newest).bool(), backup, newest, counts, *sizes)
    tokens = [[token for token in row if token >= 0] for row in sampled.tolist()]
    assert newest.tolist() == [row[-1] for row in tokens]
    assert counts.tolist() == [len(row) for row in tokens]
    return tokens


def measured(of: Of) -> Iterator[Row]:
    """Rows of one number of requests."""
    on_gpu = of.device.type == "cuda"
    clock = clock_of(of.device, tiny=not on_gpu)
    steps = {("v1", "ours"): ours("v1", of), ("v2", "ours"): ours("v2", of)}
    if on_gpu:  # Triton's interpreter takes no pointers that are None
        steps["v2", "vllm's"] = vllm_s(of)
    shape = {"requests": of.requests, "drafts": of.drafts, "target_size": of.tokens}
    shape |= {"draft_size": of.tokens // of.each, "states": of.states, "dynamic_width": of.width}
    for (runner, whose), parts in steps.items():
        for part, call in zip(("verify", "step"), parts, strict=True):
            call()
            times, host = [], []
            for _ in range(20 if on_gpu else 3):
                times.append(1e6 * clock.cold(call))
                start = time.perf_counter()
                call()
                host.append(1e6 * (time.perf_counter() - start))
                torch.cuda.synchronize() if on_gpu else None
            took = {"host_us": statistics.median(host), "peak_bytes": peak_bytes(call, of.device)}
            took |= zip(("median_us", "p10_us", "p90_us"), spread(times), strict=True)
            yield {"runner": runner, "whose": whose, "part": part, **shape, **took}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m tests.gpu.engine", description=(__doc__ or "").split("\n")[0])
    add_measuring(command, "JSON file")

    def run(options: Any) -> int:
        device = torch.device(options.device)
        if not importable():
            raise InputError("there is no vLLM, and nothing of it in build/engines: make test-vllm")
        about = {"vllm": import_module("vllm").__version__, **run_columns(command, options)}
        for requests in SIZES[:2]:
            of = of_size(device, requests, TINY)
            assert len(handed_over_v1(of)) == len(handed_over_v2(of)) == requests

        def rows(progress: Any) -> Iterator[Row]:
            for requests in SIZES:
                progress.show(f"{requests} requests")
                of = of_size(device, requests, SERVED if device.type == "cuda" else TINY)
                yield from (row | about for row in measured(of))

        return measure_rows(options, "engine", rows, partial(json.dumps, indent=1))

    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
