#include "llama/context.h"

#include <algorithm>

#include "llama/buffer_zeros.h"
#include "llama/weight_places.h"
#include "model/backend.h"

namespace corosrv {

namespace {

ggml_type cache_type(const ModelOptions& options, int32_t chosen) {
  // libllama has one attention kernel for caches of bfloat16, for any number of rows and tokens. For 16-bit floats it
  // has three, which round differently.
  return options.is_deterministic ? GGML_TYPE_BF16 : static_cast<ggml_type>(chosen);
}

// Returns whether nodes of graphs are watched: ggml then waits for each device in turn, which costs more than our
// kernels win where others have the larger part.
bool watches_nodes(const ModelOptions& options, const llama_model* model) {
  return !llama_supports_gpu_offload() || stays_mostly(options.path, options.placement, llama_model_n_layer(model));
}

bool has_device_candidates(const ModelOptions& options, const ContextPurpose& purpose, const llama_model* model) {
  if (purpose.reads_whole || llama_vocab_n_tokens(llama_model_get_vocab(model)) <= kPickedLogits) return false;
  switch (options.candidates) {
    case CandidateSource::kDevice:
      return true;
    case CandidateSource::kProcessor:
      return false;
    case CandidateSource::kAuto:
      break;
  }
  const int32_t n_layers = llama_model_n_layer(model);
  return llama_supports_gpu_offload() && options.placement.n_kept(n_layers) <= n_layers;
}

llama_context_params context_params(const ModelOptions& options, const ContextPurpose& purpose) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(purpose.tokens) * static_cast<uint32_t>(options.slots);
  params.n_seq_max = static_cast<uint32_t>(options.slots);
  const int32_t rows = rows_of_step(options, purpose);
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(rows);
  const int32_t most_read = std::max(options.slots + kMostScoredRows, kVectorRows);
  params.n_outputs_max = static_cast<uint32_t>(purpose.reads_whole ? rows : std::min(most_read, rows));
  params.embeddings = purpose.reads_whole;
  params.pooling_type = purpose.pooling == Pooling::kRank ? LLAMA_POOLING_TYPE_RANK : LLAMA_POOLING_TYPE_NONE;
  if (options.threads > 0) params.n_threads = params.n_threads_batch = options.threads;
  // One stream per sequence: no attention over the neighbours' cells, and a NaN in one sequence stays there. One stream
  // for all: a sequence may take the cells that others leave.
  params.kv_unified = shares_context(options, purpose);
  const Placement& placement = options.placement;
  params.type_k = cache_type(options, placement.cache_type_k);
  params.type_v = cache_type(options, placement.cache_type_v);
  params.flash_attn_type = static_cast<llama_flash_attn_type>(placement.flash_attn);
  params.rope_scaling_type = static_cast<llama_rope_scaling_type>(placement.rope_scaling);
  params.rope_freq_base = placement.rope_freq_base;
  params.rope_freq_scale = placement.rope_freq_scale;
  params.yarn_ext_factor = placement.yarn_ext_factor;
  params.yarn_attn_factor = placement.yarn_attn_factor;
  params.yarn_beta_fast = placement.yarn_beta_fast;
  params.yarn_beta_slow = placement.yarn_beta_slow;
  params.yarn_orig_ctx = static_cast<uint32_t>(placement.yarn_orig_ctx);
  params.no_perf = true;
  return params;
}

}  // namespace

int32_t rows_of_step(const ModelOptions& options, const ContextPurpose& purpose) {
  return purpose.reads_whole ? std::max(options.rows, purpose.tokens) : options.rows;
}

Context make_context(llama_model* model, const ModelOptions& options, const ContextPurpose& purpose) {
  fill_buffers_without_memory();
  llama_context_params params = context_params(options, purpose);
  Context context;
  if (purpose.kernels != nullptr || watches_nodes(options, model)) {
    context.pages = std::make_unique<SlotPages>(purpose.kernels);
    params.cb_eval = &SlotPages::on_node;
    params.cb_eval_user_data = context.pages.get();
  }
  if (has_device_candidates(options, purpose, model)) {
    const int32_t n_kept = std::min(options.slots + kMostScoredRows, rows_of_step(options, purpose));
    context.candidates = std::make_unique<DeviceCandidates>(model, options.slots, n_kept);
    context.candidates->attach(params);
  }
  context.handle.reset(llama_init_from_model(model, params));
  if (context && context.candidates && !context.candidates->is_attached()) {
    context.handle.reset();
    context.candidates.reset();
    params.samplers = nullptr;
    params.n_samplers = 0;
    context.handle.reset(llama_init_from_model(model, params));
  }
  if (context && context.pages) context.pages->find(context.get());
  return context;
}

const ProductKernels* products_of(KernelSet kernels) {
  switch (kernels) {
    case KernelSet::kGgml:
      return nullptr;
    case KernelSet::kAvx2:
      return avx2_products();
    case KernelSet::kAvxVnni:
      return avx_vnni_products() != nullptr ? avx_vnni_products() : avx2_products();
    case KernelSet::kAuto:
      break;
  }
  return best_products();
}

std::unique_ptr<GraphKernels> make_kernels(const ModelOptions& options, const llama_model* model, bool is_deterministic,
                                           LoadWatch& load) {
  KernelChoice choice{};
  const bool is_faster_allowed = options.kernels != KernelSet::kGgml && watches_nodes(options, model);
  choice.products = is_faster_allowed ? products_of(options.kernels) : nullptr;
  if (is_faster_allowed) {
    const bool is_best_allowed = options.kernels == KernelSet::kAuto;
    choice.attend = is_best_allowed ? best_attention() : avx2_attention();
    choice.elements = is_best_allowed ? best_elements() : avx2_elements();
  }
  choice.max_bytes = static_cast<size_t>(options.copy_bytes);
  choice.is_deterministic = is_deterministic;
  choice.load = &load;
  return GraphKernels::make(choice);
}

}  // namespace corosrv
