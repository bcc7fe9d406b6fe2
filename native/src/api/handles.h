// What stands behind the handles of the C API, and how its calls end.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "api/fork_guard.h"
#include "api/to_c.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "corosrv.h"
#include "handover/reader.h"
#include "handover/row_bytes.h"
#include "handover/slot_request.h"
#include "loop/engine.h"
#include "model/backend.h"
#include "recording/player.h"
#include "recording/recorder.h"

// One of its own or, where that is null, the engine's.
struct corosrv_vocabulary {
  corosrv::ForkGuard fork_guard;
  std::unique_ptr<corosrv::Vocabulary> own;
  corosrv_engine* engine = nullptr;
};

struct corosrv_engine {
  corosrv::ForkGuard fork_guard;
  corosrv_vocabulary vocabulary;
  std::unique_ptr<corosrv::Engine> engine;
  std::shared_ptr<corosrv::RowBytes> row_bytes;  // shared with the rows
  std::shared_ptr<corosrv::Recorder> recorder;   // null: nothing is recorded
  std::shared_ptr<corosrv::Player> player;       // null: nothing is replayed
  std::string lines;                             // that were told of the replay last
  corosrv::Mutex opening;                        // is held until `engine` is there, for a replay that begins sooner
};

struct corosrv_reader {
  corosrv::ForkGuard fork_guard;
  std::shared_ptr<corosrv::Reader> reader;
  std::vector<corosrv::Chunk> taken;
  corosrv::ChunkArray chunks;  // what `taken` looks like from C
};

struct corosrv_slot_request {
  corosrv::ForkGuard fork_guard;
  std::shared_ptr<corosrv::SlotRequest> request;
};

namespace corosrv {

// The answer to a child that uses what its parent has opened.
Status forked();

// The code of a status; its words go into `message`, which may be null.
int report(const Status& status, char* message, size_t message_size);

// Nothing throws past the C API.
template <typename Call>
int guarded(char* message, size_t message_size, Call call) {
  try {
    return report(call(), message, message_size);
  } catch (const std::exception& error) {
    return report(Status(StatusCode::kInternal, error.what()), message, message_size);
  }
}

// Makes the tasks of one job: checked, and all compiled.
Status make_tasks(corosrv_engine* engine, const Backend& backend, const corosrv_task* from, size_t n_tasks,
                  std::vector<Task>& tasks);

// The engine's model, or null and the reason why there is none.
const Backend* ready_backend(corosrv_engine* engine, Status& status);

}  // namespace corosrv
