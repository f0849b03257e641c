// sum_shard: the chunk sums of a rank's columns of each row that a step may read (docs/design.md,
// "Verify on shards"), the same as every kernel that reads whole rows takes. Memory floor: the
// shard's logits, once.

#include "launch_kernel.cuh"
#include "verify_position.cuh"

namespace rdk {
namespace {

constexpr int kThreads = SumShardLaunch::kThreads;
constexpr int kWarps = kThreads / kWarp;

// By one warp: (max, sum), or at temperature 0 (max, its first column), NaN where the row has no
// distribution.
RDK_DEVICE ChunkSum greedy_or_sum(bool greedy, float largest, float (&z)[kPerLane]) {
  const int column = greedy ? column_of_largest(z, warp_max(largest)) : 0;
  ChunkSum sum = exponentiate(Whole{}, largest, z);
  if (greedy && !(sum.sum < infinity())) sum.max = not_a_number();
  if (greedy) sum.sum = sum.max > -infinity() ? static_cast<float>(column) : 0.0f;
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, SumShardLaunch::kBlocks)
    sum_shard_kernel(const SumShardLaunch launch) {
  RDK_DYNAMIC_SHARED(shared);
  wait_for_earlier_kernels();
  const SumShardParams& params = launch.params;
  const int64_t index = blockIdx.x / launch.splits;
  const int start = blockIdx.x % launch.splits * kWarps + warp_index();
  const int stride = launch.splits * kWarps;
  const int64_t sequence = index / (params.max_draft + 1);
  const int64_t step = index % (params.max_draft + 1);
  const int chunks = static_cast<int>(params.shard.count);
  ChunkSum* pairs = reinterpret_cast<ChunkSum*>(params.sums) + index * (chunks + 1);

  const Owned drafts = owned(params.drafts, sequence);
  const int count = drafts_considered(params.drafts, drafts, params.max_draft);
  const float temperature = params.temperature[sequence];
  const bool reached = step <= count && usable_temperature(temperature);
  const int64_t offset = (drafts.start + sequence + step) * params.target.logits.inner_stride;
  const TargetColumns<T, Whole> row{
      Logits<T>(params.target.dtype, params.target.logits.data, reached ? offset : 0),
      reached ? static_cast<int>(params.target.size) : 0, Scale(temperature), Whole{}, NoMask{}};
  stream_chunks(row, ring_of_warp(shared), start, stride, row.chunks(),
                [&](int chunk, float (&z)[kPerLane], float largest) {
                  store_chunk_sum(greedy_or_sum(temperature == 0.0f, largest, z), &pairs[chunk]);
                });
  for (int chunk = start; chunk <= chunks; chunk += stride) {
    if (chunk < row.chunks()) continue;
    ChunkSum pair{-infinity(), 0.0f};
    if (chunk == chunks && reached && step < count) {
      const uint64_t drafted = params.drafts.token_ids[drafts.start + step];  // may be any number
      const auto here = static_cast<int64_t>(drafted - params.shard.first * kChunk);
      if (here >= 0 && here < row.size) pair.max = row.value(static_cast<int>(here));
    }
    store_chunk_sum(pair, &pairs[chunk]);
  }
}

}  // namespace

RDK_START(SumShard, SUM_SHARD)

}  // namespace rdk
