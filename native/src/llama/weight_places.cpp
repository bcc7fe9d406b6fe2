#include "llama/weight_places.h"

#include <ggml.h>
#include <gguf.h>
#include <llama.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace corosrv {

namespace {

constexpr const char* kPartsKey = "split.count";
constexpr size_t kLongestPath = 4096;

struct FreeFile {
  void operator()(gguf_context* file) const { gguf_free(file); }
};
using File = std::unique_ptr<gguf_context, FreeFile>;

File open(const std::string& path) { return File(gguf_init_from_file(path.c_str(), {true, nullptr})); }

bool begins_with(const char* name, const char* beginning) {
  return std::strncmp(name, beginning, std::strlen(beginning)) == 0;
}

// Bytes of weights that are multiplied by.
struct Weights {
  size_t here = 0, elsewhere = 0;
  size_t table = 0;         // of the tokens' embeddings: they are looked up,
  bool has_output = false;  // and multiplied by where there is no other output layer

  void add(size_t n_bytes, bool is_here) { (is_here ? here : elsewhere) += n_bytes; }
};

// Layers go to other devices from the last one on, and before them the output, which is behind the last one.
void count(const gguf_context* file, int32_t n_here, int32_t n_layers, Weights& weights) {
  constexpr const char* kLayer = "blk.";
  for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i) {
    const char* name = gguf_get_tensor_name(file, i);
    const size_t n_bytes = gguf_get_tensor_size(file, i);
    if (begins_with(name, "token_embd.")) {
      weights.table += n_bytes;
      continue;
    }
    weights.has_output = weights.has_output || begins_with(name, "output.");
    const int32_t layer = begins_with(name, kLayer) ? std::atoi(name + std::strlen(kLayer)) : n_layers;
    weights.add(n_bytes, layer < n_here);
  }
}

// Returns the path of one of the files that a model is split into; empty if its name is not as libllama wants it.
std::string path_of_part(const std::string& first, int32_t part, int32_t n_parts) {
  std::array<char, kLongestPath> beginning{}, path{};
  if (llama_split_prefix(beginning.data(), beginning.size(), first.c_str(), 0, n_parts) <= 0) return "";
  if (llama_split_path(path.data(), path.size(), beginning.data(), part, n_parts) <= 0) return "";
  return path.data();
}

}  // namespace

bool stays_mostly(const std::string& path, const Placement& placement, int32_t n_layers) {
  const int32_t n_here = placement.n_kept(n_layers);
  if (n_here == 0 || n_here > n_layers) return n_here > 0;
  File file = open(path);
  if (!file) return true;
  const int64_t key = gguf_find_key(file.get(), kPartsKey);
  const int32_t n_parts = key >= 0 && gguf_get_kv_type(file.get(), key) == GGUF_TYPE_UINT16
                              ? int32_t{gguf_get_val_u16(file.get(), key)}
                              : 1;
  Weights weights;
  for (int32_t part = 0; part < n_parts; ++part) {
    if (part > 0) file = open(path_of_part(path, part, n_parts));
    if (!file) return true;
    count(file.get(), n_here, n_layers, weights);
  }
  if (!weights.has_output) weights.add(weights.table, false);
  return weights.here > weights.elsewhere;
}

}  // namespace corosrv
