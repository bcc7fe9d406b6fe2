// The chat templates that libllama has built in.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace corosrv {

struct ChatMessage {
  std::string role;
  std::string content;
};

// Their names, which live for ever.
std::vector<const char*> chat_template_names();

// Writes a conversation as the template of this name has it. Fails for a name that is none of theirs: libllama would
// take it for a template's text and guess what it is.
Status apply_chat_template(const std::string& name, const std::vector<ChatMessage>& messages, bool add_prompt,
                           std::string& text);

}  // namespace corosrv
