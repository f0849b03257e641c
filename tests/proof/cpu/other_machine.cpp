// Prints a hash of what each CPU operator gives for made-up logits, so that a machine can be
// compared with another one, without torch.

#include <cstdio>
#include <vector>

#include "cpu/operators.h"

using namespace rdk;

namespace {

constexpr int64_t kDrafts = 96, kSteps = kDrafts / 2, kTargets = kDrafts + kSteps;
constexpr int64_t kDraftSize = 2600, kTargetSize = 3100;
const cpu::Threads kThreads{1, nullptr};

uint32_t random_bits() {
  static uint64_t state = 69;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 32);
}

// Finite ones of up to +-16; those of 16 bits are any number.
std::vector<uint16_t> logits_of(Dtype dtype, int64_t count) {
  const uint32_t sixteen = dtype == Dtype::kBFloat16 ? 0x4180 : 0x4C00;
  std::vector<uint16_t> words(2 * count);
  for (uint16_t& word : words) word = random_bits() % sixteen | (random_bits() & 0x8000);
  auto* floats = reinterpret_cast<float*>(words.data());
  for (int64_t i = 0; dtype == Dtype::kFloat32 && i < count; ++i) {
    floats[i] = static_cast<float>(static_cast<int32_t>(random_bits())) * 0x1p-27f;
  }
  return words;
}

template <typename Element>
void print(const char* name, Dtype dtype, const std::vector<Element>& values) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(Element); ++i)
    hash = (hash ^ bytes[i]) * 1099511628211u;
  std::printf("%s %d %016llx\n", name, static_cast<int>(dtype),
              static_cast<unsigned long long>(hash));
}

void run(Dtype dtype) {
  // Each token of the drafter is itself by 3/4, and any by 1/4.
  constexpr int64_t kOne = int64_t{1} << 32;
  std::vector<int32_t> offsets(kTargetSize + 1, kDraftSize), own(kDraftSize);
  std::vector<float> weights(kDraftSize, 0.75f), spread(kDraftSize, 0.25f);
  std::vector<float> prior(kTargetSize, 1.0f / kTargetSize);
  std::vector<int64_t> cdf(kDraftSize, kOne / 4 * 3), spread_cdf(kDraftSize, kOne), prior_cdf;
  for (int32_t i = 0; i < kDraftSize; ++i) offsets[i] = own[i] = i;
  for (int64_t x = 1; x <= kTargetSize; ++x) prior_cdf.push_back(kOne * x / kTargetSize);
  const AffinityColumns columns{
      offsets.data(), own.data(), weights.data(), spread.data(), prior.data(),
      kDraftSize,     1,          kTargetSize};
  const AffinityRows by_draft{offsets.data(), own.data(),        cdf.data(),       own.data(),
                              spread.data(),  spread_cdf.data(), prior_cdf.data(), 1,
                              kTargetSize};

  const auto draft_logits = logits_of(dtype, kDrafts * kDraftSize);
  const auto target_logits = logits_of(dtype, kTargets * kTargetSize);
  const DraftColumns draft{
      dtype, {draft_logits.data(), 1, kDraftSize, 0}, nullptr, kDraftSize, kTargetSize, 0, {}, {}};
  std::vector<float> temperature(kDrafts), top_p(kDrafts), min_p(kDrafts, 0.0f);
  std::vector<int32_t> top_k(kDrafts), steps(kSteps + 1);
  std::vector<int64_t> keys(kDrafts);
  for (int64_t i = 0; i < kDrafts; ++i) {
    temperature[i] = static_cast<float>(i % 5) * 0.5f;
    top_k[i] = i % 3 == 1 ? 300 : 0;
    top_p[i] = i % 3 == 2 ? 0.875f : 1.0f;
    keys[i] = random_bits();
  }
  for (int32_t b = 0; b <= kSteps; ++b) steps[b] = 2 * b;
  const Truncation truncation{top_k.data(), top_p.data(), min_p.data(), true};

  std::vector<float> probs(kDrafts * kTargetSize);
  cpu::redistribute(
      {draft, columns, own.data(), temperature.data(), truncation, probs.data(), kDrafts},
      kThreads);
  print("redistribute", dtype, probs);

  DraftParams params{};
  params.draft = draft;
  params.affinity = by_draft;
  params.temperature = temperature.data();
  params.step_keys = params.positions = keys.data();
  params.truncation = truncation;
  params.stats_width = 4;
  params.rows = kDrafts;
  std::vector<int64_t> drafted(kDrafts);
  std::vector<float> stats(kDrafts * params.stats_width);
  params.tokens = drafted.data();
  params.stats = stats.data();
  cpu::draft(params, kThreads);
  print("draft", dtype, drafted);
  print("stats", dtype, stats);

  for (const Method method : {Method::kToken, Method::kBlock}) {
    std::vector<int64_t> tokens(3 * kSteps);
    std::vector<int32_t> accepted(kSteps);
    std::vector<float> logprobs(3 * kSteps);
    cpu::verify({{dtype, {target_logits.data(), 1, kTargetSize, 0}, {}, kTargetSize},
                 {kSteps, temperature.data(), keys.data(), keys.data(), truncation},
                 {{drafted.data(), true}, kDrafts, steps.data(), 0, 0, 0},
                 draft,
                 {kDrafts, nullptr, stats.data(), params.stats_width, temperature.data()},
                 columns,
                 2,
                 tokens.data(),
                 accepted.data(),
                 Logprobs::kProcessed,
                 logprobs.data(),
                 method},
                kThreads);
    print("verify", dtype, tokens);
    print("accepted", dtype, accepted);
    print("logprobs", dtype, logprobs);
  }
}

}  // namespace

int main() {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBFloat16}) run(dtype);
}
