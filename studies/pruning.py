"""RDK's own claim: how much is accepted as the drafter's vocabulary shrinks to some ten tokens.

    python -m studies.pruning                        # the demo's two models
    python -m studies.pruning --model gemma3-270m    # Gemma 3 270M with a short context

arXiv:2506.03206 says that acceptance under redistribution hardly depends on how much is pruned, and
that it is best where a text is unlike the one that the kept tokens were chosen on. This measures
both, on held-out code, on numbers and on Korean text of Python's own tests, next to the pruned
drafter and to virtual and dynamic tokens; then the first-order form next to the exact one, and the
prior.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from examples.demo import gemma
from examples.demo.arguments import Settings
from examples.demo.calibration import pruned_to
from examples.demo.corpus import held_out_files, read_text, standard_library, training_files
from examples.demo.shipped import load_shipped
from examples.demo.text import windows_of
from profiling.commands import Parser, run_command, write_found
from profiling.machine import ROOT
from rdk_cuda.calibration import Material, successor_counts
from rdk_cuda.decoding.models import Read, Reading
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.labs.tuned_rdk import COVARIANCE, FIRST_ORDER, tuned_first_order, tuned_rdk
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.documents import Window, encode
from rdk_cuda.recipes.inputs.loading import quiet
from rdk_cuda.recipes.inputs.pairs import ModelPair
from rdk_cuda.recipes.record import record
from rdk_cuda.recipes.report.evaluation import measure_acceptance
from rdk_cuda.recipes.report.plots import OTHER, STYLES, VERMILLION, Style
from rdk_cuda.recipes.report.rows import Bootstrap
from rdk_cuda.recipes.report.written import write_figure
from rdk_cuda.recipes.stages.pruning import BUILDERS, PRUNED, RECOMMENDED, Method, Pruning
from rdk_cuda.reference import dense

RESULTS = ROOT / "profiling" / "results" / "pruning"

TEMPERATURE = 1.0
TEN = 10  # tokens that the smallest drafter keeps
KEEPS = (0.5, 0.25, 0.125, 0.0625, 0.03, 0.01, 0.003)
METHODS = (PRUNED, FIRST_ORDER, COVARIANCE, RECOMMENDED)
DRAWN = {**STYLES, FIRST_ORDER: OTHER, COVARIANCE: Style(VERMILLION, "<", "-.")}
MOST_SIMILAR = 8192  # kept tokens: with more, tuning similarities takes an hour each
RECENT = 40  # tokens of context that make Gemma its own drafter
NUMBERS = ("test/cmath_testcases.txt", "test/formatfloat_testcases.txt", "test/floating_points.txt")
KOREAN = ("test/cjkencodings/euc_kr-utf8.txt", "test/cjkencodings/cp949-utf8.txt")
EXACT_SIZES, EXACT_TAUS = (1024, 2048, 4096, 8192), tuple(10.0**-k for k in range(1, 10))
PRIORS = ("the target's mean", "counts of the text", "uniform")

Row = dict[str, Any]


def short_reader(model: Any) -> Read:
    """What a model says of a text, and as its own drafter with a short context."""
    # With a head of one row: here nobody asks for logits.
    short = HuggingFaceModel(model, head=model.get_output_embeddings().weight[:1], recent=RECENT)

    @torch.no_grad()
    def read(ids: Tensor) -> Reading:
        logits = model(input_ids=ids, use_cache=False).logits
        short.reset(len(ids))
        hidden = short.feed(ids.tolist(), [ids.shape[1]] * len(ids)).hidden
        assert hidden is not None  # a model with a head returns it
        short.reset(0)
        return Reading(logits, hidden)

    return read


def texts(pair: ModelPair, positions: int, length: int) -> dict[str, list[Window]]:
    """Windows of each kind of text that this Python has."""
    library = standard_library()
    kinds = {"code": held_out_files()}
    for kind, names in (("numbers", NUMBERS), ("Korean", KOREAN)):
        files = [library / name for name in names if (library / name).is_file()]
        if files:
            kinds[kind] = files
    return {
        kind: windows_of(
            pair.tokenizer, files, positions, min(length, 64 if kind == "Korean" else length)
        )
        for kind, files in kinds.items()
    }


def curve(
    material: Material,
    pair: ModelPair,
    read: Read,
    windows: dict[str, list[Window]],
    settings: Settings,
) -> list[Row]:
    """Acceptance of each method, text and size, the full drafter first."""
    size = pair.vocabulary_size
    methods = [Method.whole(pair)]
    for keep in (*KEEPS, TEN / size):
        pruning = pruned_to(keep, material, settings)
        for name in METHODS:
            if name == COVARIANCE and pruning.vocabulary.draft_size > MOST_SIMILAR:
                continue
            say(f"{name}, {100 * keep:.3g} % kept")
            made = pruning.method if name in BUILDERS else partial(tuned_rdk, pruning)
            methods.append(made(name, TEMPERATURE))
    rows = []
    for kind, chosen in windows.items():
        say(f"acceptance on {kind}")
        drafters = {TEMPERATURE: [method.drafter for method in methods]}
        rates = measure_acceptance(read, pair.drafter_head, drafters, chosen)[TEMPERATURE]
        # One window is a draw: Korean text and numbers are few documents.
        bootstrap = Bootstrap(list(range(len(chosen))), seed=settings.seed)
        for method, rate in zip(methods, rates, strict=True):
            interval = bootstrap.mean(rate)._asdict()
            kept = method.drafter.vocabulary.draft_size
            rows.append({"text": kind, "method": method.name, "kept": kept, **interval})
    return rows


def priors(
    material: Material, pair: ModelPair, read: Read, windows: list[Window], settings: Settings
) -> list[Row]:
    """First-order RDK with other priors, at the demo's smallest share."""
    pruning = pruned_to(Settings.keep[-1], material, settings)
    recording = material.recording
    given = {
        PRIORS[0]: recording.mean_probs_at(TEMPERATURE),
        PRIORS[1]: recording.counts.double() + 1e-3,
        PRIORS[2]: torch.ones(pair.vocabulary_size),
    }
    methods = [first_order_with(pruning, name, prior) for name, prior in given.items()]
    drafters = {TEMPERATURE: [method.drafter for method in methods]}
    rates = measure_acceptance(read, pair.drafter_head, drafters, windows)[TEMPERATURE]
    bootstrap = Bootstrap([window.document for window in windows], seed=settings.seed)
    return [
        {"prior": method.name, "tuned": method.tuned, **bootstrap.mean(rate)._asdict()}
        for method, rate in zip(methods, rates, strict=True)
    ]


def first_order_with(pruning: Pruning, name: str, prior: Tensor) -> Method:
    """The paper's, which keeps no share, tuned for a prior."""
    best = tuned_first_order(
        pruning.samples, pruning.full_head, pruning.vocabulary, prior, TEMPERATURE, keeps=(0.0,)
    )
    return Method(name, pruning.keep, best.drafter, f"tau {best.label.tau:.1e}")


def exactness(pair: ModelPair, read: Read, windows: list[Window]) -> list[Row]:
    """First-order and exact RDK of the likeliest V tokens alone, a quarter of them kept.

    The kernel is the target's second moment on the first half of the windows; tau is the best
    there; acceptance and time are of the other half.
    """
    weight, bias = pair.drafter_head
    said = [read(torch.tensor([window.ids])) for window in windows]
    target = torch.cat([one.target_logits[0] for one in said]).float()
    hidden = torch.cat([one.hidden[0] for one in said]).float()
    drafted = torch.nn.functional.linear(hidden, weight, bias)
    likeliest = (target.softmax(1).mean(0)).argsort(descending=True)
    rows = []
    for size in EXACT_SIZES:
        chosen = likeliest[:size]
        p, q = target[:, chosen].softmax(1), drafted[:, chosen[: size // 4]].softmax(1)
        half = len(p) // 2
        mean, moment = p[:half].mean(0), p[:half].T @ p[:half] / half
        kept = torch.arange(size // 4)
        forms: dict[str, Callable[[float], Tensor]] = {
            "exact": lambda tau: dense.exact_rdk(moment[kept], tau),  # noqa: B023
            "first order": lambda tau: dense.first_order_rdk(mean, tau)[kept],  # noqa: B023
        }
        for form, matrix in forms.items():
            say(f"{form}, V {size}")
            begin = time.perf_counter()
            accepted = [accept(p[:half], q[:half] @ matrix(tau)) for tau in EXACT_TAUS]
            tau = EXACT_TAUS[accepted.index(max(accepted))]
            made = matrix(tau)
            rows.append(
                {
                    "form": form,
                    "size": size,
                    "tau": tau,
                    "acceptance": accept(p[half:], q[half:] @ made),
                    "pruned": accept(
                        p[half:], torch.cat([q, torch.zeros(len(q), size - size // 4)], 1)[half:]
                    ),
                    "milliseconds": milliseconds(lambda: q[:8] @ made),  # noqa: B023
                    "tuning_seconds": time.perf_counter() - begin,
                }
            )
    return rows


def accept(p: Tensor, q: Tensor) -> float:
    """The mean acceptance rate."""
    return float(dense.acceptance_rate(p, q).mean())


def milliseconds(call: Callable[[], object], rounds: int = 15) -> float:
    """The fastest of some calls, in the thread's own time."""
    taken = []
    for _ in range(rounds):
        begin = time.thread_time()
        call()
        taken.append(time.thread_time() - begin)
    return 1e3 * min(taken)


def say(line: str) -> None:
    """Where the run is."""
    print(f"{line} ...", file=sys.stderr)


def run(options: argparse.Namespace) -> None:
    """Measure and write the data, its page and the picture."""
    if options.output.is_dir():  # known now, and not after an hour
        raise InputError(f"--output {options.output} is a folder; name a JSON file")
    torch.set_num_threads(options.threads)
    quiet()
    settings = Settings(positions=options.positions, length=options.length)
    if options.model is not None:
        pair = gemma.load_gemma()
        read = short_reader(pair.target)
    else:
        pair = load_shipped()
        read = pair.read(1)
    say("reading calibration text")
    training = windows_of(pair.tokenizer, training_files(), 3 * options.positions, options.length)
    recording = record(read, training, temperatures=(TEMPERATURE,), context=settings.window, seed=0)
    documents: Iterable[Sequence[int]] = (
        encode(pair.tokenizer, read_text(file)) for file in training_files()
    )
    material = Material(recording, pair.drafter_head, successor_counts(documents, recording))
    windows = texts(pair, options.positions, options.length)
    with warnings.catch_warnings():  # of few accepted drafts, which is what this measures
        warnings.simplefilter("ignore", UserWarning)
        rows = curve(material, pair, read, windows, settings)
        by_prior = priors(material, pair, read, windows["code"], settings)
    exact = [] if options.model else exactness(pair, read, windows["code"])
    about = {"models": pair.names, "vocabulary": pair.vocabulary_size, "temperature": TEMPERATURE}
    write_found(options.output, **about, rows=rows, priors=by_prior, exactness=exact)
    picture = options.output.with_suffix(".png")
    write_figure(figure(rows), picture)
    print(f"{options.output} and {picture} written.")


def figure(rows: Sequence[Row]) -> Figure:
    """Acceptance against the number of kept tokens, a panel for each text."""
    kinds = list(dict.fromkeys(row["text"] for row in rows))
    drawn = Figure(figsize=(4.2 * len(kinds), 3.6), layout="constrained")
    panels = drawn.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        own = [row for row in rows if row["text"] == kind]
        axes.axhline(own[0]["value"], color="#777777", ls="--", label=own[0]["method"])
        for name in METHODS:
            line = sorted((row["kept"], row["value"]) for row in own if row["method"] == name)
            style = DRAWN[name]
            mark = {"color": style.colour, "marker": style.marker, "label": name}
            axes.plot(*zip(*line, strict=True), style.line, **mark)
        axes.set_xscale("log")
        axes.set_title(f"{kind}", fontsize=10)
        axes.set_xlabel("tokens kept")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("acceptance")
    panels[0].legend(fontsize=8, frameon=False)
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.pruning", description=__doc__)
    add = command.add_argument
    add("--model", choices=[gemma.NAME], help="in place of the demo's models")
    add("--positions", type=int, default=2688, help="of each text (%(default)s)")
    add("--length", type=int, default=192, help="of a window (%(default)s)")
    add("--threads", type=int, default=1)
    add("--output", type=Path, default=RESULTS / "demo.json", metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
