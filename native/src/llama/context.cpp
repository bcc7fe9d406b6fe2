#include "llama/context.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "model/backend.h"

namespace corosrv {

namespace {

// Bytes that the kernel says can still be had, or a very large number where it does not say.
double available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    double kilobytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lf kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

// Bytes of KV cache in 16-bit floats. Models without attention have no heads.
double kv_bytes(const llama_model* model, double n_cells) {
  if (llama_model_n_head(model) == 0) return 0;
  const double head = static_cast<double>(llama_model_n_embd(model)) / llama_model_n_head(model);
  return n_cells * llama_model_n_layer(model) * llama_model_n_head_kv(model) * head * 2 * 2;
}

}  // namespace

int32_t rows_of_step(const corosrv_options& options, const ContextWish& wish) {
  return wish.reads_whole ? std::max(options.batch, wish.tokens) : options.batch;
}

llama_context_params context_params(const corosrv_options& options, const ContextWish& wish) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(wish.tokens) * static_cast<uint32_t>(options.slots);
  params.n_seq_max = static_cast<uint32_t>(options.slots);
  const int32_t rows = rows_of_step(options, wish);
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(rows);
  const int32_t most_read = std::max(options.slots + kMostScoredRows, kVectorRows);
  params.n_outputs_max = static_cast<uint32_t>(wish.reads_whole ? rows : std::min(most_read, rows));
  params.embeddings = wish.reads_whole;
  params.pooling_type = wish.pooling == Pooling::kRank ? LLAMA_POOLING_TYPE_RANK : LLAMA_POOLING_TYPE_NONE;
  if (options.threads > 0) params.n_threads = params.n_threads_batch = options.threads;
  // One stream per sequence: no attention over the neighbours' cells, and what is not a number in one sequence stays
  // there.
  params.kv_unified = false;
  // For this type of cache libllama has one kernel, whatever the number of rows and tokens; for 16-bit floats it has
  // three, which round differently.
  if (options.deterministic != 0) params.type_k = params.type_v = GGML_TYPE_BF16;
  params.no_perf = true;
  if (wish.kernels != nullptr) {
    params.cb_eval = &GraphKernels::on_node;
    params.cb_eval_user_data = wish.kernels;
  }
  return params;
}

Status check_memory(const llama_model* model, int32_t slots, int32_t context) {
  const double wanted = kv_bytes(model, static_cast<double>(slots) * context);
  const double available = available_memory();
  if (wanted <= available) return Status::ok();
  char text[256];
  std::snprintf(text, sizeof text,
                "%d slots of %d tokens need %.1f GB of KV cache, and %.1f GB of memory are available: lower "
                "COROSRV_SLOTS or COROSRV_CTX",
                slots, context, wanted / 1e9, available / 1e9);
  return Status(COROSRV_INVALID, text);
}

std::unique_ptr<GraphKernels> make_kernels(const corosrv_options& options, const llama_model* model, int32_t context,
                                           bool is_deterministic) {
  const double left = available_memory() - kv_bytes(model, static_cast<double>(options.slots) * context);
  KernelChoice choice;
  choice.is_faster_allowed = options.kernels != COROSRV_KERNELS_GGML;
  // Packed weights may take half of what the cache leaves: the other half is everybody else's.
  choice.max_bytes = static_cast<size_t>(std::clamp(left / 2, 0.0, 1e18));
  choice.is_deterministic = is_deterministic;
  return GraphKernels::make(choice);
}

}  // namespace corosrv
