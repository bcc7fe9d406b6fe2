#include "grammar/recognizer.h"

#include <algorithm>
#include <utility>

namespace corosrv {

namespace {

using Op = Instruction::Op;
using Part = Utf8Decoder::Part;

constexpr uint32_t kRootNode = 0;
constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kCollectFrom = 1024;        // nodes and edges
constexpr size_t kMostRemembered = 250'000;  // nodes and edges: 4 MB; a text nested a thousand deep needs some 10,000

}  // namespace

// What is known while one byte is read. Of the thread and not of the recogniser: it may take kilobytes, of which
// nothing is needed afterwards.
struct Recognizer::Scratch {
  // The node of a rule, if it was called at this moment.
  struct Called {
    uint64_t moment = 0;
    uint32_t node = 0;
  };

  // The last visit to a place in the code.
  struct Visit {
    uint64_t moment = 0;
    uint32_t node = 0;
  };

  uint64_t moment = 0;         // never the same twice in a thread
  std::vector<Called> called;  // by rule
  std::vector<Visit> visits;   // by place in the code
  std::vector<Item> visited;   // at this moment
  std::vector<Item> todo;      // reached, and not looked at
};

Recognizer::Recognizer(std::shared_ptr<const Program> program) : program_(std::move(program)) {
  nodes_.push_back({kNone});
  frames_.push_back({0, nodes_.size(), 0, false, {}});
  start_moment();
  follow({program_->rules[program_->root].entry, kRootNode});
  frames_.back() = {0, nodes_.size(), edges_.size(), is_complete_, {}};
}

bool Recognizer::push(uint8_t byte) {
  Utf8Decoder decoder = frames_.back().decoder;
  const Part part = decoder.push(byte);
  if (part == Part::kInvalid || is_overworked()) return false;
  const size_t first = frames_.back().first_item;
  const size_t end = items_.size();
  is_complete_ = false;
  const bool goes_on =
      part == Part::kWhole ? read(decoder.code_point(), first, end) : keep_possible(decoder, first, end);
  frames_.push_back({end, nodes_.size(), edges_.size(), is_complete_, decoder});
  if (n_remembered() > kMostRemembered) work_ = work_limit_;
  if (!goes_on || is_overworked()) pop_to(depth() - 1);
  return goes_on && !is_overworked();
}

void Recognizer::pop_to(size_t depth) {
  if (depth == this->depth()) return;
  items_.resize(frames_[depth + 1].first_item);
  frames_.resize(depth + 1);
  nodes_.resize(frames_.back().n_nodes, {});
  edges_.resize(frames_.back().n_edges, {});
}

void Recognizer::commit() {
  const auto first = static_cast<std::ptrdiff_t>(frames_.back().first_item);
  items_.erase(items_.begin(), items_.begin() + first);
  frames_.erase(frames_.begin(), frames_.end() - 1);
  frames_.back().first_item = 0;
  if (n_remembered() > 2 * n_collected_ + kCollectFrom) collect();
}

// What follows the items from `first` to `end` after this character; false when nothing does.
bool Recognizer::read(uint32_t code_point, size_t first, size_t end) {
  start_moment();
  for (size_t i = first; i < end && !is_overworked(); ++i) {
    const Item item = items_[i];  // a copy: following adds items
    ++work_;
    if (matches(program_->code[item.at], code_point)) follow({item.at + 1, item.node});
  }
  return items_.size() > end || is_complete_;
}

// Inside a character: the items that some character with these first bytes would please.
bool Recognizer::keep_possible(const Utf8Decoder& decoder, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    const Item item = items_[i];
    ++work_;
    if (may_match(program_->code[item.at], decoder)) items_.push_back(item);
  }
  return items_.size() > end;
}

void Recognizer::start_moment() {
  thread_local Scratch scratch;
  now_ = &scratch;
  ++now_->moment;
  now_->visits.resize(std::max(now_->visits.size(), program_->code.size()));
  now_->called.resize(std::max(now_->called.size(), program_->rules.size()));
  now_->visited.clear();
}

// From a place on, everything that needs no character.
void Recognizer::follow(Item item) {
  std::vector<Item>& todo = now_->todo;
  todo.push_back(item);
  while (!todo.empty()) {
    const Item next = todo.back();
    todo.pop_back();
    if (is_first_visit(next) && !is_overworked()) follow_one(next);
  }
}

void Recognizer::follow_one(Item item) {
  const Instruction& instruction = program_->code[item.at];
  const Item target{item.at + instruction.index(), item.node};
  switch (instruction.op) {
    case Op::kChar:
    case Op::kSet:
      items_.push_back(item);
      return;
    case Op::kCall:
      follow_call(item);
      return;
    case Op::kSplit:
      now_->todo.push_back(target);
      now_->todo.push_back({item.at + 1, item.node});
      return;
    case Op::kJump:
      now_->todo.push_back(target);
      return;
    case Op::kReturn:
      follow_return(item.node);
      return;
  }
}

void Recognizer::follow_call(Item item) {
  const uint32_t id = program_->code[item.at].index();
  const Program::Rule& rule = program_->rules[id];
  Scratch::Called& called = now_->called[id];
  if (called.moment != now_->moment) {
    called = {now_->moment, static_cast<uint32_t>(nodes_.size())};
    nodes_.push_back({kNone});
    now_->todo.push_back({rule.entry, called.node});
  }
  const Item after{item.at + 1, item.node};
  add_caller(called.node, after);
  // A rule that ends where it began returns to callers that may not be known yet, so each passes it by itself.
  if (rule.is_nullable) now_->todo.push_back(after);
}

void Recognizer::follow_return(uint32_t node) {
  if (node == kRootNode) {
    is_complete_ = true;
  } else if (!is_of_this_moment(node)) {
    for (uint32_t edge = nodes_[node].first_edge; edge != kNone; edge = edges_[edge].next) {
      now_->todo.push_back({edges_[edge].at, edges_[edge].node});
    }
  }
}

// A caller that has nothing left to do is left out, and its own callers take its place: what ends with a call of
// itself would return through all of the text otherwise. Recursion goes as deep as rules call each other without a
// character in between.
void Recognizer::add_caller(uint32_t node, Item caller) {
  const bool has_nothing_left = program_->code[caller.at].op == Op::kReturn;
  if (has_nothing_left && caller.node != kRootNode && !is_of_this_moment(caller.node)) {
    for (uint32_t edge = nodes_[caller.node].first_edge; edge != kNone; edge = edges_[edge].next) {
      add_caller(node, {edges_[edge].at, edges_[edge].node});
    }
    return;
  }
  for (uint32_t edge = nodes_[node].first_edge; edge != kNone; edge = edges_[edge].next) {
    ++work_;
    if (edges_[edge].at == caller.at && edges_[edge].node == caller.node) return;
  }
  edges_.push_back({caller.at, caller.node, nodes_[node].first_edge});
  nodes_[node].first_edge = static_cast<uint32_t>(edges_.size() - 1);
}

bool Recognizer::is_first_visit(Item item) {
  ++work_;
  Scratch::Visit& last = now_->visits[item.at];
  if (last.moment == now_->moment) {
    if (last.node == item.node) return false;
    // The same place for somebody else, who may have been here before too.
    for (const Item& visited : now_->visited) {
      ++work_;
      if (visited.at == item.at && visited.node == item.node) return false;
    }
  }
  last = {now_->moment, item.node};
  now_->visited.push_back(item);
  return true;
}

bool Recognizer::matches(const Instruction& instruction, uint32_t code_point) const {
  if (instruction.op == Op::kChar) return instruction.index() == code_point;
  return program_->sets[instruction.index()].has(code_point);
}

bool Recognizer::may_match(const Instruction& instruction, const Utf8Decoder& decoder) const {
  if (instruction.op == Op::kChar) {
    return instruction.index() >= decoder.least() && instruction.index() <= decoder.most();
  }
  return program_->sets[instruction.index()].has_any(decoder.least(), decoder.most());
}

// Forgets the nodes to which no way leads back any more. Without bytes on trial only.
void Recognizer::collect() {
  std::vector<uint32_t> moved(nodes_.size(), kNone);
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  const auto keep = [&](uint32_t node) {
    if (moved[node] == kNone) {
      moved[node] = static_cast<uint32_t>(nodes.size());
      nodes.push_back(nodes_[node]);
    }
    return moved[node];
  };
  keep(kRootNode);
  for (Item& item : items_) item.node = keep(item.node);
  for (size_t i = 0; i < nodes.size(); ++i) {  // grows meanwhile: the list is its own queue
    uint32_t first_edge = kNone;
    for (uint32_t edge = nodes[i].first_edge; edge != kNone; edge = edges_[edge].next) {
      edges.push_back({edges_[edge].at, keep(edges_[edge].node), first_edge});
      first_edge = static_cast<uint32_t>(edges.size() - 1);
    }
    nodes[i].first_edge = first_edge;
  }
  nodes_ = std::move(nodes);
  edges_ = std::move(edges);
  frames_.back().n_nodes = nodes_.size();
  frames_.back().n_edges = edges_.size();
  n_collected_ = n_remembered();
}

}  // namespace corosrv
