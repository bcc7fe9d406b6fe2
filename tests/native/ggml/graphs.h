// Graphs that ggml's scheduler computes, with the kernels or without.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/graph_kernels.h"

namespace corosrv {

constexpr int64_t kColumns = 96;
constexpr int kThreads = 3;
constexpr size_t kNoLimit = size_t{1} << 40;
inline const KernelChoice kFaster{best_products(), best_attention(), best_elements(), kNoLimit, false};

using Values = std::vector<float>;
using Tensors = std::vector<ggml_tensor*>;

inline Values random_values(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Values values(size);
  for (float& value : values) value = normal(random);
  return values;
}

inline Values input_of(int64_t n_rows, unsigned seed) {
  return random_values(static_cast<size_t>(n_rows * kColumns), seed);
}

struct FreeContext {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using Context = std::unique_ptr<ggml_context, FreeContext>;

// A scheduler on the processor, and before it on a device where one is given, with or without kernels.
class Machine {
 public:
  explicit Machine(GraphKernels* kernels, ggml_backend_dev_t device = nullptr)
      : device_(device == nullptr ? nullptr : ggml_backend_dev_init(device, nullptr)),
        backend_(ggml_backend_cpu_init()) {
    ggml_backend_cpu_set_n_threads(backend_, kThreads);
    std::vector<ggml_backend_t> backends{backend_};
    if (device_ != nullptr) backends.insert(backends.begin(), device_);
    scheduler_ = ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()),
                                        GGML_DEFAULT_GRAPH_SIZE, false, false);
    if (kernels != nullptr) ggml_backend_sched_set_eval_callback(scheduler_, &GraphKernels::on_node, kernels);
  }
  ~Machine() {
    ggml_backend_sched_free(scheduler_);
    ggml_backend_free(backend_);
    if (device_ != nullptr) ggml_backend_free(device_);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // One at a time, always in the same memory: the tensors of one graph get the addresses of those of the last one.
  Context make_context() { return Context(ggml_init({memory_.size(), memory_.data(), true})); }

  ggml_backend_t backend() { return backend_; }
  ggml_backend_t device() { return device_; }  // null where there is none
  ggml_backend_sched_t scheduler() { return scheduler_; }

 private:
  std::vector<char> memory_ = std::vector<char>(256 * ggml_tensor_overhead() + ggml_graph_overhead());
  ggml_backend_t device_, backend_;
  ggml_backend_sched_t scheduler_;
};

// Quantised matrices of kColumns columns in a buffer of ggml's; with `n_experts`, each of them is so many.
class Weights {
 public:
  Weights(Machine& machine, ggml_type type, const std::vector<int64_t>& n_rows,
          ggml_backend_buffer_usage usage = GGML_BACKEND_BUFFER_USAGE_WEIGHTS, int64_t n_columns = kColumns,
          int64_t n_experts = 1)
      : Weights(machine.backend(), type, n_rows, usage, n_columns, n_experts) {}

  Weights(ggml_backend_t place, ggml_type type, const std::vector<int64_t>& n_rows,
          ggml_backend_buffer_usage usage = GGML_BACKEND_BUFFER_USAGE_WEIGHTS, int64_t n_columns = kColumns,
          int64_t n_experts = 1)
      : context_(ggml_init({n_rows.size() * ggml_tensor_overhead(), nullptr, true})) {
    for (const int64_t rows : n_rows) {
      matrices_.push_back(ggml_new_tensor_3d(context_.get(), type, n_columns, rows, n_experts));
    }
    buffer_ = ggml_backend_alloc_ctx_tensors(context_.get(), place);
    ggml_backend_buffer_set_usage(buffer_, usage);
    for (ggml_tensor* matrix : matrices_) fill(matrix);
  }
  ~Weights() { ggml_backend_buffer_free(buffer_); }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  ggml_tensor* operator[](size_t i) const { return matrices_[i]; }
  size_t bytes(size_t i) const { return ggml_nbytes(matrices_[i]); }

 private:
  static void fill(ggml_tensor* matrix) {
    const Values values = random_values(static_cast<size_t>(ggml_nelements(matrix)), 7);
    std::vector<char> blocks(ggml_nbytes(matrix));
    ggml_quantize_chunk(matrix->type, values.data(), blocks.data(), 0, ggml_nrows(matrix), matrix->ne[0], nullptr);
    ggml_backend_tensor_set(matrix, blocks.data(), 0, blocks.size());
  }

  const Context context_;
  Tensors matrices_;
  ggml_backend_buffer_t buffer_;
};

// A graph from an input of `n_rows` rows to what `build` makes of it; may be computed again and again.
class Graph {
 public:
  using Build = std::function<Tensors(ggml_context* context, ggml_tensor* input)>;

  Graph(Machine& machine, int64_t n_rows, const Build& build) : machine_(machine), context_(machine.make_context()) {
    input_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, kColumns, n_rows);
    ggml_set_input(input_);
    outputs_ = build(context_.get(), input_);
    graph_ = ggml_new_graph(context_.get());
    for (ggml_tensor* output : outputs_) {
      ggml_set_output(output);
      ggml_build_forward_expand(graph_, output);
    }
    ggml_backend_sched_reset(machine_.scheduler());
    ggml_backend_sched_alloc_graph(machine_.scheduler(), graph_);
  }

  std::vector<Values> compute(const Values& input) {
    ggml_backend_tensor_set(input_, input.data(), 0, ggml_nbytes(input_));
    CHECK_EQ(ggml_backend_sched_graph_compute(machine_.scheduler(), graph_), GGML_STATUS_SUCCESS);
    return results();
  }

  Tensors nodes() const {
    return Tensors(ggml_graph_nodes(graph_), ggml_graph_nodes(graph_) + ggml_graph_n_nodes(graph_));
  }

  // Calls `compute` with each node that computes something, instead of ggml.
  std::vector<Values> compute_by(const Values& input, const std::function<void(ggml_tensor*)>& compute) {
    ggml_backend_tensor_set(input_, input.data(), 0, ggml_nbytes(input_));
    for (ggml_tensor* node : nodes()) {
      if (is_operation(*node)) compute(node);
    }
    return results();
  }

  std::vector<Values> results() const {
    std::vector<Values> results;
    for (ggml_tensor* output : outputs_) {
      results.emplace_back(static_cast<size_t>(ggml_nelements(output)));
      ggml_backend_tensor_get(output, results.back().data(), 0, ggml_nbytes(output));
    }
    return results;
  }

  // How many outputs our kernels compute; known once they were computed. Of those computed together all but the last
  // have become nothing.
  size_t n_ours() const {
    size_t n = 0;
    for (const ggml_tensor* output : outputs_) n += output->op == GGML_OP_CUSTOM || output->op == GGML_OP_NONE;
    return n;
  }

  // How many operations ggml's threads wait for each other after.
  size_t n_operations() const {
    size_t n = 0;
    for (const ggml_tensor* node : nodes()) n += is_operation(*node);
    return n;
  }

 private:
  static bool is_operation(const ggml_tensor& node) {
    return node.op != GGML_OP_NONE && node.op != GGML_OP_VIEW && node.op != GGML_OP_RESHAPE &&
           node.op != GGML_OP_PERMUTE;
  }

  Machine& machine_;
  const Context context_;
  ggml_tensor* input_;
  Tensors outputs_;
  ggml_cgraph* graph_;
};

inline float largest_difference(const std::vector<Values>& a, const std::vector<Values>& b) {
  float most = a.size() == b.size() ? 0.0f : INFINITY;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) most = std::fmax(most, std::fabs(a[i][j] - b[i][j]));
  }
  return most;
}

// Computes the same with kernels and without, and checks how many outputs the kernels took.
inline void check_against_ggml(Machine& ours, int64_t n_rows, const Graph::Build& build, size_t n_expected,
                               unsigned n_times = 1, float tolerance = 2e-5f) {
  Machine theirs(nullptr);
  Graph graph(ours, n_rows, build), reference(theirs, n_rows, build);
  for (unsigned seed = 1; seed <= n_times; ++seed) {
    const Values input = input_of(n_rows, 100 * seed + static_cast<unsigned>(n_rows));
    // Outputs are of the size of ten; other activations move them by more than a tenth.
    CHECK(largest_difference(graph.compute(input), reference.compute(input)) < tolerance);
  }
  CHECK_EQ(graph.n_ours(), n_expected);
  CHECK_EQ(reference.n_ours(), 0u);
}

}  // namespace corosrv
