// Gives a decode loop what a recording says reached another one, and compares what the two do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "handover/tape.h"
#include "recording/bytes.h"
#include "recording/items.h"
#include "recording/ring_file.h"

namespace corosrv {

// What a replay came to, so far.
struct ReplayCounts {
  uint64_t steps = 0;
  uint64_t steps_differ = 0;  // in their plan, or in a batch
  uint64_t texts = 0;         // that ended, vectors among them
  uint64_t texts_differ = 0;
  bool is_over = false;
};

class Player final : public Tape {
 public:
  struct Options {
    uint64_t until = UINT64_MAX;  // the last step
    bool tells_steps = false;     // a line for each
    bool tells_texts = false;     // and for each text, with all of it
  };
  // Makes a task of what a recording has of it.
  using TaskMaker = std::function<Status(const std::string& recorded, Task& task)>;
  using Shower = std::function<void(const std::vector<Token>&)>;

  // Takes over `fd`. Both functions are called by the loop.
  Player(int fd, const Options& options, TaskMaker make_task, Shower show);

  // False where the file has no segment to begin with.
  bool can_begin() const { return file_.has_segment(); }

  Inbox::Mail take(Inbox& inbox, bool has_work, Clock::duration patience) override;
  Clock::time_point now() override;
  bool look(bool found) override;
  void plan(const StepShape& step) override;
  void batch(uint64_t hash) override;
  void end(const TapedEnd& end) override;
  bool begins_anew() override;

  // Any thread: what there is to say since the last call, a sentence a line.
  std::string take_lines(ReplayCounts& counts);

 private:
  // A job whose tasks have not all ended.
  struct Live {
    std::shared_ptr<Reader> reader;
    uint64_t number;
    size_t n_left = 0;
    std::vector<std::string> texts;  // of its tasks
  };

  void begin();
  bool fill();
  bool is_next(Item item);
  void expect(Item item, const char* asked);
  [[noreturn]] void leave(const std::string& words);
  Clock::time_point read_time();
  Submission read_submission();
  std::shared_ptr<SlotRequest> read_request();
  void collect();
  void say(const std::string& line);
  void differ(const std::string& what);

  RingReader file_;
  const Options options_;
  const TaskMaker make_task_;
  const Shower show_;
  std::vector<uint8_t> frame_;
  ByteReader bytes_;
  Clock::time_point last_;
  uint64_t n_false_ = 0;    // looks left that found nothing
  bool then_true_ = false;  // and the one behind them did
  bool has_begun_ = false;
  uint64_t differs_at_ = 0;  // the last step that was counted so
  uint64_t n_jobs_ = 0;
  std::vector<Live> live_;
  std::vector<Chunk> chunks_;

  Mutex mutex_;
  ReplayCounts counts_ GUARDED_BY(mutex_);
  std::string lines_ GUARDED_BY(mutex_);
};

}  // namespace corosrv
