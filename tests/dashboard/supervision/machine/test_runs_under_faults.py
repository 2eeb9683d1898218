"""Whatever happens to runs, in whatever order: one writer, one history, and an end.

Runs, workers, the reaper, the dispatcher and people act in any order, under faults.
What of this the fast tests show by itself stands in tests/seeded, as D1 to D19.
"""

import random
import signal
from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dashboard.runs.models import ENDED, Run
from tests.dashboard.supervision.factories import Launcher
from tests.dashboard.supervision.machine import ledger
from tests.dashboard.supervision.machine.actors import KINDS, Actor, Cast, Fault
from tests.dashboard.supervision.machine.invariants import check_end, check_run
from tests.dashboard.supervision.machine.play import (
    ACTS_OF_PEOPLE,
    ENDING,
    NAMES,
    Play,
    drain_or_not,
    fork,
)
from tests.dashboard.supervision.machine.supervisors import (
    Broker,
    Clock,
    replace_surroundings,
)

pytestmark = [
    pytest.mark.slow(minutes=1),
    pytest.mark.django_db(transaction=True),
    # No one closes the files of a killed process.
    pytest.mark.filterwarnings(
        "ignore:.*ServerSideCursor.* still open:ResourceWarning"
    ),
]


MAX_LIVE = 2
ROUNDS = 150  # of 15 s: back-offs of 10, 30 and 90 s, of each run, and some more
PATIENCE = 10  # rounds after which a trainer saves each step

# Mostly none: a course that is all faults gets nowhere.
FAULTS = st.one_of(
    st.none(),
    st.none(),
    st.tuples(st.sampled_from(KINDS), st.integers(0, 12)),
    st.tuples(st.sampled_from(KINDS), st.integers(0, 90)),
)
# What ends a run comes seldom, as little can happen afterwards.
ACTS = [*(set(ACTS_OF_PEOPLE) - ENDING)] * 3 + [*ENDING]
OFTEN = ["reap"] * 8 + ["deliver"] * 3 + ["supervise"] * 4
ACT = st.sampled_from(sorted(ACTS))
DEED = st.sampled_from(OFTEN + sorted(ACTS))
AFTER = st.sampled_from([0, 61])  # seconds: its lease has run out
PICK = st.integers(0, 11)  # one of a list of any length


class Machine(RuleBasedStateMachine):
    """A subclass binds it to its surroundings."""

    surroundings: ClassVar[tuple[Launcher, Cast, Clock, Broker]]
    num_courses: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(*self.surroundings)
        type(self).num_courses += 1

    @precondition(lambda self: not self.play.works())
    @rule(saves=st.booleans())
    def set_off(self, saves: bool) -> None:
        """As a course without a trainer gets nowhere."""
        play = self.play
        if not play.unfinished():
            play.launch(optim={"num_steps": 12})
        play.dispatch()
        for one in play.supervisors:
            if not one.is_up:
                play.start(one)
            if one.is_free:
                play.deliver(one)
        play.pass_a_while(saves=saves)

    # What people do.

    @precondition(lambda self: len(self.play.unfinished()) < MAX_LIVE)
    @rule(fault=FAULTS)
    def launch_another(self, fault: Fault) -> None:
        launch = self.play.launch
        self.play.perform("launch", lambda: launch(optim={"num_steps": 12}), fault)

    @precondition(lambda self: len(self.play.unfinished()) < MAX_LIVE)
    @rule(pick=PICK, which=PICK, fault=FAULTS)
    def fork(self, pick: int, which: int, fault: Fault) -> None:
        run, launch = self.run_at(pick), self.play.launch
        saved = list(run.checkpoints.order_by("pk")) if run else []
        if saved:
            one = saved[which % len(saved)]
            steps = one.step + 3
            self.play.perform("fork", lambda: fork(one, launch, num_steps=steps), fault)

    @rule(pick=PICK, name=ACT, fault=FAULTS)
    def ask(self, pick: int, name: str, fault: Fault) -> None:
        self.do(name, pick, fault)

    # What becomes of messages.

    @precondition(lambda self: self.play.broker.num_messages)
    @rule(pick=PICK, fault=FAULTS)
    def deliver(self, pick: int, fault: Fault) -> None:
        free = [one for one in self.play.supervisors if one.is_free]
        if free:
            self.play.deliver(free[pick % len(free)], fault)

    @rule(count=st.sampled_from([0, 1, 3]))
    def lose_or_repeat_messages(self, count: int) -> None:
        broker = self.play.broker
        broker.num_messages = broker.num_messages + count if count else 0

    # What trainers do.

    @precondition(lambda self: self.play.trainers())
    @rule(pick=PICK, saves=st.lists(st.booleans(), min_size=1, max_size=4))
    def train(self, pick: int, saves: list[bool]) -> None:
        trainers = self.play.trainers()
        trainers[pick % len(trainers)].train_on(saves)

    @precondition(lambda self: self.play.trainers())
    @rule(
        pick=PICK,
        number=st.sampled_from([9, 11]),
        within=st.sampled_from(["", "line", "save"]),
    )
    def kill_trainer(self, pick: int, number: int, within: str) -> None:
        trainers = self.play.trainers()
        trainers[pick % len(trainers)].die(number, within=within)

    @precondition(lambda self: self.play.trainers())
    @rule(pick=PICK, fails=st.integers(0, 3).map(lambda n: n == 3))
    def end_trainer(self, pick: int, fails: bool) -> None:
        trainers = self.play.trainers()
        trainer = trainers[pick % len(trainers)]
        if fails:
            trainer.fail()
        else:
            trainer.pause_itself()

    # What supervisors do, and what becomes of workers.

    @precondition(lambda self: self.play.works())
    @rule(pick=PICK, fault=FAULTS)
    def supervise(self, pick: int, fault: Fault) -> None:
        works = self.play.works()
        work = works[pick % len(works)]
        work.faults.arm(fault)
        self.play.turn(work)

    @precondition(lambda self: self.play.works())
    @rule(
        pick=PICK,
        count=st.sampled_from([1, 9, 9]),
        saves=st.booleans(),
        wakes=st.booleans(),
        ends=st.booleans(),
        point=st.none() | st.integers(0, 8) | st.integers(0, 60),
    )
    def put_to_sleep(
        self,
        pick: int,
        count: int,
        saves: bool,
        wakes: bool,
        ends: bool,
        point: int | None,
    ) -> None:
        """A supervisor dies;

        its trainer continues, its lease expires, another takes over.
        """
        works = self.play.works()
        works = [one for one in works if self.play.trainers_of(one)] or works
        work = works[pick % len(works)]
        if ends:
            for trainer in self.play.trainers_of(work):
                trainer.die(signal.SIGKILL, within="")
        if point is not None:
            work.faults.arm(("stall", point))
            self.play.turn(work)
        work.is_asleep = True
        self.go_on(count=count, saves=saves)
        if wakes and work.is_ready and (work.is_asleep or work.is_stalled):
            self.play.turn(work)

    @precondition(lambda self: self.play.trainers() and self.play.works())
    @rule(pick=PICK, saves=st.booleans())
    def oversleep(self, pick: int, saves: bool) -> None:
        """It wakes up with unsent lines while another holds its run."""
        self.put_to_sleep(
            pick=pick, count=9, saves=saves, wakes=True, ends=False, point=None
        )

    @rule(
        pick=PICK,
        what=st.sampled_from(["kill", "end", "start", "cut off", "mend", "drain"]),
        fault=FAULTS,
    )
    def change_worker(self, pick: int, what: str, fault: Fault) -> None:
        play = self.play
        one = play.supervisors[pick % len(NAMES)]
        if what == "start" and not one.is_up:
            play.start(one, fault)
        elif what == "kill" and one.is_up:
            play.kill(one)
        elif what == "drain":
            play.perform(what, lambda: drain_or_not(one.name, play.launch))
        elif what == "end" and one.work is None:
            one.end()
        elif what == "end" and one.work:
            one.work.is_shutting_down = True
        elif one.work:
            one.work.faults.is_cut_off = what == "cut off"

    # What comes by itself.

    @rule(is_reaper=st.booleans(), fault=FAULTS)
    def look_after_runs(self, is_reaper: bool, fault: Fault) -> None:
        if is_reaper:
            self.play.reap(fault)
        else:
            self.play.dispatch(fault)

    @precondition(lambda self: self.play.strays())
    @rule(pick=PICK)
    def wake_stray(self, pick: int) -> None:
        strays = self.play.strays()
        self.play.turn(strays[pick % len(strays)])

    @rule(seconds=st.sampled_from([1, 11, 31, 61, 100]))
    def wait(self, seconds: float) -> None:
        self.play.pass_time(seconds)

    @rule(count=st.integers(1, 4), saves=st.booleans())
    def go_on(self, count: int, saves: bool) -> None:
        for _ in range(count):
            self.play.pass_a_while(saves=saves)

    @rule(pick=PICK, one=DEED, other=DEED, point=st.integers(0, 30), after=AFTER)
    def meet(self, pick: int, one: str, other: str, point: int, after: int) -> None:
        """About one run: the other comes in between two statements of the one."""
        self.play.pass_time(after)
        first = self.do(one, pick, ("stall", point))
        self.do(other, pick, None)
        if first and first.is_stalled:
            self.play.turn(first)

    @rule(pick=PICK, other=DEED, point=st.integers(0, 90), after=AFTER)
    def meet_supervisor(self, pick: int, other: str, point: int, after: int) -> None:
        self.meet(pick=pick, one="supervise", other=other, point=point, after=after)

    @rule(pick=PICK, one=DEED, point=st.integers(0, 12), after=AFTER)
    def wait_for(self, pick: int, one: str, point: int, after: int) -> None:
        """The supervisor comes in between two statements of another."""
        self.meet(pick=pick, one=one, other="supervise", point=point, after=after)

    # What must hold.

    @invariant()
    def what_was_touched_is_sound(self) -> None:
        self.play.check_touched()

    def teardown(self) -> None:
        try:
            if not self.play.is_broken:
                self.end_well()
        finally:
            self.play.kill_all()

    def end_well(self) -> None:
        """Without further faults every run comes to its end."""
        play = self.play
        play.cease_faults()
        for number in range(ROUNDS):
            if not play.unfinished():
                break
            for one in play.supervisors:
                if not one.is_up:
                    play.start(one)
            play.pass_a_while(saves=number > PATIENCE, num_steps=4)
        left = [(run.pk, run.state) for run in play.unfinished()]
        assert not left, f"stuck: {left}"
        for run in play.runs():
            check_run(run)
            check_end(run)

    def do(self, name: str, pick: int, fault: Fault) -> Actor | None:
        play, run = self.play, self.run_at(pick)
        if name == "reap":
            return play.reap(fault)
        if name == "deliver":
            free = [one for one in play.supervisors if one.is_free]
            return play.deliver(free[0], fault) if free else None
        if name == "supervise":
            held = [one for one in play.works() if run and one.has_claimed(run.pk)]
            if not held:
                return None
            for trainer in play.trainers():
                trainer.train(saves=pick % 2 == 0)
            held[-1].faults.arm(fault)
            return play.turn(held[-1])
        if run is None:
            return None
        apply, user = ACTS_OF_PEOPLE[name], play.launch.user
        return play.perform(name, lambda: apply(run, user), fault)

    def run_at(self, pick: int) -> Run | None:
        """The oldest that has not ended; by a larger number any."""
        found: list[Run] = list(self.play.runs())
        live = [run for run in found if run.state not in ENDED]
        if pick < 6 and live:
            return live[0]
        return found[pick % len(found)] if found else None


@pytest.fixture
def machine(launch, monkeypatch) -> Iterator[type[Machine]]:
    cast, clock, broker = Cast(), Clock(), Broker()
    replace_surroundings(monkeypatch, clock, broker)
    with ledger.kept():
        surroundings = (launch, cast, clock, broker)
        yield type("Runs", (Machine,), {"surroundings": surroundings})
        cast.close()


def test_each_run_has_one_writer_one_history_and_an_end(machine, request):
    """The same courses each time, so that a change is judged by itself; any in soak."""
    is_soak = request.config.getoption("--soak")
    given = request.config.getoption("--hypothesis-seed")
    drawn = random.SystemRandom().randrange(2**32) if is_soak else 0
    number = int(given) if given else drawn  # it decides all that happens
    try:
        run_state_machine_as_test(
            seed(number)(machine),
            settings=settings(
                max_examples=3_000 if is_soak else 5,
                stateful_step_count=40,
                database=None,
                deadline=None,
                report_multiple_bugs=False,
                # To shrink a failure takes minutes of SQL.
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    except BaseException as error:
        error.add_note(
            f"Found by course {machine.num_courses} at the latest. The same courses "
            f"happen again by: --hypothesis-seed={number}"
        )
        raise
