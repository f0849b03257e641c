"""What both engines are asked, and what plain vLLM answers."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from .engine import Engine
from .exact import prompts_of
from .pair import TARGET

__all__ = ["GRAMMAR", "PARAMETERS", "PROMPTS", "WORDS", "parameters", "record", "with_grammar"]

PROMPTS = prompts_of(40)
GREEDY = SamplingParams(temperature=0, max_tokens=48)
WORDS = ["self", "name", "value", "return", "None", "is", "the"]
GRAMMAR = "(self|name|value|[a-z_]{2,8})( = | in |\\()[a-z0-9]{1,6}"


_TOKENIZER = AutoTokenizer.from_pretrained(TARGET)


def parameters() -> dict[str, SamplingParams]:
    """Greedy requests whose parameters change what the target says."""
    often = [361, 12, 14, 274, 319, 320, 375]
    each: dict[str, dict[str, Any]] = {
        "nothing": {},
        "repetition penalty": {"repetition_penalty": 1.3},
        "frequency penalty": {"frequency_penalty": 0.7},
        "presence penalty": {"presence_penalty": 1.5},
        "all penalties": {
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.2,
            "presence_penalty": 0.3,
        },
        "logit bias": {"logit_bias": dict.fromkeys(often, -4.0) | {221: 3.0}},
        "bias and penalty": {"logit_bias": dict.fromkeys(often, 2.0), "repetition_penalty": 1.2},
        "bad words": {"bad_words": ['"""', ",", ".", "is", "of", "self", "self."]},
        "allowed tokens": {"allowed_token_ids": list(range(200, 900))},
        "stop token": {"stop_token_ids": often},
        "minimum": {"stop_token_ids": often, "min_tokens": 11},
        "stop string": {"stop": list(map(_TOKENIZER.decode, often))},
        "grammar": {"structured_outputs": StructuredOutputsParams(regex=GRAMMAR)},
        "min-p": {"min_p": 0.5},
    }
    return {name: SamplingParams(temperature=0, max_tokens=32, **of) for name, of in each.items()}


PARAMETERS = parameters()


def with_grammar(temperature: float) -> SamplingParams:
    """Drawn among a few words."""
    return SamplingParams(
        temperature=temperature,
        max_tokens=3,
        structured_outputs=StructuredOutputsParams(choice=WORDS),
    )


def record(engine: Engine, samples: int = 768) -> dict[str, Any]:
    """What an engine says to all of these."""
    logprobs = SamplingParams(temperature=0, max_tokens=16, logprobs=5)
    first = PROMPTS[:3]
    return {
        "greedy": engine.tokens(PROMPTS, GREEDY),
        "parameters": {name: engine.tokens(first, each) for name, each in PARAMETERS.items()},
        "logprobs": engine.generate(PROMPTS[:5], logprobs),
        "grammar": [engine.tokens([PROMPTS[7]] * samples, with_grammar(t)) for t in (1.0, 2.0)],
    }
