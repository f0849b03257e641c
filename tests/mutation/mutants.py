"""Ways to break the CUDA kernels and how they are started, and the tests that must notice.

Each is an exact substitution in one file of csrc/. It has to apply exactly once: when kernels
change, these change with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCHEDULES = "emulated/test_kernels_schedules.py::test_any_schedule_gives_the_same_bits"
MACHINES = "emulated/test_kernels_schedules.py::test_any_machine_gives_the_same_bits"
CPU = "emulated/test_kernels_schedules.py::test_the_cpu_operators_give_the_same_tokens"


class StaleMutantError(ValueError):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    """``tests`` are relative to tests/; they run in this order until one fails."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, csrc: Path) -> None:
        """Break the file; raises StaleMutantError."""
        path = csrc / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise StaleMutantError(
                f"mutant {self.name!r}: {self.file} has the text it replaces "
                f"{text.count(self.old)} times, but needs it once; adapt tests/mutation/mutants.py "
                f"to the kernel:\n{self.old}"
            )
        path.write_text(text.replace(self.old, self.new))


def draft(*names: str) -> tuple[str, ...]:
    return tuple(f"operators/test_draft.py::{name}" for name in names)


def verify(*names: str) -> tuple[str, ...]:
    return tuple(f"operators/test_verify.py::{name}" for name in names)


def redistribute(*names: str) -> tuple[str, ...]:
    return tuple(f"operators/test_redistribute.py::{name}" for name in names)


def through_python(*names: str) -> tuple[str, ...]:
    return tuple(f"emulated/test_kernels_through_python.py::{name}" for name in names)


def plans(*names: str) -> tuple[str, ...]:
    return tuple(f"emulated/test_plans.py::{name}" for name in names)


def memory(*names: str) -> tuple[str, ...]:
    return tuple(f"emulated/test_kernels_memory.py::{name}" for name in names)


def bad_values(*names: str) -> tuple[str, ...]:
    return tuple(f"operators/test_bad_values.py::{name}" for name in names)


MUTANTS = (
    # ---- copies under way, barriers, fences, workspace ----
    Mutant(
        "a chunk is used before it has landed",
        "cuda/softmax.cuh",
        "async_wait<kInFlight - 1>();",
        "async_wait<kInFlight>();",
        (SCHEDULES,),
    ),
    Mutant(
        "the next chunk lands where this one has not been read",
        "cuda/softmax.cuh",
        "const int next = chunk + kInFlight * stride;",
        "const int next = chunk + (kInFlight - 1) * stride;",
        (SCHEDULES, CPU),
    ),
    Mutant(
        "warps share one ring",
        "cuda/softmax.cuh",
        "shared + warp_index() * kRingBytes",
        "shared",
        (SCHEDULES, CPU),
    ),
    Mutant(
        "no barrier before the ticket",
        "cuda/ticket.cuh",
        "__shared__ bool last;\n  __syncthreads();",
        "__shared__ bool last;",
        (SCHEDULES,),
    ),
    Mutant(
        "no barrier behind the ticket",
        "cuda/ticket.cuh",
        "  }\n  __syncthreads();\n  return last;",
        "  }\n  return last;",
        (SCHEDULES,),
    ),
    Mutant(
        "no fence before the ticket",
        "cuda/ticket.cuh",
        "__threadfence();\n      last = ",
        "last = ",
        (SCHEDULES,),
    ),
    Mutant(
        "draft's tickets are not zeroed",
        "cuda/draft_plan.cpp",
        "launch->shape.zeroed_bytes = parts.bytes();",
        "launch->shape.zeroed_bytes = 0;",
        (MACHINES,),
    ),
    Mutant(
        "verify's tickets are not zeroed",
        "cuda/verify_plan.cpp",
        "launch->shape.zeroed_bytes = parts.bytes();",
        "launch->shape.zeroed_bytes = 0;",
        (MACHINES,),
    ),
    Mutant(
        "sums of a sequence land in another's rows",
        "cuda/verify.cu",
        "launch.target_chunks + slot_of(launch, sequence, first) * target_chunks",
        "launch.target_chunks + first * target_chunks",
        (MACHINES,),
    ),
    Mutant(
        "positions in order without a barrier behind their sums",
        "cuda/verify.cu",
        "if (in_order) {\n      __syncthreads();",
        "if (in_order) {",
        (SCHEDULES,),
    ),
    Mutant(
        "no barrier behind the sums of the direct pass",
        "cuda/verify.cu",
        "__syncthreads();\n  if (warp_index() != 0) return -1;",
        "if (warp_index() != 0) return -1;",
        (SCHEDULES,),
    ),
    Mutant(
        "no barrier between rounds of proposals",
        "cuda/verify.cu",
        "    }\n    __syncthreads();\n  }\n}",
        "    }\n  }\n}",
        (SCHEDULES,),
    ),
    Mutant(
        "no barrier before weights and marks are used",
        "cuda/redistribute.cu",
        "    }\n  }\n  __syncthreads();\n",
        "    }\n  }\n",
        (SCHEDULES,),
    ),
    Mutant(
        "padding of the output is not written",
        "cuda/verify.cu",
        "i <= sequence.count; i += kThreads) tokens[i] = -1;",
        "i < 0; i += kThreads) tokens[i] = -1;",
        (MACHINES,),
    ),
    # ---- which columns ----
    Mutant(
        "a vector load one column past the tail",
        "cuda/logits.cuh",
        "begin + kChunk <= size",
        "begin + kChunk <= size + 1",
        draft("test_sizes_around_lanes_chunks_and_warps"),
    ),
    Mutant(
        "no -inf behind the last column",
        "cuda/logits.cuh",
        "column < size ? logits[column] : -infinity()",
        "column < size ? logits[column] : 0.0f",
        draft("test_sizes_around_lanes_chunks_and_warps"),
    ),
    Mutant(
        "a draw inside a chunk takes columns for lanes side by side",
        "cuda/softmax.cuh",
        "const int column = column_of(lane, step * kVector + j);",
        "const int column = (step * kVector + j) * kWarp + lane;",
        draft("test_sizes_around_lanes_chunks_and_warps"),
    ),
    Mutant(
        "running sums start anew every 32 chunks",
        "cuda/warp.cuh",
        "value > 0.0f && carry + running > threshold",
        "value > 0.0f && running > threshold",
        (CPU,),
    ),
    Mutant(
        "chunks are merged without their own maxima",
        "cuda/softmax.cuh",
        ": global_load(&chunks[chunk].sum) * expf(chunk_max - max)",
        ": global_load(&chunks[chunk].sum)",
        draft("test_sizes_around_lanes_chunks_and_warps"),
    ),
    Mutant(
        "split, chunks are merged in reverse order",
        "cuda/verify.cu",
        "&sums[chunk]);",
        "&sums[launch.splits > 1 ? in_all - 1 - chunk : chunk]);",
        (MACHINES,),
    ),
    Mutant(
        "blocks of a row overlap, and none takes its last chunks",
        "cuda/draft.cu",
        "split * warps + warp_index()",
        "split + warp_index()",
        (MACHINES,),
    ),
    Mutant(
        "a tie goes to the higher column of a lane",
        "cuda/softmax.cuh",
        "if (z[v] == softmax.max) column = min(column, column_of(lane_index(), v));",
        "if (z[v] == softmax.max) column = column_of(lane_index(), v);",
        draft("test_a_greedy_tie_between_lanes_and_chunks_goes_to_the_lower_column")
        + draft("test_temperature_zero_is_greedy"),
    ),
    Mutant(
        "a running sum equal to the word counts as above it",
        "cuda/warp.cuh",
        "sums[begin + probe] > static_cast<int64_t>(word)",
        "sums[begin + probe] >= static_cast<int64_t>(word)",
        draft("test_a_token_of_the_smallest_mass_can_be_drawn"),
    ),
    # ---- which distribution ----
    Mutant(
        "q without the bias",
        "cuda/draft_row.cuh",
        "return with_bias(scale(logits[column]), __ldg(bias + column));",
        "return scale(logits[column]);",
        redistribute("test_sizes_around_lanes_chunks_and_warps"),
    ),
    Mutant(
        "temperature 0 forgets which columns are masked",
        "cuda/draft_row.cuh",
        "greedy && shift != -infinity() ?",
        "greedy ?",
        draft("test_temperature_zero_is_greedy"),
    ),
    Mutant(
        "q(x) without the dynamic columns",
        "cuda/affinity.cuh",
        "if (row.dynamic_tokens[c] == token) mass +=",
        "if (row.dynamic_tokens[c] == -2) mass +=",
        verify("test_any_number_of_dynamic_columns"),
    ),
    Mutant(
        "redistribute skips the dynamic columns of all but the first row",
        "cuda/redistribute.cu",
        "unsigned char* marks = marked + g * launch.tile;",
        "unsigned char* marks = marked;",
        redistribute("test_groups_of_rows_with_any_number_of_dynamic_columns"),
    ),
    Mutant(
        "a NaN leaves a row its distribution",
        "cuda/softmax.cuh",
        "sound = sound && global_load(&chunks[c].sum) < infinity();",
        "",
        bad_values("test_a_draft_row_without_distribution"),
    ),
    Mutant(
        "an unused dynamic column is read",
        "cuda/draft_row.cuh",
        "dynamic_tokens[index] >= 0 && dynamic_tokens[index] < target_size",
        "dynamic_tokens[index] >= 0",
        bad_values("test_an_unused_dynamic_column_is_not_read"),
    ),
    Mutant(
        "a drafted id beyond the vocabulary is looked up",
        "cuda/verify_position.cuh",
        "token < 0 || token >= params.affinity.target_size",
        "token < 0",
        bad_values("test_a_drafted_id_out_of_range_is_rejected"),
    ),
    Mutant(
        "a float16 logit rounds up on ties",
        "cuda/gather_logits.cu",
        "rebased + 0xfffu + ((rebased >> 13) & 1u)",
        "rebased + 0x1000u",
        ("operators/test_gather_logits.py::test_results_round_to_the_nearest_even_of_16_bits",),
    ),
    # ---- which random numbers ----
    Mutant(
        "one coin for all positions of a sequence",
        "cuda/verify_position.cuh",
        "random_words(sequence.seed, sequence.position + step, Purpose::kAccept, 0)",
        "random_words(sequence.seed, sequence.position, Purpose::kAccept, 0)",
        verify("test_every_affinity_and_dtype"),
    ),
    Mutant(
        "the coin comes from the RESIDUAL stream",
        "cuda/verify_position.cuh",
        "Purpose::kAccept, 0",
        "Purpose::kResidual, 0",
        verify("test_every_affinity_and_dtype"),
    ),
    Mutant(
        "the direct pass draws from the BONUS stream",
        "cuda/verify.cu",
        "purpose = Purpose::kDirect;",
        "purpose = Purpose::kBonus;",
        (CPU,),
    ),
    Mutant(
        "all warps make the same proposal",
        "cuda/verify.cu",
        "proposes ? first + warp_index() : 0",
        "proposes ? first : 0",
        (CPU,),
    ),
    Mutant(
        "the highest proposal that is kept wins",
        "cuda/verify.cu",
        "for (int warp = 0; warp < kWarps; ++warp) {",
        "for (int warp = kWarps - 1; warp >= 0; --warp) {",
        verify("test_every_affinity_and_dtype"),
    ),
    Mutant(
        "eight proposals too many before the direct pass",
        "cuda/verify.cu",
        "first == kResidualTries",
        "first == kResidualTries + kWarps",
        verify("test_the_direct_pass_is_what_the_reference_does"),
    ),
    # ---- plans ----
    Mutant(
        "a plan forgets the static shared memory",
        "cuda/workspace.h",
        "machine.shared_bytes - Launch::kStaticSharedBytes",
        "machine.shared_bytes",
        plans("test_redistribute_at_the_edges_of_shared_memory"),
    ),
    Mutant(
        "marks that do not fit drop the weights at once",
        "cuda/redistribute_plan.cpp",
        "with_weights > most",
        "with_weights > tiles",
        plans("test_tiles_shrink_before_weights_leave_shared_memory"),
    ),
    Mutant(
        "splits are rounded up to a second wave",
        "cuda/workspace.h",
        "at_once / std::max<int64_t>(1, count)",
        "divide_up(at_once, std::max<int64_t>(1, count))",
        plans("test_blocks_that_share_work_all_run_at_once"),
    ),
    Mutant(
        "verify is split however large its workspace is",
        "cuda/verify_plan.cpp",
        "launch->shape.workspace_bytes > kMostSplitBytes",
        "launch->shape.workspace_bytes < 0",
        plans("test_the_workspace_of_verify_does_not_grow_with_a_careless_max_draft"),
    ),
    Mutant(
        "steps of a split sequence share one slot",
        "cuda/verify_position.cuh",
        "(launch.splits > 1 ? step : 0)",
        "0",
        (MACHINES,),
    ),
    # ---- how kernels are started ----
    Mutant(
        "every launch sets its kernel's attribute anew",
        "cuda/launch_kernel.cuh",
        "if (allowed.count({kernel, device}) > 0) return cudaSuccess;",
        "",
        memory("test_a_thread_never_takes_shared_memory_from_another"),
    ),
    Mutant(
        "Python is not told what to clear",
        "ops/backend_python.cpp",
        "static_cast<long long>(shape.zeroed_bytes)",
        "0LL",
        through_python("test_what_the_machine_has_decides_the_launch"),
    ),
    Mutant(
        "two dtypes run the kernel of one",
        "cuda/kernel_names.cpp",
        "launch.params.draft.dtype == dtype ? index(dtype) : kTwoDtypes",
        "index(dtype)",
        through_python("test_every_kernel_is_started_by_the_name_that_it_is_compiled_by"),
    ),
    # ---- large offsets ----
    Mutant(
        "32-bit offsets into the target's logits",
        "cuda/verify_position.cuh",
        "row * rows.inner_stride",
        "static_cast<int32_t>(row * rows.inner_stride)",
        ("emulated/test_kernels_memory.py::test_verify_reads_rows_beyond_2_31_elements",),
    ),
    Mutant(
        "32-bit offsets between the rows of a sequence",
        "cuda/verify.cu",
        "    int64_t offset;  // of the row, from the first one's",
        "    int32_t offset;  // of the row, from the first one's",
        ("emulated/test_kernels_memory.py::test_verify_reads_rows_beyond_2_31_elements",),
    ),
    Mutant(
        "32-bit offsets into the head",
        "cuda/gather_logits.cu",
        "token * params.weight_stride",
        "static_cast<int32_t>(token * params.weight_stride)",
        ("emulated/test_kernels_memory.py::test_gather_logits_reads_rows_beyond_2_31_elements",),
    ),
)
