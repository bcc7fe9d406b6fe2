#include "llama_model.h"

#include <fstream>

#include "llama_log.h"

namespace corosrv {

namespace {

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// What can be told without libllama, which answers these with a null pointer and its log.
Status check_file(const std::string& path) {
  const std::string name = "'" + file_name(path) + "'";
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(COROSRV_INVALID, "the model file " + name + " does not exist or cannot be read");
  char magic[4] = {};
  file.read(magic, sizeof magic);
  if (std::string(magic, sizeof magic) != "GGUF") {
    return Status(COROSRV_INVALID, name + " is not a GGUF file (it does not begin with 'GGUF')");
  }
  return Status::ok();
}

}  // namespace

Model load_model(const std::string& path, bool safe, Status& status) {
  status = check_file(path);
  if (!status.is_ok()) return nullptr;
  keep_llama_errors();

  llama_model_params params = llama_model_default_params();
  params.use_extra_bufts = !safe;
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (!model) {
    status = failure("libllama cannot load", path);
    return nullptr;
  }
  if (!llama_model_has_decoder(model.get()) || llama_model_has_encoder(model.get())) {
    status = Status(COROSRV_INVALID, "'" + file_name(path) + "' is no decoder-only language model");
    return nullptr;
  }
  return model;
}

Status failure(const std::string& what, const std::string& path) {
  const std::string reason = last_reason();
  return Status(COROSRV_INVALID, what + " '" + file_name(path) + "'" + (reason.empty() ? "" : ": " + reason));
}

bool can_copy_memory(const llama_model* model) {
  return !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
}

ModelInfo describe(const llama_model* model, int32_t context) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  ModelInfo info;
  info.context = context;
  info.context_train = llama_model_n_ctx_train(model);
  info.n_embd = llama_model_n_embd(model);
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
  const char* chat_template = llama_model_chat_template(model, nullptr);
  info.chat_template = chat_template == nullptr ? "" : chat_template;
  return info;
}

}  // namespace corosrv
