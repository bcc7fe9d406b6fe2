// The C API's part for the chat templates that libllama has built in.
#include <algorithm>
#include <string>
#include <vector>

#include "api/check.h"
#include "api/handles.h"
#ifndef COROSRV_WITHOUT_LLAMA
#include "llama/chat_templates.h"
#endif

using namespace corosrv;

#ifdef COROSRV_WITHOUT_LLAMA

int corosrv_chat_template_names(const char**, size_t, size_t* n_names) {
  *n_names = 0;
  return COROSRV_OK;
}

int corosrv_chat_template_apply(const char*, const corosrv_chat_message*, size_t, int, char*, size_t, size_t*) {
  return COROSRV_INVALID;
}

#else

int corosrv_chat_template_names(const char** names, size_t capacity, size_t* n_names) {
  return guarded(nullptr, 0, [&] {
    const std::vector<const char*> all = chat_template_names();
    *n_names = all.size();
    std::copy_n(all.begin(), std::min(all.size(), capacity), names);
    return Status::ok();
  });
}

int corosrv_chat_template_apply(const char* name, const corosrv_chat_message* messages, size_t n_messages,
                                int add_prompt, char* text, size_t capacity, size_t* text_size) {
  return guarded(nullptr, 0, [&] {
    std::vector<ChatMessage> chat;
    chat.reserve(n_messages);
    for (size_t i = 0; i < n_messages; ++i) chat.push_back({messages[i].role, messages[i].content});
    std::string prompt;
    Status status = apply_chat_template(name, chat, add_prompt != 0, prompt);
    if (!status.is_ok()) return status;
    *text_size = prompt.size();
    std::copy_n(prompt.data(), std::min(prompt.size(), capacity), text);
    return Status::ok();
  });
}

#endif
