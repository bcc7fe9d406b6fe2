#include "kernels/graph_kernels.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

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
    case GGML_TYPE_Q2_K:
      return BlockFormat::kQ2_K;
    case GGML_TYPE_Q3_K:
      return BlockFormat::kQ3_K;
    case GGML_TYPE_Q4_K:
      return BlockFormat::kQ4_K;
    case GGML_TYPE_Q5_K:
      return BlockFormat::kQ5_K;
    case GGML_TYPE_Q6_K:
      return BlockFormat::kQ6_K;
    case GGML_TYPE_IQ4_XS:
      return BlockFormat::kIQ4_XS;
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

// Indices of an attention node's parameters, as floats.
enum AttentionParam { kScale = 0, kMaxBias = 1, kSoftcap = 2 };

const float* attention_params(const ggml_tensor& node) { return reinterpret_cast<const float*>(node.op_params); }

bool has_cells_of_halves(const ggml_tensor& cache, const ggml_tensor& queries) {
  return cache.type == GGML_TYPE_F16 && cache.nb[0] == 2 && cache.ne[0] == queries.ne[0] &&
         cache.ne[3] == queries.ne[3];
}

bool is_row_of_floats(const ggml_tensor& tensor) {
  return tensor.type == GGML_TYPE_F32 && tensor.nb[0] == sizeof(float) && row_count(tensor) == 1;
}

// Returns whether attend() can compute a node: it has no bias by distance, no cap, and a cache of 16-bit floats.
bool is_plain_attention(const ggml_tensor& node) {
  const ggml_tensor &queries = *node.src[0], &keys = *node.src[1], &values = *node.src[2];
  const ggml_tensor *mask = node.src[3], *sinks = node.src[4];
  return queries.type == GGML_TYPE_F32 && queries.nb[0] == 4 && queries.ne[0] % kHeadStep == 0 &&
         has_cells_of_halves(keys, queries) && has_cells_of_halves(values, queries) && keys.ne[2] == values.ne[2] &&
         queries.ne[2] % keys.ne[2] == 0 && mask != nullptr && mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 &&
         mask->ne[2] == 1 && mask->ne[3] == queries.ne[3] &&
         (sinks == nullptr || (sinks->op == GGML_OP_NONE && is_row_of_floats(*sinks))) &&
         attention_params(node)[kMaxBias] == 0 && attention_params(node)[kSoftcap] == 0;
}

// Returns the heads of an attention node that share a key head.
size_t heads_together(const ggml_tensor& node) { return extent(*node.src[0], 2) / extent(*node.src[1], 2); }

// Returns the part of a node that belongs to one token of one stream and one key head.
Attention attention_of(const ggml_tensor& node, float scale, size_t token, size_t key_head, size_t stream) {
  const ggml_tensor &queries = *node.src[0], &keys = *node.src[1], &values = *node.src[2], &mask = *node.src[3];
  Attention a;
  a.head_size = extent(queries, 0);
  a.n_heads = heads_together(node);
  a.queries = reinterpret_cast<const float*>(row_at(queries, token, key_head * a.n_heads, stream));
  a.query_stride = queries.nb[2];
  a.n_cells = extent(keys, 1);
  a.mask = reinterpret_cast<const uint16_t*>(row_at(mask, token, 0, stream));
  a.keys = row_at(keys, 0, key_head, stream);
  a.key_stride = keys.nb[1];
  a.values = row_at(values, 0, key_head, stream);
  a.value_stride = values.nb[1];
  a.scale = scale;
  const size_t row = (stream * extent(queries, 1) + token) * extent(queries, 2) + key_head * a.n_heads;
  a.output = static_cast<float*>(node.data) + row * a.head_size;
  if (node.src[4] != nullptr) a.sinks = static_cast<const float*>(node.src[4]->data) + key_head * a.n_heads;
  return a;
}

// Calls `attend` with a thread's parts of an attention node. Threads take parts in turn, because later tokens of a
// prompt see more cells.
template <typename AttendPart>
void for_each_part(const Step& step, int thread, int n_threads, AttendPart attend) {
  const ggml_tensor& node = *step.node;
  const size_t n_tokens = extent(*node.src[0], 1), n_key_heads = extent(*node.src[1], 2);
  const size_t n_parts = n_tokens * n_key_heads * extent(*node.src[0], 3);
  for (size_t part = static_cast<size_t>(thread); part < n_parts; part += static_cast<size_t>(n_threads)) {
    const size_t row = part / n_key_heads;
    attend(attention_of(node, step.number, row % n_tokens, part % n_key_heads, row / n_tokens));
  }
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

void convert_values(const ProductKernels& products, const float* values, size_t n_blocks, ActivationBlock* to) {
  products.quantize(values, n_blocks, to);
}
void convert_values(const ProductKernels& products, const float* values, size_t n_blocks, BfloatBlock* to) {
  products.round(values, n_blocks, to);
}

// Returns whether a node computes nothing: ggml skips it.
bool is_empty(const ggml_tensor& node) {
  if (ggml_is_empty(&node)) return true;  // as those of a step that asks for no logits
  switch (node.op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    default:
      return false;
  }
}

// Returns whether a tensor has the numbers of a node in the same order.
bool is_same_as(const ggml_tensor& tensor, const ggml_tensor& node) {
  return (&tensor == &node || tensor.view_src == &node) && tensor.data == node.data && ggml_is_contiguous(&tensor) &&
         ggml_is_contiguous(&node) && ggml_nelements(&tensor) == ggml_nelements(&node);
}

// Threads take pairs of groups, whose columns are a block of the next product, where there are such.
Division by_groups(const ggml_tensor& weight) {
  const size_t n_groups = extent(weight, 1) / kGroupRows, n_together = n_groups % 2 == 0 ? 2 : 1;
  return {Division::Kind::kColumns, n_groups / n_together, n_together * kGroupRows};
}

// What is shared by steps in ways that they alone know.
const Access kEverything{nullptr, reinterpret_cast<const void*>(~uintptr_t{0}), true, {}};

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
  const bool is_plain = weight.ne[3] == 1 && ggml_is_contiguous(&weight);
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
    : choice_(choice), row_products_(choice.is_deterministic ? RowProducts::make() : nullptr) {
  if (choice.elements != nullptr) elements_.emplace(*choice.elements);
  if (choice.is_deterministic && !row_products_) {
    note_violation("this build of libllama does not let others call its dot products");
  }
}

GraphKernels::~GraphKernels() = default;

GraphKernels::Run::Run(GraphKernels& owner) : kernels(owner), params(op_params_of(&GraphKernels::compute, this)) {}

GraphKernels::Weight::Weight(GraphKernels& owner, BlockFormat format, const ggml_tensor& tensor)
    : kernels(owner), matrix(*owner.choice_.products, format, tensor.data, row_count(tensor), extent(tensor, 0)) {}

bool GraphKernels::on_node(ggml_tensor* node, bool, void* user_data) {
  auto& kernels = *static_cast<GraphKernels*>(user_data);
  try {
    kernels.replace(node);
  } catch (const std::bad_alloc&) {
    // There is no memory for a copy or for activations: ggml computes the node. What it needs may be noted as computed
    // though its step was not added.
    kernels.forget_graph();
    if (kernels.choice_.is_deterministic) kernels.note_violation("there is no memory left for an operation");
  }
  return false;
}

void GraphKernels::replace(ggml_tensor* node) {
  if (std::exchange(was_computed_, false)) forget_graph();
  if (is_empty(*node) || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) return;
  if (node->op == GGML_OP_CUSTOM) return forget_graph();  // replaced already
  if (!is_computed_by_processor(*node)) {
    run_ = nullptr;
    return;
  }
  if (add(node)) return carry(node);
  run_ = nullptr;
  if (choice_.is_deterministic && !is_row_independent(*node)) {
    const ggml_tensor* input = node->src[node->op == GGML_OP_FLASH_ATTN_EXT ? 1 : 0];
    note_violation(std::string("its operation ") + ggml_op_desc(node) +
                   (input == nullptr ? "" : std::string(" of ") + ggml_type_name(input->type)) +
                   " rounds by what else is computed");
  }
}

bool GraphKernels::add(ggml_tensor* node) {
  if (add_packed_product(node) || add_expert_product(node) || add_row_product(node) || add_attention(node)) {
    is_used_ = true;
    return true;
  }
  return elements_ && ElementSteps::may_add(*node) && elements_->add(run_of(node), node);
}

void GraphKernels::forget_graph() {
  const auto forget = [](auto& converted) {
    for (auto& buffer : converted.buffers) buffer.tensor = nullptr;
  };
  sorted_ids_ = nullptr;
  std::apply([&](auto&... all) { (forget(all), ...); }, converted_);
  if (elements_) elements_->forget_inputs();
  run_ = nullptr;
}

// A run that begins with a node of the same address belongs to a graph that is no more.
NodeRun& GraphKernels::run_of(ggml_tensor* node) {
  if (run_ == nullptr) {
    std::unique_ptr<Run>& run = runs_[node];
    if (!run) run = std::make_unique<Run>(*this);
    run->nodes.clear();
    run_ = run.get();
    carrier_ = nullptr;
  }
  return run_->nodes;
}

void GraphKernels::carry(ggml_tensor* node) {
  if (carrier_ != nullptr) carrier_->op = GGML_OP_NONE;
  node->op = GGML_OP_CUSTOM;
  std::memcpy(node->op_params, run_->params.data(), run_->params.size());
  carrier_ = node;
}

bool GraphKernels::add_packed_product(ggml_tensor* node) {
  if (node->op != GGML_OP_MUL_MAT) return false;
  const ggml_tensor& input = *node->src[1];
  // The shape of the batch does not matter: the rows of several sequences come in as many planes.
  if (input.type != GGML_TYPE_F32 || input.nb[0] != sizeof(float) || node->src[0]->ne[2] != 1) return false;
  const Weight* weight = find(node->src[0]);
  if (weight == nullptr) return false;
  NodeRun& run = run_of(node);
  switch (weight->matrix.takes()) {
    case ActivationForm::kQuants:
      add_converted_product<ActivationBlock>(run, node, *weight);
      break;
    case ActivationForm::kBfloats:
      add_converted_product<BfloatBlock>(run, node, *weight);
      break;
    case ActivationForm::kFloats:
      const Division division = by_groups(*node->src[0]);
      run.add({&multiply_floats, node, weight, division}, {reads(input), writes(*node, division)});
      break;
  }
  return true;
}

template <typename Block>
void GraphKernels::add_converted_product(NodeRun& run, ggml_tensor* node, const Weight& weight) {
  const ggml_tensor* input = node->src[1];
  auto& converted = std::get<Converted<Block>>(converted_);
  size_t buffer = 0;
  while (buffer < 2 && !converted.buffers[buffer].has(input, nullptr)) ++buffer;
  if (buffer == 2) buffer = add_conversion<Block>(run, node, weight);

  const Division division = by_groups(*node->src[0]);
  Step step{&multiply<Block>, node, &weight, division};
  step.buffer = buffer;
  run.add(step, {access_to_buffer<Block>(buffer, false), writes(*node, division)});
}

// Where the last step computes the activations, each thread converts what it has computed.
template <typename Block>
size_t GraphKernels::add_conversion(NodeRun& run, ggml_tensor* product, const Weight& weight) {
  const ggml_tensor& input = *product->src[1];
  const size_t buffer = take_buffer<Block>(input, nullptr, row_count(input) * weight.matrix.n_blocks());
  Step step{&convert_parts<Block>, product, this};
  step.buffer = buffer;
  Division division;
  if (!run.is_empty() && is_same_as(input, *run.from_end(1).node)) {
    const Step& last = run.from_end(1);
    const bool is_attention = last.compute == &attend;
    const size_t n_numbers = is_attention ? extent(*last.node, 0) * heads_together(*last.node) : last.division.size;
    if (is_attention && n_numbers % kBlockValues == 0) {
      run.extend(&attend_and_convert<Block>, buffer, access_to_buffer<Block>(buffer, true));
      return buffer;
    }
    if (last.division.kind == Division::Kind::kRows && last.division.n_parts == row_count(input)) {
      step.compute = &convert_rows<Block>;
      division = last.division;
    } else if (last.division.kind == Division::Kind::kColumns && n_numbers % kBlockValues == 0 &&
               last.node->ne[0] == input.ne[0]) {
      step.compute = &convert_columns<Block>;
      division = last.division;
    }
  }
  step.division = division;
  run.add(step, {reads(input, division), access_to_buffer<Block>(buffer, true, division)});
  return buffer;
}

template <typename Block>
size_t GraphKernels::take_buffer(const ggml_tensor& input, const ggml_tensor* ids, size_t n_blocks) {
  auto& converted = std::get<Converted<Block>>(converted_);
  const size_t taken = 1 - converted.last;
  auto& buffer = converted.buffers[taken];
  buffer.tensor = nullptr;
  if (buffer.blocks.size() < n_blocks) buffer.blocks.resize(n_blocks);
  buffer.tensor = &input;
  buffer.ids = ids;
  converted.last = taken;
  return taken;
}

// The activations of the experts of a mixture come in the order of the experts, which is known when they are computed.
bool GraphKernels::add_expert_product(ggml_tensor* node) {
  if (node->op != GGML_OP_MUL_MAT_ID) return false;
  const ggml_tensor &weights = *node->src[0], &input = *node->src[1], &ids = *node->src[2];
  if (input.type != GGML_TYPE_F32 || input.nb[0] != sizeof(float) || input.ne[3] != 1) return false;
  const Weight* weight = find(&weights);
  if (weight == nullptr) return false;
  NodeRun& run = run_of(node);
  experts_.reserve(*node);
  if (sorted_ids_ != &ids) {
    run.add({&sort_by_expert, node, this}, {reads(ids), access_to_experts(true)});
    sorted_ids_ = &ids;
  }
  switch (weight->matrix.takes()) {
    case ActivationForm::kQuants:
      add_converted_expert_product<ActivationBlock>(run, node, *weight);
      break;
    case ActivationForm::kBfloats:
      add_converted_expert_product<BfloatBlock>(run, node, *weight);
      break;
    case ActivationForm::kFloats:
      const Division division = by_groups(weights);
      run.add({&multiply_floats_by_experts, node, weight, division},
              {reads(input), access_to_experts(false), writes(*node, division)});
      break;
  }
  return true;
}

template <typename Block>
void GraphKernels::add_converted_expert_product(NodeRun& run, ggml_tensor* node, const Weight& weight) {
  const ggml_tensor &input = *node->src[1], *ids = node->src[2];
  auto& buffers = std::get<Converted<Block>>(converted_).buffers;
  size_t buffer = 0;
  while (buffer < 2 && !buffers[buffer].has(&input, ids)) ++buffer;
  if (buffer == 2) {
    buffer = take_buffer<Block>(input, ids, row_count(*node) * weight.matrix.n_blocks());
    Step conversion{&convert_for_experts<Block>, node, this};
    conversion.buffer = buffer;
    run.add(conversion, {reads(input), access_to_experts(false), access_to_buffer<Block>(buffer, true)});
  }
  const Division division = by_groups(*node->src[0]);
  Step step{&multiply_by_experts<Block>, node, &weight, division};
  step.buffer = buffer;
  run.add(step, {access_to_buffer<Block>(buffer, false), access_to_experts(false), writes(*node, division)});
}

Access GraphKernels::access_to_experts(bool is_written) const { return {&experts_, &experts_ + 1, is_written, {}}; }

template <typename Block>
Access GraphKernels::access_to_buffer(size_t index, bool is_written, Division division) {
  const auto* const place = &std::get<Converted<Block>>(converted_).buffers[index];
  return {place, place + 1, is_written, division};
}

bool GraphKernels::add_row_product(ggml_tensor* node) {
  if (!row_products_ || !row_products_->can_compute(*node)) return false;
  row_products_->prepare(*node);
  run_of(node).add({&multiply_by_rows, node, this}, {kEverything});
  return true;
}

bool GraphKernels::add_attention(ggml_tensor* node) {
  if (node->op != GGML_OP_FLASH_ATTN_EXT || choice_.attend == nullptr || !is_plain_attention(*node)) {
    return false;
  }
  Step step{&attend, node, this};
  step.number = attention_params(*node)[kScale];
  run_of(node).add(
      step, {reads(*node->src[0]), reads(*node->src[1]), reads(*node->src[2]), reads(*node->src[3]), writes(*node)});
  return true;
}

void GraphKernels::note_violation(const std::string& reason) {
  if (violation_.empty()) violation_ = reason;
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

void GraphKernels::compute(ggml_tensor*, int thread, int n_threads, void* run) {
  if (thread == 0) static_cast<Run*>(run)->kernels.was_computed_ = true;
  static_cast<Run*>(run)->nodes.compute(thread, n_threads);
}

template <typename Block>
void GraphKernels::convert(const ggml_tensor& tensor, size_t row, size_t column, size_t n_blocks, Block* to) const {
  const auto* const values = reinterpret_cast<const float*>(row_at(tensor, row));
  convert_values(*choice_.products, values + column * kBlockValues, n_blocks, to);
}

template <typename Block>
void GraphKernels::convert_parts(const Step& step, int thread, int n_threads) {
  auto& kernels = *static_cast<GraphKernels*>(const_cast<void*>(step.context));
  Block* const blocks = std::get<Converted<Block>>(kernels.converted_).buffers[step.buffer].blocks.data();
  const ggml_tensor& activations = *step.node->src[1];
  const size_t row_blocks = extent(activations, 0) / kBlockValues;
  const ThreadShare share = share_of(row_blocks * row_count(activations), thread, n_threads);
  for (size_t block = share.from, n; block < share.to; block += n) {
    const size_t column = block % row_blocks;
    n = std::min(row_blocks - column, share.to - block);
    kernels.convert(activations, block / row_blocks, column, n, blocks + block);
  }
}

template <typename Block>
void GraphKernels::convert_rows(const Step& step, int thread, int n_threads) {
  auto& kernels = *static_cast<GraphKernels*>(const_cast<void*>(step.context));
  Block* const blocks = std::get<Converted<Block>>(kernels.converted_).buffers[step.buffer].blocks.data();
  const ggml_tensor& activations = *step.node->src[1];
  const size_t row_blocks = extent(activations, 0) / kBlockValues;
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  for (size_t row = share.from; row < share.to; ++row) {
    kernels.convert(activations, row, 0, row_blocks, blocks + row * row_blocks);
  }
}

template <typename Block>
void GraphKernels::convert_columns(const Step& step, int thread, int n_threads) {
  auto& kernels = *static_cast<GraphKernels*>(const_cast<void*>(step.context));
  Block* const blocks = std::get<Converted<Block>>(kernels.converted_).buffers[step.buffer].blocks.data();
  const ggml_tensor& activations = *step.node->src[1];
  const size_t row_blocks = extent(activations, 0) / kBlockValues;
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  const size_t part = step.division.size / kBlockValues, from = share.from * part, n = share.to * part - from;
  for (size_t row = 0; row < row_count(activations); ++row) {
    kernels.convert(activations, row, from, n, blocks + row * row_blocks + from);
  }
}

template <typename Block>
void GraphKernels::multiply(const Step& step, int thread, int n_threads) {
  const auto& weight = *static_cast<const Weight*>(step.context);
  const auto& buffer = std::get<Converted<Block>>(weight.kernels.converted_).buffers[step.buffer];
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  const size_t n_together = step.division.size / kGroupRows;
  weight.matrix.multiply(buffer.blocks.data(), row_count(*step.node), share.from * n_together, share.to * n_together,
                         static_cast<float*>(step.node->data));
}

void GraphKernels::multiply_floats(const Step& step, int thread, int n_threads) {
  const PackedMatrix& matrix = static_cast<const Weight*>(step.context)->matrix;
  const ggml_tensor &node = *step.node, &activations = *node.src[1];
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  const size_t n_together = step.division.size / kGroupRows, n_rows = row_count(node);
  auto* const output = static_cast<float*>(node.data);
  const float* rows[PackedMatrix::kMostRows];
  for (size_t first = 0, n; first < n_rows; first += n) {
    n = std::min(n_rows - first, PackedMatrix::kMostRows);
    for (size_t i = 0; i < n; ++i) rows[i] = reinterpret_cast<const float*>(row_at(activations, first + i));
    matrix.multiply(rows, n, share.from * n_together, share.to * n_together, output + first * extent(node, 0));
  }
}

void GraphKernels::sort_by_expert(const Step& step, int thread, int) {
  if (thread == 0) static_cast<GraphKernels*>(const_cast<void*>(step.context))->experts_.sort(*step.node);
}

template <typename Block>
void GraphKernels::convert_for_experts(const Step& step, int thread, int n_threads) {
  auto& kernels = *static_cast<GraphKernels*>(const_cast<void*>(step.context));
  Block* const blocks = std::get<Converted<Block>>(kernels.converted_).buffers[step.buffer].blocks.data();
  const ggml_tensor &node = *step.node, &activations = *node.src[1];
  const size_t row_blocks = extent(activations, 0) / kBlockValues;
  const ThreadShare share = share_of(row_count(node), thread, n_threads);
  for (size_t i = share.from; i < share.to; ++i) {
    const size_t input = expert_input(node, kernels.experts_.row(i));
    kernels.convert(activations, input, 0, row_blocks, blocks + i * row_blocks);
  }
}

template <typename Block>
void GraphKernels::multiply_by_experts(const Step& step, int thread, int n_threads) {
  const auto& weight = *static_cast<const Weight*>(step.context);
  const Block* const blocks = std::get<Converted<Block>>(weight.kernels.converted_).buffers[step.buffer].blocks.data();
  for_each_expert(step, thread, n_threads, [&](size_t first, size_t n, size_t from, size_t to, float* const* outputs) {
    weight.matrix.multiply(blocks + first * weight.matrix.n_blocks(), n, from, to, outputs);
  });
}

void GraphKernels::multiply_floats_by_experts(const Step& step, int thread, int n_threads) {
  const auto& weight = *static_cast<const Weight*>(step.context);
  const ggml_tensor &node = *step.node, &activations = *node.src[1];
  for_each_expert(step, thread, n_threads, [&](size_t first, size_t n, size_t from, size_t to, float* const* outputs) {
    const float* rows[PackedMatrix::kMostRows];
    for (size_t i = 0; i < n; ++i) {
      const size_t input = expert_input(node, weight.kernels.experts_.row(first + i));
      rows[i] = reinterpret_cast<const float*>(row_at(activations, input));
    }
    weight.matrix.multiply(rows, n, from, to, outputs);
  });
}

// Calls `multiply` with some rows of each expert that has any: the first one in the order, their number, the thread's
// groups of the expert's matrix, and where their outputs begin.
template <typename Multiply>
void GraphKernels::for_each_expert(const Step& step, int thread, int n_threads, Multiply multiply) {
  const ExpertOrder& experts = static_cast<const Weight*>(step.context)->kernels.experts_;
  const ggml_tensor &node = *step.node, &weights = *node.src[0];
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  const size_t n_together = step.division.size / kGroupRows, n_groups = extent(weights, 1) / kGroupRows;
  float* outputs[PackedMatrix::kMostRows];
  for (size_t expert = 0; expert < extent(weights, 2); ++expert) {
    for (size_t first = experts.begin(expert), n; first < experts.end(expert); first += n) {
      n = std::min(experts.end(expert) - first, PackedMatrix::kMostRows);
      for (size_t i = 0; i < n; ++i) {
        auto* const row = reinterpret_cast<float*>(row_at(node, experts.row(first + i)));
        outputs[i] = row + share.from * step.division.size;
      }
      const size_t base = expert * n_groups;
      multiply(first, n, base + share.from * n_together, base + share.to * n_together, outputs);
    }
  }
}

void GraphKernels::multiply_by_rows(const Step& step, int thread, int n_threads) {
  static_cast<const GraphKernels*>(step.context)->row_products_->compute(*step.node, thread, n_threads);
}

void GraphKernels::attend(const Step& step, int thread, int n_threads) {
  const Attend attend = static_cast<const GraphKernels*>(step.context)->choice_.attend;
  for_each_part(step, thread, n_threads, attend);
}

template <typename Block>
void GraphKernels::attend_and_convert(const Step& step, int thread, int n_threads) {
  auto& kernels = *static_cast<GraphKernels*>(const_cast<void*>(step.context));
  Block* const blocks = std::get<Converted<Block>>(kernels.converted_).buffers[step.buffer].blocks.data();
  for_each_part(step, thread, n_threads, [&](const Attention& part) {
    kernels.choice_.attend(part);
    const size_t first = static_cast<size_t>(part.output - static_cast<const float*>(step.node->data)) / kBlockValues;
    convert_values(*kernels.choice_.products, part.output, part.n_heads * part.head_size / kBlockValues,
                   blocks + first);
  });
}

}  // namespace corosrv
