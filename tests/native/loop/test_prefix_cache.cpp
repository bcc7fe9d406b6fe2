#include <algorithm>
#include <ctime>
#include <random>

#include "check.h"
#include "loop/prefix_cache.h"

namespace corosrv {
namespace {

using Tokens = std::vector<Token>;

// `n` tokens of a kind: those of different kinds differ from the first token on.
Tokens tokens(size_t n, Token kind = 0) {
  Tokens made(n, 1000 + kind);
  for (size_t i = 0; i < n; ++i) made[i] += static_cast<Token>(i);
  return made;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Snapshot snapshot(size_t size) { return {std::make_unique<uint8_t[]>(size), size}; }

constexpr size_t kLots = 1 << 20;

TEST("a prefix that two sequences have in common ends where they differ, or where one ends") {
  CHECK_EQ(common_prefix({}, {}), size_t{0});
  CHECK_EQ(common_prefix({1, 2, 3}, {1, 2, 3}), size_t{3});
  CHECK_EQ(common_prefix({1, 2, 3}, {1, 2}), size_t{2});
  CHECK_EQ(common_prefix({1, 2}, {1, 9, 2}), size_t{1});
  CHECK_EQ(common_prefix({1, 2}, {3}), size_t{0});
}

TEST("what was kept of certain tokens is handed out, and forgotten with what goes on behind them") {
  const SharingScope other{7, {}};
  PrefixCache cache(kLots);
  cache.keep(tokens(20) + tokens(9, 1), snapshot(1));
  cache.keep(tokens(20) + tokens(5, 2), snapshot(2));
  cache.keep(tokens(20) + tokens(5, 2), snapshot(3), other);
  cache.keep(tokens(30, 3), snapshot(4));

  const auto found = cache.holding(tokens(20), {});
  REQUIRE(found != nullptr);
  CHECK_EQ(found->size, size_t{2});
  CHECK(cache.holding(tokens(21), {}) == nullptr);
  CHECK(cache.holding(tokens(30, 3), other) == nullptr);

  CHECK(cache.forget(tokens(20), {}));
  CHECK(!cache.forget(tokens(20), {}));
  CHECK_EQ(cache.size(), size_t{2});
  CHECK(cache.holding(tokens(20), other) != nullptr);
  CHECK_EQ(found->size, size_t{2});  // whoever has it keeps it
}

TEST("the longest match is found, and of equal ones the entry that is copied fastest") {
  PrefixCache cache(kLots);
  cache.keep(tokens(20) + tokens(5, 1), snapshot(1));
  cache.keep(tokens(30) + tokens(60, 2), snapshot(2));
  cache.keep(tokens(30) + tokens(10, 3), snapshot(3));
  cache.keep(tokens(40, 4), snapshot(4));

  const PrefixCache::Match match = cache.find(tokens(50));

  CHECK_EQ(match.n_tokens, size_t{30});
  REQUIRE(match.snapshot != nullptr);
  CHECK_EQ(match.snapshot->size, size_t{3});
  CHECK(cache.find(tokens(50, 9)).snapshot == nullptr);
}

TEST("of more than a window a copy serves those alone that go on at its end, or compute its last token again") {
  PrefixCache cache(kLots, 20, true);
  cache.keep(tokens(50), snapshot(1));

  CHECK_EQ(cache.find(tokens(60)).n_tokens, size_t{50});
  CHECK_EQ(cache.find(tokens(50)).n_tokens, size_t{50});
  CHECK_EQ(cache.find(tokens(49)).n_tokens, size_t{0});
  CHECK_EQ(cache.find(tokens(48) + tokens(9, 1)).n_lost, size_t{48});
  CHECK(cache.covers(tokens(49)));
  CHECK(!cache.covers(tokens(48)));
  CHECK(cache.holding(tokens(48), {}) == nullptr);
  cache.keep(tokens(30), snapshot(2));
  cache.keep(tokens(60), snapshot(3));
  CHECK_EQ(cache.size(), size_t{3});  // what is cut off would be lost
  CHECK_EQ(cache.find(tokens(30) + tokens(9, 1)).n_tokens, size_t{30});
  CHECK(cache.forget(tokens(30), {}));  // and whatever goes on behind them
  CHECK_EQ(cache.size(), size_t{0});
}

TEST("a copy of no more than a window is cut anywhere") {
  for (const bool resumes : {false, true}) {
    PrefixCache cache(kLots, 20, resumes);
    cache.keep(tokens(20), snapshot(1));
    CHECK_EQ(cache.find(tokens(10) + tokens(9, 1)).n_tokens, size_t{10});
    cache.keep(tokens(21, 2), snapshot(2));
    CHECK_EQ(cache.find(tokens(30, 2)).n_tokens, resumes ? size_t{21} : size_t{0});
  }
}

TEST("what one scope left is neither found, covered nor replaced by another") {
  const SharingScope mine{7, {}}, theirs{8, {}}, adapted{7, {1.0f}};
  PrefixCache cache(kLots);
  cache.keep(tokens(20), snapshot(1), mine);

  CHECK(cache.find(tokens(20), theirs).snapshot == nullptr);
  CHECK(cache.find(tokens(20)).snapshot == nullptr);
  CHECK(cache.find(tokens(20), adapted).snapshot == nullptr);
  CHECK(!cache.covers(tokens(20), theirs));
  CHECK(!cache.covers(tokens(20), adapted));
  cache.keep(tokens(30), snapshot(2), theirs);
  CHECK_EQ(cache.find(tokens(20), mine).snapshot->size, size_t{1});
  CHECK_EQ(cache.size(), size_t{2});
}

TEST("a match that saves less than its copying costs is none") {
  PrefixCache cache(kLots);
  cache.keep(tokens(PrefixCache::kLeastTokens) + tokens(10, 1), snapshot(1));
  cache.keep(tokens(20, 2) + tokens(5000, 3), snapshot(2));

  CHECK_EQ(cache.find(tokens(100)).n_tokens, PrefixCache::kLeastTokens);
  CHECK_EQ(cache.find(tokens(PrefixCache::kLeastTokens - 1)).n_tokens, size_t{0});
  CHECK_EQ(cache.find(tokens(100, 2)).n_tokens, size_t{0});
}

TEST("a short match is worth a short snapshot, and no long one") {
  PrefixCache cache(kLots);
  cache.keep(tokens(10) + tokens(150, 1), snapshot(1));
  cache.keep(tokens(10, 2) + tokens(151, 3), snapshot(2));

  CHECK_EQ(cache.find(tokens(10) + tokens(10, 5)).n_tokens, size_t{10});
  CHECK_EQ(cache.find(tokens(10, 2) + tokens(10, 5)).n_tokens, size_t{0});
}

TEST("what was not used longest makes room") {
  PrefixCache cache(4 * (100 + 20 * sizeof(Token)));
  for (Token kind = 0; kind < 4; ++kind) cache.keep(tokens(20, 1000 * kind), snapshot(100));
  CHECK(cache.find(tokens(20, 0)).snapshot != nullptr);
  CHECK(cache.covers(tokens(20, 1000)));

  cache.keep(tokens(20, 4000), snapshot(100));
  cache.keep(tokens(20, 5000), snapshot(100));

  CHECK_EQ(cache.size(), size_t{4});
  CHECK(cache.covers(tokens(20, 0)));
  CHECK(cache.covers(tokens(20, 1000)));
  CHECK(!cache.covers(tokens(20, 2000)));
  CHECK(!cache.covers(tokens(20, 3000)));
  CHECK(cache.covers(tokens(20, 4000)));
}

TEST("an entry takes the place of those that are its beginning, and of no others") {
  PrefixCache cache(kLots);
  cache.keep(tokens(20), snapshot(10));
  cache.keep(tokens(20) + tokens(9, 1), snapshot(10));
  cache.keep(tokens(30), snapshot(10));

  CHECK_EQ(cache.size(), size_t{2});
  CHECK(cache.covers(tokens(30)));
  CHECK(cache.covers(tokens(20) + tokens(9, 1)));
  CHECK(!cache.covers(tokens(31)));
}

TEST("bytes are those of tokens and snapshots, and never more than the limit") {
  std::mt19937 random(7);
  PrefixCache cache(5000);
  for (int i = 0; i < 2000; ++i) {
    const size_t n_tokens = 1 + random() % 100;
    const size_t size = random() % 6000;
    const bool fits = n_tokens * sizeof(Token) + size <= 5000;
    const Tokens kept = tokens(n_tokens, static_cast<Token>(1000 * (random() % 20)));
    const bool was_covered = cache.covers(kept);
    cache.keep(kept, snapshot(size));
    CHECK(cache.bytes() <= 5000);
    CHECK(cache.covers(kept) == (fits || was_covered));
  }
  CHECK(cache.size() > 0);
  PrefixCache none(0);
  none.keep(tokens(20), snapshot(1));
  CHECK_EQ(none.size(), size_t{0});
  CHECK_EQ(none.bytes(), size_t{0});
}

// What a scan instead of a tree costs where it is worst: every entry shares the searched prefix.
TEST("a cache that shrinks keeps what was used last, and of the rest what fits") {
  PrefixCache cache(kLots);
  for (Token kind = 0; kind < 4; ++kind) cache.keep(tokens(20, kind), snapshot(1000));
  CHECK(cache.covers(tokens(20, 0)));

  cache.shrink(2 * (1000 + 20 * sizeof(Token)));
  CHECK_EQ(cache.size(), size_t{2});
  CHECK(cache.covers(tokens(20, 3)));
  CHECK(cache.covers(tokens(20, 0)));

  cache.shrink(0);
  CHECK_EQ(cache.size(), size_t{1});
  CHECK(cache.covers(tokens(20, 0)));
}

TEST("a thousand entries with 400 tokens in common are searched in less than a step's time") {
  PrefixCache cache(1 << 30);
  for (Token kind = 0; kind < 1000; ++kind) cache.keep(tokens(400) + tokens(30, 1 + 1000 * kind), snapshot(1));
  REQUIRE(cache.size() == 1000);

  const std::clock_t begin = std::clock();  // of the processor: others may use it meanwhile
  CHECK_EQ(cache.find(tokens(500)).n_tokens, size_t{400});

  CHECK(std::clock() - begin < CLOCKS_PER_SEC * 60 / 1000);
}

}  // namespace
}  // namespace corosrv
