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
#include "kernels/element_steps.h"
#include "kernels/elements.h"
#include "kernels/expert_order.h"
#include "kernels/node_run.h"
#include "kernels/packed_matrix.h"

struct ggml_tensor;

namespace corosrv {

class RowProducts;

// Which operations GraphKernels may replace.
struct KernelChoice {
  const ProductKernels* products;  // for packed weights; null: ggml's products
  Attend attend;                   // null: ggml's attention
  const ElementKernels* elements;  // for what lies between them; null: ggml's
  size_t max_bytes;                // the most memory for packed copies of weights; other weights are left to ggml
  bool is_deterministic;           // no row of a batch may depend on its neighbours (invariant I9)
  LoadWatch* load = nullptr;       // hears of the weights that are packed; outlives the GraphKernels
};

// Returns the format of a weight that PackedMatrix can hold.
std::optional<BlockFormat> packed_format(const ggml_tensor& weight);

// Replaces matrix products, attention and what lies between them in the graphs of one llama_context, which must not
// outlive it.
//
// libllama repacks the weights of some formats so that a batch reads them once; the weights of other formats it reads
// once per row. Its attention computes one head and one cell at a time, and rounds differently in batches of 64 rows or
// more. Its threads wait for each other after every node, some 600 times a step. Nodes that we compute become steps of
// a run, and the last of a run becomes a custom operation that computes all of it: ggml passes every node to its
// evaluation callback before it computes the first one, and a node is a plain struct. The others of a run become
// nothing. In a graph that is used again the nodes are replaced already.
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

  // Forgets what was seen of a graph. Called before each llama_decode, because the last one may have failed.
  void forget_graph();

  // Returns whether any product or attention was replaced so far.
  bool is_used() const { return is_used_; }
  // Returns the bytes of all packed copies.
  size_t bytes() const { return bytes_; }
  // Returns why results may depend on neighbours in deterministic mode, worded for the operator; empty if they do not.
  const std::string& violation() const { return violation_; }

 private:
  // The parameters that make a node a custom operation.
  using OpParams = std::array<char, 64>;

  struct Run {
    explicit Run(GraphKernels& kernels);

    GraphKernels& kernels;
    const OpParams params;
    NodeRun nodes;
  };

  // A weight, packed; the matrices of experts one behind the other.
  struct Weight {
    Weight(GraphKernels& kernels, BlockFormat format, const ggml_tensor& tensor);

    GraphKernels& kernels;
    const PackedMatrix matrix;
  };

  // Activations in the form that matrices take. Two of them, for one is filled while the other one is read.
  template <typename Block>
  struct Converted {
    struct Buffer {
      std::vector<Block> blocks;            // large enough for any product of the graph
      const ggml_tensor* tensor = nullptr;  // whose values they are after the nodes seen so far,
      const ggml_tensor* ids = nullptr;     // in the order of these experts; null: in their own

      bool has(const ggml_tensor* values, const ggml_tensor* order) const { return tensor == values && ids == order; }
    };

    Buffer buffers[2];
    size_t last = 0;
  };

  void replace(ggml_tensor* node);
  // Adds the steps of a node to the run; returns false if it is left to ggml.
  bool add(ggml_tensor* node);
  bool add_packed_product(ggml_tensor* node);
  bool add_expert_product(ggml_tensor* node);
  bool add_row_product(ggml_tensor* node);
  bool add_attention(ggml_tensor* node);
  NodeRun& run_of(ggml_tensor* node);
  // Lets the node compute all that the run has by now.
  void carry(ggml_tensor* node);
  void note_violation(const std::string& reason);
  // Returns the packed weight, and packs it if it is new; null if it cannot be packed.
  Weight* find(const ggml_tensor* tensor);
  std::unique_ptr<Weight> pack(const ggml_tensor* tensor);
  // Adds a product of activations that are converted before, unless an earlier step has done so.
  template <typename Block>
  void add_converted_product(NodeRun& run, ggml_tensor* node, const Weight& weight);
  template <typename Block>
  void add_converted_expert_product(NodeRun& run, ggml_tensor* node, const Weight& weight);
  // Returns the index of the buffer that has the activations then.
  template <typename Block>
  size_t add_conversion(NodeRun& run, ggml_tensor* product, const Weight& weight);
  // Returns the index of a buffer that is to hold so many blocks of converted activations from now on.
  template <typename Block>
  size_t take_buffer(const ggml_tensor& input, const ggml_tensor* ids, size_t n_blocks);
  template <typename Block>
  Access access_to_buffer(size_t index, bool is_written, Division division = {});
  Access access_to_experts(bool is_written) const;

  // ggml_custom_op_t; `run` is a Run.
  static void compute(ggml_tensor* node, int thread, int n_threads, void* run);
  // Step::Compute; the context is the GraphKernels, or a Weight.
  template <typename Block>
  static void convert_parts(const Step& step, int thread, int n_threads);
  template <typename Block>
  static void convert_rows(const Step& step, int thread, int n_threads);
  template <typename Block>
  static void convert_columns(const Step& step, int thread, int n_threads);
  template <typename Block>
  static void multiply(const Step& step, int thread, int n_threads);
  static void multiply_floats(const Step& step, int thread, int n_threads);
  static void sort_by_expert(const Step& step, int thread, int n_threads);
  template <typename Block>
  static void convert_for_experts(const Step& step, int thread, int n_threads);
  template <typename Block>
  static void multiply_by_experts(const Step& step, int thread, int n_threads);
  static void multiply_floats_by_experts(const Step& step, int thread, int n_threads);
  template <typename Multiply>
  static void for_each_expert(const Step& step, int thread, int n_threads, Multiply multiply);
  static void multiply_by_rows(const Step& step, int thread, int n_threads);
  static void attend(const Step& step, int thread, int n_threads);
  template <typename Block>
  static void attend_and_convert(const Step& step, int thread, int n_threads);
  // Converts some blocks of a row.
  template <typename Block>
  void convert(const ggml_tensor& tensor, size_t row, size_t column, size_t n_blocks, Block* to) const;

  const KernelChoice choice_;
  const std::unique_ptr<RowProducts> row_products_;  // null unless deterministic
  std::optional<ElementSteps> elements_;
  size_t bytes_ = 0;
  bool is_used_ = false;
  std::string violation_;
  std::unordered_map<const ggml_tensor*, std::unique_ptr<Weight>> weights_;
  std::unordered_map<const ggml_tensor*, std::unique_ptr<Run>> runs_;  // by their first nodes
  std::tuple<Converted<ActivationBlock>, Converted<BfloatBlock>> converted_;
  ExpertOrder experts_;
  // Of the graph whose nodes come in:
  const ggml_tensor* sorted_ids_ = nullptr;  // whose experts experts_ has the order of after what was seen so far
  Run* run_ = nullptr;                       // the last one; null: the next node of ours begins another
  ggml_tensor* carrier_ = nullptr;           // that computes it
  bool was_computed_ = false;                // what was seen so far
};

}  // namespace corosrv
