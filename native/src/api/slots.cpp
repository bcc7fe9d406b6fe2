// The C API of slots: what they do, and what they hold.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/handles.h"
#include "api/to_c.h"
#include "api/to_core.h"

using namespace corosrv;

int corosrv_engine_slots(corosrv_engine* engine, corosrv_slot* slots, size_t capacity) {
  return guarded(nullptr, 0, [&] {
    Status status = Status::ok();
    if (ready_backend(engine, status) == nullptr) return status;
    const std::vector<SlotStatus> statuses = engine->engine->slots();
    const size_t n_slots = std::min(statuses.size(), capacity);
    for (size_t i = 0; i < n_slots; ++i) slots[i] = to_c(statuses[i]);
    return Status::ok();
  });
}

int corosrv_engine_request_slot(corosrv_engine* engine, int action, int32_t slot, uint64_t owner,
                                const corosrv_slot_content* content, corosrv_slot_request** request, char* message,
                                size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = Status::ok();
    const Backend* backend = ready_backend(engine, status);
    if (backend == nullptr) return status;
    if (action < COROSRV_SLOT_SAVE || action > COROSRV_SLOT_ERASE) return invalid("a slot knows no such action");
    SlotContent converted;
    if (action == COROSRV_SLOT_RESTORE) {
      status = content == nullptr ? invalid("there is nothing to restore") : check_content(*content, *backend);
      if (!status.is_ok()) return status;
      converted = to_slot_content(*content);
    }
    auto opened = std::make_unique<corosrv_slot_request>();
    opened->request = std::make_shared<SlotRequest>(to_action(action), slot, owner, std::move(converted));
    status = engine->engine->request_slot(opened->request);
    if (status.is_ok()) *request = opened.release();
    return status;
  });
}

int corosrv_slot_request_fd(corosrv_slot_request* request) { return request->request->fd(); }

int corosrv_slot_request_result(corosrv_slot_request* request, corosrv_slot_content* content, char* message,
                                size_t message_size) {
  if (!request->fork_guard.is_same_process()) return report(forked(), message, message_size);
  return guarded(message, message_size, [&] {
    const SlotRequest& answered = *request->request;
    if (!answered.is_answered()) return Status(StatusCode::kNotReady, "the slot is still busy");
    *content = to_c(answered.content());
    return answered.status();
  });
}

void corosrv_slot_request_abandon(corosrv_slot_request* request) {
  if (request->fork_guard.is_same_process()) request->request->abandon();
}

void corosrv_slot_request_close(corosrv_slot_request* request) {
  if (request == nullptr) return;
  if (!request->fork_guard.is_same_process()) {
    ::close(request->request->fd());  // the child's copy; the rest stays as the fork left it
    return;
  }
  request->request->abandon();
  delete request;
}
