// With what a model is opened; ranges are checked at the C API.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/types.h"

namespace corosrv {

// Returns a path without its folders, as messages name it.
inline std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// Where the weights lie and how the context is made, in libllama's numbers; the C API says what each means.
struct Placement {
  int32_t gpu_layers = -1;
  std::vector<std::string> devices;
  int32_t split_mode = 1;
  int32_t main_gpu = 0;
  std::vector<float> tensor_split;
  int32_t flash_attn = -1;
  int32_t load_mode = -1;
  int32_t numa = 0;
  int32_t cache_type_k = 1;
  int32_t cache_type_v = 1;
  int32_t rope_scaling = -1;
  float rope_freq_base = 0;
  float rope_freq_scale = 0;
  float yarn_ext_factor = -1;
  float yarn_attn_factor = -1;
  float yarn_beta_fast = -1;
  float yarn_beta_slow = -1;
  int32_t yarn_orig_ctx = 0;

  // Returns how many layers of a model stay on the processor, of a machine with other devices: the first ones. The
  // output is one more, behind them.
  int32_t n_kept(int32_t n_layers) const {
    if (!devices.empty() && devices.front() == "none") return n_layers + 1;
    return gpu_layers < 0 ? 0 : std::max(n_layers + 1 - gpu_layers, 0);
  }
  // Returns whether a context may be longer than the model was trained for.
  bool stretches_context() const { return rope_scaling > 0 || rope_freq_base > 0 || rope_freq_scale > 0; }
};

// Who multiplies matrices and computes attention.
enum class KernelSet {
  kAuto,     // corosrv where it is faster and the processor can, else libllama
  kGgml,     // libllama alone
  kAvx2,     // as kAuto, on a processor that has AVX2 and nothing newer
  kAvxVnni,  // as kAvx2, with the dot products of AVX-VNNI where it has them
};

// Where the largest logits of a row are found.
enum class CandidateSource {
  kAuto,       // on the device of the output layer, where that is not the processor
  kDevice,     // there in any case
  kProcessor,  // which gets all logits
};

// A model of a GGUF file.
struct ModelOptions {
  std::string path;
  std::vector<std::string> adapters;  // paths of LoRA adapters, in the order of their numbers
  int32_t context = 0;                // tokens per slot; 0 is what the model was trained for
  int32_t slots = 1;                  // sequences decoded at once
  int32_t rows = 1;                   // of one step, at most
  int32_t threads = 0;                // that compute; 0 lets libllama choose
  std::optional<Pooling> pooling;     // none: as the model says
  bool shares_context = false;        // one sequence may use what all slots have together
  bool is_deterministic = false;      // no result depends on the shape of a batch; slower on long prompts
  bool shifts_context = false;        // whatever generates here has to be able to
  bool is_safe = false;               // no repacked weights (libllama's use_extra_bufts=false)
  KernelSet kernels = KernelSet::kAuto;
  CandidateSource candidates = CandidateSource::kAuto;
  uint64_t copy_bytes = 0;  // that these may take for weights in another order, at most
  Placement placement;
};

// A made-up model that emits tokens at a set rate.
struct SyntheticOptions {
  double tokens_per_s = 0;          // of each sequence; 0 is as fast as the loop goes
  double prefill_tokens_per_s = 0;  // of all sequences together; 0 is at once
  int32_t length = 0;               // tokens until the model ends a sequence by itself; 0 is never
};

}  // namespace corosrv
