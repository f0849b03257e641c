// How the work of an operator is shared. ops/ brings torch's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace rdk::cpu {

struct Threads {
  int64_t count;
  // work() on each of `workers` threads.
  void (*run)(int64_t workers, const std::function<void()>& work);

  // Only as many as pay: with fewer than 32768 columns each, torch's own grain, waking a thread
  // costs more than it saves.
  Threads for_columns(int64_t columns) const {
    return {std::clamp<int64_t>((columns + 32767) / 32768, 1, count), run};
  }
};

// Units of work, claimed one by one: a thread that the system suspends delays one unit, not a
// fixed share of the work.
class Units {
 public:
  explicit Units(int64_t count) : count_(count) {}

  bool claim(int64_t* unit) {
    *unit = next_.fetch_add(1, std::memory_order_relaxed);
    return *unit < count_;
  }

 private:
  std::atomic<int64_t> next_{0};
  int64_t count_;
};

// worker(units) on every thread, which claims units until there are none.
template <typename Worker>
void share_out(const Threads& threads, int64_t count, const Worker& worker) {
  Units units(count);
  const int64_t workers = std::min(threads.count, count);
  if (workers > 1) {
    threads.run(workers, [&] { worker(units); });
  } else {
    worker(units);
  }
}

// work(i) for every i below count, `together` of them in a unit.
template <typename Work>
void share(const Threads& threads, int64_t count, const Work& work, int64_t together = 1) {
  share_out(threads, (count + together - 1) / together, [&](Units& units) {
    for (int64_t unit; units.claim(&unit);) {
      const int64_t end = std::min((unit + 1) * together, count);
      for (int64_t i = unit * together; i < end; ++i) work(i);
    }
  });
}

// Calls work(row, threads, scratch) for every row. Many rows get one thread each; with few rows,
// all threads share each of them. The result is the same either way.
template <typename Scratch, typename Work>
void for_each_row(const Threads& threads, int64_t rows, int64_t columns, const Work& work) {
  const Threads useful = threads.for_columns(rows * columns);
  if (rows < useful.count) {
    Scratch scratch;
    for (int64_t row = 0; row < rows; ++row) work(row, useful.for_columns(columns), &scratch);
    return;
  }
  share_out(useful, rows, [&](Units& units) {
    Scratch scratch;
    for (int64_t row; units.claim(&row);) work(row, Threads{1, nullptr}, &scratch);
  });
}

// The same of rows that are taken together, `most` of them where that leaves no thread idle:
// work(first, end, threads, scratch). A group has `of_group` columns besides those of its rows.
template <typename Scratch, typename Work>
void for_each_group(const Threads& threads, int64_t rows, int64_t most, int64_t columns,
                    int64_t of_group, const Work& work) {
  const int64_t together = std::clamp<int64_t>(rows / threads.count, 1, most);
  for_each_row<Scratch>(threads, (rows + together - 1) / together, together * columns + of_group,
                        [&](int64_t group, const Threads& for_group, Scratch* scratch) {
                          const int64_t first = group * together;
                          work(first, std::min(first + together, rows), for_group, scratch);
                        });
}

}  // namespace rdk::cpu
