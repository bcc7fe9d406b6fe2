// A test of what only some processors can do. Where `can` is false there is nothing to test: the engine then never
// gets there either.
#pragma once

#include "check.h"

#define KERNEL_TEST(can, sentence)                \
  static void CHECK_JOIN(kernel_at_, __LINE__)(); \
  TEST(sentence) {                                \
    if (can) CHECK_JOIN(kernel_at_, __LINE__)();  \
  }                                               \
  static void CHECK_JOIN(kernel_at_, __LINE__)()
