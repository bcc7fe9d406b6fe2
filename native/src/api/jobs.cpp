// The C API of jobs: tasks are submitted, and their reader gives chunks.
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/handles.h"
#include "api/resumed.h"
#include "api/task_bytes.h"
#include "api/to_core.h"
#include "handover/row_bytes.h"
#include "sampling/dry.h"

using namespace corosrv;

namespace {

// Compiles what grammars there are; tasks in a row that point to the same text share one.
Status compile_grammars(Engine& engine, const corosrv_task* from, std::vector<Task>& tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const corosrv_text& text = from[i].sampling.grammar;
    if (text.size == 0) continue;
    if (i > 0 && from[i - 1].sampling.grammar.data == text.data && from[i - 1].sampling.grammar.size == text.size) {
      tasks[i].sampling.grammar = tasks[i - 1].sampling.grammar;
      continue;
    }
    const Status status = engine.compile({text.data, text.size}, tasks[i].sampling.grammar);
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

// Copies embedding rows, as long as there is room; tasks in a row that point to the same share one copy.
Status copy_rows(const corosrv_task* from, std::vector<Task>& tasks, const ModelInfo& model,
                 const std::shared_ptr<RowBytes>& row_bytes) {
  const auto width = static_cast<size_t>(model.row_width);
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (from[i].n_rows == 0) continue;
    if (i > 0 && from[i - 1].rows == from[i].rows && from[i - 1].row_segments == from[i].row_segments &&
        tasks[i - 1].prompt == tasks[i].prompt) {
      tasks[i].rows = tasks[i - 1].rows;
      continue;
    }
    tasks[i].rows = make_counted_rows(row_bytes, tasks[i].prompt, width, from[i].rows, from[i].n_rows * width,
                                      to_segments(from[i]));
    if (!tasks[i].rows) {
      return Status(StatusCode::kQueueFull, "the embedding rows of tasks that run or wait have " +
                                                std::to_string(row_bytes->held()) + " bytes, of at most " +
                                                std::to_string(row_bytes->limit()) + "; try again later");
    }
  }
  return Status::ok();
}

// Turns breakers into tokens where DRY asks for them; tasks of one job mostly have the same, which are made once.
void compile_breakers(Engine& engine, const corosrv_task* from, std::vector<Task>& tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const corosrv_sampling& sampling = from[i].sampling;
    if (sampling.n_dry_breakers == 0 || !Dry::is_on(tasks[i].sampling)) continue;
    tasks[i].sampling.dry_breakers = engine.breakers(to_strings(sampling.dry_breakers, sampling.n_dry_breakers));
  }
}

}  // namespace

namespace corosrv {

Status make_tasks(corosrv_engine* engine, const Backend& backend, const corosrv_task* from, size_t n_tasks,
                  std::vector<Task>& tasks) {
  for (size_t i = 0; i < n_tasks; ++i) {
    if (Status status = check_task(from[i], backend); !status.is_ok()) return status;
    tasks.push_back(to_task(from[i], i, backend.info()));
  }
  if (Status status = compile_grammars(*engine->engine, from, tasks); !status.is_ok()) return status;
  compile_breakers(*engine->engine, from, tasks);
  if (Status status = check_resumed(tasks, backend); !status.is_ok()) return status;
  return copy_rows(from, tasks, backend.info(), engine->row_bytes);
}

}  // namespace corosrv

int corosrv_submit(corosrv_engine* engine, const corosrv_task* tasks, size_t n_tasks, corosrv_reader** reader,
                   char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = Status::ok();
    const Backend* backend = ready_backend(engine, status);
    if (backend == nullptr) return status;
    if (n_tasks == 0) return invalid("a job needs at least one task");
    if (engine->player != nullptr) return Status(StatusCode::kUnsupported, "a replay takes no jobs but its own");
    std::vector<Task> converted;
    status = make_tasks(engine, *backend, tasks, n_tasks, converted);
    if (!status.is_ok()) return status;
    for (size_t i = 0; engine->recorder != nullptr && i < n_tasks; ++i) {
      converted[i].recorded = to_bytes(tasks[i], backend->info());
    }
    auto opened = std::make_unique<corosrv_reader>();
    status = engine->engine->submit(std::move(converted), opened->reader);
    if (status.is_ok()) *reader = opened.release();
    return status;
  });
}

int corosrv_reader_fd(corosrv_reader* reader) { return reader->reader->fd(); }

int corosrv_reader_has_chunks(corosrv_reader* reader) { return reader->reader->has_chunks() ? 1 : 0; }

int corosrv_reader_take(corosrv_reader* reader, int clear, corosrv_batch* batch) {
  if (!reader->fork_guard.is_same_process()) return COROSRV_FORKED;
  return guarded(nullptr, 0, [&] {
    reader->reader->take(reader->taken, clear != 0);
    reader->chunks.assign(reader->taken);
    *batch = reader->chunks.batch();
    return Status::ok();
  });
}

int corosrv_reader_cancel(corosrv_reader* reader) {
  if (!reader->fork_guard.is_same_process()) return COROSRV_FORKED;
  return guarded(nullptr, 0, [&] {
    reader->reader->cancel();
    return Status::ok();
  });
}

int corosrv_reader_end_thoughts(corosrv_reader* reader) {
  if (!reader->fork_guard.is_same_process()) return COROSRV_FORKED;
  reader->reader->end_thoughts();
  return COROSRV_OK;
}

void corosrv_reader_close(corosrv_reader* reader) {
  if (reader == nullptr) return;
  if (!reader->fork_guard.is_same_process()) {
    ::close(reader->reader->fd());  // the child's copy; the rest stays as the fork left it
    return;
  }
  reader->reader->cancel();
  delete reader;
}
