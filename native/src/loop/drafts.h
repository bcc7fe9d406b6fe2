// How many guesses a step computes.
#pragma once

#include "loop/row_prices.h"
#include "loop/scheduler.h"

namespace corosrv {

// Adds rows of guesses to those sequences of a plan that have none, the likeliest first, as long as each pays: a step
// with many sequences hardly has any, because its rows cost nearly all of its time. The plan then has at most `most`,
// and none where prompts are read: whoever waits for these should not wait for guesses.
void add_drafts(Plan& plan, const RowPrices& prices, int32_t most);

}  // namespace corosrv
