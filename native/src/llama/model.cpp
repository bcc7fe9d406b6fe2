#include "llama/model.h"

#include <gguf.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "kernels/graph_kernels.h"
#include "llama/log.h"

namespace corosrv {

namespace {

// Checks what libllama would only answer with a null pointer and a line in its log.
Status check_file(const std::string& path) {
  const std::string name = "'" + file_name(path) + "'";
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(StatusCode::kInvalid, "the model file " + name + " does not exist or cannot be read");
  char magic[4] = {};
  file.read(magic, sizeof magic);
  if (std::string(magic, sizeof magic) != "GGUF") {
    return Status(StatusCode::kInvalid, name + " is not a GGUF file (it does not begin with 'GGUF')");
  }
  return Status::ok();
}

std::string metadata(const llama_model* model, const std::string& key) {
  char value[128] = {};
  return llama_model_meta_val_str(model, key.c_str(), value, sizeof value) < 0 ? "" : value;
}

std::string template_of(const llama_model* model, const char* name) {
  const char* text = llama_model_chat_template(model, name);
  return text == nullptr ? "" : text;
}

// Returns the file's keys of how to draw, a line for each.
std::string sampling_of(const llama_model* model) {
  std::string lines;
  for (int key = LLAMA_MODEL_META_KEY_SAMPLING_SEQUENCE; key <= LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA; ++key) {
    const std::string name = llama_model_meta_key_str(static_cast<llama_model_meta_key>(key));
    const std::string value = metadata(model, name);
    if (!value.empty()) lines += name + "=" + value + "\n";
  }
  return lines;
}

// Returns the model's pooling; the mean if the file names none, or one that makes no single vector.
Pooling own_pooling(const llama_model* model) {
  const int type = std::atoi(metadata(model, metadata(model, "general.architecture") + ".pooling_type").c_str());
  const bool is_known = type > LLAMA_POOLING_TYPE_NONE && type <= LLAMA_POOLING_TYPE_RANK;
  return is_known ? static_cast<Pooling>(type) : Pooling::kMean;  // numbered as libllama's
}

// Looks into the file: libllama does not report whether a model has a head, and without one computes a wrong score.
bool has_classification_head(const std::string& path) {
  gguf_context* file = gguf_init_from_file(path.c_str(), {true, nullptr});
  if (file == nullptr) return false;
  const bool has_head = gguf_find_tensor(file, "cls.weight") >= 0 || gguf_find_tensor(file, "cls.output.weight") >= 0;
  gguf_free(file);
  return has_head;
}

bool has_mrope(const llama_model* model) {
  const llama_rope_type type = llama_model_rope_type(model);
  return type == LLAMA_ROPE_TYPE_MROPE || type == LLAMA_ROPE_TYPE_IMROPE;
}

// Returns whether PackedMatrix can hold nearly all bytes of the file's matrices.
bool is_packable(const std::string& path) {
  ggml_context* tensors = nullptr;
  gguf_context* file = gguf_init_from_file(path.c_str(), {true, &tensors});
  if (file == nullptr) return false;
  size_t n_bytes = 0, n_packable = 0;
  for (ggml_tensor* tensor = ggml_get_first_tensor(tensors); tensor != nullptr;
       tensor = ggml_get_next_tensor(tensors, tensor)) {
    if (ggml_n_dims(tensor) < 2) continue;
    n_bytes += ggml_nbytes(tensor);
    if (packed_format(*tensor)) n_packable += ggml_nbytes(tensor);
  }
  ggml_free(tensors);
  gguf_free(file);
  return n_packable > 0 && n_packable >= n_bytes / 100 * 95;
}

// Returns the devices of these names with a null pointer behind them; none for "none". An unknown one fails.
std::vector<ggml_backend_dev_t> find_devices(const std::vector<std::string>& names, Status& status) {
  std::vector<ggml_backend_dev_t> devices;
  for (const std::string& name : names) {
    if (name == "none") continue;
    devices.push_back(ggml_backend_dev_by_name(name.c_str()));
    if (devices.back() == nullptr) {
      status = Status(StatusCode::kInvalid, "libllama knows no device '" + name + "' here");
      return {};
    }
  }
  devices.push_back(nullptr);
  return devices;
}

}  // namespace

Model load_model(const std::string& path, const Placement& placement, bool may_repack, bool has_own_products,
                 LoadWatch& load, Status& status) {
  status = check_file(path);
  if (!status.is_ok()) return nullptr;
  keep_llama_errors();

  llama_model_params params = llama_model_default_params();
  const bool is_packed = has_own_products && is_packable(path);
  if (is_packed) load.expect_packing();
  params.use_extra_bufts = may_repack && !is_packed;
  params.progress_callback = [](float part, void* watch) { return static_cast<LoadWatch*>(watch)->note_read(part); };
  params.progress_callback_user_data = &load;
  std::vector<ggml_backend_dev_t> devices = find_devices(placement.devices, status);
  if (!status.is_ok()) return nullptr;
  if (!placement.devices.empty()) params.devices = devices.data();
  params.n_gpu_layers = placement.gpu_layers;
  params.split_mode = static_cast<llama_split_mode>(placement.split_mode);
  params.main_gpu = placement.main_gpu;
  std::vector<float> parts = placement.tensor_split;
  parts.resize(std::max(parts.size(), llama_max_devices()));  // libllama reads that many
  if (!placement.tensor_split.empty()) params.tensor_split = parts.data();
  params.load_mode = static_cast<llama_load_mode>(placement.load_mode);
  if (placement.numa != 0) llama_numa_init(static_cast<ggml_numa_strategy>(placement.numa));
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (!model) {
    status = load.is_given_up() ? Status(StatusCode::kClosed, "the model was closed while it was being loaded")
                                : failure("libllama cannot load", path);
    return nullptr;
  }
  load.note_size(llama_model_size(model.get()));
  if (llama_model_has_decoder(model.get()) && llama_model_has_encoder(model.get())) {
    status = Status(StatusCode::kInvalid, "'" + file_name(path) +
                                              "' has an encoder in front of its decoder; such models "
                                              "are not served");
    return nullptr;
  }
  return model;
}

Model load_vocabulary(const std::string& path, Status& status) {
  status = check_file(path);
  if (!status.is_ok()) return nullptr;
  keep_llama_errors();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (!model) status = failure("libllama cannot load the vocabulary of", path);
  return model;
}

std::vector<llama_adapter_lora*> load_adapters(llama_model* model, const std::vector<std::string>& paths,
                                               Status& status) {
  std::vector<llama_adapter_lora*> adapters;
  for (const std::string& path : paths) {
    status = check_file(path);
    if (!status.is_ok()) return {};
    llama_adapter_lora* adapter = llama_adapter_lora_init(model, path.c_str());
    if (adapter == nullptr) {
      status = failure("libllama cannot load the adapter", path);
      return {};
    }
    if (llama_adapter_get_alora_n_invocation_tokens(adapter) > 0) {
      status = Status(StatusCode::kInvalid, "the adapter '" + file_name(path) +
                                                "' waits for tokens that invoke it; such "
                                                "adapters are not served");
      return {};
    }
    adapters.push_back(adapter);
  }
  return adapters;
}

Status find_pooling(const llama_model* model, const std::string& path, std::optional<Pooling> setting,
                    Pooling& pooling) {
  pooling = setting ? *setting : own_pooling(model);
  if (pooling != Pooling::kRank || has_classification_head(path)) return Status::ok();
  return Status(StatusCode::kInvalid,
                "'" + file_name(path) +
                    "' has no classification head to score texts with: set COROSRV_POOLING to mean, "
                    "cls or last");
}

Status failure(const std::string& what, const std::string& path) {
  const std::string reason = take_last_error();
  return Status(StatusCode::kInvalid, what + " '" + file_name(path) + "'" + (reason.empty() ? "" : ": " + reason));
}

bool can_copy_memory(const llama_model* model) {
  return !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
}

ModelInfo describe(const llama_model* model, int32_t context) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  ModelInfo info;
  info.context = context;
  info.context_train = llama_model_n_ctx_train(model);
  info.window = llama_model_n_swa(model);
  info.n_embd = llama_model_n_embd(model);
  info.row_width = llama_model_n_embd_inp(model);
  info.is_mrope = has_mrope(model);
  info.n_vector = llama_model_n_embd_out(model);
  info.vocab_type = llama_vocab_type(vocab);
  info.add_bos = llama_vocab_get_add_bos(vocab);
  info.bos = llama_vocab_bos(vocab);
  info.eos = llama_vocab_eos(vocab);
  info.n_params = llama_model_n_params(model);
  info.size = llama_model_size(model);
  info.ftype = llama_ftype_name(llama_model_ftype(model));
  char description[128] = {};
  llama_model_desc(model, description, sizeof description);
  info.description = description;
  info.chat_template = template_of(model, nullptr);
  info.add_eos = llama_vocab_get_add_eos(vocab);
  info.add_sep = llama_vocab_get_add_sep(vocab);
  info.sep = llama_vocab_sep(vocab);
  info.rerank_template = template_of(model, "rerank");
  info.sampling = sampling_of(model);
  info.fim_prefix = llama_vocab_fim_pre(vocab);
  info.fim_suffix = llama_vocab_fim_suf(vocab);
  info.fim_middle = llama_vocab_fim_mid(vocab);
  info.fim_repository = llama_vocab_fim_rep(vocab);
  info.fim_file = llama_vocab_fim_sep(vocab);
  return info;
}

}  // namespace corosrv
