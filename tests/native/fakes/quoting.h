// A model whose texts repeat themselves, and tasks for it with every sampler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "byte_vocabulary.h"
#include "grammar/grammars.h"
#include "model/token_list.h"
#include "model/types.h"
#include "tasks.h"

namespace corosrv {

// How many guesses a step may have.
using HowMany = std::function<int32_t()>;

// A model whose texts repeat themselves: what comes next hangs on two tokens alone.
inline void fill(const std::vector<Token>& tokens, std::vector<float>& logits) {
  uint32_t hash = static_cast<uint32_t>(tokens[tokens.size() - 1] * 31 + tokens[tokens.size() - 2] * 7);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = -20.0f + static_cast<float>((i * 7 + hash) % 13) / 8;
  for (int i = 0; i < 5; ++i) {
    hash = hash * 1664525u + 1013904223u;
    logits['a' + (hash >> 16) % 8] = 2.0f - static_cast<float>(i) + static_cast<float>((hash >> 8) % 256) / 512;
  }
  logits['\n'] = -1.0f;
  logits[ByteVocabulary::kEnd] = -2.5f;
}

inline int32_t none() { return 0; }

inline HowMany any_number(uint32_t seed) {
  return [random = std::minstd_rand(seed)]() mutable { return static_cast<int32_t>(random() % 12); };
}

inline Task make_quoting(Sampling sampling, int32_t max_tokens = 200) {
  Task task = make_task('p', 2, max_tokens, std::move(sampling));
  const std::string text = "abacadabacabadacabacadabra<t>hm";
  task.prompt.insert(task.prompt.end(), text.begin(), text.end());
  return task;
}

struct Named {
  std::string name;
  Task task;
};

// Of several seeds each.
inline std::vector<Named> all_samplers() {
  static const ByteVocabulary vocabulary;
  std::vector<Named> all;
  const auto add = [&](const char* name, const std::function<void(Sampling&, Task&)>& change) {
    for (const uint32_t seed : {1u, 2u, 3u}) {
      Sampling sampling;
      sampling.seed = seed;
      sampling.temperature = 0.7f;
      Task task = make_quoting(sampling);
      change(task.sampling, task);
      all.push_back({name + std::string(" ") + std::to_string(seed), std::move(task)});
    }
  };
  add("usual", [](Sampling&, Task&) {});
  add("greedy", [](Sampling& s, Task&) { s.temperature = 0; });
  add("hot", [](Sampling& s, Task&) { s.temperature = 1.5f; });
  add("penalties",
      [](Sampling& s, Task&) { s.repeat_penalty = 1.3f, s.presence_penalty = s.frequency_penalty = 0.2f; });
  add("greedy penalties", [](Sampling& s, Task&) { s.temperature = 0, s.repeat_penalty = 1.5f, s.repeat_last_n = 8; });
  add("dry", [](Sampling& s, Task&) { s.dry_multiplier = 0.8f; });
  add("mirostat 1", [](Sampling& s, Task&) { s.mirostat = 1, s.mirostat_tau = 2; });
  add("mirostat 2", [](Sampling& s, Task&) { s.mirostat = 2, s.mirostat_tau = 2; });
  add("typical", [](Sampling& s, Task&) { s.typical_p = 0.6f; });
  add("all candidates", [](Sampling& s, Task&) { s.top_k = 0, s.top_p = 1, s.min_p = 0; });
  add("n sigma", [](Sampling& s, Task&) { s.top_n_sigma = 1.5f; });
  add("xtc", [](Sampling& s, Task&) { s.xtc_probability = 0.5f, s.xtc_threshold = 0.05f; });
  add("dynamic temperature", [](Sampling& s, Task&) { s.dynatemp_range = 0.5f; });
  add("adaptive", [](Sampling& s, Task&) { s.adaptive_target = 0.5f; });
  add("biases", [](Sampling& s, Task&) { s.biases = {{'a', 2.0f}, {ByteVocabulary::kEnd, 2.0f}}; });
  add("never an end", [](Sampling& s, Task&) { s.ignore_eos = true; });
  add("likelihoods", [](Sampling& s, Task&) { s.n_probs = 3; });
  add("likelihoods of what was drawn from", [](Sampling& s, Task&) { s.n_probs = 2, s.post_sampling_probs = true; });
  add("grammar", [](Sampling& s, Task&) { s.grammar = make_grammar("root ::= ([ab] [a-d]+ \"\\n\")+", vocabulary); });
  add("grammar that ends", [](Sampling& s, Task&) { s.grammar = make_grammar("root ::= [a-f]{30}", vocabulary); });
  add("grammar nobody can follow", [](Sampling& s, Task&) {
    s.grammar = make_grammar("root ::= [a-f]{20} \"\\U0001F30A\"", vocabulary);
    s.biases = {{0xF0, -std::numeric_limits<float>::infinity()}};
  });
  add("grammar with a trigger", [](Sampling& s, Task&) {
    s.grammar = make_grammar("root ::= \"ba\" [abc]+", vocabulary);
    s.grammar_triggers = {"ba"};
  });
  add("thoughts", [](Sampling& s, Task&) { s.thoughts = {20, "", "</t>", {'<', '/', 't', '>'}}; });
  add("stops", [](Sampling&, Task& task) { task.stops = {"dab", "acab", "ada\n"}; });
  add("likelihoods and stops", [](Sampling& s, Task& task) { s.n_probs = 1, task.stops = {"bac", "ad"}; });
  add("few tokens", [](Sampling&, Task& task) { task.max_tokens = 7; });
  add("until the context is full", [](Sampling& s, Task& task) { s.ignore_eos = true, task.max_tokens = -1; });
  add("shifts", [](Sampling& s, Task& task) {
    s.ignore_eos = true;
    task.max_tokens = 400;
    task.shift = ContextShift{4, 0};
  });
  add("prediction", [](Sampling&, Task& task) { task.prediction = {'a', 'b', 'a', 'd', 'a', 'c', 'a', 'b'}; });
  return all;
}

inline bool operator==(const TokenList& a, const TokenList& b) {
  const auto same = [](const Likelihood& x, const Likelihood& y) {
    return x.token == y.token && x.logprob == y.logprob && x.n_top == y.n_top && x.piece_size == y.piece_size;
  };
  return a.pieces() == b.pieces() && a.entries().size() == b.entries().size() &&
         std::equal(a.entries().begin(), a.entries().end(), b.entries().begin(), same);
}

}  // namespace corosrv
