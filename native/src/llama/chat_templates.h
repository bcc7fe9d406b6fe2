// Applies the chat templates that libllama has built in.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace corosrv {

struct ChatMessage {
  std::string role;
  std::string content;
};

// Returns the names of the templates; the strings are never freed.
std::vector<const char*> chat_template_names();

// Formats a conversation by the template of this name. Fails if there is no such name: libllama would treat it as the
// text of a template and guess its format.
Status apply_chat_template(const std::string& name, const std::vector<ChatMessage>& messages, bool add_prompt,
                           std::string& text);

}  // namespace corosrv
