// Puts PackedMatrix and attend() to work inside libllama's graphs, by ggml's public API alone.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/packed_matrix.h"
#include "kernels/spin_barrier.h"

struct ggml_tensor;

namespace corosrv {

class RowProducts;

// What GraphKernels may do to a graph.
struct KernelChoice {
  bool is_faster_allowed;  // our kernels where they beat ggml's
  size_t max_bytes;        // of copies of weights, at most; what is beyond stays ggml's
  bool is_deterministic;   // no row of a batch may depend on its neighbours (invariant I9)
};

// Replaces matrix products and attention in the graphs of one llama_context, which must not outlive it.
//
// libllama repacks weights of some formats so that a batch reads them once; of the others it reads them once for every
// row of the batch. Its attention takes one cell after the other for a single head, and in batches of 64 rows or more
// rounds otherwise than in smaller ones. Such nodes become custom operations: ggml shows its evaluation callback every
// node before it computes any, and a node is a plain struct. A graph that is used again comes with the nodes replaced
// already.
//
// Where results must not depend on neighbours, all matrix products are replaced: those that are not computed from
// packed weights go to RowProducts, and violation() tells of nodes for which nobody can keep that promise.
//
// Weights are packed when they are first seen, which is in the warm-up. Used by the thread that calls llama_decode,
// and by ggml's compute threads inside that call.
class GraphKernels {
 public:
  // Null where there is nothing to do: no faster kernel has a place, and nothing is to be deterministic. Ours have none
  // where the processor lacks the instructions, or ggml drives more than the processor (nodes of other devices look
  // alike, and those know no custom operations).
  static std::unique_ptr<GraphKernels> make(const KernelChoice& choice);

  explicit GraphKernels(const KernelChoice& choice);
  ~GraphKernels();
  GraphKernels(const GraphKernels&) = delete;
  GraphKernels& operator=(const GraphKernels&) = delete;

  // llama_context_params.cb_eval, with the kernels as its user data. Never asks for a node's result: that would cut
  // the graph in pieces.
  static bool on_node(ggml_tensor* node, bool ask, void* kernels);

  // Whether any node was replaced so far.
  bool is_used() const { return is_used_; }
  // Bytes of the copies made so far.
  size_t bytes() const { return bytes_; }
  // Why results may depend on neighbours although they must not, in words for an operator; empty while they do not.
  const std::string& violation() const { return violation_; }

 private:
  // What a node takes over to become a custom operation.
  using OpParams = std::array<char, 64>;

  struct Weight {
    Weight(GraphKernels& kernels, BlockFormat format, const ggml_tensor& tensor);

    GraphKernels& kernels;
    const PackedMatrix matrix;
    const OpParams quantize_and_multiply;
    const OpParams multiply_only;  // the activations are those of the product before
  };

  void replace(ggml_tensor* node);
  bool replace_by_packed_product(ggml_tensor* node);
  bool replace_by_row_product(ggml_tensor* node);
  bool replace_attention(ggml_tensor* node);
  void become_custom(ggml_tensor* node, const OpParams& params);
  void note_violation(const std::string& reason);
  // The packed weight, packed now if it was not seen before; null when it is none of ours.
  Weight* find(const ggml_tensor* tensor);
  std::unique_ptr<Weight> pack(const ggml_tensor* tensor);
  void quantize_share(const ggml_tensor& activations, int thread, int n_threads);

  // ggml_custom_op_t; `weight` is a Weight, `kernels` a GraphKernels.
  static void quantize_and_multiply(ggml_tensor* node, int thread, int n_threads, void* weight);
  static void multiply(ggml_tensor* node, int thread, int n_threads, void* weight);
  static void multiply_by_rows(ggml_tensor* node, int thread, int n_threads, void* kernels);
  static void attend(ggml_tensor* node, int thread, int n_threads, void*);

  const KernelChoice choice_;
  const OpParams attend_;
  const OpParams multiply_by_rows_;
  const std::unique_ptr<RowProducts> row_products_;  // null unless deterministic
  size_t bytes_ = 0;
  bool is_used_ = false;
  std::string violation_;
  std::unordered_map<const ggml_tensor*, std::unique_ptr<Weight>> weights_;
  std::vector<ActivationBlock> activations_;  // of the product in progress; large enough for all of the graph
  const ggml_tensor* quantized_ = nullptr;    // whose values activations_ will hold after the nodes shown so far
  SpinBarrier barrier_;
};

}  // namespace corosrv
