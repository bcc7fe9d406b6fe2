// Replaces operations in libllama's graphs by corosrv's kernels, through ggml's public API.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/load_watch.h"
#include "kernels/attention.h"
#include "kernels/packed_matrix.h"
#include "kernels/spin_barrier.h"

struct ggml_tensor;

namespace corosrv {

class RowProducts;

// Which operations GraphKernels may replace.
struct KernelChoice {
  const ProductKernels* products;  // for packed weights; null: ggml's products
  Attend attend;                   // null: ggml's attention
  size_t max_bytes;                // the most memory for packed copies of weights; other weights are left to ggml
  bool is_deterministic;           // no row of a batch may depend on its neighbours (invariant I9)
  LoadWatch* load = nullptr;       // hears of the weights that are packed; outlives the GraphKernels
};

// Returns the format of a weight that PackedMatrix can hold.
std::optional<BlockFormat> packed_format(const ggml_tensor& weight);

// Replaces matrix products and attention in the graphs of one llama_context, which must not outlive it.
//
// libllama repacks the weights of some formats so that a batch reads them once; the weights of other formats it reads
// once per row. Its attention computes one head and one cell at a time, and rounds differently in batches of 64 rows or
// more. Such nodes become custom operations: ggml passes every node to its evaluation callback before it computes the
// first one, and a node is a plain struct. In a graph that is used again the nodes are replaced already.
//
// In deterministic mode all matrix products are replaced: by RowProducts if the weights are not packed. violation()
// reports an operation for which neither we nor ggml can keep the promise.
//
// A weight is packed when its first product is seen, which is during the warm-up. Called by the thread that calls
// llama_decode, and by ggml's compute threads inside that call.
class GraphKernels {
 public:
  // Returns null if there is nothing to replace: the mode is not deterministic, and faster kernels are not allowed or
  // not possible. They need a processor with the instructions, and ggml without accelerators that compute in the
  // processor's memory: nodes of those look alike, but cannot become custom operations. What other devices compute is
  // told apart by where its result lies, and left to them.
  static std::unique_ptr<GraphKernels> make(const KernelChoice& choice);

  explicit GraphKernels(const KernelChoice& choice);
  ~GraphKernels();
  GraphKernels(const GraphKernels&) = delete;
  GraphKernels& operator=(const GraphKernels&) = delete;

  // llama_context_params.cb_eval; `kernels` is the GraphKernels. Always returns false: asking for a node's result would
  // split the graph.
  static bool on_node(ggml_tensor* node, bool ask, void* kernels);

  // Returns whether any node was replaced so far.
  bool is_used() const { return is_used_; }
  // Returns the bytes of all packed copies.
  size_t bytes() const { return bytes_; }
  // Returns why results may depend on neighbours in deterministic mode, worded for the operator; empty if they do not.
  const std::string& violation() const { return violation_; }

 private:
  // The parameters that make a node a custom operation.
  using OpParams = std::array<char, 64>;

  struct Weight {
    Weight(GraphKernels& kernels, BlockFormat format, const ggml_tensor& tensor);

    GraphKernels& kernels;
    const PackedMatrix matrix;
    const OpParams convert_and_multiply;
    const OpParams multiply_only;  // for the activations of the product before, and for floats
  };

  // The activations of the current product in the form that its matrix takes.
  template <typename Block>
  struct Converted {
    std::vector<Block> blocks;            // large enough for any product of the graph
    const ggml_tensor* tensor = nullptr;  // whose values they are after the nodes seen so far
  };

  void replace(ggml_tensor* node);
  bool replace_by_packed_product(ggml_tensor* node);
  bool replace_by_row_product(ggml_tensor* node);
  bool replace_attention(ggml_tensor* node);
  void become_custom(ggml_tensor* node, const OpParams& params);
  void note_violation(const std::string& reason);
  // Returns the packed weight, and packs it if it is new; null if it cannot be packed.
  Weight* find(const ggml_tensor* tensor);
  std::unique_ptr<Weight> pack(const ggml_tensor* tensor);
  // Lets a node multiply activations that are converted before, unless the last product has done so.
  template <typename Block>
  void multiply_converted(ggml_tensor* node, const Weight& weight);
  template <typename Block>
  void convert_share(const ggml_tensor& activations, int thread, int n_threads);
  // Returns the parameters of the operation, for the form of activations that the matrix takes.
  static OpParams converting_product(ActivationForm form, void* weight);
  static OpParams plain_product(ActivationForm form, void* weight);

  // ggml_custom_op_t; `weight` is a Weight, `kernels` a GraphKernels.
  template <typename Block>
  static void convert_and_multiply(ggml_tensor* node, int thread, int n_threads, void* weight);
  template <typename Block>
  static void multiply(ggml_tensor* node, int thread, int n_threads, void* weight);
  static void multiply_floats(ggml_tensor* node, int thread, int n_threads, void* weight);
  static void multiply_by_rows(ggml_tensor* node, int thread, int n_threads, void* kernels);
  static void attend(ggml_tensor* node, int thread, int n_threads, void* kernels);

  const KernelChoice choice_;
  const OpParams attend_;
  const OpParams multiply_by_rows_;
  const std::unique_ptr<RowProducts> row_products_;  // null unless deterministic
  size_t bytes_ = 0;
  bool is_used_ = false;
  std::string violation_;
  std::unordered_map<const ggml_tensor*, std::unique_ptr<Weight>> weights_;
  std::tuple<Converted<ActivationBlock>, Converted<BfloatBlock>> converted_;
  SpinBarrier barrier_;
};

}  // namespace corosrv
