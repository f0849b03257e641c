"""What the demo measures on and continues is held out, and cut as it says."""

from examples.demo.corpus import held_out_files
from examples.demo.text import held_out_prompts
from rdk_cuda.recipes.inputs.pairs import ModelPair


def test_prompts_are_as_long_as_asked_and_end_at_the_head_of_a_function(tiny: ModelPair) -> None:
    prompts = held_out_prompts(tiny.tokenizer, length=40)
    assert {len(prompt.ids) for prompt in prompts} == {40}
    assert {prompt.source for prompt in prompts} == {path.name for path in held_out_files()}
    ends = [tiny.tokenizer.decode(prompt.ids).splitlines()[-1] for prompt in prompts]
    heads = [end for end in ends if end.lstrip().startswith("def ") and end.endswith(":")]
    assert len(heads) > len(ends) // 2
