#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fakes/byte_vocabulary.h"
#include "grammar/grammar_compiler.h"
#include "grammar/grammars.h"

namespace corosrv {
namespace {

constexpr Token kEnd = ByteVocabulary::kEnd;
constexpr Token kFirstWord = ByteVocabulary::kFirstWord;

const ByteVocabulary kVocabulary({"yes", "no", "yes or no", "\xC3", "\xA9", "", "12", "1", "1x"});

std::vector<Token> all_tokens() {
  std::vector<Token> tokens;
  for (Token token = 0; token < kVocabulary.size(); ++token) tokens.push_back(token);
  return tokens;
}

// Tokens that are left of all, one by one.
std::vector<Token> allowed_of_candidates(Grammar& grammar) {
  std::vector<Candidate> candidates;
  for (const Token token : all_tokens()) candidates.push_back({token, 1.0f});
  grammar.keep_allowed(candidates);
  std::vector<Token> tokens;
  for (const Candidate& candidate : candidates) tokens.push_back(candidate.token);
  return tokens;
}

// Tokens that are left of all, by walking the vocabulary.
std::vector<Token> allowed_of_vocabulary(Grammar& grammar) {
  std::vector<float> logits(static_cast<size_t>(kVocabulary.size()), 1.0f);
  grammar.ban_refused(logits.data());
  std::vector<Token> tokens;
  for (const Token token : all_tokens()) {
    if (std::isfinite(logits[static_cast<size_t>(token)])) tokens.push_back(token);
  }
  return tokens;
}

TEST("a token is allowed when the text with it can still become one of the grammar") {
  Grammar grammar = *make_grammar("root ::= \"yes\" (\" or no\")?", kVocabulary);

  CHECK_EQ(allowed_of_candidates(grammar), (std::vector<Token>{'y', kFirstWord, kFirstWord + 2}));
  CHECK(grammar.accept(kFirstWord));
  CHECK_EQ(allowed_of_candidates(grammar), (std::vector<Token>{' ', kEnd}));
  CHECK(grammar.is_complete());
  CHECK(grammar.accept(' '));
  CHECK_EQ(allowed_of_candidates(grammar), (std::vector<Token>{'o'}));
  CHECK(!grammar.is_complete());
}

TEST("an end token is accepted where the text is complete, and nowhere else") {
  Grammar grammar = *make_grammar("root ::= \"no\"", kVocabulary);
  Grammar other = grammar;

  CHECK(!other.accept(kEnd));
  CHECK(grammar.accept(kFirstWord + 1));
  CHECK(grammar.accept(kEnd));
}

TEST("a token without text is never allowed") {
  Grammar grammar = *make_grammar("root ::= .*", kVocabulary);

  std::vector<Candidate> candidates{{kFirstWord + 5, 1.0f}};
  grammar.keep_allowed(candidates);

  CHECK(candidates.empty());
  CHECK(!grammar.accept(kFirstWord + 5));
}

TEST("a character may be put together from tokens of single bytes") {
  Grammar grammar = *make_grammar("root ::= [\xC3\xA9]", kVocabulary);

  CHECK_EQ(allowed_of_candidates(grammar), (std::vector<Token>{0xC3, kFirstWord + 3}));
  CHECK(grammar.accept(kFirstWord + 3));
  CHECK(!grammar.is_complete());
  CHECK_EQ(allowed_of_candidates(grammar), (std::vector<Token>{0xA9, kFirstWord + 4}));
}

TEST("the whole vocabulary is filtered as its tokens are one by one") {
  for (const char* text : {"root ::= .*", "root ::= [0-9]+", "root ::= \"1\" [2x] | \"yes or\" .*", "root ::= [^n]+",
                           "root ::= \"\"", "root ::= \"\xC3\xA9\" root | \"n\""}) {
    Grammar grammar = *make_grammar(text, kVocabulary);
    for (int step = 0; step < 3; ++step) {
      const std::vector<Token> allowed = allowed_of_candidates(grammar);
      CHECK_EQ(allowed_of_vocabulary(grammar), allowed);
      if (allowed.empty() || allowed[0] == kEnd) break;
      CHECK(grammar.accept(allowed[0]));
    }
  }
}

TEST("a search that takes too long is given up, and the next token is searched anew") {
  Grammar grammar = *make_grammar("root ::= " + repeated("[a-z]? ", 2000), kVocabulary);

  for (int i = 0; i < 50 && !grammar.is_too_slow(); ++i) allowed_of_vocabulary(grammar);

  CHECK(grammar.is_too_slow());
  CHECK_EQ(allowed_of_candidates(grammar), (std::vector<Token>{kEnd}));
  CHECK(grammar.accept('a'));
  CHECK(!grammar.is_too_slow());
}

TEST("copies of one grammar are followed in several threads at once") {
  const std::shared_ptr<const Grammar> shared = make_grammar("root ::= ([a-z] | [0-9] root \"!\"?)*", kVocabulary);
  std::vector<std::thread> threads;
  std::vector<int> n_accepted(4);
  for (int& accepted : n_accepted) {
    threads.emplace_back([&accepted, shared] {
      Grammar grammar = *shared;
      for (size_t i = 0; i < 50; ++i) {
        const std::vector<Token> allowed = allowed_of_vocabulary(grammar);
        if (grammar.accept(allowed[i % 3])) ++accepted;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  CHECK_EQ(n_accepted, (std::vector<int>(4, 50)));
}

TEST("a grammar moves from thread to thread with its sequence") {
  Grammar grammar = *make_grammar("root ::= \"a\" root \"b\" | \"c\"", kVocabulary);
  int n_accepted = 0;
  for (const char letter : std::string("aaacbbb")) {
    std::thread([&] { n_accepted += grammar.accept(static_cast<uint8_t>(letter)) ? 1 : 0; }).join();
  }

  CHECK_EQ(n_accepted, 7);
  CHECK(grammar.is_complete());
}

TEST("grammars that are alive share a limit of memory, and give it back") {
  const std::string text = "root ::= [a-z]{1000}";
  GrammarCompiler compiler({}, 3 * compiled(text)->bytes());
  std::vector<std::shared_ptr<const Grammar>> grammars(3);
  for (auto& grammar : grammars) CHECK(compiler.compile(text, kVocabulary, grammar).is_ok());
  std::shared_ptr<const Grammar> one_more;

  CHECK_EQ(compiler.compile(text, kVocabulary, one_more).code(), StatusCode::kQueueFull);
  grammars.pop_back();
  CHECK(compiler.compile(text, kVocabulary, one_more).is_ok());
}

}  // namespace
}  // namespace corosrv
