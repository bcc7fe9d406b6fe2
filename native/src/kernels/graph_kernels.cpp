#include "kernels/graph_kernels.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "base/pages.h"
#include "kernels/attention.h"
#include "kernels/row_independence.h"
#include "kernels/row_products.h"
#include "kernels/tensor_view.h"

namespace corosrv {

namespace {

std::optional<BlockFormat> format_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0:
      return BlockFormat::kQ4_0;
    case GGML_TYPE_Q4_1:
      return BlockFormat::kQ4_1;
    case GGML_TYPE_Q5_0:
      return BlockFormat::kQ5_0;
    case GGML_TYPE_Q5_1:
      return BlockFormat::kQ5_1;
    case GGML_TYPE_Q8_0:
      return BlockFormat::kQ8_0;
    case GGML_TYPE_IQ4_NL:
      return BlockFormat::kIQ4_NL;
    case GGML_TYPE_MXFP4:
      return BlockFormat::kMXFP4;
    case GGML_TYPE_Q4_K:
      return BlockFormat::kQ4_K;
    case GGML_TYPE_Q5_K:
      return BlockFormat::kQ5_K;
    case GGML_TYPE_Q6_K:
      return BlockFormat::kQ6_K;
    case GGML_TYPE_F16:
      return BlockFormat::kF16;
    case GGML_TYPE_BF16:
      return BlockFormat::kBF16;
    default:
      return std::nullopt;
  }
}

// Returns whether the tensor is a weight with the bytes of the file: buffers of weights that ggml rearranged for its
// own kernels do not count as host memory.
bool is_untouched_weight(const ggml_tensor& tensor) {
  return tensor.op == GGML_OP_NONE && tensor.buffer != nullptr &&
         ggml_backend_buffer_get_usage(tensor.buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
         ggml_backend_buffer_is_host(tensor.buffer);
}

// Returns whether a buffer is a part of a file that libllama has mapped.
bool is_mapped(ggml_backend_buffer_t buffer) {
  return std::strcmp(ggml_backend_buffer_name(buffer), "CPU_Mapped") == 0;
}

// Returns where the `part`-th of `n_parts` nearly equal parts of `total` items begins.
size_t part_begin(size_t total, int part, int n_parts) {
  return total * static_cast<size_t>(part) / static_cast<size_t>(n_parts);
}

// Indices of an attention node's parameters, as floats. A custom operation overwrites the first six, so the scale is
// moved behind them.
enum AttentionParam { kScale = 0, kMaxBias = 1, kSoftcap = 2, kKeptScale = 8 };

float* attention_params(ggml_tensor& node) { return reinterpret_cast<float*>(node.op_params); }

bool has_cells_of_halves(const ggml_tensor& cache, const ggml_tensor& queries) {
  return cache.type == GGML_TYPE_F16 && cache.nb[0] == 2 && cache.ne[0] == queries.ne[0] &&
         cache.ne[3] == queries.ne[3];
}

// Returns whether attend() can compute a node: it has no bias by distance, no cap, no sinks, and a cache of 16-bit
// floats.
bool is_plain_attention(ggml_tensor& node) {
  const ggml_tensor &queries = *node.src[0], &keys = *node.src[1], &values = *node.src[2];
  const ggml_tensor* mask = node.src[3];
  return queries.type == GGML_TYPE_F32 && queries.nb[0] == 4 && queries.ne[0] % kHeadStep == 0 &&
         has_cells_of_halves(keys, queries) && has_cells_of_halves(values, queries) && keys.ne[2] == values.ne[2] &&
         queries.ne[2] % keys.ne[2] == 0 && mask != nullptr && mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 &&
         mask->ne[2] == 1 && mask->ne[3] == queries.ne[3] && node.src[4] == nullptr &&
         attention_params(node)[kMaxBias] == 0 && attention_params(node)[kSoftcap] == 0;
}

// Returns the part of a node that belongs to one token of one stream and one key head.
Attention attention_of(ggml_tensor& node, size_t token, size_t key_head, size_t stream) {
  const ggml_tensor &queries = *node.src[0], &keys = *node.src[1], &values = *node.src[2], &mask = *node.src[3];
  Attention a;
  a.head_size = extent(queries, 0);
  a.n_heads = extent(queries, 2) / extent(keys, 2);
  a.queries = reinterpret_cast<const float*>(row_at(queries, token, key_head * a.n_heads, stream));
  a.query_stride = queries.nb[2];
  a.n_cells = extent(keys, 1);
  a.mask = reinterpret_cast<const uint16_t*>(row_at(mask, token, 0, stream));
  a.keys = row_at(keys, 0, key_head, stream);
  a.key_stride = keys.nb[1];
  a.values = row_at(values, 0, key_head, stream);
  a.value_stride = values.nb[1];
  a.scale = attention_params(node)[kKeptScale];
  const size_t row = (stream * extent(queries, 1) + token) * extent(queries, 2) + key_head * a.n_heads;
  a.output = static_cast<float*>(node.data) + row * a.head_size;
  return a;
}

// Returns whether a buffer is memory that the processor computes in: its own, or what a device lends it for transfers.
bool is_of_processor(ggml_backend_buffer_t buffer) {
  const ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(buffer);
  if (!ggml_backend_buft_is_host(type)) return false;
  const ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
  return device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU ||
         ggml_backend_dev_host_buffer_type(device) == type;
}

// Returns whether the processor computes a node, which ggml has given its place already. A device computes into memory
// of its own.
bool is_computed_by_processor(const ggml_tensor& node) {
  ggml_backend_buffer_t buffer = node.view_src == nullptr ? node.buffer : node.view_src->buffer;
  return buffer != nullptr && is_of_processor(buffer);
}

bool is_cpu_alone() {
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    if (ggml_backend_dev_type(ggml_backend_dev_get(i)) != GGML_BACKEND_DEVICE_TYPE_CPU) return false;
  }
  return true;
}

// Returns whether what lies in the processor's memory is computed by it: an accelerator computes there as well.
bool has_accelerator() {
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    if (ggml_backend_dev_type(ggml_backend_dev_get(i)) == GGML_BACKEND_DEVICE_TYPE_ACCEL) return true;
  }
  return false;
}

void convert(const ProductKernels& products, const float* values, size_t n_blocks, ActivationBlock* to) {
  products.quantize(values, n_blocks, to);
}
void convert(const ProductKernels& products, const float* values, size_t n_blocks, BfloatBlock* to) {
  products.round(values, n_blocks, to);
}

// Returns the parameters of a custom operation. ggml does not document their layout, so it is asked to make one.
std::array<char, 64> op_params_of(ggml_custom_op_t function, void* user_data) {
  std::array<char, 64> params;
  static_assert(sizeof params == GGML_MAX_OP_PARAMS);
  ggml_context* context = ggml_init({4 * ggml_tensor_overhead(), nullptr, true});
  if (context == nullptr) throw std::bad_alloc();
  ggml_tensor* argument = ggml_new_tensor_1d(context, GGML_TYPE_F32, 1);
  const ggml_tensor* prototype =
      ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, &argument, 1, function, GGML_N_TASKS_MAX, user_data);
  std::memcpy(params.data(), prototype->op_params, params.size());
  ggml_free(context);
  return params;
}

}  // namespace

std::optional<BlockFormat> packed_format(const ggml_tensor& weight) {
  const std::optional<BlockFormat> format = format_of(weight.type);
  const bool is_plain = weight.ne[2] == 1 && weight.ne[3] == 1 && ggml_is_contiguous(&weight);
  return format && is_plain && PackedMatrix::fits(*format, extent(weight, 1), extent(weight, 0)) ? format
                                                                                                 : std::nullopt;
}

std::unique_ptr<GraphKernels> GraphKernels::make(const KernelChoice& choice) {
  const bool has_faster = (choice.products != nullptr || choice.attend != nullptr) && !has_accelerator();
  if (!has_faster && !choice.is_deterministic) return nullptr;
  auto kernels = std::make_unique<GraphKernels>(choice);
  if (choice.is_deterministic && !is_cpu_alone()) {
    kernels->note_violation("libllama also computes on a device that is not the processor");
  }
  return kernels;
}

GraphKernels::GraphKernels(const KernelChoice& choice)
    : choice_(choice),
      attend_(op_params_of(&GraphKernels::attend, this)),
      multiply_by_rows_(op_params_of(&GraphKernels::multiply_by_rows, this)),
      row_products_(choice.is_deterministic ? RowProducts::make() : nullptr) {
  if (choice.is_deterministic && !row_products_) {
    note_violation("this build of libllama does not let others call its dot products");
  }
}

GraphKernels::~GraphKernels() = default;

GraphKernels::Weight::Weight(GraphKernels& owner, BlockFormat format, const ggml_tensor& tensor)
    : kernels(owner),
      matrix(*owner.choice_.products, format, tensor.data, extent(tensor, 1), extent(tensor, 0)),
      convert_and_multiply(converting_product(matrix.takes(), this)),
      multiply_only(plain_product(matrix.takes(), this)) {}

GraphKernels::OpParams GraphKernels::converting_product(ActivationForm form, void* weight) {
  if (form == ActivationForm::kFloats) return {};
  const bool is_quants = form == ActivationForm::kQuants;
  return op_params_of(is_quants ? &convert_and_multiply<ActivationBlock> : &convert_and_multiply<BfloatBlock>, weight);
}

GraphKernels::OpParams GraphKernels::plain_product(ActivationForm form, void* weight) {
  if (form == ActivationForm::kFloats) return op_params_of(&multiply_floats, weight);
  return op_params_of(form == ActivationForm::kQuants ? &multiply<ActivationBlock> : &multiply<BfloatBlock>, weight);
}

bool GraphKernels::on_node(ggml_tensor* node, bool, void* user_data) {
  auto& kernels = *static_cast<GraphKernels*>(user_data);
  try {
    kernels.replace(node);
  } catch (const std::bad_alloc&) {
    // There is no memory for a copy or for activations: ggml computes the node.
    if (kernels.choice_.is_deterministic) kernels.note_violation("there is no memory left for a matrix product");
  }
  return false;
}

void GraphKernels::replace(ggml_tensor* node) {
  // The node gets new values, which are not those that were converted.
  auto& [quants, bfloats] = converted_;
  if (quants.tensor == node) quants.tensor = nullptr;
  if (bfloats.tensor == node) bfloats.tensor = nullptr;
  if (node->op == GGML_OP_CUSTOM) return;  // replaced already
  if (!is_computed_by_processor(*node)) return;
  if (replace_by_packed_product(node) || replace_by_row_product(node) || replace_attention(node)) return;
  if (choice_.is_deterministic && !is_row_independent(*node)) {
    const ggml_tensor* input = node->src[node->op == GGML_OP_FLASH_ATTN_EXT ? 1 : 0];
    note_violation(std::string("its operation ") + ggml_op_desc(node) +
                   (input == nullptr ? "" : std::string(" of ") + ggml_type_name(input->type)) +
                   " rounds by what else is computed");
  }
}

bool GraphKernels::replace_by_packed_product(ggml_tensor* node) {
  if (node->op != GGML_OP_MUL_MAT) return false;
  const ggml_tensor* input = node->src[1];
  // The shape of the batch does not matter: the rows of several sequences come in as many planes.
  if (input->type != GGML_TYPE_F32 || input->nb[0] != sizeof(float)) return false;
  const Weight* weight = find(node->src[0]);
  if (weight == nullptr) return false;
  switch (weight->matrix.takes()) {
    case ActivationForm::kQuants:
      multiply_converted<ActivationBlock>(node, *weight);
      break;
    case ActivationForm::kBfloats:
      multiply_converted<BfloatBlock>(node, *weight);
      break;
    case ActivationForm::kFloats:
      become_custom(node, weight->multiply_only);
      break;
  }
  return true;
}

template <typename Block>
void GraphKernels::multiply_converted(ggml_tensor* node, const Weight& weight) {
  const ggml_tensor* input = node->src[1];
  auto& held = std::get<Converted<Block>>(converted_);
  const size_t n_blocks = row_count(*input) * weight.matrix.n_blocks();
  if (held.blocks.size() < n_blocks) held.blocks.resize(n_blocks);

  become_custom(node, input == held.tensor ? weight.multiply_only : weight.convert_and_multiply);
  // An input of the graph changes between two graphs without passing through on_node().
  held.tensor = input->op == GGML_OP_NONE ? nullptr : input;
}

bool GraphKernels::replace_by_row_product(ggml_tensor* node) {
  if (!row_products_ || !row_products_->can_compute(*node)) return false;
  row_products_->prepare(*node);
  become_custom(node, multiply_by_rows_);
  return true;
}

bool GraphKernels::replace_attention(ggml_tensor* node) {
  if (node->op != GGML_OP_FLASH_ATTN_EXT || choice_.attend == nullptr || !is_plain_attention(*node)) {
    return false;
  }
  const float scale = attention_params(*node)[kScale];
  become_custom(node, attend_);
  attention_params(*node)[kKeptScale] = scale;
  return true;
}

void GraphKernels::note_violation(const std::string& reason) {
  if (violation_.empty()) violation_ = reason;
}

void GraphKernels::become_custom(ggml_tensor* node, const OpParams& params) {
  node->op = GGML_OP_CUSTOM;
  std::memcpy(node->op_params, params.data(), params.size());
  is_used_ = true;
}

GraphKernels::Weight* GraphKernels::find(const ggml_tensor* tensor) {
  const auto known = weights_.find(tensor);
  if (known != weights_.end()) return known->second.get();
  if (!is_untouched_weight(*tensor)) return nullptr;
  return weights_.emplace(tensor, pack(tensor)).first->second.get();
}

std::unique_ptr<GraphKernels::Weight> GraphKernels::pack(const ggml_tensor* tensor) {
  const std::optional<BlockFormat> format = packed_format(*tensor);
  if (choice_.products == nullptr || !format ||
      ggml_nbytes(tensor) > choice_.max_bytes - std::min(bytes_, choice_.max_bytes)) {
    return nullptr;
  }
  auto weight = std::make_unique<Weight>(*this, *format, *tensor);
  bytes_ += weight->matrix.bytes();
  if (choice_.load != nullptr) choice_.load->note_packed(ggml_nbytes(tensor));
  // Whoever still reads a part of the original, as of the table of tokens, gets it from the file.
  const auto* const original = static_cast<const char*>(tensor->data);
  if (is_mapped(tensor->buffer)) give_back_pages(original, original + ggml_nbytes(tensor));
  return weight;
}

template <typename Block>
void GraphKernels::convert_share(const ggml_tensor& activations, int thread, int n_threads) {
  const size_t row_blocks = extent(activations, 0) / kBlockValues, n_blocks = row_blocks * row_count(activations);
  const size_t end = part_begin(n_blocks, thread + 1, n_threads);
  for (size_t block = part_begin(n_blocks, thread, n_threads), n; block < end; block += n) {
    const size_t column = block % row_blocks;
    n = std::min(row_blocks - column, end - block);
    const float* row = reinterpret_cast<const float*>(row_at(activations, block / row_blocks));
    convert(*choice_.products, row + column * kBlockValues, n, &std::get<Converted<Block>>(converted_).blocks[block]);
  }
}

template <typename Block>
void GraphKernels::convert_and_multiply(ggml_tensor* node, int thread, int n_threads, void* weight) {
  GraphKernels& kernels = static_cast<Weight*>(weight)->kernels;
  kernels.convert_share<Block>(*node->src[1], thread, n_threads);
  kernels.barrier_.wait(n_threads);
  multiply<Block>(node, thread, n_threads, weight);
}

template <typename Block>
void GraphKernels::multiply(ggml_tensor* node, int thread, int n_threads, void* weight) {
  const PackedMatrix& matrix = static_cast<Weight*>(weight)->matrix;
  matrix.multiply(std::get<Converted<Block>>(static_cast<Weight*>(weight)->kernels.converted_).blocks.data(),
                  row_count(*node), part_begin(matrix.n_groups(), thread, n_threads),
                  part_begin(matrix.n_groups(), thread + 1, n_threads), static_cast<float*>(node->data));
}

void GraphKernels::multiply_floats(ggml_tensor* node, int thread, int n_threads, void* weight) {
  const PackedMatrix& matrix = static_cast<Weight*>(weight)->matrix;
  const size_t from = part_begin(matrix.n_groups(), thread, n_threads),
               to = part_begin(matrix.n_groups(), thread + 1, n_threads), n_rows = row_count(*node);
  float* output = static_cast<float*>(node->data);
  const float* rows[PackedMatrix::kMostRows];
  for (size_t first = 0, n; first < n_rows; first += n) {
    n = std::min(n_rows - first, PackedMatrix::kMostRows);
    for (size_t i = 0; i < n; ++i) rows[i] = reinterpret_cast<const float*>(row_at(*node->src[1], first + i));
    matrix.multiply(rows, n, from, to, output + first * extent(*node, 0));
  }
}

void GraphKernels::multiply_by_rows(ggml_tensor* node, int thread, int n_threads, void* kernels) {
  static_cast<GraphKernels*>(kernels)->row_products_->compute(*node, thread, n_threads);
}

void GraphKernels::attend(ggml_tensor* node, int thread, int n_threads, void* kernels) {
  const Attend attend = static_cast<GraphKernels*>(kernels)->choice_.attend;
  const size_t n_tokens = extent(*node->src[0], 1), n_key_heads = extent(*node->src[1], 2);
  const size_t n_parts = n_tokens * n_key_heads * extent(*node->src[0], 3);
  // Threads take parts in turn, because later tokens of a prompt see more cells.
  for (size_t part = static_cast<size_t>(thread); part < n_parts; part += static_cast<size_t>(n_threads)) {
    const size_t row = part / n_key_heads;
    attend(attention_of(*node, row % n_tokens, part % n_key_heads, row / n_tokens));
  }
}

}  // namespace corosrv
