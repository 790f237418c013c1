"""What a search may spend, and the constants it is tuned with; no other file holds one.

None of them is a time: the same problem gives the same plan however fast the machine is. Shares
are of 1. Constants that were tuned on problems were tuned on those in benchmarks/search_time.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LpEffort:
    """Effort of one LP bound.

    LPs are solved until the critical path of a solution exceeds the bound by at most the share
    `close`, or until the bound has grown by at most that share over the last `rounds` LPs. One in
    `ranks` ranks, one at least, has its longest path added in a round: of 128 ranks one at a time
    takes hundreds of rounds.
    """

    rounds: int
    close: float
    ranks: int = 16


@dataclass(frozen=True)
class SearchBudget:
    """Limits of a search, by what they limit.

    effort: its name among EFFORTS, or of a budget of your own.

    Candidates
        max_micro_batch: rows of a data-parallel rank in the largest micro-batch.
        min_units: of a stage on average, for several stages a rank (a layer is two units).
        long_row: share of a device's memory that what backward reads of one row takes, above which
            ranks of a node may cut the sequence though none would be idle; max_split: of them, with
            those that cut features.
        scarce_devices: of clusters with several nodes, up to which four ranks may cut the sequence
            and features where the batch has at most a row for each device.
        max_simulated: candidates; those beyond leave their bounds to the gap.
        first_candidates: plans without a pipeline that are simulated before all others, by bound.
        first_pipelines: plans of 1F1B of at most far_actions that are simulated next, by their
            bound within memory; bounded_pipelines: by floor, that are bounded for it.
        slow_links: how many times slower links between nodes are than those within, from where on
            plans with either outer axis are candidates of their own.
        worth: share by which a candidate must be able to beat the best plan, to be simulated; the
            others leave their bounds to the gap. worth_where_wide: the same where that leaves a gap
            of more than `wide`. near_wide: how much slower than the best a plan may be to be fitted
            with other placements where that does; wide_shares: of the price of a byte for these.
        at_once: share by which the best plan must exceed the LP bound of a candidate for that to be
            simulated before others of lower bounds, which the new best may rule out.
    LP bound
        max_actions: forwards and backwards of a schedule; a longer one has no LP bound.
        quick, thorough: effort for every candidate, and for those that limit the gap.
        equal_stages: effort for the paths that all candidates of a schedule begin with;
            equal_actions: forwards and backwards of a schedule, above which it is quick.
        lp_step: where between the best point so far and a solution the second critical path of a
            round is taken, as a share of the way.
        max_thorough: candidates bounded with thorough effort; enough_gap: at which no more are.
    Cuts
        memory_shares: of a device, that cuts are made for one after another.
        descents: of one candidate; long_descents: at most, of one with more than far_actions;
            descent_steps: of one of them.
        descent_shifts: units that a run of cuts moves by in one step.
        descent_microbatches: that a descent follows one by one, in multiples of the ranks.
        near: how much slower than the best plan one may be to be cut again, as a share; and the
            bound of a compute mesh, to be searched again with other placements where these are
            much faster.
        far: how much slower than its bound one may be before it is cut again all the same, up to
            far_actions: forwards and backwards of its schedule.
        near_reordered: the same with the other axis outermost, for other cuts to be looked for.
        max_polished: cuts that are tried when one cut is moved at a time; max_polished_passes:
            passes of micro-batches through units that are simulated for them.
        enough_polished: gap from which down no cuts are moved; -1 for cuts that always are, as a
            plan of other placements may be faster than any bound.
        enough_moved: gap from which down the best is not cut from other begins, and no runs of cuts
            are moved together; begins: that are tried; begins_polished: of what they led to;
            longest_run: of cuts; max_runs: that are tried.
    Placements
        price_shares: of the price of a byte to a device alone, that meshes are placed at again;
            none for no other placements.
        dense_shares: of the same price, that meshes are placed at one after another where nothing
            fits by default.
        much_faster: share of its step that the best of the first candidates gains by other
            placements, above which those on its mesh are searched with them before the others.
        near_placed: how much slower than the best plan the bound of a compute mesh may be to be
            searched with other placements, as a share; placed_meshes: of the nearest, that are
            unless the gap is wide. The best plan's own always is.
    Rematerialisation options
        offload_shares: of the values that the host link carries in time, that are offloaded.
        exact_units: of a stage whose options are chosen exactly; exact_choices: combinations of
            options, where units offload; few_choices: combinations that are all tried.
    Where nothing fits
        least_seq: tokens of the shortest sequence that is proposed.
        max_clusters: larger clusters that are searched for a plan that fits, and such of other
            devices. max_parts: of these, that are named.
    """

    effort: str = "best"
    max_micro_batch: int = 32
    long_row: float = 0.65
    max_split: int = 8
    scarce_devices: int = 128
    min_units: int = 4
    max_simulated: int = 200
    first_candidates: int = 4
    first_pipelines: int = 2
    bounded_pipelines: int = 24
    slow_links: float = 40.0
    worth: float = 0.0
    worth_where_wide: float = 0.0
    wide: float = float("inf")
    near_wide: float = 0.02
    wide_shares: tuple[float, ...] = (0.0, 0.25)
    at_once: float = 0.05
    max_actions: int = 70000
    quick: LpEffort = LpEffort(4, 2e-3)
    thorough: LpEffort = LpEffort(20, 3e-4)
    equal_stages: LpEffort = LpEffort(40, 1e-4)
    equal_actions: int = 5000
    lp_step: float = 0.3
    max_thorough: int = 12
    enough_gap: float = 0.03
    memory_shares: tuple[float, ...] = (1.0, 0.995, 0.98, 0.95, 0.9)
    descents: int = 4
    long_descents: int = 2
    descent_steps: int = 40
    descent_shifts: tuple[int, ...] = (-2, -1, 1, 2)
    descent_microbatches: int = 3
    near: float = 0.12
    far: float = 0.25
    far_actions: int = 8000
    near_reordered: float = 0.02
    max_polished: int = 100
    max_polished_passes: float = float("inf")
    enough_polished: float = -1.0
    enough_moved: float = 0.04
    begins: int = 40
    begins_polished: int = 2
    longest_run: int = 6
    max_runs: int = 300
    price_shares: tuple[float, ...] = (0.0, 0.25, 1.0)
    dense_shares: tuple[float, ...] = (1.0, 1000.0)
    much_faster: float = 0.02
    near_placed: float = 0.05
    placed_meshes: int = 8
    offload_shares: tuple[float, ...] = (1.0, 0.5, 0.25)
    exact_units: int = 8
    exact_choices: int = 2000
    few_choices: int = 200
    least_seq: int = 64
    max_clusters: int = 3
    max_parts: int = 2

    def descents_of(self, num_actions: int) -> int:
        """Return how often a candidate is cut by descent. num_actions: forwards and backwards of
        its schedule."""
        long = num_actions > self.far_actions
        return min(self.descents, self.long_descents) if long else self.descents

    def followed(self, pp: int, num_actions: int) -> int:
        """Return how many micro-batches a descent follows one by one; of a long schedule as many as
        it has ranks."""
        return pp * (1 if num_actions > self.far_actions else self.descent_microbatches)


BUDGET = SearchBudget()
# By name, of which users choose one. What they give up of a step is what benchmarks/README.md says.
EFFORTS = {
    "fast": SearchBudget(
        effort="fast",
        long_row=1.0,
        scarce_devices=0,
        max_simulated=64,
        worth=0.05,
        worth_where_wide=0.03,
        wide=0.08,
        quick=LpEffort(2, 4e-3),
        max_thorough=3,
        enough_gap=0.08,
        memory_shares=(1.0, 0.95),
        near_reordered=0.0,
        descents=2,
        near=0.08,
        max_polished=30,
        enough_polished=0.08,
        begins=0,
        max_runs=0,
        price_shares=(),
    ),
    "normal": SearchBudget(
        effort="normal",
        worth=0.005,
        memory_shares=(1.0, 0.98, 0.9),
        near_reordered=0.01,
        max_polished_passes=1e6,
        price_shares=(0.0, 1.0),
        near_placed=0.0,
        placed_meshes=1,
    ),
    "best": BUDGET,
}
