#include "llama/chat_templates.h"

#include <algorithm>

#include "llama/handles.h"

namespace corosrv {

namespace {

bool is_name(const std::string& name) {
  const std::vector<const char*> names = chat_template_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::vector<const char*> chat_template_names() {
  const int32_t n_names = llama_chat_builtin_templates(nullptr, 0);
  std::vector<const char*> names(static_cast<size_t>(std::max(n_names, 0)));
  llama_chat_builtin_templates(names.data(), names.size());
  return names;
}

Status apply_chat_template(const std::string& name, const std::vector<ChatMessage>& messages, bool add_prompt,
                           std::string& text) {
  if (!is_name(name)) return Status(StatusCode::kInvalid, "libllama has no chat template of the name '" + name + "'");
  std::vector<llama_chat_message> chat;
  chat.reserve(messages.size());
  for (const ChatMessage& message : messages) chat.push_back({message.role.c_str(), message.content.c_str()});
  const auto apply = [&](char* buffer, int32_t capacity) {
    return llama_chat_apply_template(name.c_str(), chat.data(), chat.size(), add_prompt, buffer, capacity);
  };
  const int32_t size = apply(nullptr, 0);
  if (size < 0) return Status(StatusCode::kInvalid, "libllama cannot apply its chat template '" + name + "'");
  text.resize(static_cast<size_t>(size));
  apply(text.data(), size);
  return Status::ok();
}

}  // namespace corosrv
