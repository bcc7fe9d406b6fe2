#include "check.h"
#include "loop/owner_ledger.h"

namespace corosrv {
namespace {

double had(const OwnerLedger& ledger, uint64_t owner) { return ledger.rank(owner).virtual_s; }

TEST("owners are charged for seconds by their weights") {
  OwnerLedger ledger;
  ledger.join(1);
  ledger.join(2, 0, 4);

  ledger.charge(1, 2);
  ledger.charge(2, 2);
  ledger.charge(2, 2);

  CHECK_EQ(had(ledger, 1), 2.0);
  CHECK_EQ(had(ledger, 2), 1.0);
}

TEST("who comes, or comes back, begins where the least of its tier stands, and no further behind") {
  OwnerLedger ledger;
  ledger.join(1);
  ledger.join(2);
  ledger.charge(1, 5);
  ledger.charge(2, 3);
  ledger.join(3);
  CHECK_EQ(had(ledger, 3), 3.0);

  ledger.leave(3);
  ledger.charge(2, 4);
  ledger.join(3);
  CHECK_EQ(had(ledger, 3), 5.0);

  ledger.join(4, 1);
  CHECK_EQ(had(ledger, 4), 5.0);  // of a tier where nobody is, the others say how late it is
}

TEST("who never waits saves up nothing, neither for itself nor for others") {
  OwnerLedger ledger;
  ledger.join(1);
  ledger.start(1);
  ledger.join(2);
  ledger.start(2);
  ledger.charge(1, 3);
  ledger.charge(2, 100);
  ledger.join(3);
  CHECK_EQ(had(ledger, 3), 100.0);  // for nobody waits
  ledger.leave(3);

  ledger.join(2);
  ledger.join(4);
  CHECK_EQ(had(ledger, 4), 100.0);
  ledger.join(1);
  CHECK_EQ(had(ledger, 1), 100.0);
}

TEST("who has had more than others does not lose that by leaving") {
  OwnerLedger ledger;
  ledger.join(1);
  ledger.join(2);
  ledger.charge(1, 5);

  ledger.leave(1);
  ledger.join(1);

  CHECK_EQ(had(ledger, 1), 5.0);
}

TEST("who has nothing to do is forgotten once that changes nothing") {
  OwnerLedger ledger;
  ledger.join(1);
  ledger.join(2);
  ledger.charge(1, 5);
  ledger.leave(1);
  CHECK_EQ(ledger.size(), size_t{2});

  ledger.charge(2, 5);
  CHECK_EQ(ledger.size(), size_t{1});

  ledger.leave(2);
  CHECK_EQ(ledger.size(), size_t{0});
}

TEST("of owners that come once and never again no more are remembered than may be") {
  OwnerLedger ledger;
  ledger.join(1);
  for (uint64_t owner = 2; owner < 2 * OwnerLedger::kMostIdle; ++owner) {
    ledger.join(owner);
    ledger.charge(owner, 1);
    ledger.leave(owner);
  }

  CHECK_EQ(ledger.size(), OwnerLedger::kMostIdle + 1);
}

TEST("the last task of an owner says its tier and its weight") {
  OwnerLedger ledger;
  ledger.join(1);
  ledger.charge(1, 7);
  ledger.join(2, 3);
  ledger.charge(2, 2);
  ledger.join(1, 3, 2);

  CHECK_EQ(ledger.rank(1).tier, 3);
  CHECK_EQ(had(ledger, 1), 9.0);
  ledger.charge(1, 4);
  CHECK_EQ(had(ledger, 1), 11.0);
  ledger.leave(1);
  ledger.leave(1);
  ledger.leave(2);
  CHECK_EQ(ledger.size(), size_t{0});
}

TEST("shares of slots are as large as weights, and no worse tier lessens them") {
  OwnerLedger ledger;
  ledger.join(1, 1);
  ledger.join(2, 1, 3);
  ledger.join(3, 2, 100);
  for (int running = 0; running < 2; ++running) {
    ledger.join(1, 1);
    ledger.start(1);
    CHECK_EQ(ledger.exceeds_share(1, 4), running == 1);
  }

  ledger.stop(1);
  CHECK(!ledger.exceeds_share(1, 4));
  ledger.join(4);
  ledger.start(1);
  CHECK(ledger.exceeds_share(1, 9));
}

}  // namespace
}  // namespace corosrv
