"""What the demo measures on and continues is held out, and cut as it says."""

from examples.demo.corpus import held_out_files, read_text
from examples.demo.text import held_out_prompts, windows_of
from rdk_cuda.pair.documents import encode
from rdk_cuda.pair.pairs import ModelPair


def test_windows_spread_over_the_files_without_overlap(tiny: ModelPair) -> None:
    files = held_out_files()
    windows = windows_of(tiny.tokenizer, files, 5600, 200)
    assert len(windows) == 28
    assert all(len(window.ids) == 200 for window in windows)
    assert {window.document for window in windows} == set(range(len(files)))
    ids = encode(tiny.tokenizer, read_text(files[3]))
    starts = [
        next(s for s in range(len(ids)) if ids[s : s + 200] == window.ids)
        for window in windows
        if window.document == 3
    ]
    assert starts[1] - starts[0] >= 200


def test_prompts_are_as_long_as_asked_and_end_at_the_head_of_a_function(tiny: ModelPair) -> None:
    prompts = held_out_prompts(tiny.tokenizer, length=40)
    assert {len(prompt.ids) for prompt in prompts} == {40}
    assert {prompt.source for prompt in prompts} == {path.name for path in held_out_files()}
    ends = [tiny.tokenizer.decode(prompt.ids).splitlines()[-1] for prompt in prompts]
    heads = [end for end in ends if end.lstrip().startswith("def ") and end.endswith(":")]
    assert len(heads) > len(ends) // 2
