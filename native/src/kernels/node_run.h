// Nodes of a graph that follow each other and are computed together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/spin_barrier.h"

struct ggml_tensor;

namespace corosrv {

// How threads divide a tensor: each takes some of `n_parts` parts, by share_of().
struct Division {
  enum class Kind : uint8_t { kNone, kRows, kColumns };  // kNone: any thread may touch any number

  Kind kind = Kind::kNone;
  size_t n_parts = 0;
  size_t size = 0;  // of a part: bytes from rows to rows, or columns

  bool operator==(const Division& other) const {
    return kind == other.kind && n_parts == other.n_parts && size == other.size;
  }
};

// The parts [from, to) of a thread.
struct ThreadShare {
  size_t from, to;
};

inline ThreadShare share_of(size_t n_parts, int thread, int n_threads) {
  const auto i = static_cast<size_t>(thread), n = static_cast<size_t>(n_threads);
  return {n_parts * i / n, n_parts * (i + 1) / n};
}

// Memory that a step reads or writes.
struct Access {
  const void* begin;
  const void* end;
  bool is_written;
  Division division;
};

// A part of what a run computes: a node, or what a node needs.
struct Step {
  using Compute = void (*)(const Step& step, int thread, int n_threads);

  Compute compute;
  ggml_tensor* node;
  const void* context;     // of `compute`
  Division division = {};  // of its result
  const void* detail = nullptr;
  float number = 0;
  size_t buffer = 0;   // where it finds, or leaves, what is no tensor
  bool waits = false;  // for all threads to have computed the steps before
};

// The steps of nodes that follow each other in a graph. ggml lets its threads wait for each other after each node, with
// a call of the system. Here they do so where a step reads or overwrites what another thread may have written or have
// to read since they last waited, and spin.
//
// Steps are added by the thread that calls llama_decode, and computed by all of ggml's threads inside that call.
class NodeRun {
 public:
  // Forgets all steps.
  void clear();
  void add(Step step, std::initializer_list<Access> accesses);
  // Lets the last step do something more, which touches this.
  void extend(Step::Compute compute, size_t buffer, const Access& access);
  bool is_empty() const { return steps_.empty(); }
  size_t size() const { return steps_.size(); }
  // Returns the step that is this many before the end; 1: the last one.
  const Step& from_end(size_t i) const { return steps_[steps_.size() - i]; }

  // Computes one thread's share of all steps. All threads call it.
  void compute(int thread, int n_threads);

 private:
  bool is_in_conflict(const Access& access) const;

  std::vector<Step> steps_;
  std::vector<Access> accesses_;  // since the last wait
  SpinBarrier barrier_;
};

}  // namespace corosrv
