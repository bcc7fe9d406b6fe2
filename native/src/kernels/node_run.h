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
  size_t size = 0;  // bytes from one row to the next, or columns of a part

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

// A part of what a run computes: a node, or what is computed before it, as its activations in another form.
struct Step {
  using Compute = void (*)(const Step& step, int thread, int n_threads);

  Compute compute;
  ggml_tensor* node;
  const void* context;           // of `compute`
  Division division = {};        // of its result
  const void* detail = nullptr;  // the Rotation of a rotating step
  float number = 0;              // the scale of an attention, the epsilon of a norm
  size_t buffer = 0;             // index of the buffer for converted activations that it reads or fills
  bool waits = false;            // for all threads to have computed the steps before
};

// The steps of nodes that follow each other in a graph. ggml lets its threads wait for each other after each node, with
// a call of the system. Here they wait, spinning, only before a step that reads what another thread may have written
// since the last wait, or that writes what another one may have written or may still read.
//
// Two accesses are of the same thread, and need no wait, where they have the same begin, end and division: then each
// part is the same memory in both. Whoever adds a step names a division only where that is so.
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
