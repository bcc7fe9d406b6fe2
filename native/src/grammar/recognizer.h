// Follows a text through a grammar, a byte at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/utf8.h"
#include "grammar/grammar_program.h"

namespace corosrv {

// Says of every byte whether the text with it can still be the beginning of one that the grammar allows. Bytes can be
// tried and taken back, so that a whole vocabulary is tested by walking along the beginnings that its tokens share.
//
// All ways through the grammar are followed at once. Where each of them returns to when its rule ends is kept in a
// graph and not in a stack for each way: ways that meet in the same place are one from there on (Earley 1970, Tomita
// 1985). A byte so costs at most the square of what came before, however ambiguous the grammar is, where a stack for
// each way can double with every byte. Work is counted all the same, because the square may be too much too.
//
// Used by one thread at a time; copies share the program, which does not change, and nothing else that stays.
class Recognizer {
 public:
  // `program`: without left recursion.
  explicit Recognizer(std::shared_ptr<const Program> program);

  // Adds `byte` to the text; false, and nothing is added, when no text of the grammar goes on like this, or the limit
  // of work is reached.
  bool push(uint8_t byte);
  // Takes back all but the first `depth` of the bytes that were pushed since the last commit().
  void pop_to(size_t depth);
  size_t depth() const { return frames_.size() - 1; }
  // The bytes that were pushed are part of the text for good.
  void commit();

  // The text belongs to the grammar as it stands.
  bool is_complete() const { return frames_.back().is_complete; }

  // Steps taken since the last reset_work(): a few nanoseconds each. At the limit every push() is refused.
  uint64_t work() const { return work_; }
  void reset_work() { work_ = 0; }
  void limit_work(uint64_t limit) { work_limit_ = limit; }
  bool is_overworked() const { return work_ >= work_limit_; }

  // What it has to remember of the text, in places: for tests.
  size_t n_remembered() const { return nodes_.size() + edges_.size(); }

 private:
  // A place in the code, and whose return it is in.
  struct Item {
    uint32_t at;
    uint32_t node;
  };
  // A rule that was called at some point of the text, once for all that called it there.
  struct Node {
    uint32_t first_edge;  // who called it
  };
  struct Edge {
    uint32_t at;  // where the caller goes on
    uint32_t node;
    uint32_t next;
  };
  // After each byte since the last commit(): the first of its items and how many nodes and edges there were, so that
  // taking it back is cutting them off. Nothing is ever changed that an earlier frame can see.
  struct Frame {
    size_t first_item;
    size_t n_nodes;
    size_t n_edges;
    bool is_complete;
    Utf8Decoder decoder;
  };
  struct Scratch;

  bool read(uint32_t code_point, size_t first, size_t end);
  bool keep_possible(const Utf8Decoder& decoder, size_t first, size_t end);
  void start_moment();
  bool is_of_this_moment(uint32_t node) const { return node >= frames_.back().n_nodes; }
  void follow(Item item);
  void follow_one(Item item);
  void follow_call(Item item);
  void follow_return(uint32_t node);
  void add_caller(uint32_t node, Item caller);
  bool is_first_visit(Item item);
  bool matches(const Instruction& instruction, uint32_t code_point) const;
  bool may_match(const Instruction& instruction, const Utf8Decoder& decoder) const;
  void collect();

  std::shared_ptr<const Program> program_;
  std::vector<Frame> frames_;  // the text, then one for each byte on trial
  std::vector<Item> items_;    // of all frames: each waits for a character
  std::vector<Node> nodes_;    // the first is the whole text's: nobody called it
  std::vector<Edge> edges_;
  size_t n_collected_ = 0;  // nodes and edges after the last collect()

  // While a byte is read.
  Scratch* now_ = nullptr;  // the thread's
  bool is_complete_ = false;
  uint64_t work_ = 0;
  uint64_t work_limit_ = UINT64_MAX;
};

}  // namespace corosrv
