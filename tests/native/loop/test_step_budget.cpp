#include "check.h"
#include "loop/step_budget.h"

namespace corosrv {
namespace {

TEST("when nobody streams a step takes all the prompt tokens it has rows for") {
  StepBudget budget(0.060, 512);
  CHECK_EQ(budget.prompt_tokens(0), 512);

  budget.observe(0, 512, 10.0);
  CHECK_EQ(budget.prompt_tokens(0), 512);
}

TEST("before anything is known a streaming step takes a modest piece of prompt") {
  CHECK_EQ(StepBudget(0.060, 512).prompt_tokens(4), 64);
  CHECK_EQ(StepBudget(0.060, 32).prompt_tokens(4), 32);
}

TEST("the piece grows and shrinks with the time that rows were seen to take") {
  StepBudget fast(0.060, 512);
  fast.observe(4, 0, 0.004);    // 1 ms a row
  fast.observe(0, 100, 0.050);  // half a millisecond a prompt token
  StepBudget slow(0.060, 512);
  slow.observe(4, 0, 0.004);
  slow.observe(0, 100, 0.200);

  // Six rows more than were seen take 2 ms more, as far as is known.
  CHECK(fast.prompt_tokens(10) >= 107 && fast.prompt_tokens(10) <= 109);  // (60 - 6) / 0.5
  CHECK(slow.prompt_tokens(10) >= 26 && slow.prompt_tokens(10) <= 28);    // (60 - 6) / 2
}

TEST("many rows take as long as a step of many did, not many times as long as one alone") {
  StepBudget budget(0.060, 512);
  for (int round = 0; round < 50; ++round) {
    for (const int n_rows : {1, 4, 8}) budget.observe(n_rows, 0, 0.010 + 0.001 * n_rows);
    budget.observe(0, 100, 0.100);  // 1 ms a prompt token
  }

  CHECK(budget.prompt_tokens(5) >= 44 && budget.prompt_tokens(5) <= 46);    // 60 - 15; 5 times 11 ms would be 55
  CHECK(budget.prompt_tokens(20) >= 59 && budget.prompt_tokens(20) <= 61);  // twice 30; 20 times 11 ms would be 220

  for (int round = 0; round < 50; ++round) budget.observe(20, 100, 0.130);
  CHECK(budget.prompt_row_s() > 0.00098 && budget.prompt_row_s() < 0.00102);
}

TEST("a prompt advances however slow the machine is") {
  StepBudget budget(0.060, 512);
  budget.observe(4, 0, 4.0);
  budget.observe(0, 100, 100.0);

  CHECK_EQ(budget.prompt_tokens(4), 16);
}

TEST("the piece is never larger than a step, nor less than the least, however many sequences decode") {
  for (const int32_t rows : {16, 100, 512}) {
    StepBudget budget(0.060, rows);
    budget.observe(4, 0, 0.008);
    for (const double step_s : {1e-6, 0.1, 100.0}) {
      budget.observe(0, 64, step_s);
      for (int32_t n_decode = 0; n_decode <= 2 * rows; ++n_decode) {
        CHECK(budget.prompt_tokens(n_decode) >= 16 && budget.prompt_tokens(n_decode) <= rows);
      }
    }
  }
}

TEST("the budget follows a machine whose speed changes") {
  StepBudget budget(0.060, 4096);
  for (int i = 0; i < 50; ++i) budget.observe(0, 100, 0.010);
  CHECK(budget.prompt_tokens(1) > 550);

  for (int i = 0; i < 50; ++i) budget.observe(0, 100, 0.100);
  CHECK(budget.prompt_tokens(1) < 65);
}

TEST("many prompts and few streams make a step longer, up to four times") {
  StepBudget budget(0.06, 512);
  budget.observe(10, 0, 0.01);
  budget.observe(0, 100, 0.1);

  const int32_t alone = budget.prompt_tokens(10);

  CHECK(alone >= 49 && alone <= 50);
  CHECK(budget.prompt_tokens(10, 10) >= 2 * alone);
  CHECK(budget.prompt_tokens(10, 1000) >= 4 * alone && budget.prompt_tokens(10, 1000) <= 5 * alone);
}

TEST("what nobody waits for makes a step a little longer, and never stands still") {
  StepBudget budget(0.060, 512);
  CHECK_EQ(budget.prompt_tokens_beside(4), 16);
  for (int round = 0; round < 100; ++round) {
    for (const int n_rows : {1, 8, 16})
      budget.observe(n_rows, 0, 0.009 + 0.001 * n_rows);  // 10 ms, and 1 ms a row more
    budget.observe(0, 100, 0.005);                        // 50 us a prompt token
  }

  CHECK_EQ(budget.rows_beside(1), 1);                                 // of 10 ms
  CHECK(budget.rows_beside(16) >= 3 && budget.rows_beside(16) <= 4);  // of 25 ms
  CHECK(budget.prompt_tokens_beside(16) >= 70 && budget.prompt_tokens_beside(16) <= 80);
}

}  // namespace
}  // namespace corosrv
