"""`python -m rdk_cuda inspect` says what an affinity does, in words that are true."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.__main__ import main
from rdk_cuda.affinity.facts import Facts
from rdk_cuda.calibration.drafter import PrunedDrafter
from rdk_cuda.cli import arguments

from .calibrating import refusal

pytest.importorskip("rich")

# Eight target tokens; 5 and 1 are kept; 2 and 6 belong to a virtual token, 0 to another that is
# off; a third one drafts 3, 4 and 6 by a prior; nothing drafts 7.
VOCABULARY = Vocabulary([5, 1], target_size=8)
ROWS = [{5: 1.0}, {1: 0.75, 2: 0.25}, {2: 0.8, 6: 0.2}, {0: 1.0}, {}]
TEXTS = ["a", "b c", "\n", "[red]", "\x1b[31m", "Ġdef", "é", "x"]


def small() -> Affinity:
    return Affinity.from_rows(
        ROWS,
        spread=torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0]]),
        prior=torch.tensor([[0.0, 0, 0, 0.5, 0.3, 0, 0.2, 0]]),
        bias=torch.tensor([0.0, 0.0, 0.7, -math.inf, 0.5]),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    small().save(tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def save_tokenizer(directory: Path) -> None:
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = models.WordLevel({text: id for id, text in enumerate(TEXTS)}, unk_token="x")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)).save_pretrained(directory)


def told(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """What is printed, each line without the spaces that align it."""
    assert main(["inspect", *map(str, argv)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return "\n".join(" ".join(line.split()) for line in captured.out.splitlines())


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    return refusal(capsys, ["inspect", *map(str, argv)])


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")


# The facts.


def test_rows_and_columns_are_those_of_the_dense_matrix() -> None:
    affinity = small()
    facts, dense = Facts(affinity, VOCABULARY), affinity.dense()
    for draft in range(affinity.draft_size):
        row = facts.row(draft)
        again = torch.zeros(8, dtype=torch.float64).index_put((row.targets,), row.masses)
        torch.testing.assert_close(again, dense[draft], atol=1e-7, rtol=0)
        assert row.masses.tolist() == sorted(row.masses.tolist(), reverse=True)
    for token in range(affinity.target_size):
        drafters = facts.drafters_of(token)
        again = torch.zeros(5, dtype=torch.float64).index_put((drafters.drafts,), drafters.masses)
        torch.testing.assert_close(again, dense[:, token], atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda v, p: Affinity.first_order(v, p, 1e-3, keep=0.5),
        lambda v, p: Affinity.cold_mass(v, p),
        lambda v, p: Affinity.intersection(v),
    ],
    ids=["first order", "cold mass", "intersection"],
)
def test_every_target_token_is_drafted_in_exactly_one_way(make: Any) -> None:
    vocabulary, prior = Vocabulary([3, -1, 7], 9), torch.tensor([0.0, *range(1, 9)])
    affinity = make(vocabulary, prior)
    facts = Facts(affinity, vocabulary)
    ways = torch.stack(list(facts.ways.values()))
    assert ways.sum(0).tolist() == [1] * 9
    torch.testing.assert_close(facts.ways["never"], ~(affinity.dense() > 0).any(0))


def test_what_is_beyond_the_entropy_is_the_offset() -> None:
    vocabulary, clusters = Vocabulary([0], 4), torch.tensor([-1, 0, 0, 1])
    affinity = Affinity.virtual_tokens(
        vocabulary, clusters, torch.tensor([1.0, 2, 6, 1]), offset=[0.25, -1.0]
    )
    facts = Facts(affinity, vocabulary)
    assert facts.virtual.tolist() == [False, True, True]
    assert facts.row(1).entropy == pytest.approx(math.log(4) - 0.75 * math.log(3))
    assert facts.row(1).offset == pytest.approx(0.25)
    assert facts.row(2).offset == pytest.approx(-1.0)


def test_virtual_tokens_are_listed_by_how_much_they_reach() -> None:
    facts = Facts(small(), VOCABULARY)
    assert [row.draft for row in facts.largest_virtual(9)] == [4, 2]
    assert [row.draft for row in facts.largest_virtual(1)] == [4]


# The words.


def test_the_summary_counts_everything(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    answer = told(capsys, file)
    for line in (
        str(file),
        "drafter tokens (V_d) 5",
        "with a target token of their own 1",  # of the two kept ones, one has two entries
        "virtual, without one 3",
        "masked, never drafting 1",
        "target tokens (V_t) 8",
        "drafted by a drafter token of their own 1",
        "drafted by a drafter token that they share 3",
        "drafted by priors alone 2",
        "never drafted 2",
        "entries of S 5",
        "priors (rank R) 1",
        "Virtual tokens:",
        "4 3 0.50 1.03 -0.53 3 50, 4 30, 6 20",
        "2 2 0.70 0.50 0.20 2 80, 6 20",
    ):
        assert line in answer.splitlines()
    assert "those with one entry are taken for them" in answer


def test_a_kept_token(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    answer = told(capsys, file, "--token", 5)
    assert answer.split("\n")[1:] == [
        "Target token 5",
        "Kept: drafter token 0 is its own.",
        "All of its mass stays on it.",
        "No other drafter token reaches it.",
    ]


def test_a_pruned_token_with_its_virtual_token(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    answer = told(capsys, file, "--token", 6)
    assert "No drafter token is its own." in answer
    assert "Drafted by 2 drafter tokens that it shares with others:" in answer
    assert "2 20 % 0 % 0.70 none, it is virtual" in answer
    assert "4 20 % 100 % 0.50 none, it is virtual" in answer
    assert (
        "Virtual token 2: bias 0.70 = entropy 0.50 + offset 0.20. This token is number 2 of 2 "
        "target tokens:"
    ) in answer
    assert "1 80 % 2\n2 20 % 6 (this token)" in answer
    # One that only a prior reaches.
    answer = told(capsys, file, "--token", 4)
    assert "Drafted by 1 drafter token that it shares with others:" in answer
    assert (
        "Virtual token 4: bias 0.50 = entropy 1.03 - offset 0.53, 100 % goes through prior 0. "
        "This token is number 2 of 3 target tokens:"
    ) in answer


@pytest.mark.parametrize("token", [0, 7])
def test_a_token_that_nothing_reaches(
    capsys: pytest.CaptureFixture[str], file: Path, token: int
) -> None:
    # Token 0's virtual token is off, token 7 has none.
    answer = told(capsys, file, "--token", token)
    assert "No drafter token is its own." in answer
    assert "Never drafted: no drafter token reaches it. As a dynamic token it can be." in answer


def test_a_kept_token_that_gives_some_of_its_mass_away(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    affinity = Affinity.first_order(VOCABULARY, torch.ones(8), tau=1.0, keep=0.6)
    affinity.save(tmp_path / "file")
    answer = told(capsys, tmp_path / "file", "--token", 1)
    assert "Kept: drafter token 1 is its own." in answer
    assert "Of its mass 65 % stays on it, " in answer  # 0.6 and 1/8 of the rest
    assert "goes through prior 0 and " in answer
    assert "It reaches 8 target tokens:\n" in answer
    assert "Drafted by 1 drafter token that it shares with others:" in answer
    assert "0 5 % 100 % 0.00 5" in answer


def test_a_long_list_ends_with_the_token_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    masses = torch.arange(100.0, 0, -1)
    Affinity.from_rows(masses[None]).save(tmp_path / "file")
    answer = told(capsys, tmp_path / "file", "--token", 99)
    assert "This token is number 100 of 100 target tokens, the first 12:" in answer
    assert answer.splitlines()[-2].startswith("12 ")
    assert answer.splitlines()[-1] == "100 0.0198 % 99 (this token)"


# With text.


def test_text_is_shown_in_quotes_and_steers_no_terminal(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    answer = told(capsys, file, "--tokenizer", tmp_path / "tokenizer", "--token", 4, "--token", 2)
    assert r"Target token 4 '\x1b[31m'" in answer
    assert "\x1b" not in answer
    assert "1 50 % 3 '[red]'" in answer  # no markup of rich's
    assert r"Target token 2 '\n'" in answer
    # Tokens are found by their names and by their text.
    tokenizer = ("--tokenizer", tmp_path / "tokenizer")
    assert "Target token 5 'Ġdef'" in told(capsys, file, *tokenizer, "--token", "Ġdef")
    assert "Target token 1 'b c'" in told(capsys, file, *tokenizer, "--token", "b c")
    assert "--token '': is no token" in refused(capsys, file, *tokenizer, "--token", "")


def test_text_of_several_tokens_is_taken_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    demo = Path(__file__).parents[2] / "examples" / "demo" / "models" / "target"
    Affinity.intersection(Vocabulary([1496], 16384)).save(tmp_path / "file")
    answer = told(capsys, tmp_path / "file", "--tokenizer", demo, "--token", "numpy")
    assert "'numpy' is 3 tokens: 1496 'nu', 328 'mp', 89 'y'." in answer
    assert answer.count("Target token ") == 3
    assert answer.count("Never drafted") == 2


def test_a_calibrated_drafter_knows_its_tokenizer_and_its_kept_tokens(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "pruned_drafter.safetensors"
    PrunedDrafter(VOCABULARY, small(), torch.ones(5, 4)).save(file)
    (tmp_path / "calibration.json").write_text(
        '{"format": "rdk_cuda.drafter", "format_version": "1", "settings": {}}'
    )
    save_tokenizer(tmp_path / "drafter")
    answer = told(capsys, tmp_path)
    assert "with a target token of their own 2" in answer
    assert "virtual, without one 2" in answer
    assert "taken for them" not in answer
    answer = told(capsys, tmp_path, "--token", "b c")
    assert "Kept: drafter token 1 is its own" in answer
    assert "Of its mass 75 % stays on it. It reaches 2 target tokens:" in answer
    assert "Pruned: no drafter token is its own." in told(capsys, tmp_path, "--token", 6)
    file.unlink()
    assert f"{tmp_path} has no {file.name}" in refused(capsys, tmp_path)


# Bad input.


def test_bad_files_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    assert "missing: no such file; needs an affinity file" in refused(capsys, tmp_path / "missing")
    assert f"{tmp_path} has no drafter; needs the whole directory" in refused(capsys, tmp_path)
    file.write_bytes(file.read_bytes()[:-8])
    assert f"{file} is not a complete safetensors file" in refused(capsys, file)
    file.write_text("")
    assert f"{file} is not a complete safetensors file" in refused(capsys, file)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("8", "--token 8: target ids are 0 to 7"),
        ("-1", "--token -1: target ids are 0 to 7"),
        ("word", "--token 'word': is text; needs --tokenizer DIR, or a target id"),
    ],
)
def test_tokens_that_are_none_are_refused(
    capsys: pytest.CaptureFixture[str], file: Path, token: str, message: str
) -> None:
    assert message in refused(capsys, file, "--token", token)


def test_a_tokenizer_of_another_model_is_refused(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    demo = Path(__file__).parents[2] / "examples" / "demo" / "models" / "target"
    answer = refused(capsys, file, "--tokenizer", demo)
    assert "has a token 16383, the affinity 8 target tokens" in answer
    missing = tmp_path / "none"
    assert f"--tokenizer {missing}: no such dir" in refused(capsys, file, "--tokenizer", missing)


def test_a_missing_extra_is_answered_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None if name == "rich" else name)
    answer = refused(capsys, file)
    assert "needs rich: in the source folder, pip install --no-build-isolation '.[demo]'" in answer
