"""What is loaded and unloaded next, given where the models stand."""

from corosrv.models.plan import LoadPlan, ModelState, Standing, plan

READY, LOADING, UNLOADING = ModelState.READY, ModelState.LOADING, ModelState.UNLOADING
UNLOADED, FAILED = ModelState.UNLOADED, ModelState.FAILED


def wanted(name: str, since: float = 1.0, size: int = 10, state: ModelState = UNLOADED) -> Standing:
    return Standing(name, state, size, wanted_since=since)


def ready(name: str, idle_since: float = 0.0, size: int = 10, is_used: bool = False) -> Standing:
    return Standing(name, READY, size, is_used=is_used, idle_since=idle_since)


def decide(*models: Standing, limit: int = 0, idle_s: float = 0.0, now: float = 100.0, elsewhere: int = 0) -> LoadPlan:
    return plan(models, limit, idle_s, now, elsewhere)


def test_nothing_wanted_and_nothing_idle_is_nothing_to_do():
    assert decide(Standing("a", UNLOADED, 10), Standing("b", LOADING, 10), ready("c")) == LoadPlan()


def test_what_is_wanted_is_loaded():
    assert decide(wanted("a"), wanted("b", state=FAILED)).load == ("a", "b")


def test_what_is_on_its_way_is_left_alone():
    assert decide(wanted("a", state=LOADING), wanted("b", state=UNLOADING)) == LoadPlan()


def test_what_fits_beside_the_others_is_loaded():
    assert decide(ready("a", size=10), wanted("b", size=20), limit=30) == LoadPlan(load=("b",))


def test_models_that_load_and_unload_take_room_too():
    loading, unloading = Standing("a", LOADING, 10), Standing("b", UNLOADING, 10)

    assert decide(loading, unloading, wanted("c"), limit=29) == LoadPlan()
    assert decide(loading, unloading, wanted("c"), limit=30) == LoadPlan(load=("c",))


def test_memory_that_others_hold_is_no_room():
    assert decide(wanted("a", size=20), limit=30, elsewhere=11) == LoadPlan()
    assert decide(wanted("a", size=20), limit=30, elsewhere=10) == LoadPlan(load=("a",))
    assert decide(ready("a"), wanted("b", size=20), limit=30, elsewhere=10) == LoadPlan(unload=("a",))


def test_others_are_told_what_is_lacking_and_nobody_here_makes_room_where_they_do_it():
    models = ready("a", size=0), wanted("b", size=20)  # of what others count, nothing is counted here

    assert plan(models, 30, 0.0, 100.0, 25, asks_others=True) == LoadPlan(shortage=15)
    assert plan(models, 30, 0.0, 100.0, 10, asks_others=True) == LoadPlan(load=("b",))


def test_the_least_recently_used_makes_room():
    decided = decide(ready("a", idle_since=5), ready("b", idle_since=3), wanted("c"), limit=20)

    assert decided == LoadPlan(unload=("b",))


def test_as_many_go_as_are_needed_and_no_more():
    models = [ready(name, idle_since=number) for number, name in enumerate("abc")]

    assert decide(*models, wanted("d", size=20), limit=30).unload == ("a", "b")


def test_room_that_is_being_made_is_not_made_twice():
    assert decide(Standing("a", UNLOADING, 10), ready("b"), wanted("c"), limit=20) == LoadPlan()


def test_a_model_in_use_is_never_unloaded():
    assert decide(ready("a", is_used=True), wanted("b"), limit=10) == LoadPlan()
    assert decide(ready("a", is_used=True), idle_s=1.0) == LoadPlan()


def test_nobody_is_unloaded_for_room_that_will_not_be_enough():
    assert decide(ready("a", size=5), ready("b", size=10, is_used=True), wanted("c", size=10), limit=15) == LoadPlan()


def test_the_first_in_line_is_not_passed_by_smaller_ones():
    busy = ready("a", size=20, is_used=True)

    assert decide(busy, wanted("big", since=1, size=20), wanted("small", since=2, size=1), limit=30) == LoadPlan()
    assert decide(busy, wanted("big", since=2, size=20), wanted("small", since=1, size=1), limit=30).load == ("small",)


def test_what_can_never_fit_is_let_through_to_fail():
    assert decide(wanted("huge", size=99), wanted("b", since=2), limit=10).load == ("huge", "b")


def test_an_idle_model_goes_after_its_time():
    models = [ready("a", idle_since=10), ready("b", idle_since=50)]

    assert decide(*models, idle_s=60, now=69) == LoadPlan(next_at=70)
    assert decide(*models, idle_s=60, now=70) == LoadPlan(unload=("a",), next_at=110)
    assert decide(*models, idle_s=60, now=110) == LoadPlan(unload=("a", "b"))


def test_a_model_that_goes_by_itself_makes_room_already():
    decided = decide(ready("old", idle_since=0), ready("new", idle_since=99), wanted("c"), limit=20, idle_s=50)

    assert decided.unload == ("old",)
