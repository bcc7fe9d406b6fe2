// Writes down what reaches a decode loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "handover/tape.h"
#include "recording/bytes.h"
#include "recording/items.h"
#include "recording/ring_file.h"

namespace corosrv {

// Writes before the loop acts: mail before anything of it is taken up, and times and looks before a batch is computed.
// So what ends the process in a step is in the file, and the step as well. When the file cannot be written it writes no
// more, and the loop goes on; where it is full without a moment at which nothing ran, it goes on from the next such
// moment.
class Recorder final : public Tape {
 public:
  // Takes over `fd`; see RingWriter.
  Recorder(int fd, uint64_t size);
  ~Recorder() override { flush(); }

  Inbox::Mail take(Inbox& inbox, bool has_work, Clock::duration patience) override;
  Clock::time_point now() override;
  bool look(bool found) override;
  void plan(const StepShape& step) override;
  void batch(uint64_t hash) override;
  void end(const TapedEnd& end) override;
  bool begins_anew() override;

  // Any thread: why nothing is recorded now; empty while it is.
  std::string trouble();

 private:
  void begin();
  void write_time(Clock::time_point time);
  void write_mail(const Inbox::Mail& mail);
  void write_looks();
  void item(Item item);
  void flush();
  void stop(const std::string& reason, bool for_good);

  RingWriter file_;
  ByteWriter bytes_;          // of the next frame
  std::vector<Token> shown_;  // tokens
  Clock::time_point last_;    // time that was written
  uint64_t n_false_ = 0;      // looks that are not written yet
  bool begins_ = true;        // the next frame begins a segment
  bool is_writing_ = true;
  bool is_over_ = false;  // nothing will be written any more

  Mutex mutex_;
  std::string trouble_ GUARDED_BY(mutex_);
};

}  // namespace corosrv
