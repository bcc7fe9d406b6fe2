// What the decode loop finds outside of itself, on its way in: to be written down, or read back.
#pragma once

#include <cstdint>
#include <string>

#include "handover/inbox.h"
#include "model/types.h"

namespace corosrv {

// A step's work, as far as a recording tells of it.
struct StepShape {
  int32_t n_decode = 0;   // rows
  int32_t n_prompt = 0;   // rows
  int32_t n_drafted = 0;  // rows, of guesses
  uint64_t hash = 0;      // of which sequences have how many rows
};

// How a sequence ended.
struct TapedEnd {
  int64_t task = 0;  // the caller's name for it
  Finish finish = Finish::kUnfinished;
  int32_t n_generated = 0;
  uint64_t hash = 0;  // of its text, or vector
};

// Everything that the loop's decisions depend on passes through a tape, in the order in which the loop asks: mail,
// times, whether readers are full or cancelled. Whoever gets the same answers from a tape again decides the same.
// Decode thread alone.
class Tape {
 public:
  // Thrown by a tape that has nothing left to give: passes through the loop, and ends it. No std::exception, which the
  // loop would take for a request's.
  struct End {};

  virtual ~Tape() = default;

  // Does what Inbox::take does.
  virtual Inbox::Mail take(Inbox& inbox, bool has_work, Clock::duration patience) = 0;
  virtual Clock::time_point now() = 0;
  // `found`: by whoever looked at a reader, or at a slot request; returns what the loop is to believe.
  virtual bool look(bool found) = 0;

  // The loop tells what it does: a step is planned, its rows are about to be computed, a sequence has ended.
  virtual void plan(const StepShape& step) = 0;
  virtual void batch(uint64_t hash) = 0;
  virtual void end(const TapedEnd& end) = 0;

  // Nothing runs or waits: returns whether the loop has to forget what it knows, as one does that begins. A recording
  // can be replayed from such a moment on.
  virtual bool begins_anew() = 0;
};

}  // namespace corosrv
