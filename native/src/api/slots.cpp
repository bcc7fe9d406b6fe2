// The C API of slots: what they do, and what they hold.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/convert.h"
#include "api/handles.h"

using namespace corosrv;

int corosrv_engine_slots(corosrv_engine* engine, corosrv_slot* slots, size_t capacity) {
  return guarded(nullptr, 0, [&] {
    Status status = Status::ok();
    if (ready_backend(engine, status) == nullptr) return status;
    const std::vector<corosrv_slot> found = engine->engine->slots();
    std::copy_n(found.begin(), std::min(found.size(), capacity), slots);
    return Status::ok();
  });
}

int corosrv_slot_ask(corosrv_engine* engine, int action, int32_t slot, uint64_t owner,
                     const corosrv_slot_content* content, corosrv_errand** errand, char* message, size_t message_size) {
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
    auto opened = std::make_unique<corosrv_errand>();
    opened->errand = std::make_shared<SlotErrand>(to_action(action), slot, owner, std::move(converted));
    status = engine->engine->ask(opened->errand);
    if (status.is_ok()) *errand = opened.release();
    return status;
  });
}

int corosrv_errand_fd(corosrv_errand* errand) { return errand->errand->fd(); }

int corosrv_errand_result(corosrv_errand* errand, corosrv_slot_content* content, char* message, size_t message_size) {
  if (!errand->fork_guard.is_same_process()) return report(forked(), message, message_size);
  return guarded(message, message_size, [&] {
    const SlotErrand& asked = *errand->errand;
    if (!asked.is_answered()) return Status(COROSRV_NOT_READY, "the slot is still busy");
    const SlotContent& found = asked.content();
    *content = {found.tokens.data(),
                found.tokens.size(),
                found.adapters.data(),
                found.adapters.size(),
                found.snapshot ? found.snapshot->bytes.get() : nullptr,
                found.snapshot ? found.snapshot->size : 0};
    return asked.status();
  });
}

void corosrv_errand_abandon(corosrv_errand* errand) {
  if (errand->fork_guard.is_same_process()) errand->errand->abandon();
}

void corosrv_errand_close(corosrv_errand* errand) {
  if (errand == nullptr) return;
  if (!errand->fork_guard.is_same_process()) {
    ::close(errand->errand->fd());  // the child's copy; the rest stays as the fork left it
    return;
  }
  errand->errand->abandon();
  delete errand;
}
